"""Are the rows of a unit's align those of the definition, whatever the batches, snapshots and replays?"""

from __future__ import annotations

import json
import math
import random
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest

from broker.wire.arrow.rows import encode_columns
from broker.wire.records import Watermark, decode_data, decode_joined
from joiner.check.model import aligned, oracle
from joiner.runtime.model import UnitStopped
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task import unit_snapshot
from joiner.runtime.task.effects import Effects
from joiner.runtime.task.operators.ordinals import Ordinals
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

MS = 1_000_000
SPINDLE: dict[str, Any] = {
    "name": "spindle",
    "driver": "torque",
    "columns": {
        "speed": {"rule": "linear", "tolerance": "900ms"},
        "heading": {"stream": "angle", "rule": "linear", "period": 360.0, "lateness": "300ms"},
        "mode": {},
        "next": {"stream": "mode", "rule": "next", "tolerance": "1s"},
        "near": {"stream": "speed", "rule": "nearest", "tolerance": "500ms"},
    },
}
VARIANTS = [
    SPINDLE,
    SPINDLE | {"lateness": "1s"},
    SPINDLE | {"watermark_scope": "partition"},
    SPINDLE | {"columns": SPINDLE["columns"] | {"mode": {"on_missing": "drop", "tolerance": "600ms"}}},
]


def settings_of(*aligns: dict[str, Any], join: Sequence[dict[str, Any]] = (), **sections: Any) -> JoinerSettings:
    given = {"topics": {"partitions": 1}, "join": list(join), "align": list(aligns or [SPINDLE]), **sections}
    return JoinerSettings.model_validate(given)


def seeded_messages(seed: int, count: int = 60) -> list[Message]:
    """Return a log with ties, disorder, repeated ids, watermarks, invalid messages and offset gaps."""
    draw = random.Random(seed)
    clock, offset, sent = BASE_MS, draw.randrange(3), list[Message]()
    for _ in range(count):
        chance = draw.random()
        if chance < 0.05:
            sent.append(message(offset, draw.choice([None, b"{", {"mark": BASE_MS * 10**6}])))
        elif chance < 0.12:
            watermark = {"mark": clock - draw.randrange(1500)}
            quantity = draw.choice(["speed", "torque", "angle", "mode", None])
            sent.append(message(offset, watermark | ({"quantity": quantity} if quantity else {})))
        elif chance < 0.2 and sent:
            sent.append(draw.choice(sent[-5:])._replace(offset=offset))
        else:
            clock += draw.choice([0, 0, 10, 400])
            back = draw.choice([0, 0, 0, 200, 2000])
            quantity = draw.choice(["torque", "torque", "torque", "speed", "angle", "mode", "other"])
            result = draw.choice([1.0, 2.5, -350.5, 1e300])
            sent.append(record(offset, quantity, clock - back, result, draw.choice("ab"), draw.choice("ab")))
        offset += draw.choice([1, 1, 1, 2])
    return sent


def rows_of(*effects: Effects) -> list[dict[str, Any]]:
    return [json.loads(value) for effect in effects for value in effect.joined.values.each()]


