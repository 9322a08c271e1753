"""Are the rows of a unit's grid those of the definition, whatever the batches, snapshots and replays?"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from broker.wire.records import decode_data, decode_joined
from joiner.runtime.model import UnitStopped
from joiner.runtime.task.unit import Unit
from tests.unit.joiner.runtime.joiner_inputs import (
    BASE_MS,
    DATA,
    POWER,
    Message,
    apply,
    batch,
    lines,
    message,
    record,
)
from tests.unit.joiner.runtime.task.test_unit_align import (
    Definition,
    check_every_cut,
    rows_of,
    seeded_messages,
    settings_of,
)

TABLE: dict[str, Any] = {
    "name": "table",
    "grid": {"every": "70ms"},
    "columns": {
        "speed": {"rule": "linear", "tolerance": "900ms"},
        "heading": {"stream": "angle", "rule": "linear", "period": 360.0, "lateness": "300ms"},
        "torque": {"lateness": "2s"},
        "next": {"stream": "torque", "rule": "next", "tolerance": "1s"},
        "near": {"stream": "speed", "rule": "nearest", "tolerance": "500ms"},
    },
}
FEW = {"torque": TABLE["columns"]["torque"], "speed": {}}
VARIANTS = [
    TABLE | {"watermark_scope": "partition"},
    TABLE | {"columns": FEW},
    TABLE | {"columns": FEW, "grid": {"every": "130ms", "origin": "2100-01-01T00:00:00.001Z", "max_gap": "400ms"}},
    TABLE | {"columns": FEW | {"speed": {"on_missing": "drop", "tolerance": "600ms"}}, "result": "speed"},
]
VALUES_MAX = "joiner.runtime.task.operators.unit_grid._VALUES_MAX"


def tick_of(row: dict[str, Any]) -> tuple[str, int]:
    """Return the thing and the number of the tick in the id of a row."""
    _, _, rest = row["id"].split(":", 2)
    thing, _, tick = rest.rpartition(":")
    return thing, int(tick)


@pytest.mark.parametrize("align", VARIANTS)
@pytest.mark.parametrize("seed", range(3))
def test_rows_are_those_of_the_definition(align: dict[str, Any], seed: int) -> None:
    settings, sent = settings_of(align), seeded_messages(seed, 80)
    unit = Unit(settings, 0, {DATA: 0})
    given = rows_of(apply(unit, sent))
    rows = {tick_of(row): row for row in given}
    wanted = Definition(settings, sent)
    expected = {(wanted.things[key], tick): row for (key, tick), row in wanted.grid_rows.items()}
    assert rows.keys() == expected.keys()
    assert len(rows) == len(given) == unit.counts["rows"] > 2
    (of,) = settings.align
    assert of.grid is not None
    for (thing, tick), row in rows.items():
        assert list(row) == ["thing", "quantity", "phenomenonTime", "result", "id", "values"]
        assert (row["thing"], row["quantity"], row["id"]) == (thing, "table", f"table:0:{thing}:{tick}")
        assert row["phenomenonTime"] * 10**6 == of.grid.origin + tick * of.grid.every
        values = row["values"]
        has_value = sum(value is not None for value in values.values())
        assert row["result"] == (values[of.result] if of.result else has_value)
        assert list(values) == list(align["columns"])
        for found, value in zip(values.values(), expected[thing, tick], strict=True):
            assert (found is None) == (value is None)
            near = found == value or math.isclose(found, value or 0.0, rel_tol=1e-9, abs_tol=1e-9)
            assert near or abs(found - (value or 0.0)) == 360


def test_the_seeds_bring_nulls_and_negative_ticks() -> None:
    rows = [
        row
        for align in VARIANTS
        for seed in range(3)
        for row in rows_of(apply(Unit(settings_of(align), 0, {DATA: 0}), seeded_messages(seed, 80)))
    ]
    assert any(None in row["values"].values() for row in rows)
    assert any(None not in row["values"].values() for row in rows)
    assert any(tick_of(row)[1] < 0 for row in rows)


@pytest.mark.parametrize("align", VARIANTS)
def test_restore_or_silent_replay_at_any_point_changes_nothing(align: dict[str, Any]) -> None:
    check_every_cut(settings_of(align, join=[POWER]), seeded_messages(7))


@pytest.mark.parametrize("align", VARIANTS)
@pytest.mark.parametrize("values_max", [1, 20, 1_000_000])
def test_batches_and_steps_of_any_size_bring_forth_the_same_bytes(
    align: dict[str, Any], values_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, sent = settings_of(align), seeded_messages(100, 150)
    whole = Unit(settings, 0, {DATA: 0})
    expected = lines(settings, apply(whole, sent))
    monkeypatch.setattr(VALUES_MAX, values_max)
    for size in (3, 150):
        unit = Unit(settings, 0, {DATA: 0})
        parts = [apply(unit, sent[at : at + size]) for at in range(0, len(sent), size)]
        assert lines(settings, *parts) == expected
        assert unit.counts == whole.counts
        assert unit.align_summaries() == whole.align_summaries()


def test_forgetting_idle_things_after_every_batch_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, sent = settings_of(VARIANTS[0]), seeded_messages(4, 150)
    whole = lines(settings, apply(Unit(settings, 0, {DATA: 0}), sent))
    monkeypatch.setattr("joiner.runtime.task.unit._KEYS_MIN", -1)
    unit = Unit(settings, 0, {DATA: 0})
    parts = [apply(unit, sent[begin : begin + 5]) for begin in range(0, len(sent), 5)]
    assert lines(settings, *parts) == whole


def test_things_that_send_only_watermarks_are_forgotten() -> None:
    unit = Unit(settings_of({"name": "g", "grid": {"every": "1s"}, "columns": {"speed": {}}}), 0, {DATA: 0})
    marks = [message(n, {"mark": BASE_MS, "thing": f"order {n}"}) for n in range(50)]
    apply(unit, [*marks, record(50, "speed", BASE_MS, thing="a"), message(51, {"mark": BASE_MS + 1})])
    unit.snapshot()
    assert unit.align_summaries()["g"].keys == 1


@pytest.mark.parametrize("thing", ["a", ":", "mill:7", "::-3:", 'quote" \\ é', "\t", "1:2:3"])
def test_a_thing_of_any_name_is_found_again_in_the_id_of_a_row(thing: str) -> None:
    settings = settings_of({"name": "g.1", "grid": {"every": "1s"}, "columns": {"speed": {}}})
    unit = Unit(settings, 0, {DATA: 0})
    sent = [record(n, "speed", BASE_MS + 1000 * n, thing=thing) for n in range(3)]
    rows = apply(unit, sent).joined
    assert [tick_of(json.loads(value)) for value in rows.values.each()] == [
        (thing, BASE_MS // 1000 + number) for number in range(2)
    ]
    assert {key for key, _ in rows.each()} == {thing.encode()}
    for value in rows.values.each():
        again, _ = decode_data(value, "ms")
        assert (again.thing, decode_joined(value).id) == (thing, json.loads(value)["id"])


def test_a_row_can_be_aligned_and_joined_again_even_if_all_of_its_values_are_missing() -> None:
    columns = {"speed": {"tolerance": "0"}, "torque": {"rule": "linear", "tolerance": "1ms"}}
    first = Unit(settings_of({"name": "table", "grid": {"every": "100ms"}, "columns": columns}), 0, {DATA: 0})
    sent = [
        record(2 * n + at, quantity, BASE_MS + 55 + 730 * n)
        for n in range(9)
        for at, quantity in enumerate(("speed", "torque"))
    ]
    rows = apply(first, sent).joined.values.each()
    assert {decode_joined(value).result for value in rows} == {0.0}
    second = Unit(settings_of({"name": "second", "driver": "table", "columns": {"mode": {}}}), 0, {DATA: 0})
    messages = [Message(at, BASE_MS, value) for at, value in enumerate(rows)]
    effects = apply(second, [*messages, message(len(messages), {"mark": BASE_MS + 10**6})])
    assert second.counts["rejected"] == 0
    assert len(rows_of(effects)) == len(rows) > 50


def test_a_record_far_in_the_future_adds_no_ticks_and_a_pause_up_to_max_gap_is_filled() -> None:
    align = {"name": "g", "grid": {"every": "10ms", "max_gap": "2s"}, "columns": {"speed": {}}}
    unit = Unit(settings_of(align), 0, {DATA: 0})
    day_ms = 86_000_000
    times = [BASE_MS, BASE_MS + 2_000, BASE_MS + 4_001, BASE_MS + day_ms, BASE_MS + day_ms + 10]
    rows = rows_of(apply(unit, [record(n, "speed", at) for n, at in enumerate(times)]))
    # The last one is at the frontier, and another record may still arrive at its time.
    filled = [*range(BASE_MS, BASE_MS + 2_001, 10), BASE_MS + day_ms]
    assert [row["phenomenonTime"] for row in rows] == filled
    assert unit.align_summaries()["g"].held == {"grid": 1, "speed": 1}


def test_ticks_that_wait_count_towards_the_limit() -> None:
    align = {"name": "g", "grid": {"every": "10ms"}, "columns": {"speed": {}, "torque": {}}}
    settings = settings_of(align, application={"buffer_records_max": 204})
    unit = Unit(settings, 0, {DATA: 0})
    apply(unit, [record(n, "speed", BASE_MS + 1000 * n, thing="many") for n in range(3)])
    assert unit.align_summaries()["g"].held == {"grid": 201, "speed": 3, "torque": 0}
    assert unit.held() == 204
    with pytest.raises(UnitStopped, match=r"align 'g' holds 205 records and ticks .* = 204; .* many \(204\), few"):
        apply(unit, [record(3, "speed", BASE_MS + 1, thing="few")])


def test_a_column_that_runs_ahead_in_its_own_topic_has_a_lead() -> None:
    columns = {name: {"stream": {"topic": name}} for name in ("one", "two")}
    align = {"name": "g", "grid": {"every": "1ms"}, "columns": columns}
    unit = Unit(settings_of(align, application={"buffer_records_max": 200}), 0, {"one": 0, "two": 0})
    unit.apply({"one": batch([record(n, "x", BASE_MS + 20 * n) for n in range(6)])}, {"one": 6})
    assert {lead.topic: (lead.behind, lead.fill, lead.share) for lead in unit.leads()} == {
        "one": ("two", 107 / 200, 1.0),
        "two": ("one", 107 / 200, 0.0),
    }
    unit.apply({"two": batch([record(0, "y", BASE_MS + 45)])}, {"two": 1})
    held = unit.align_summaries()["g"].held
    assert held == {"grid": 56, "one": 4, "two": 1}
    assert {lead.topic: lead.share for lead in unit.leads()} == {"one": 3 / 5, "two": 0.0}


def test_a_late_record_is_named_by_align_column_and_place() -> None:
    columns = {"speed": {}, "rpm": {"stream": "speed", "lateness": "1s"}}
    unit = Unit(settings_of({"name": "g", "grid": {"every": "1s"}, "columns": columns}), 0, {DATA: 0})
    effects = apply(unit, [record(number, "speed", BASE_MS - number) for number in range(2)])
    assert [(late.id, late.side, late.offset) for late in effects.late] == [("g:0:speed:1", "speed", 1)]
    assert unit.counts["late"] == unit.counts["g:late"] == 1
