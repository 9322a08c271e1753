"""What is remembered again after a restart: what may still be written by a replica, and no more than memory allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joiner.library.merging import protocol
from joiner.library.merging.protocol import ReplicaUnion
from joiner.library.merging.spans import Span, joined
from tests.property.offered_ids import restarted, restored, through_json, verdicts


def test_after_a_restart_ids_wait_for_the_end_of_their_transaction_if_an_input_topic_is_not_found() -> None:
    union = ReplicaUnion(2, 10)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0})
    verdicts(union, 0, "x")
    union.on_start(0, {"a": 1})
    verdicts(union, 0, "y")
    again = restarted(union, limit=10, ends={})
    assert verdicts(again, 1, "x") == ["known"]
    again.on_start(1, {"a": 1})
    assert verdicts(again, 1, "y") == ["known"], "its transaction has not ended, so it may be beyond 1"
    for replica in (0, 1):
        again.on_start(replica, {"a": 2})
    assert again.remembered == 0


@pytest.mark.parametrize("begins", [[{"a": 5}], [{}, {"a": 5}]])
def test_after_a_restart_ids_wait_for_the_first_start_record(begins: list[dict[str, int]]) -> None:
    """Before it, the input topics are not known, so that Kafka cannot be asked for their ends."""
    union = ReplicaUnion(2, 10)
    assert verdicts(union, 0, "x", "y") == ["deliver"] * 2
    again = restarted(restarted(union, limit=10), limit=10)
    assert again.remembered == 2
    again.on_start(1, {"a": 3})
    assert verdicts(again, 1, "x") == ["known"]
    for start in begins:
        again.on_start(0, start, {"a": 5})
    assert verdicts(again, 1, "y") == ["known"]
    again.on_start(1, {"a": 5})
    assert (again.complete, again.remembered) == ([0, 1], 0)


def test_only_what_was_remembered_is_recalled_however_much_was_delivered_since() -> None:
    union = ReplicaUnion(2, 10)
    # Replica 1 is far ahead, and quiet.
    union.on_start(1, {"a": 10_000})
    assert verdicts(union, 1, "late") == ["deliver"]
    for at in range(1, 3_000):
        union.on_start(0, {"a": at})
        assert verdicts(union, 0, at) == ["deliver"]
    assert (union.oldest_serial(), union.remembered) == (0, 2)
    again = restarted(union, limit=10, ends={"a": 10_001})
    assert again.remembered == 2
    assert verdicts(again, 0, "late", 2_999) == ["known", "known"]
    again.on_start(0, {"a": 10_000})
    assert verdicts(again, 0, "new") == ["deliver"]
    third = restarted(again, limit=10, ends={"a": 10_001})
    assert third.remembered == 3


def test_what_one_replica_alone_has_written_is_not_read_again_if_nothing_is_remembered() -> None:
    """It writes no start records, so that what it has written since the last one is everything after a while."""
    union = ReplicaUnion(2, 10)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0})
    verdicts(union, 1, 1, 2)
    alone = restarted(union, 1, 10, {"a": 2})
    assert verdicts(alone, 0, 1, 2, 3) == ["known", "known", "deliver"]
    assert alone.remembered == 0
    again = restored(alone, 1, 10)
    written = iter([(0, 1), (0, 2), (0, 3)])
    again.recall(through_json(alone.summary()), [], written, dict)
    assert next(written) == (0, 1)


def test_memory_is_bounded_while_ids_are_recalled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "RECALLED_MORE", 5)
    union = ReplicaUnion(2, 100)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0})
    for at in range(1, 60):
        verdicts(union, 0, at)
        union.on_start(0, {"a": at})
    assert union.remembered == 59
    # A complete replica has passed them all, so that they can be forgotten.
    again = restarted(union, limit=10)
    assert again.remembered <= 15
    assert again.accepted == [0]
    assert "deliver" not in verdicts(again, 1, *range(1, 60))
    # The only complete replica has yet to write them.
    union = ReplicaUnion(2, 100)
    union.on_start(1, {"a": 90})
    verdicts(union, 1, *range(60))
    union.on_start(1, {"a": 91})
    assert union.complete == [0]
    with pytest.raises(ValueError, match="more than 15 ids must be remembered"):
        restarted(union, limit=10)


def test_spans_that_are_close_become_one_if_there_are_too_many() -> None:
    spans = [(0, at, at + 2) for at in (0, 3, 10, 14, 100)] + [(1, 5, 9)]
    assert joined(spans, 9) == [(0, 0, 5), (0, 10, 12), (0, 14, 16), (0, 100, 102), (1, 5, 9)]
    assert joined(spans, 4) == [(0, 0, 5), (0, 10, 16), (0, 100, 102), (1, 5, 9)]
    assert joined(spans, 2) == [(0, 0, 102), (1, 5, 9)]
    assert joined(reversed(spans), 9) == joined(spans, 9)
    assert joined([], 2) == []


@given(
    spans=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 300), st.integers(0, 9)), max_size=40),
    most=st.integers(3, 12),
)
def test_spans_contain_what_they_contained_before_they_were_joined(spans: list[Span], most: int) -> None:
    given_ = [(replica, first, first + length) for replica, first, length in spans]
    found = joined(given_, most)
    assert len(found) <= most
    assert found == sorted(found)
    for replica, first, last in given_:
        assert sum(one == replica and low <= first and last <= high for one, low, high in found) == 1


def test_replicas_that_are_behind_are_ignored_if_what_was_delivered_cannot_be_recalled() -> None:
    union = ReplicaUnion(2, 100)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0})
    for at in range(1, 10):
        verdicts(union, 0, at)
        union.on_start(0, {"a": at})
    verdicts(union, 0, "x")
    again = restored(union)
    assert again.give_up(union.summary(), 9)
    again.recall(union.summary(), [(9, 0, "x")], [], lambda: {"a": 10})
    assert (again.accepted, again.remembered) == ([0], 1)
    assert verdicts(again, 1, 4) == ["ignored"]
    again.on_start(1, {"a": 9})
    assert verdicts(again, 1, "x") == ["known"]


def test_if_what_cannot_be_recalled_has_no_tag_only_the_replica_that_wrote_it_goes_on() -> None:
    union = ReplicaUnion(2, 100)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0})
    verdicts(union, 1, "x")
    again = restored(union)
    assert again.give_up(union.summary(), 1)
    assert verdicts(again, 0, "x") == ["ignored"]
    again.on_start(0, {"a": 1})
    assert again.accepted == [1], "how far the transaction goes is not known yet"
    again.on_start(1, {"a": 2})
    again.on_start(0, {"a": 2})
    assert again.complete == [0, 1]


def test_it_is_told_if_what_cannot_be_recalled_may_be_delivered_again() -> None:
    union = ReplicaUnion(2, 100)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0})
    verdicts(union, 1, "x")
    verdicts(union, 0, "y")
    again = restored(union)
    assert not again.give_up(union.summary(), 2)
    assert len(again.accepted) == 1