class Definition:
    """The rows of an align by the definition, from the messages of a log."""

    def __init__(self, settings: JoinerSettings, messages: Sequence[Message]) -> None:
        (align,) = settings.align
        self.records: dict[int, Any] = {}
        entries: dict[str, list[oracle.Rec | oracle.Watermark]] = {name: [] for name in align.streams}
        keys: dict[str, int] = {}
        for one in messages:
            try:
                content, ts_ns = decode_data(one.value, "ms")
            except ValueError:
                continue
            if ts_ns > (one.append_ms + 86_400_000) * MS:
                continue
            for name, stream in align.streams.items():
                if content.quantity not in {stream.quantity, None}:
                    continue
                key = oracle.ALL_KEYS if content.thing is None else keys.setdefault(content.thing, len(keys))
                entries[name].append(
                    oracle.Watermark(key, ts_ns, one.offset)
                    if isinstance(content, Watermark)
                    else oracle.Rec(key, ts_ns, one.offset, content.id)
                )
                self.records[one.offset] = content
        self.things = list(keys)
        driver = entries.pop("driver", [])
        columns = [
            aligned.Column(
                of_stream,
                {one.seq: self.records[one.seq].result for one in of_stream if isinstance(one, oracle.Rec)},
                column.rule,
                column.tolerance,
                column.period,
                column.on_missing,
                column.lateness,
            )
            for (name, column), of_stream in zip(align.columns.items(), entries.values(), strict=True)
        ]
        if (grid := align.grid) is not None:
            ticks = aligned.Grid(grid.every, grid.origin, grid.max_gap_ns)
            self.grid_rows = aligned.align_grid(ticks, columns, watermark_scope=align.watermark_scope)
            return
        options = {"lateness_ns": align.lateness, "watermark_scope": align.watermark_scope}
        self.rows, self.dropped = aligned.align(driver, columns, **options)  # type: ignore[arg-type] # as named
        of_driver = oracle.Stream(driver, align.lateness, watermark_scope=align.watermark_scope)
        self.ordinals = oracle.ordinals(of_driver.accepted)


@pytest.mark.parametrize("align", VARIANTS)
@pytest.mark.parametrize("seed", range(4))
def test_rows_are_those_of_the_definition(align: dict[str, Any], seed: int) -> None:
    settings, sent = settings_of(align), seeded_messages(seed, 80)
    unit = Unit(settings, 0, {DATA: 0})
    rows = {int(row["id"].rpartition(":")[2]): row for row in rows_of(apply(unit, sent))}
    wanted = Definition(settings, sent)
    assert rows.keys() == wanted.rows.keys()
    assert len(rows) + len(wanted.dropped) > 2
    assert unit.counts["rows"] == len(rows)
    assert unit.counts["dropped"] == len(wanted.dropped)
    for offset, row in rows.items():
        driver = wanted.records[offset]
        assert list(row)[:6] == ["thing", "quantity", "phenomenonTime", "result", "id", "values"]
        assert (row["thing"], row["quantity"], row["id"]) == (driver.thing, "spindle", f"spindle:0:{offset}")
        assert (row["phenomenonTime"], row["result"]) == (driver.phenomenonTime, driver.result)
        assert row.get("tie", "0") == str(wanted.ordinals[offset])
        assert list(row["values"]) == list(align["columns"])
        for found, value in zip(row["values"].values(), wanted.rows[offset], strict=True):
            assert (found is None) == (value is None)
            # The definition computes with fractions. At the seam of a period, both ends are right.
            near = found == value or math.isclose(found, value or 0.0, rel_tol=1e-9, abs_tol=1e-9)
            assert near or abs(found - (value or 0.0)) == 360


def test_the_seeds_bring_ties_nulls_and_dropped_rows() -> None:
    rows = [
        row for seed in range(3) for row in rows_of(apply(Unit(settings_of(), 0, {DATA: 0}), seeded_messages(seed)))
    ]
    assert any("tie" in row for row in rows)
    assert any(None in row["values"].values() for row in rows)
    assert any(None not in row["values"].values() for row in rows)
    dropping = [Unit(settings_of(VARIANTS[-1]), 0, {DATA: 0}) for _ in range(3)]
    for seed, unit in enumerate(dropping):
        apply(unit, seeded_messages(seed))
    assert sum(unit.counts["dropped"] for unit in dropping) > 3


def check_every_cut(settings: JoinerSettings, sent: Sequence[Message]) -> None:
    """Check that a restore or a silent replay at any message changes nothing."""
    whole = Unit(settings, 0, {DATA: 0})
    expected = lines(settings, apply(whole, sent))
    assert {topic for topic, _, _ in expected} == {"machine.out", "machine.late", "machine.rejected"}
    for cut in range(len(sent) + 1):
        before = Unit(settings, 0, {DATA: 0})
        first = apply(before, sent[:cut])
        restored = Unit.restore(settings, 0, before.snapshot())
        assert restored.snapshot() == before.snapshot()
        assert restored.align_summaries() == before.align_summaries()
        assert restored.held_bytes() == before.held_bytes()
        assert lines(settings, first, apply(restored, sent[cut:])) == expected
        replayed = Unit(settings, 0, {DATA: 0})
        assert not apply(replayed, sent[:cut], silent=True).messages(settings.topics)
        assert lines(settings, first, apply(replayed, sent[cut:])) == expected
        assert replayed.counts == restored.counts == whole.counts
        assert replayed.align_summaries() == restored.align_summaries() == whole.align_summaries()


