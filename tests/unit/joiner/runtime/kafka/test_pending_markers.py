"""Transactions that Kafka may not have ended everywhere: which open ones are ours, and which topics are in doubt."""

from __future__ import annotations

import pytest

from joiner.runtime.kafka.pending_markers import FIRSTS_MAX, PendingMarkers, identity_of
from joiner.runtime.model import FirstRecord

OUT, LATE, STATE = "machine.out", "machine.late", "app.state"


def test_a_transaction_is_decided_as_soon_as_the_stable_end_is_behind_its_first_record() -> None:
    undecided = PendingMarkers()
    undecided.add({OUT: 10, STATE: 5}, {OUT: " a"}, is_base=False)
    undecided.note({OUT: 10, STATE: 6})
    assert (bool(undecided), undecided.topics(), undecided.ours({OUT: 10, STATE: 6})) == (True, [OUT], [OUT])
    undecided.note({OUT: 11})
    assert (bool(undecided), undecided.topics()) == (False, [])


def test_what_others_have_open_before_a_transaction_of_ours_is_not_taken_for_ours() -> None:
    undecided = PendingMarkers()
    undecided.add({OUT: 10}, {OUT: " a"}, is_base=False)
    undecided.note({OUT: 7})
    assert undecided.ours({OUT: 7}) == []
    assert undecided.topics() == [OUT]


def test_the_last_transaction_of_each_topic_is_named_until_it_is_decided() -> None:
    undecided = PendingMarkers()
    undecided.begin_at({OUT: 3, LATE: 4})
    assert undecided.records({OUT: " a", LATE: ""}) == {OUT: FirstRecord(" a", 3)}
    undecided.add({OUT: 10, LATE: 20}, {OUT: " a", LATE: "app late"}, is_base=False)
    undecided.add({OUT: 30}, {OUT: " b"}, is_base=False)
    assert undecided.records({OUT: " c"}) == {OUT: FirstRecord(" c", 30), LATE: FirstRecord("app late", 20)}
    undecided.note({LATE: 21})
    assert undecided.records({}) == {OUT: FirstRecord(" b", 30)}


def test_a_snapshot_waits_for_what_was_written_up_to_the_one_before_and_for_nothing_newer() -> None:
    undecided = PendingMarkers()
    undecided.add({OUT: 10, STATE: 1}, {OUT: " a"}, is_base=True)
    undecided.add({OUT: 20, STATE: 2}, {OUT: " b"}, is_base=False)
    undecided.note({OUT: 10, STATE: 2})
    assert undecided.in_doubt() == [OUT]
    undecided.note({OUT: 11})
    assert (undecided.in_doubt(), undecided.topics()) == ([], [OUT, STATE])


def test_what_comes_next_lies_behind_the_line_the_last_record_and_the_stable_end() -> None:
    undecided = PendingMarkers()
    undecided.begin_at({OUT: 3, LATE: 4})
    undecided.add({OUT: 10}, {}, is_base=False)
    undecided.note({LATE: 9})
    assert undecided.ends() == {OUT: 10, LATE: 9}


def test_what_another_program_keeps_open_for_ever_does_not_fill_the_memory() -> None:
    undecided = PendingMarkers()
    for at in range(FIRSTS_MAX + 100):
        undecided.add({OUT: at + 5}, {OUT: " a"}, is_base=at == 0)
    undecided.note({OUT: 5})
    assert sum(map(len, undecided._firsts.values())) == FIRSTS_MAX  # noqa: SLF001 - the bounded list
    assert undecided.in_doubt() == [OUT]


@pytest.mark.parametrize(
    ("value", "identity"),
    [
        (b'{"id":"power:0:1:2","thing":"R1"}', " power:0:1:2"),
        (b'{"id":"power:0:left:2","application":"app"}', "app power:0:left:2"),
        (b'{"id":"machine.data:0:7","source":"app"}', "app machine.data:0:7"),
        (b'{"thing":"R1"}', ""),
        (b'{"id":7}', ""),
        (b"\xff", ""),
        (None, ""),
    ],
)
def test_a_record_is_known_by_its_id_and_its_application(value: bytes | None, identity: str) -> None:
    assert identity_of(value) == identity


def test_a_watermark_is_identified_by_its_content() -> None:
    one, other = (b'{"mark":%d,"quantity":"p","thing":"a"}' % mark for mark in (5, 6))
    assert identity_of(one) == identity_of(one) != identity_of(other)
    assert identity_of(one) != identity_of(b'{"mark":5,"quantity":"p"}') != ""
    # A transaction that writes watermarks alone is looked for like any other.
    pending = PendingMarkers()
    assert pending.records({OUT: identity_of(one)}) == {OUT: FirstRecord(identity_of(one), 0)}
