"""Is what a unit holds for each thing counted right, and are the streams that it waits for those that matter?"""

from __future__ import annotations

import random
from typing import Any

import pytest

from joiner.core.frontier import NEVER
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.unit import Unit
from tests.unit.joiner.runtime.joiner_inputs import (
    BASE_MS,
    DATA,
    GAP,
    POWER,
    Message,
    apply,
    make_settings,
    message,
    record,
)

MS = 1_000_000
END_MS = BASE_MS + 3_600_000
QUANTITIES = ("speed", "torque", "command")
ALIGN: dict[str, Any] = {
    "name": "table",
    "driver": "torque",
    "columns": {"speed": {"rule": "linear"}, "near": {"stream": "command", "rule": "nearest"}, "command": {}},
}
GRID = ALIGN | {"driver": None, "grid": {"every": "70ms", "origin": "1970-01-01T00:00:00.000500Z"}}
"""No record is at a tick. At a tick, a stream waits for its own next record, too."""
APPLICATIONS = {
    "joins": make_settings(POWER, GAP),
    "joins of a stream in order": make_settings(POWER | {"watermark_scope": "partition"}),
    "joins with a tolerance": make_settings(POWER | {"tolerance": "1s", "driver": "left", "direction": "backward"}),
    "an align": JoinerSettings.model_validate({"topics": {"partitions": 1}, "align": [ALIGN]}),
    "a grid": JoinerSettings.model_validate({"topics": {"partitions": 1}, "align": [GRID]}),
}


def seeded(seed: int, count: int, *, is_in_order: bool) -> list[Message]:
    """Return records in the order of their times, of each thing or of all; some streams fall silent on the way."""
    draw = random.Random(seed)
    clock = dict.fromkeys("abc", BASE_MS)
    silent = {(thing, draw.choice(QUANTITIES)): draw.randrange(count) for thing in clock}
    sent = list[Message]()
    while len(sent) < count:
        thing, quantity = draw.choice("abc"), draw.choice(QUANTITIES)
        if len(sent) < silent.get((thing, quantity), count):
            clock[thing] += draw.choice([0, 1, 40, 300])
            if is_in_order:
                clock = dict.fromkeys("abc", clock[thing])
            sent.append(record(len(sent), quantity, clock[thing], float(len(sent)), thing))
    return sent


def awaited(unit: Unit, settings: JoinerSettings) -> set[tuple[str, str]]:
    """Return the things and the quantities that are waited for."""
    return {
        (thing, str(settings.selection(operator.streams[stream])["quantity"]))
        for operator in settings.operators
        for stream, times_ns in unit.held_by_key()[operator.name].awaited_ns.items()
        for thing, ns in zip(unit.held_by_key()[operator.name].things, times_ns.tolist(), strict=True)
        if ns != NEVER
    }


def results_after(unit: Unit, first: int, streams: set[tuple[str, str]]) -> list[bytes]:
    """Return the results that watermarks for these things and quantities complete."""
    watermarks = [
        message(first + at, {"mark": END_MS, "quantity": quantity, "thing": thing})
        for at, (thing, quantity) in enumerate(sorted(streams))
    ]
    return sorted(apply(unit, watermarks).joined.values.each()) if watermarks else []


@pytest.mark.parametrize("settings", APPLICATIONS.values(), ids=APPLICATIONS)
@pytest.mark.parametrize("seed", range(4))
def test_nothing_waits_once_all_that_is_waited_for_has_come(settings: JoinerSettings, seed: int) -> None:
    sent = seeded(seed, 150, is_in_order=any(join.watermark_scope == "partition" for join in settings.join))
    all_streams = {(thing, quantity) for thing in "abc" for quantity in QUANTITIES}
    completed = 0
    for count in range(1, len(sent), 7):
        one, other = Unit(settings, 0, {DATA: 0}), Unit(settings, 0, {DATA: 0})
        for unit in (one, other):
            apply(unit, sent[:count])
        found = results_after(one, count, awaited(one, settings))
        assert found == results_after(other, count, all_streams)
        completed += len(found)
    assert completed > 10


@pytest.mark.parametrize("settings", APPLICATIONS.values(), ids=APPLICATIONS)
def test_each_held_record_is_counted_for_its_thing(settings: JoinerSettings) -> None:
    unit = Unit(settings, 0, {DATA: 0})
    is_in_order = any(join.watermark_scope == "partition" for join in settings.join)
    sent = seeded(7, 150, is_in_order=is_in_order)
    for begin in range(0, len(sent), 10):
        apply(unit, sent[begin : begin + 10])
        assert sum(int(one.totals().sum()) for one in unit.held_by_key().values()) >= unit.held() > 0
        again = Unit.restore(settings, 0, unit.snapshot())
        assert {name: shown(found) for name, found in again.held_by_key().items()} == {
            name: shown(found) for name, found in unit.held_by_key().items()
        }
    joins = {name: found for name, found in unit.held_by_key().items() if name in unit.join_summaries()}
    for name, found in joins.items():
        summary = unit.join_summaries()[name]
        assert [int(found.held[side].sum()) for side in ("left", "right")] == [summary.held_left, summary.held_right]


def shown(found: Any) -> dict[str, Any]:
    """Return what is held by thing, because a restored unit may number its things in another way."""
    return {
        thing: [[int(column[at]) for column in by_stream.values()] for by_stream in found[1:]]
        for at, thing in enumerate(found.things)
    }


def test_a_silent_stream_is_waited_for_and_one_that_has_passed_is_not() -> None:
    unit = Unit(make_settings(), 0, {DATA: 0})
    apply(unit, [record(0, "speed", BASE_MS, 1.0, "a"), record(1, "speed", BASE_MS + 5, 1.0, "a")])
    apply(unit, [record(2, "speed", BASE_MS, 1.0, "b"), record(3, "torque", BASE_MS + 9, 1.0, "b")])
    found = unit.held_by_key()["power"]
    a, b = (found.things.index(thing) for thing in "ab")
    assert (found.held["left"][a], found.held["right"][a]) == (2, 0)
    assert (found.frontier_ns["left"][a], found.frontier_ns["right"][a]) == ((BASE_MS + 5) * MS, NEVER)
    assert (found.awaited_ns["left"][a], found.awaited_ns["right"][a]) == (NEVER, (BASE_MS + 5) * MS)
    assert (found.awaited_ns["left"][b], found.awaited_ns["right"][b]) == ((BASE_MS + 9) * MS, NEVER)


def test_streams_at_the_same_time_wait_for_each_other_because_further_records_at_it_may_follow() -> None:
    unit = Unit(make_settings(), 0, {DATA: 0})
    apply(unit, [record(0, "speed", BASE_MS), record(1, "torque", BASE_MS)])
    found = unit.held_by_key()["power"]
    assert [int(times[0]) for times in found.awaited_ns.values()] == [BASE_MS * MS] * 2


def test_a_grid_shows_the_ticks_that_wait() -> None:
    settings = APPLICATIONS["a grid"]
    unit = Unit(settings, 0, {DATA: 0})
    apply(unit, [record(0, "speed", BASE_MS), record(1, "speed", BASE_MS + 700)])
    found = unit.held_by_key()["table"]
    held = {stream: int(of_stream[0]) for stream, of_stream in found.held.items()}
    assert held == {"grid": 10, "speed": 2, "near": 0, "command": 0}
    assert found.totals().tolist() == [12]
    assert [stream for stream, times in found.awaited_ns.items() if times[0] != NEVER] == ["near", "command"]
