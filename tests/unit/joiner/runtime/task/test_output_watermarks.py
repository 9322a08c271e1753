"""Which watermarks does a unit write to its result topic, and in which form?"""

from __future__ import annotations

import json
from typing import Any

import pytest

from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.operators import output_watermarks
from joiner.runtime.task.unit import Unit
from tests.unit.joiner.runtime.joiner_inputs import BASE_MS, DATA, GAP, POWER, apply, make_settings, message, record


def unit_of(settings: JoinerSettings) -> Unit:
    return Unit(settings, 0, {DATA: 0})


def taken(unit: Unit) -> list[tuple[bytes | None, dict[str, Any]]]:
    """Return the key and the content of every watermark that has risen."""
    return [(key, json.loads(value)) for key, value in unit.output_watermarks.take().each()]


def pair(offset: int, time_ms: int, thing: str = "a") -> list[Any]:
    """Return a speed and a torque of the same time."""
    return [record(offset, "speed", time_ms, thing=thing), record(offset + 1, "torque", time_ms, thing=thing)]


def test_a_watermark_names_the_output_and_the_thing_and_is_written_once() -> None:
    unit = unit_of(make_settings())
    apply(unit, pair(0, BASE_MS))
    assert taken(unit) == [(b"a", {"mark": BASE_MS, "quantity": "p", "thing": "a"})]
    assert taken(unit) == []
    apply(unit, [record(2, "speed", BASE_MS + 11)])
    assert taken(unit) == []
    apply(unit, [record(3, "torque", BASE_MS + 21)])
    assert [content["mark"] for _, content in taken(unit)] == ["2019-04-01T05:27:40.0055Z"]


def test_a_watermark_for_all_things_comes_first_and_those_of_its_things_only_if_they_are_later() -> None:
    unit = unit_of(make_settings())
    apply(unit, [*pair(0, BASE_MS), *pair(2, BASE_MS + 50, thing="b"), message(4, {"mark": BASE_MS + 20})])
    assert taken(unit) == [
        (b"", {"mark": BASE_MS + 10, "quantity": "p"}),
        (b"b", {"mark": BASE_MS + 50, "quantity": "p", "thing": "b"}),
    ]


def test_a_thing_that_was_never_seen_is_covered_by_the_watermark_for_all_things_alone() -> None:
    unit = unit_of(make_settings())
    apply(unit, [message(0, {"mark": BASE_MS})])
    assert taken(unit) == [(b"", {"mark": BASE_MS, "quantity": "p"})]
    unit = unit_of(make_settings())
    apply(unit, [record(0, "speed", BASE_MS), message(1, {"mark": BASE_MS, "thing": "b"})])
    assert taken(unit) == [(b"b", {"mark": BASE_MS, "quantity": "p", "thing": "b"})]


@pytest.mark.parametrize(
    ("unit", "times", "mark"),
    [
        ("ms", (0, 1), "1970-01-01T00:00:00.0005Z"),
        ("ms", (0, 4), 2),
        ("ms", (-3, 0), "1969-12-31T23:59:59.9985Z"),
        ("ns", (0, 1), 0),
        ("ns", (-1, 0), -1),
        ("s", (3, 4), "1970-01-01T00:00:03.5Z"),
    ],
)
def test_a_mark_is_exact_in_every_unit_and_half_a_nanosecond_is_rounded_down(
    unit: str, times: tuple[int, int], mark: Any
) -> None:
    found = unit_of(make_settings(POWER | {"driver": "right", "direction": "backward"}, events={"time_unit": unit}))
    apply(found, [record(0, "speed", times[0]), record(1, "torque", times[1])])
    assert [content["mark"] for _, content in taken(found)] == [mark]


def test_each_output_has_watermarks_of_its_own() -> None:
    unit = unit_of(make_settings(POWER, GAP))
    apply(unit, pair(0, BASE_MS))
    assert [content["quantity"] for _, content in taken(unit)] == ["p"]
    apply(unit, [record(2, "command", BASE_MS - 50)])
    assert [(content["quantity"], content["mark"]) for _, content in taken(unit)] == [("g", BASE_MS - 25)]


def test_the_watermark_of_an_align_is_its_oldest_waiting_row() -> None:
    settings = make_settings(align=[{"name": "table", "driver": "torque", "columns": {"speed": {}}}])
    unit = unit_of(settings)
    apply(unit, [record(0, "torque", BASE_MS), record(1, "torque", BASE_MS + 10)])
    assert taken(unit) == [(b"a", {"mark": BASE_MS, "quantity": "table", "thing": "a"})]
    apply(unit, [record(2, "speed", BASE_MS + 5)])
    assert (b"a", {"mark": BASE_MS + 10, "quantity": "table", "thing": "a"}) in taken(unit)


