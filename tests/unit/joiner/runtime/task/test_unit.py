"""Is a unit's state a function of the vector C, wherever the unit is snapshotted, restored or replayed?"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from broker.wire.records import decode_joined
from joiner.core import snapshot
from joiner.runtime.model import UnitStopped
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task import unit_snapshot
from joiner.runtime.task.unit import Unit
from tests.unit.joiner.runtime.joiner_inputs import (
    BASE_MS,
    DATA,
    GAP,
    POWER,
    Message,
    apply,
    batch,
    lines,
    make_settings,
    message,
    record,
)


def both_joins(**application: Any) -> JoinerSettings:
    gap = {**GAP, "tolerance": "200ms", "lateness": ["1s", "300ms"], "emit_unmatched": "both"}
    return make_settings(POWER, gap, application=application)


def seeded_messages(seed: int, count: int = 60) -> list[Message]:
    """Return a log with ties, disorder, repeated ids, watermarks, invalid messages and offset gaps."""
    draw = random.Random(seed)
    clock, offset, sent = BASE_MS, draw.randrange(3), list[Message]()
    for _ in range(count):
        chance = draw.random()
        if chance < 0.05:
            sent.append(message(offset, draw.choice([None, b"{", {"mark": BASE_MS * 10**6}])))
        elif chance < 0.12:
            watermark = {"mark": clock - draw.randrange(1500), "quantity": draw.choice(["speed", "torque", "command"])}
            sent.append(message(offset, watermark))
        elif chance < 0.2 and sent:
            sent.append(draw.choice(sent[-5:])._replace(offset=offset))
        else:
            clock += draw.choice([0, 0, 10, 400])
            back = draw.choice([0, 0, 0, 200, 2000])
            quantity = draw.choice(["speed", "torque", "command", "other"])
            result = draw.choice([1.0, 2.5, 1e308])
            sent.append(record(offset, quantity, clock - back, result, draw.choice("ab")))
        offset += draw.choice([1, 1, 1, 2])
    return sent


@pytest.mark.parametrize("seed", range(4))
def test_restore_or_silent_replay_at_any_point_changes_nothing(seed: int) -> None:
    settings, sent = both_joins(), seeded_messages(seed)
    whole = Unit(settings, 0, {DATA: 0})
    expected = lines(settings, apply(whole, sent))
    assert len({topic for topic, _, _ in expected}) == 4, "results, late records, unmatched records, dead letters"
    for cut in range(len(sent) + 1):
        before = Unit(settings, 0, {DATA: 0})
        first = apply(before, sent[:cut])
        restored = Unit.restore(settings, 0, before.snapshot())
        assert restored.offsets == before.offsets
        assert restored.snapshot() == before.snapshot()
        assert lines(settings, first, apply(restored, sent[cut:])) == expected
        replayed = Unit(settings, 0, {DATA: 0})
        assert not apply(replayed, sent[:cut], silent=True).messages(settings.topics)
        assert lines(settings, first, apply(replayed, sent[cut:])) == expected
        assert replayed.counts == restored.counts == whole.counts
        assert replayed.join_summaries() == restored.join_summaries() == whole.join_summaries()


@pytest.mark.parametrize("seed", range(4))
def test_batches_of_any_size_bring_forth_the_same(seed: int) -> None:
    settings, sent = both_joins(), seeded_messages(100 + seed, 200)
    expected = lines(settings, apply(Unit(settings, 0, {DATA: 0}), sent))
    for size in (1, 3, 50):
        unit = Unit(settings, 0, {DATA: 0})
        parts = [apply(unit, sent[at : at + size]) for at in range(0, len(sent), size)]
        assert lines(settings, *parts) == expected


def test_a_compact_result_is_the_full_one_without_its_records() -> None:
    sent = seeded_messages(5, 200)
    full, compact = (apply(Unit(both_joins(results=form), 0, {DATA: 0}), sent) for form in ("full", "compact"))
    expected = [json.loads(value) for value in full.joined.values.each()]
    assert {"left", "right"} <= expected[0].keys()
    assert any("tie" in one for one in expected)
    without = [{name: one[name] for name in one.keys() - {"left", "right"}} for one in expected]
    assert [json.loads(value) for value in compact.joined.values.each()] == without
    assert compact.joined.keys is not None
    assert full.joined.keys is not None
    assert compact.joined.keys.each() == full.joined.keys.each()
    assert (compact.late, compact.unmatched, compact.rejected) == (full.late, full.unmatched, full.rejected)


def test_an_event_that_is_delivered_twice_counts_once() -> None:
    unit = Unit(make_settings(), 0, {DATA: 0})
    sent = [record(n, "speed", BASE_MS, identity="same") for n in range(3)]
    effects = apply(unit, [*sent, record(3, "torque", BASE_MS), record(4, "torque", BASE_MS, identity="e3")])
    assert [decode_joined(value).id for value in effects.joined.values.each()] == ["power:0:0:3"]
    assert unit.counts["duplicates"] == 3


def test_a_late_record_is_named_by_join_side_and_place() -> None:
    unit = Unit(make_settings(POWER, GAP), 0, {DATA: 0})
    effects = apply(unit, [record(0, "speed", BASE_MS), record(1, "speed", BASE_MS - 1)])
    assert [(late.id, late.join, late.side, late.topic, late.partition, late.offset) for late in effects.late] == [
        ("power:0:left:1", "power", "left", DATA, 0, 1),
        ("gap:0:right:1", "gap", "right", DATA, 0, 1),
    ]
    assert all(late.record.id == "e1" for late in effects.late)
    assert unit.counts["late"] == 2


def test_an_unmatched_record_is_named_as_a_pair_without_the_other_half() -> None:
    close_by = {**POWER, "tolerance": "1s", "emit_unmatched": "both"}
    unit = Unit(make_settings(close_by), 0, {DATA: 0})
    effects = apply(
        unit,
        [
            record(0, "speed", BASE_MS),
            record(1, "torque", BASE_MS + 5_000),
            record(2, "speed", BASE_MS + 5_500),
            record(3, "torque", BASE_MS + 9_000),
            record(4, "speed", BASE_MS + 20_000),
        ],
    )
    assert [decode_joined(value).id for value in effects.joined.values.each()] == ["power:0:2:1"]
    assert [(one.id, one.side, one.offset, one.record.quantity) for one in effects.unmatched] == [
        ("power:0:0:", "left", 0, "speed"),
        ("power:0::3", "right", 3, "torque"),
    ]
    assert unit.counts["unmatched"] == 2
    unmatched = effects.messages(make_settings(close_by).topics)["machine.unmatched"]
    assert [key for key, _ in unmatched.each()] == [b"a", b"a"]


def test_only_the_side_that_is_asked_for_tells_its_unmatched_records() -> None:
    messages = [record(0, "speed", BASE_MS), record(1, "torque", BASE_MS + 5_000), record(2, "speed", BASE_MS + 9_000)]
    told = {
        wanted: [one.side for one in apply(Unit(make_settings(join), 0, {DATA: 0}), messages).unmatched]
        for wanted in ("none", "left", "right", "both")
        for join in [{**POWER, "tolerance": "1s", "emit_unmatched": wanted}]
    }
    assert told == {"none": [], "left": ["left"], "right": ["right"], "both": ["left", "right"]}


def test_two_joins_that_share_a_quantity_do_not_disturb_each_other() -> None:
    sent = seeded_messages(7, 150)
    power, gap = make_settings(POWER), make_settings(GAP)
    apart = [line for one in (power, gap) for line in lines(one, apply(Unit(one, 0, {DATA: 0}), sent))]
    shared = make_settings(POWER, GAP)
    together = lines(shared, apply(Unit(shared, 0, {DATA: 0}), sent))
    results = [line for line in together if line[0] == shared.topics.out]
    assert results == sorted((line for line in apart if line[0] == shared.topics.out), key=lambda line: line[2])


@pytest.mark.parametrize(
    ("first", "end"),
    [(4, 6), (5, 5), (5, 4)],
    ids=["begins before C", "ends within itself", "ends before it"],
)
def test_messages_that_do_not_continue_the_state_stop_the_unit(first: int, end: int) -> None:
    unit = Unit(make_settings(), 0, {DATA: 5})
    with pytest.raises(UnitStopped, match="covers the offsets"):
        unit.apply({DATA: batch([record(first, "speed", BASE_MS), record(5, "speed", BASE_MS)])}, {DATA: end})


def test_a_position_behind_the_last_message_moves_the_vector() -> None:
    unit = Unit(make_settings(), 0, {DATA: 0})
    unit.apply({DATA: batch([record(0, "speed", BASE_MS)])}, {DATA: 9})
    assert unit.offsets == {DATA: 9}
    unit.apply({}, {DATA: 12})
    assert unit.offsets == {DATA: 12}


def test_a_full_buffer_names_the_keys_that_hold_most_and_the_ways_out() -> None:
    unit = Unit(make_settings(application={"buffer_records_max": 5}), 0, {DATA: 0})
    sent = [record(n, "speed", BASE_MS + n, thing="few" if n < 2 else "many") for n in range(6)]
    with pytest.raises(UnitStopped, match=r"join 'power' holds 6 .* = 5; .* many \(4\), few \(2\)") as stopped:
        apply(unit, sent)
    assert all(way in str(stopped.value) for way in ("raise the limit", "watermark", "tolerance"))
    # The assignment does not retry a `UnitStopped`.
    assert "stays failed until the restart" in str(stopped.value)
    again = Unit(make_settings(application={"buffer_records_max": 5}), 0, {DATA: 0})
    apply(again, sent, silent=True)
    assert again.held() == 6, "a replay succeeds: it rebuilds the committed state"


def test_progress_tells_what_is_held_and_how_far_the_streams_are() -> None:
    unit = Unit(make_settings(), 0, {DATA: 0})
    assert unit.join_summaries()["power"].frontier_left is None
    apply(unit, [record(0, "speed", BASE_MS), record(1, "speed", BASE_MS + 5, thing="b")])
    found = unit.join_summaries()["power"]
    assert (found.held_left, found.held_right, found.keys) == (2, 0, 2)
    assert found.frontier_left == (BASE_MS * 10**6, (BASE_MS + 5) * 10**6)
    assert found.frontier_right is None


def with_buffers(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Return the snapshot with the bytes of each buffer changed."""
    content = msgspec.msgpack.decode(data)
    return msgspec.msgpack.encode(content | {"buffers": {name: change(b) for name, b in content["buffers"].items()}})