@pytest.mark.parametrize("align", VARIANTS)
def test_restore_or_silent_replay_at_any_point_changes_nothing(align: dict[str, Any]) -> None:
    check_every_cut(settings_of(align, join=[POWER]), seeded_messages(7))


@pytest.mark.parametrize("align", VARIANTS)
@pytest.mark.parametrize("seed", range(3))
def test_batches_of_any_size_bring_forth_the_same_bytes(align: dict[str, Any], seed: int) -> None:
    settings, sent = settings_of(align), seeded_messages(100 + seed, 200)
    expected = lines(settings, apply(Unit(settings, 0, {DATA: 0}), sent))
    for size in (1, 3, 50):
        unit = Unit(settings, 0, {DATA: 0})
        parts = [apply(unit, sent[at : at + size]) for at in range(0, len(sent), size)]
        assert lines(settings, *parts) == expected


@pytest.mark.parametrize("seed", range(5))
def test_forgetting_idle_things_after_every_batch_changes_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, sent = settings_of(SPINDLE | {"lateness": "1s"}), seeded_messages(seed, 150)
    whole = lines(settings, apply(Unit(settings, 0, {DATA: 0}), sent))
    monkeypatch.setattr("joiner.runtime.task.unit._KEYS_MIN", -1)
    unit = Unit(settings, 0, {DATA: 0})
    parts = [apply(unit, sent[begin : begin + 5]) for begin in range(0, len(sent), 5)]
    assert lines(settings, *parts) == whole


def test_things_that_are_done_leave_nothing_behind() -> None:
    align = {"name": "a", "driver": "torque", "watermark_scope": "partition", "columns": {"speed": {"tolerance": "1s"}}}
    settings = settings_of(align)
    unit = Unit(settings, 0, {DATA: 0})
    for first in range(0, 4_000, 500):
        sent = [
            record(2 * n + at, quantity, BASE_MS + 100 * n, thing=f"order {n}")
            for n in range(first, first + 500)
            for at, quantity in enumerate(("speed", "torque"))
        ]
        apply(unit, sent)
    saved = msgspec.msgpack.decode(unit.snapshot())
    assert unit.align_summaries()["a"].keys < 20
    assert len(saved["aligns"]["a"]["driver"]) < 2_000


def test_a_row_can_be_aligned_and_joined_again() -> None:
    first = Unit(settings_of(), 0, {DATA: 0})
    rows = apply(first, seeded_messages(3, 300)).joined.values.each()
    assert len(rows) > 10
    for value in rows:
        again, _ = decode_data(value, "ms")
        row = decode_joined(value)
        assert (again.thing, again.quantity) == (row.thing, "spindle")
    settings = settings_of({"name": "second", "driver": "spindle", "columns": {"mode": {}}})
    messages = [Message(at, BASE_MS, value) for at, value in enumerate(rows)]
    unit = Unit(settings, 0, {DATA: 0})
    effects = apply(unit, [*messages, message(len(messages), {"mark": BASE_MS + 10**7})])
    assert unit.counts["rejected"] == 0
    assert len(rows_of(effects)) == unit.counts["rows"] > 5


