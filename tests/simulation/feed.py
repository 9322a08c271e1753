"""The input of a history, generated from a seed: records, watermarks and invalid messages, some in transactions.

A feed is a list of steps, so that faults and incidents can happen between any two of them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from broker.partitioner import partition_of
from broker.wire.arrow.rows import encode_columns
from joiner.runtime.settings import JoinerSettings

BASE_MS: Final = 1_554_096_460_000
"""The wall-clock time at which a history begins. Event times start near it."""
QUANTITIES: Final = ("speed", "torque", "command")
APPLICATION: Final = "sim"

_FIELDS: Final = ("thing", "quantity", "phenomenonTime", "result", "id")
_TOGETHER: Final = 0.7
"""How likely a record joins the message before it."""

_FUNCTIONS: Final = 0.3
"""How likely the aligns of an application have a function."""

_ROOT: Final = "tests.simulation.row_functions:root"

_GRIDS: Final = 0.4
"""How likely an application has a grid, and how likely a grid has the value of a column as its result."""

_POWER: Final = {"name": "power", "left": "speed", "right": "torque", "function": "product", "output": "p"}
_GAP: Final = {
    "name": "gap",
    "left": "command",
    "right": "speed",
    "function": "difference",
    "output": "g",
    "tolerance": "150ms",
    "lateness": ["1s", "500ms"],
    "emit_unmatched": "both",
}
_APART: Final = {
    "name": "apart",
    "left": {"topic": "machine.left"},
    "right": {"topic": "machine.data", "quantity": "torque"},
    "output": "a",
    "lateness": "300ms",
}


_SPINDLE: Final = {
    "name": "spindle",
    "driver": "torque",
    "lateness": "1s",
    # So that rows come out although a history has few records of each thing.
    "watermark_scope": "partition",
    "columns": {
        "speed": {"rule": "linear", "tolerance": "1s", "lateness": "1s"},
        "near": {"stream": "speed", "rule": "nearest", "tolerance": "300ms", "on_missing": "drop"},
    },
}
_TABLE: Final = {
    "name": "table",
    "driver": {"topic": "machine.data", "quantity": "command"},
    "lateness": "500ms",
    "columns": {"left": {"stream": {"topic": "machine.left"}, "rule": "next", "tolerance": "300ms"}},
}
_REGULAR: Final = {
    "name": "regular",
    "grid": {"every": "250ms", "max_gap": "4s"},
    "watermark_scope": "partition",
    "columns": {
        "speed": {"rule": "linear", "tolerance": "2s", "lateness": "1s"},
        "torque": {"lateness": "1s", "on_missing": "drop"},
    },
}
_SINGLE: Final = {
    "name": "single",
    "grid": {"every": "100ms", "origin": "2100-01-01T00:00:00.03Z", "max_gap": "2s"},
    "watermark_scope": "partition",
    "columns": {"speed": {"lateness": "1s"}},
}
_LAST: Final = {"name": "last", "driver": "speed", "columns": {"torque": {"tolerance": "1s"}}}


class Step(NamedTuple):
    """A record for a partition, or the end of a transaction. ``within``: the number of the transaction, or -1."""

    topic: str
    unit: int
    key: bytes | None
    value: bytes | None
    within: int = -1
    ends_as: str = ""


def make_settings(draw: random.Random) -> JoinerSettings:
    """Return the settings of a history: a few units, small or unlimited batches, frequent or rare snapshots."""
    joins = draw.choice([[_POWER], [_POWER, _GAP], [_GAP], [_APART], [_APART, _POWER]])
    application: dict[str, Any] = {
        "name": APPLICATION,
        "batch_records_max": draw.choice([2, 6, 10_000, 10_000]),
        "failure_timeout": "6s",
        "snapshot_records": draw.choice([1, 5, 15, 200_000]),
        "snapshot_interval": draw.choice(["1s", "5s", "60s"]),
    }
    topics: dict[str, Any] = {"partitions": draw.choice([1, 2])}
    # Not drawn from the same numbers, so that the histories of a seed do not depend on it.
    apart = copied(draw)
    application["results"] = "compact" if application["snapshot_interval"] == "5s" else apart.choice(["full", "arrow"])
    topics["data_format"] = apart.choice(["json", "json", "json", "arrow"])
    # An application with aligns writes its rows as JSON.
    chosen = apart.choice([[], [_SPINDLE], [_TABLE], [_LAST], [_SPINDLE, _LAST]])
    if apart.random() < _GRIDS:
        regular = _REGULAR | ({"result": "torque"} if apart.random() < _GRIDS else {})
        chosen = [*chosen, apart.choice([regular, _SINGLE, _SINGLE])]
    if apart.random() < _FUNCTIONS:
        chosen = [align if "result" in align else align | {"function": _ROOT} for align in chosen]
    aligns = [] if application["results"] == "arrow" else chosen
    if (interval := apart.choice([None, "100ms", "1s"])) is not None:
        application["watermark_interval"] = interval
    application["standbys"] = apart.choice([0, 0, 0, 1])
    # Longer than a turn may wait, see `stage`.
    application["commit_interval"] = apart.choice(["200ms", "200ms", "200ms", "1s"])
    given = {"topics": topics, "application": application, "join": joins, "align": aligns}
    return JoinerSettings.model_validate(given)


def make_feed(draw: random.Random, settings: JoinerSettings, count: int) -> list[Step]:
    """Return about ``count`` steps for the inputs of an application."""
    apart = copied(draw)
    steps = _Feeder(draw, settings).steps(count)
    return _in_batches(apart, steps) if settings.topics.has_rows else steps


def copied(draw: random.Random) -> random.Random:
    """Return a generator of the same numbers, so that something new can be drawn without changing what is drawn."""
    copy = random.Random()
    copy.setstate(draw.getstate())
    return copy


def _in_batches(draw: random.Random, steps: Iterable[Step]) -> list[Step]:
    """Return the steps with records as Arrow, some of them together in one message."""
    found: list[tuple[Step, list[dict[str, Any]]]] = []
    for step in steps:
        content = json.loads(step.value) if step.value and step.value.startswith(b'{"thing": ') else {}
        if "result" not in content:
            found.append((step, []))
            continue
        last, rows = found[-1] if found else (step, [])
        if rows and last[:2] + last[4:] == step[:2] + step[4:] and draw.random() < _TOGETHER:
            rows.append(content)
        else:
            found.append((step, [content]))
    return [step._replace(key=None, value=_message(rows)) if rows else step for step, rows in found]


def _message(rows: Sequence[dict[str, Any]]) -> bytes:
    thing, quantity, time, result, ids = ([row[name] for row in rows] for name in _FIELDS)
    return encode_columns(thing, quantity, time, result, ids)


class _Feeder:
    def __init__(self, draw: random.Random, settings: JoinerSettings) -> None:
        self._draw = draw
        self._units = settings.topics.partitions
        self._topics = settings.input_topics
        self._things = [str(number) for number in range(2 * self._units)]
        self._clock = {thing: BASE_MS + draw.randrange(2000) for thing in self._things}
        self._transactions = draw.random() < 0.6
        self._open: list[int] = []
        self._begun = 0
        self._sent: list[Step] = []

    def steps(self, count: int) -> list[Step]:
        found: list[Step] = []
        for number in range(count):
            if self._transactions:
                found += self._turn_transactions()
            step = self._step(number)
            self._sent.append(step)
            within = self._draw.choice(self._open) if self._open and self._draw.random() < 0.5 else -1
            found.append(step._replace(within=within))
        return found + [self._end(number) for number in list(self._open)]

    def _turn_transactions(self) -> list[Step]:
        draw = self._draw
        if not self._open and draw.random() < 0.12:
            self._open.append(self._begun)
            self._begun += 1
        elif self._open and draw.random() < 0.25:
            return [self._end(draw.choice(self._open))]
        return []

    def _end(self, number: int) -> Step:
        self._open.remove(number)
        return Step("", 0, None, None, number, self._draw.choice(["committed", "committed", "aborted"]))

    def _step(self, number: int) -> Step:
        draw = self._draw
        thing, chance = draw.choice(self._things), draw.random()
        unit = partition_of(thing.encode(), self._units)
        topic = draw.choice(self._topics)
        if chance < 0.06 and self._sent:
            return draw.choice(self._sent[-8:])
        if chance < 0.12:
            return self._odd(topic, unit, thing)
        if chance < 0.17:
            watermark: dict[str, Any] = {"mark": self._clock[thing] - draw.randrange(1500)}
            if draw.random() < 0.7:
                watermark["thing"] = thing
            if draw.random() < 0.7:
                watermark["quantity"] = draw.choice(QUANTITIES)
            return Step(topic, unit, thing.encode(), json.dumps(watermark).encode())
        self._clock[thing] += draw.choice([0, 0, 1, 130, 700])
        back = draw.choice([0, 200, 900, 2500]) if chance > 0.85 else 0
        return self._record(topic, unit, thing, self._clock[thing] - back, f"e{number}")

    def _record(self, topic: str, unit: int, thing: str, time_ms: int, identity: str) -> Step:
        content = {
            "thing": thing,
            "quantity": self._draw.choice([*QUANTITIES, *QUANTITIES, "temperature"]),
            "phenomenonTime": time_ms,
            "result": round(self._draw.uniform(-50, 500), 1),
            "id": identity,
        }
        return Step(topic, unit, thing.encode(), json.dumps(content).encode())

    def _odd(self, topic: str, unit: int, thing: str) -> Step:
        """Return a message that the joiner rejects because of its format, partition or event time."""
        kind = self._draw.randrange(4)
        if kind == 0:
            return Step(topic, unit, None, self._draw.choice([b"{", b"", None, b'{"thing":"R0"}']))
        if kind == 1:
            return self._record(topic, (unit + 1) % self._units, thing, self._clock[thing], "elsewhere")
        ahead_ms = self._draw.choice([10**10, 90_000_000, 86_000_000])
        return self._record(topic, unit, thing, self._clock[thing] + ahead_ms, "future")
