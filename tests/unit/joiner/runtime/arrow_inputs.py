"""Arrow messages of many records, for tests."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from broker.wire.arrow.rows import encode_columns
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.decoding.messages import Messages
from tests.unit.joiner.runtime.joiner_inputs import BASE_MS, DATA, GAP, make_settings

WHOLE: dict[str, Any] = {"name": "whole", "left": {"topic": "a"}, "right": {"topic": DATA}, "output": "w"}
GAP_ALL = {**GAP, "tolerance": "200ms", "lateness": ["1s", "300ms"], "emit_unmatched": "both"}

Row = dict[str, Any]


def settings_of(data_format: str, *joins: dict[str, Any], results: str = "full", **application: Any) -> JoinerSettings:
    topics = {"partitions": 1, "data_format": data_format}
    found = make_settings(*joins, application={"results": results, **application})
    return found.model_copy(update={"topics": found.topics.model_copy(update=topics)})


def seeded_rows(seed: int, count: int) -> list[Row]:
    """Return records with ties, disorder, repeated ids, unselected quantities, and watermarks (with ``mark``)."""
    draw = random.Random(seed)
    clock, rows = BASE_MS, list[Row]()
    for number in range(count):
        chance = draw.random()
        if chance < 0.05:
            rows.append({"mark": clock - draw.randrange(1500), "quantity": draw.choice(["speed", "torque", "command"])})
        elif chance < 0.15 and rows:
            rows.append(dict(draw.choice(rows[-5:])))
        else:
            clock += draw.choice([0, 0, 10, 400])
            rows.append(
                {
                    "thing": draw.choice("ab"),
                    "quantity": draw.choice(["speed", "torque", "command", "other"]),
                    "phenomenonTime": clock - draw.choice([0, 0, 0, 200, 2000]),
                    "result": draw.choice([1.0, 2.5, 1e308]),
                    "id": f"e{number}",
                }
            )
    return rows


def as_json(rows: Sequence[Row]) -> Messages:
    values = [json.dumps(row).encode() for row in rows]
    return Messages.of(range(len(rows)), [BASE_MS] * len(rows), values)


def arrow_message(rows: Sequence[Row], *, with_ids: bool = True) -> bytes:
    names = ("thing", "quantity", "phenomenonTime", "result")
    thing, quantity, time, result = ([row[name] for row in rows] for name in names)
    return encode_columns(thing, quantity, time, result, [row["id"] for row in rows] if with_ids else None)


def as_arrow(rows: Sequence[Row], draw: random.Random, most: int) -> tuple[Messages, list[str]]:
    """Return the rows in messages of up to ``most`` rows, and the position of each row."""
    values: list[bytes] = []
    positions: list[str] = []
    waiting: list[Row] = []

    def flush() -> None:
        if waiting:
            values.append(arrow_message(waiting))
            waiting.clear()

    for row in rows:
        if "mark" in row:
            flush()
            positions.append(f"{len(values)}.0")
            values.append(json.dumps(row).encode())
            continue
        positions.append(f"{len(values)}.{len(waiting)}")
        waiting.append(row)
        if len(waiting) >= draw.randint(1, most):
            flush()
    flush()
    return Messages.of(range(len(values)), [BASE_MS] * len(values), values), positions