def test_a_late_record_is_named_by_align_stream_and_place() -> None:
    align = {"name": "a", "driver": "torque", "columns": {"speed": {}, "rpm": {"stream": "speed", "lateness": "1s"}}}
    unit = Unit(settings_of(align), 0, {DATA: 0})
    sent = [
        record(number, quantity, BASE_MS - number)
        for number, quantity in enumerate(["torque", "torque", "speed", "speed"])
    ]
    effects = apply(unit, sent)
    assert [(late.id, late.join, late.side, late.topic, late.offset, late.record.id) for late in effects.late] == [
        ("a:0:driver:1", "a", "driver", DATA, 1, "e1"),
        ("a:0:speed:3", "a", "speed", DATA, 3, "e3"),
    ]
    assert unit.counts["late"] == unit.counts["a:late"] == 2


def test_an_event_that_is_delivered_twice_counts_once() -> None:
    unit = Unit(settings_of({"name": "a", "driver": "torque", "columns": {"speed": {}}}), 0, {DATA: 0})
    sent = [record(n, "torque", BASE_MS, identity="same") for n in range(3)]
    speeds = [record(3 + n, "speed", BASE_MS, result=7.0 + n, identity="same") for n in range(2)]
    effects = apply(unit, [*sent, *speeds, record(5, "speed", BASE_MS + 1)])
    assert [(row["id"], row["values"]) for row in rows_of(effects)] == [("a:0:0", {"speed": 7.0})]
    assert unit.counts["duplicates"] == 3


@pytest.mark.parametrize("result", ['"fast"', "null", "[1]", '{"left":1,"right":2}', "1e999", "NaN", "true"])
def test_a_record_whose_result_is_no_number_is_a_dead_letter(result: str) -> None:
    unit = Unit(settings_of({"name": "a", "driver": "torque", "columns": {"speed": {}}}), 0, {DATA: 0})
    value = f'{{"thing":"a","quantity":"speed","phenomenonTime":{BASE_MS},"result":{result},"id":"x"}}'.encode()
    sent = [record(0, "speed", BASE_MS - 1, result=4.0), message(1, value), record(2, "torque", BASE_MS)]
    effects = apply(unit, [*sent, record(3, "speed", BASE_MS + 1)])
    assert [one.offset for one in effects.rejected] == [1]
    assert [row["values"] for row in rows_of(effects)] == [{"speed": 4.0}]


def test_the_driver_has_its_own_topic_and_a_lead_if_the_column_is_behind() -> None:
    align = {"name": "a", "driver": {"topic": "one"}, "columns": {"speed": {"stream": {"topic": "two"}}}}
    unit = Unit(settings_of(align, application={"buffer_records_max": 10}), 0, {"one": 0, "two": 0})
    driver = [record(n, "torque", BASE_MS + n) for n in range(6)]
    unit.apply({"one": batch(driver)}, {"one": 6})
    assert {lead.topic: (lead.behind, lead.fill, lead.share) for lead in unit.leads()} == {
        "one": ("two", 0.6, 1.0),
        "two": ("one", 0.6, 0.0),
    }
    unit.apply({"two": batch([record(0, "speed", BASE_MS + 3)])}, {"two": 1})
    # The rows at 0 to 2 have come out: those at 3 to 5, and the speed, are held.
    assert {lead.topic: (lead.fill, lead.share) for lead in unit.leads()} == {"one": (0.4, 0.5), "two": (0.4, 0.0)}


def test_finding_the_leads_takes_little_memory_however_many_columns_a_row_has() -> None:
    columns = {f"speed{n}": {"stream": {"topic": "two"}} for n in range(50)}
    align = {"name": "a", "driver": {"topic": "one"}, "columns": columns}
    settings = settings_of(align, application={"buffer_records_max": 2_000})
    unit = Unit(settings, 0, {"one": 0, "two": 0})
    unit.apply({"one": batch([record(n, "torque", BASE_MS + n) for n in range(1_000)])}, {"one": 1_000})
    tracemalloc.start()
    try:
        assert {(lead.topic, lead.share) for lead in unit.leads()} == {("one", 1.0), ("two", 0.0)}
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The times of the rows take 8 kB, their whole table 1.2 MB.
    assert peak < 200_000