def newer(buffer: bytes, version: int) -> bytes:
    """Return the bytes of a buffer with another format version."""
    return buffer[:8] + version.to_bytes(2, "little") + buffer[10:]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda _data: b"no snapshot", "cannot be read"),
        (lambda data: data[: len(data) // 2], "cannot be read"),
        (lambda data: data.replace(b"LSBJOIN", b"LSBJOYN"), "cannot be read"),
        (lambda data: msgspec.msgpack.encode(msgspec.msgpack.decode(data) | {"version": 99}), "newer release"),
        (lambda _data: msgspec.msgpack.encode({"version": 1}), "format 1, but this release reads only formats 2 to"),
        (
            lambda _data: msgspec.msgpack.encode({"version": unit_snapshot.VERSION + 1, "things": {"a": 1}}),
            "newer release",
        ),
        (
            lambda data: with_buffers(data, lambda buffer: newer(buffer, snapshot.VERSION + 1) + b"more"),
            "newer release",
        ),
        (lambda data: with_buffers(data, lambda buffer: newer(buffer, 1) + b"more"), "cannot be read"),
        (lambda data: msgspec.msgpack.encode(msgspec.msgpack.decode(data) | {"rows": {}}), "cannot be read"),
    ],
)
def test_a_snapshot_that_cannot_be_used_is_refused_with_the_way_out(damage: Any, reason: str) -> None:
    settings = make_settings()
    unit = Unit(settings, 0, {DATA: 0})
    apply(unit, [record(0, "speed", BASE_MS)])
    with pytest.raises(UnitStopped, match=reason):
        Unit.restore(settings, 0, damage(unit.snapshot()))


