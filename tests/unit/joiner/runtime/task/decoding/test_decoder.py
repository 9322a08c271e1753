"""Which columns is a message decoded into, or why is it rejected?"""

from __future__ import annotations

import pytest

from joiner import ALL_KEYS
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.decoding.decoder import TopicDecoder
from joiner.runtime.task.decoding.intake import LEFT, RIGHT, Intake
from joiner.runtime.task.decoding.keys import Keys
from joiner.runtime.task.emit import sides_of
from tests.unit.joiner.runtime.joiner_inputs import (
    BASE_MS,
    DATA,
    GAP,
    POWER,
    batch,
    make_settings,
    message,
    record,
    thing_of,
)

DAY_MS = 86_400_000


def read(settings: JoinerSettings, *messages: object, unit: int = 0, topic: str = DATA) -> Intake:
    keys = Keys(unit, settings.topics.partitions)
    return TopicDecoder(settings, topic, unit, keys).decode(batch(messages))  # type: ignore[arg-type] # loosely typed in tests


def test_a_record_goes_to_every_side_that_selects_its_quantity() -> None:
    intake = read(make_settings(POWER, GAP), record(3, "speed", BASE_MS))
    assert sorted(intake.sides) == [(0, LEFT), (1, RIGHT)]
    for side in intake.sides.values():
        columns = side.columns()
        assert columns is not None
        key, ts, seq, _ = columns
        assert (key.tolist(), ts.tolist(), seq.tolist()) == ([0], [BASE_MS * 10**6], [3])
    assert intake.not_selected == 0


def test_what_no_join_wants_is_only_counted() -> None:
    # The message is not validated: its partition and its time do not matter.
    intake = read(make_settings(partitions=5), record(0, "other", BASE_MS + 10 * DAY_MS), unit=4)
    assert (intake.not_selected, intake.rejected, intake.sides) == (1, [], {})


@pytest.mark.parametrize("others", [0, 40])
def test_start_records_of_another_application_s_replicas_are_not_selected(others: int) -> None:
    """Even if they are read together with many records."""
    records = [record(n, "speed", BASE_MS + n) for n in range(others)]
    intake = read(
        make_settings(), message(0, {"start": {"a": 5}}), *(one._replace(offset=one.offset + 1) for one in records)
    )
    assert (intake.not_selected, intake.rejected, intake.records) == (1, [], others + 1)
    assert sum(len(side.rows().seq) for side in intake.sides.values()) == others


def test_things_are_numbered_in_the_order_of_their_first_sight() -> None:
    intake = read(make_settings(), *(record(n, "speed", BASE_MS, thing=t) for n, t in enumerate("cabca")))
    assert intake.sides[0, LEFT].rows().key.tolist() == [0, 1, 2, 0, 1]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "is null"),
        (b"", "is empty"),
        (b"{", "not a JSON object"),
        (b"\xff\xfe", "not a JSON object"),
        ({"quantity": "speed"}, "missing required field"),
        (b'{"thing":"\xff","quantity":"q","phenomenonTime":1,"result":1,"id":"x"}', "utf-8"),
        (b'{"x":' + b"[" * 30_000, "brackets"),
    ],
)
def test_the_unreadable_becomes_a_dead_letter_with_its_place(content: object, reason: str) -> None:
    intake = read(make_settings(), message(0, content), record(1, "speed", BASE_MS))
    (dead_letter,) = intake.rejected
    assert reason in dead_letter.reason
    assert (dead_letter.id, dead_letter.topic, dead_letter.partition, dead_letter.offset) == (f"{DATA}:0:0", DATA, 0, 0)
    assert dead_letter.source == "lsb"
    assert intake.sides[0, LEFT].rows().seq.tolist() == [1], "the next one is read"


@pytest.mark.parametrize(("beyond_ms", "fine"), [(0, True), (1, False), (10**10, False), (-(10**11), True)])
@pytest.mark.parametrize("is_watermark", [False, True])
def test_a_time_may_be_ahead_of_its_arrival_by_ahead_max_and_no_more(
    beyond_ms: int, *, fine: bool, is_watermark: bool
) -> None:
    time_ms = BASE_MS + DAY_MS + beyond_ms
    sent = message(0, {"mark": time_ms}) if is_watermark else record(0, "speed", time_ms)
    intake = read(make_settings(), sent)
    assert (not intake.rejected) == fine
    assert fine or "max_future_skew" in intake.rejected[0].reason


def test_ahead_max_is_exact_to_the_nanosecond() -> None:
    settings = make_settings(events={"time_unit": "ns"}, application={"max_future_skew": "1ns"})
    at_ns = BASE_MS * 10**6
    intake = read(settings, record(0, "speed", at_ns + 1), record(1, "speed", at_ns + 2))
    assert intake.sides[0, LEFT].rows().seq.tolist() == [0]
    assert [dead_letter.offset for dead_letter in intake.rejected] == [1]