def test_a_full_buffer_names_the_align_and_the_keys_that_hold_most() -> None:
    unit = Unit(settings_of(application={"buffer_records_max": 5}), 0, {DATA: 0})
    sent = [record(n, "torque", BASE_MS + n, thing="few" if n < 2 else "many") for n in range(6)]
    with pytest.raises(UnitStopped, match=r"align 'spindle' holds 6 .* = 5; .* many \(4\), few \(2\)"):
        apply(unit, sent)
    by_bytes = Unit(settings_of(application={"buffer_bytes_max": 5_000}), 0, {DATA: 0})
    with pytest.raises(UnitStopped, match=r"align 'spindle' holds 6 .*buffer_bytes_max = 5000"):
        apply(by_bytes, sent)
    # Two relations hold each of these records, which count once, as in the total.
    of_column = Unit(settings_of(application={"buffer_records_max": 3}), 0, {DATA: 0})
    with pytest.raises(UnitStopped, match=r"align 'spindle' holds 4 .* = 3; .* are a \(4\)\."):
        apply(of_column, [record(n, "angle", BASE_MS + n) for n in range(4)])


def test_the_order_of_columns_may_be_changed_between_runs() -> None:
    turned = SPINDLE | {"columns": dict(reversed(SPINDLE["columns"].items()))}
    before, after, sent = settings_of(), settings_of(turned), seeded_messages(3)
    assert before.fingerprint() == after.fingerprint()
    unit = Unit(before, 0, {DATA: 0})
    apply(unit, sent[:30])
    rows = rows_of(apply(Unit.restore(after, 0, unit.snapshot()), sent[30:]))
    assert rows == rows_of(apply(unit, sent[30:]))
    assert {tuple(row["values"]) for row in rows} == {tuple(turned["columns"])}


def test_driver_records_that_are_held_after_their_rows_have_come_out_count_towards_the_limit() -> None:
    align = {"name": "a", "driver": "torque", "lateness": "1h", "columns": {"speed": {}}}
    unit = Unit(settings_of(align, application={"buffer_records_max": 20}), 0, {DATA: 0})
    apply(unit, [record(0, "speed", BASE_MS), message(1, {"mark": BASE_MS + 1_000, "quantity": "speed"})])
    sent = [record(2 + n, "torque", BASE_MS + n) for n in range(21)]
    assert len(rows_of(apply(unit, sent[:10]))) == 10
    # Any of them may still have a duplicate. The last speed is held for later rows.
    assert unit.align_summaries()["a"].held == {"driver": 10, "speed": 1}
    assert unit.held_bytes()["a"]["driver"] > 10 * 100
    with pytest.raises(UnitStopped, match=r"align 'a' holds 22 .*buffer_records_max = 20"):
        apply(unit, sent[10:])


def test_a_held_record_of_a_linear_column_counts_once() -> None:
    column = {"stream": {"topic": "two"}, "rule": "linear"}
    align = {"name": "a", "driver": {"topic": "one"}, "columns": {"speed": column}}
    settings = settings_of(align, application={"buffer_records_max": 8})
    unit = Unit(settings, 0, {"one": 0, "two": 0})
    unit.apply({"two": batch([record(n, "speed", BASE_MS + 10 * n) for n in range(4)])}, {"two": 4})
    assert unit.align_summaries()["a"].held == {"driver": 0, "speed": 4}
    assert unit.held() == 4
    assert {lead.topic: (lead.fill, lead.share) for lead in unit.leads()} == {"one": (0.5, 0.0), "two": (0.5, 1.0)}
    # Each record is stored for either direction, and the estimated memory includes both.
    bytes_of_four = unit.held_bytes()["a"]["speed"]
    unit.apply({"one": batch([record(0, "torque", BASE_MS + 15), record(1, "torque", BASE_MS + 25)])}, {"one": 2})
    # The rows have come out. The speeds at 20 and 30 may still be the neighbours before a row, and that at 30 the one
    # after it. The later driver record may still have a duplicate.
    assert unit.align_summaries()["a"].held == {"driver": 1, "speed": 2}
    assert unit.held_bytes()["a"]["speed"] == bytes_of_four * 3 // 8
    assert Unit.restore(settings, 0, unit.snapshot()).held() == 3