APART = {"name": "apart", "left": {"topic": "one"}, "right": {"topic": "two"}, "output": "a"}


def leads(lefts: Sequence[int], rights: Sequence[int], **join: Any) -> dict[str, tuple[float, float]]:
    """Return fill and share by topic for a unit with room for 10, after records at these times (in ms) on each side."""
    unit = Unit(make_settings({**APART, **join}, application={"buffer_records_max": 10}), 0, {"one": 0, "two": 0})
    one = [record(n, "speed", BASE_MS + at) for n, at in enumerate(lefts)]
    two = [record(n, "torque", BASE_MS + at, thing="b") for n, at in enumerate(rights)]
    unit.apply({"one": batch(one), "two": batch(two)}, {"one": len(lefts), "two": len(rights)})
    return {lead.topic: (lead.fill, lead.share) for lead in unit.leads()}


def test_a_side_leads_by_what_it_has_sent_behind_everything_of_the_other() -> None:
    assert leads(range(6), []) == {"one": (0.6, 1.0), "two": (0.6, 0.0)}
    assert leads(range(4), [1, 2]) == {"one": (0.6, 1 / 6), "two": (0.6, 0.0)}
    assert leads([5, 6], range(4)) == {"one": (0.6, 2 / 6), "two": (0.6, 0.0)}
    assert leads(range(4), [1, 2], lateness="1ms") == {"one": (0.6, 1 / 6), "two": (0.6, 0.0)}, "lateness is ignored"
    assert leads([0, 1, 2, 3, 4, 9], [9])["one"] == (0.7, 0.0), "records up to the other side's newest time are no lead"
    assert leads(range(2), []) == {}, "a nearly empty buffer has no leads"