@pytest.mark.parametrize("is_watermark", [False, True])
def test_a_thing_in_the_wrong_partition_is_refused_every_time(*, is_watermark: bool) -> None:
    settings = make_settings(partitions=5)
    stranger = thing_of(3, 5)
    sent = [
        message(n, {"mark": BASE_MS, "thing": stranger})
        if is_watermark
        else record(n, "speed", BASE_MS, thing=stranger)
        for n in range(2)
    ]
    intake = read(settings, *sent, unit=2)
    assert [dead_letter.offset for dead_letter in intake.rejected] == [0, 1]
    assert "belongs to partition 3, but the message is in partition 2" in intake.rejected[0].reason
    assert "murmur2" in intake.rejected[0].reason
    assert not intake.sides


@pytest.mark.parametrize(
    ("watermark", "sides", "key"),
    [
        ({}, [(0, LEFT), (0, RIGHT), (1, LEFT), (1, RIGHT)], ALL_KEYS),
        ({"quantity": "speed"}, [(0, LEFT), (1, RIGHT)], ALL_KEYS),
        ({"quantity": "speed", "thing": "a"}, [(0, LEFT), (1, RIGHT)], 0),
        ({"thing": "a"}, [(0, LEFT), (0, RIGHT), (1, LEFT), (1, RIGHT)], 0),
        ({"quantity": "other"}, [], None),
    ],
)
def test_a_watermark_covers_the_sides_and_things_that_it_names(
    watermark: dict[str, str], sides: list[tuple[int, int]], key: int | None
) -> None:
    intake = read(make_settings(POWER, GAP), message(5, {"mark": BASE_MS} | watermark))
    assert sorted(intake.sides) == sides
    for side in intake.sides.values():
        columns = side.watermarks()
        assert columns is not None
        assert [column.tolist() for column in columns] == [[key], [BASE_MS * 10**6], [5]]
        assert side.columns() is None
    assert (intake.watermarks, intake.not_selected) == ((1, 0) if sides else (0, 1))


WHOLE = {"name": "whole", "left": {"topic": "a"}, "right": {"topic": "b", "quantity": "q"}, "output": "w"}


@pytest.mark.parametrize("quantity", ["q", "anything"])
def test_a_side_may_take_a_whole_topic(quantity: str) -> None:
    assert read(make_settings(WHOLE), record(0, quantity, BASE_MS), topic="a").sides[0, LEFT].rows().seq.tolist() == [0]
    in_b = read(make_settings(WHOLE), record(0, quantity, BASE_MS), topic="b")
    assert list(in_b.sides) == ([(0, RIGHT)] if quantity == "q" else [])


@pytest.mark.parametrize(("watermark", "covered"), [({}, True), ({"thing": "a"}, True), ({"quantity": "q"}, False)])
def test_a_promise_about_one_quantity_does_not_cover_a_side_that_takes_all(
    watermark: dict[str, str], *, covered: bool
) -> None:
    intake = read(make_settings(WHOLE), message(0, {"mark": BASE_MS} | watermark), topic="a")
    assert bool(intake.sides) == covered


def test_a_quantity_and_the_whole_topic_may_both_be_asked_for() -> None:
    other = {"name": "one", "left": {"topic": "a", "quantity": "q"}, "right": {"topic": "b"}, "output": "o"}
    intake = read(make_settings(WHOLE, other), record(0, "q", BASE_MS), record(1, "r", BASE_MS), topic="a")
    assert intake.sides[0, LEFT].rows().seq.tolist() == [0, 1]
    assert intake.sides[1, LEFT].rows().seq.tolist() == [0]


def test_quantities_of_one_event_are_no_duplicates_on_a_side_that_takes_all() -> None:
    settings = make_settings(WHOLE)
    intake = read(settings, *(record(at, name, BASE_MS, identity="e") for at, name in enumerate("abb")), topic="a")
    columns = intake.sides[0, LEFT].columns()
    assert columns is not None
    first, second, again = columns[3].tolist()
    assert first != second
    assert second == again


def test_a_nul_in_a_name_makes_no_duplicate_on_a_side_that_takes_all() -> None:
    names = [("q\0r", "e"), ("q", "r\0e"), ("q\\u0000r", "e"), ("q", "e"), ("q\0r", "e")]
    given = [record(at, quantity, BASE_MS, identity=identity) for at, (quantity, identity) in enumerate(names)]
    columns = read(make_settings(WHOLE), *given, topic="a").sides[0, LEFT].columns()
    assert columns is not None
    *different, again = columns[3].tolist()
    assert len(set(different)) == len(different)
    assert again == different[0]


def test_a_kept_record_is_the_one_that_came() -> None:
    (kept,) = sides_of(read(make_settings(), record(0, "speed", BASE_MS + 0.5, 2.5)).sides[0, LEFT].rows())
    assert (kept.result, kept.id) == (2.5, "e0")