def test_a_snapshot_without_aligns_is_that_of_the_release_before() -> None:
    settings = JoinerSettings.model_validate({"topics": {"partitions": 1}, "join": [POWER]})
    unit = Unit(settings, 0, {DATA: 0})
    apply(unit, [record(0, "speed", BASE_MS)])
    content = msgspec.msgpack.decode(unit.snapshot())
    assert (content["version"], "aligns" in content) == (4, False)
    assert Unit.restore(settings, 0, unit.snapshot()).held() == 1
    with_align = Unit(settings_of(join=[POWER]), 0, {DATA: 0})
    assert msgspec.msgpack.decode(with_align.snapshot())["version"] == unit_snapshot.VERSION


@pytest.mark.parametrize("lateness", ["0ms", "1s"])
def test_rows_of_messages_with_many_records_are_those_of_single_ones(lateness: str) -> None:
    arrow = settings_of(SPINDLE | {"lateness": lateness}, topics={"partitions": 1, "data_format": "arrow"})
    plain, sent = settings_of(SPINDLE | {"lateness": lateness}), seeded_messages(11, 150)
    records = [json.loads(one.value) for one in sent if one.value and b'"result"' in one.value]
    names = "thing", "quantity", "phenomenonTime", "result", "id"
    single = [message(at, one) for at, one in enumerate(records)]
    parts = [records[at : at + 7] for at in range(0, len(records), 7)]
    many = [
        message(at, encode_columns(*([one[name] for one in part] for name in names))) for at, part in enumerate(parts)
    ]
    expected = apply(Unit(plain, 0, {DATA: 0}), single)
    cut = Unit(arrow, 0, {DATA: 0})
    first = apply(cut, many[:5])
    found = [first, apply(Unit.restore(arrow, 0, cut.snapshot()), many[5:])]
    place = {f"{at // 7}.{at % 7}": str(at) for at in range(len(records))}

    def renamed(row: dict[str, Any]) -> dict[str, Any]:
        start, _, position = row["id"].rpartition(":")
        return row | {"id": f"{start}:{place[position]}"}

    assert sorted(map(renamed, rows_of(*found)), key=str) == sorted(rows_of(expected), key=str)
    late = [(one.side, place[f"{one.offset}.{one.row}"], one.record.id) for effects in found for one in effects.late]
    assert sorted(late) == sorted((one.side, str(one.offset), one.record.id) for one in expected.late)


def test_ordinals_are_forgotten_below_the_frontier_alone() -> None:
    ordinals, keys, ts = Ordinals(), np.array([1, 1, 2, 1]), np.array([5, 5, 5, 6])
    assert ordinals.assign(keys, ts).tolist() == [0, 1, 0, 0]
    ordinals.forget_all(lambda asked: np.where(asked == 1, 6, 5))
    assert ordinals.table().T.tolist() == [[1, 6, 1], [2, 5, 1]]
    ordinals.forget_all(lambda asked: np.full(len(asked), 6))
    assert ordinals.table().T.tolist() == [[1, 6, 1]]
    again = Ordinals()
    again.load(ordinals.table())
    assert again.assign(np.array([1, 2]), np.array([6, 6])).tolist() == [1, 0]


def test_ordinals_count_equal_times_however_many_others_are_held_or_forgotten() -> None:
    draw, ordinals, counts = np.random.default_rng(3), Ordinals(), Counter[tuple[int, int]]()
    for begin in range(0, 20_000, 500):
        keys, ts = draw.integers(0, 50, 3_000), draw.integers(begin, begin + 1_500, 3_000)
        wanted = []
        for one in zip(keys.tolist(), ts.tolist(), strict=True):
            wanted.append(counts[one])
            counts[one] += 1
        assert ordinals.assign(keys, ts).tolist() == wanted
        ordinals.forget(partial(np.full_like, fill_value=begin + 500))
    held = ordinals.table()
    assert {(key, ts): count for key, ts, count in held.T.tolist()}.items() <= counts.items()
    assert held.shape[1] < len(counts) / 2