def test_messages_beside_results_in_arrow_have_no_key() -> None:
    unit = unit_of(make_settings(application={"results": "arrow"}))
    apply(unit, [*pair(0, BASE_MS), message(2, {"mark": BASE_MS})])
    assert taken(unit) == [(None, {"mark": BASE_MS, "quantity": "p"})]


def test_of_too_many_watermarks_each_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_watermarks, "WATERMARKS_MAX", 2)
    unit = unit_of(make_settings())
    things = "abcde"
    apply(unit, [one for at, thing in enumerate(things) for one in pair(2 * at, BASE_MS, thing)])
    found = [[content["thing"] for _, content in taken(unit)] for _ in range(4)]
    assert found == [["a", "b"], ["c", "d"], ["e"], []]
    # All have risen again, and the last one is not left behind by the first ones.
    for offset in (10, 20):
        apply(unit, [one for at, thing in enumerate(things) for one in pair(offset + 2 * at, BASE_MS + offset, thing)])
        found.append([content["thing"] for _, content in taken(unit)])
    found += [[content["thing"] for _, content in taken(unit)] for _ in range(3)]
    assert found[-5:] == [["e", "a"], ["b", "c"], ["d", "e"], ["a"], []]


def test_a_restored_unit_writes_its_watermarks_once_more() -> None:
    settings = make_settings()
    unit = unit_of(settings)
    apply(unit, pair(0, BASE_MS))
    wanted = taken(unit)
    assert taken(Unit.restore(settings, 0, unit.snapshot())) == wanted
    assert taken(unit) == []


def test_a_thing_with_the_number_of_a_forgotten_one_has_watermarks_of_its_own() -> None:
    unit = unit_of(make_settings(POWER | {"tolerance": "1ms"}))
    apply(unit, pair(0, BASE_MS + 50))
    assert len(taken(unit)) == 1
    apply(unit, [message(2, {"mark": BASE_MS + 100})])
    assert len(taken(unit)) == 1
    # The first thing is idle, and the snapshot gives its number back.
    unit.snapshot()
    apply(unit, pair(3, BASE_MS + 200, thing="b"))
    assert taken(unit)[-1] == (b"b", {"mark": BASE_MS + 200, "quantity": "p", "thing": "b"})


def grid_unit(every: str) -> Unit:
    grid = {"every": every, "max_gap": "10s"} if every == "100ms" else {"every": every}
    align = {"name": "table", "grid": grid, "columns": {"speed": {}, "torque": {}}}
    return unit_of(JoinerSettings.model_validate({"topics": {"partitions": 1}, "align": [align]}))


def rows_in(unit: Unit, *sent: Any) -> list[int]:
    """Return the times of the rows, in ms."""
    return [json.loads(value)["phenomenonTime"] for _, value in apply(unit, sent).joined.each()]


def test_the_watermark_of_a_grid_is_not_ahead_of_its_records_because_readers_may_refuse_it() -> None:
    unit = grid_unit("7d")
    apply(unit, pair(0, BASE_MS))
    assert taken(unit) == [(b"a", {"mark": "2019-04-01T05:27:40.000000001Z", "quantity": "table", "thing": "a"})]
    apply(unit, [message(2, {"mark": BASE_MS + 50})])
    assert taken(unit) == [(b"", {"mark": BASE_MS + 50, "quantity": "table"})]


def test_a_thing_that_stopped_longer_ago_than_the_largest_gap_does_not_hold_up_the_watermark_of_a_grid() -> None:
    unit = grid_unit("100ms")
    assert rows_in(unit, *pair(0, BASE_MS), message(2, {"mark": BASE_MS + 10_000})) == [BASE_MS]
    assert taken(unit) == [(b"", {"mark": BASE_MS + 100, "quantity": "table"})]
    apply(unit, [message(3, {"mark": BASE_MS + 10_001})])
    assert taken(unit) == [(b"", {"mark": BASE_MS + 10_001, "quantity": "table"})]
    assert rows_in(unit, *pair(4, BASE_MS + 10_100), message(6, {"mark": BASE_MS + 10_101})) == [BASE_MS + 10_100]


def test_a_pause_that_a_record_may_still_divide_holds_up_the_watermark_of_a_grid() -> None:
    unit = grid_unit("100ms")
    apply(unit, [*pair(0, BASE_MS), record(2, "speed", BASE_MS + 10_100), message(3, {"mark": BASE_MS + 10_000})])
    assert taken(unit) == [(b"", {"mark": BASE_MS + 100, "quantity": "table"})]
    assert rows_in(unit, record(4, "torque", BASE_MS + 10_000))[0] == BASE_MS + 100