COLUMNS: dict[str, Any] = {name: {"stream": {"topic": name}, "lateness": "36500d"} for name in ("one", "two")}
TWO = {"two": COLUMNS["two"]}


@pytest.mark.parametrize(
    "operator",
    [
        {"join": [APART | {"lateness": "36500d"}]},
        {"align": [{"name": "a", "grid": {"every": "1ms"}, "columns": COLUMNS}]},
        {"align": [{"name": "a", "driver": {"topic": "one"}, "lateness": "36500d", "columns": TWO}]},
    ],
)
def test_a_side_whose_lateness_is_long_leads_by_what_is_behind_the_watermark_of_the_other(operator: Any) -> None:
    given = {"topics": {"partitions": 1}, "application": {"buffer_records_max": 20}, **operator}
    unit = Unit(JoinerSettings.model_validate(given), 0, {"one": 0, "two": 0})
    logs = {
        "one": [*(record(n, "speed", BASE_MS + n) for n in range(8)), message(8, {"mark": BASE_MS + 7})],
        "two": [record(0, "torque", BASE_MS), message(1, {"mark": BASE_MS})],
    }
    unit.apply({topic: batch(log) for topic, log in logs.items()}, {topic: len(log) for topic, log in logs.items()})
    found = {lead.topic: lead.share for lead in unit.leads()}
    assert found["one"] >= 7 / 9
    assert found["two"] == 0


def test_sides_that_share_a_topic_cannot_wait_for_each_other() -> None:
    unit = Unit(make_settings(application={"buffer_records_max": 10}), 0, {DATA: 0})
    apply(unit, [record(n, "speed", BASE_MS + n) for n in range(9)])
    assert unit.leads() == []


def test_a_buffer_is_full_by_the_bytes_of_its_records_too() -> None:
    unit = Unit(make_settings(application={"buffer_bytes_max": 6_000}), 0, {DATA: 0})
    apply(unit, [record(n, "speed", BASE_MS + n, identity="x" * 100 + str(n)) for n in range(10)])
    with pytest.raises(UnitStopped, match=r"holds 20 records .*, more than .*buffer_bytes_max = 6000"):
        apply(unit, [record(n, "speed", BASE_MS + n, identity="x" * 100 + str(n)) for n in range(10, 20)])


