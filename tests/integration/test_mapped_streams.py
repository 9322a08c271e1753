"""Messages in layouts that other programs chose are joined, each pair once, whatever dies."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.joiner_application import (
    ALIGNS,
    BASE_MS,
    Application,
    Entry,
    application,
    found_of,
    things_over_all_units,
)

STREAMS = """
[[stream]]
name = "speed"
topic = "{name}.plant"
key = "$.machine.id"
time = "$.ts"
value = "$.spindle['rpm (actual)']"
id = "$.msgId"
where = "$.type == 'spindle'"

[[stream]]
name = "torque"
topic = "{name}.plant"
key = "$.machine.id"
time = "$.ts"
value = "$.spindle.torque"
where = "$.type == 'spindle' && $.spindle.torque"

[[stream]]
name = "command"
topic = "{name}.orders"
key = "kafka.key"
time = "$.payload.after.at"
time_unit = "us"
value = "$.payload.after.rpm"
where = "$.payload.op != 'd'"
"""


def entries(seed: int, count: int) -> Iterator[tuple[str, Entry]]:
    """Yield the topic and the content of ``count`` messages in three layouts.

    Some of them are damaged, late, tombstones, or delivered twice.
    """
    draw, clock = random.Random(seed), BASE_MS
    things = things_over_all_units(6)
    sent: list[tuple[str, Entry]] = []
    for number in range(count):
        clock += draw.choice([0, 1, 40, 700])
        thing, chance = draw.choice(things), draw.random()
        time_ms = clock - draw.choice([0] * 20 + [900, 5_000, 60_000])
        if chance < 0.6:
            spindle = {"rpm (actual)": draw.randrange(3000)}
            if draw.random() < 0.5:
                spindle["torque"] = draw.randrange(90)
            content = {"type": draw.choice(["spindle", "spindle", "door"]), "machine": {"id": thing}, "msgId": number}
            sent.append(("plant", Entry(thing, json.dumps(content | {"ts": time_ms, "spindle": spindle}).encode())))
        elif chance < 0.9:
            after = {"machine": thing, "at": time_ms * 1000 + draw.randrange(1000), "rpm": str(draw.randrange(3000))}
            content = {"payload": {"op": draw.choice("cud"), "before": None, "after": after}}
            sent.append(("orders", Entry(thing, json.dumps(content).encode())))
        elif chance < 0.95 and sent:
            sent.append(draw.choice(sent[-40:]))
        else:
            value = draw.choice([None, b"", b"{", b"[1]", b'{"type":"spindle"}'])
            sent.append((draw.choice(["plant", "orders"]), Entry(thing, value)))
        yield sent[-1]


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


def test_messages_of_other_programs_are_joined_once(app: Application) -> None:
    app.aligns = STREAMS.replace("{name}", app.name) + ALIGNS
    first = app.start()
    first.wait_for_units()
    sent = [*entries(1, 3_000)]
    for begin in range(0, len(sent), 500):
        for topic in ("plant", "orders"):
            app.produce([entry for to, entry in sent[begin : begin + 500] if to == topic], topic)
        if begin == 1_000:
            first.kill()
            first = app.start(instance="two")
    app.wait_until_through()
    findings = app.verify()
    assert found_of(findings, "results", "power") > 100
    assert found_of(findings, "results", "gap") > 100
    assert found_of(findings, "aligned rows", "table") > 100
    assert found_of(findings, "late records", "gap") > 10
    assert first.stop() == 0