def test_the_bytes_of_what_is_held_are_the_same_after_a_restart_and_none_when_nothing_is() -> None:
    settings = make_settings({**POWER, "tolerance": "1s"}, application={"buffer_bytes_max": 2_000})
    unit = Unit(settings, 0, {DATA: 0})
    apply(unit, [record(n, "speed", BASE_MS + n) for n in range(6)])
    again = Unit.restore(settings, 0, unit.snapshot())
    for one in (unit, again):
        apply(one, [record(6, "torque", BASE_MS + 10_000), record(7, "speed", BASE_MS + 10_000)])
        assert one.held() == 2, "records beyond the tolerance of all later ones are evicted"
        apply(one, [record(n, "speed", BASE_MS + 10_000 + n) for n in range(8, 12)])
        with pytest.raises(UnitStopped, match=r"holds 7 .*about 2,2\d\d bytes"):
            apply(one, [record(12, "speed", BASE_MS + 10_012)])


ORDERS = {**POWER, "watermark_scope": "partition", "tolerance": "1s"}


def orders(first: int, count: int) -> list[Message]:
    """Return the records of things that each have exactly one record per side."""
    sides = (("speed", 0), ("torque", 300))
    return [
        record(2 * n + side, quantity, BASE_MS + 100 * n + shift, thing=f"order {n}")
        for n in range(first, first + count)
        for side, (quantity, shift) in enumerate(sides)
    ]


def test_things_that_are_done_leave_nothing_behind() -> None:
    unit = Unit(make_settings(ORDERS), 0, {DATA: 0})
    pairs = sum(len(apply(unit, orders(first, 1_000)).joined) for first in range(0, 40_000, 1_000))
    assert pairs > 39_900
    assert unit.join_summaries()["power"].keys <= 20_000
    unit.snapshot()
    assert unit.join_summaries()["power"].keys < 100
    again = Unit.restore(make_settings(ORDERS), 0, unit.snapshot())
    assert lines(make_settings(ORDERS), apply(again, orders(40_000, 500))) == lines(
        make_settings(ORDERS), apply(unit, orders(40_000, 500))
    )


@pytest.mark.parametrize("seed", range(10))
def test_forgetting_idle_things_after_every_batch_changes_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    by_partition = {**POWER, "watermark_scope": "partition", "tolerance": "300ms", "lateness": "1s"}
    gap = {**GAP, "tolerance": "200ms", "lateness": ["1s", "300ms"], "emit_unmatched": "both"}
    settings, draw = make_settings(by_partition, gap), random.Random(seed)
    sent = [
        one if one.value is None or draw.random() < 0.5 else one._replace(value=one.value.replace(b'"a"', b'"c"'))
        for one in seeded_messages(seed, 150)
    ]
    whole = lines(settings, apply(Unit(settings, 0, {DATA: 0}), sent))
    monkeypatch.setattr("joiner.runtime.task.unit._KEYS_MIN", -1)
    unit = Unit(settings, 0, {DATA: 0})
    parts = []
    for begin in range(0, len(sent), 5):
        parts.append(apply(unit, sent[begin : begin + 5]))
        unit.snapshot()
    assert lines(settings, *parts) == whole


def test_a_thing_of_which_nothing_is_held_is_not_forgotten_while_its_records_may_be_late() -> None:
    unit = Unit(make_settings({**POWER, "tolerance": "1s"}), 0, {DATA: 0})
    watermarks = [
        message(1 + n, {"mark": BASE_MS + 9_000, "quantity": q, "thing": "a"})
        for n, q in enumerate(["speed", "torque"])
    ]
    apply(unit, [record(0, "speed", BASE_MS), *watermarks])
    assert unit.held() == 0
    unit.snapshot()
    # Another thing may get the number of a forgotten one, and must not inherit its frontiers.
    both = [record(3, "speed", BASE_MS + 5_000, thing="b"), record(4, "speed", BASE_MS + 5_000)]
    assert [late.offset for late in apply(unit, both).late] == [4]
    apply(unit, [message(5, {"mark": BASE_MS + 9_000})])
    unit.snapshot()
    assert unit.join_summaries()["power"].keys == 0, "their frontiers are those of the partition"
    assert (
        len(apply(unit, [record(6, "speed", BASE_MS + 5_000), record(7, "speed", BASE_MS + 5_000, thing="b")]).late)
        == 2
    )
