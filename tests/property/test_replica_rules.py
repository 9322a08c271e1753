"""Does each rule of merging replicas do what it is for? Examples."""

from __future__ import annotations

import pytest

from joiner.library.merging.protocol import ReplicaUnion
from tests.property.offered_ids import DELIVERED, restarted, restored, verdicts


def test_whoever_is_first_is_delivered_and_the_other_one_is_dropped() -> None:
    union = ReplicaUnion(2, 10)
    union.on_start(0, {"a": 0})
    union.on_start(1, {"a": 0})
    assert verdicts(union, 1, "x") == ["deliver"]
    assert verdicts(union, 0, "x", "y") == ["known", "deliver"]
    assert union.remembered == 2


def test_ids_are_forgotten_once_all_have_passed_them() -> None:
    union = ReplicaUnion(2, 10)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0})
    verdicts(union, 1, "x")
    union.on_start(1, {"a": 3})
    assert union.remembered == 1
    union.on_start(0, {"a": 2})
    assert union.remembered == 1
    verdicts(union, 0, "x")
    union.on_start(0, {"a": 3})
    assert union.remembered == 0


def test_a_replica_that_returns_is_accepted_and_becomes_complete_again() -> None:
    union = ReplicaUnion(2, 4)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0})
    for at in range(1, 10):
        assert verdicts(union, 0, at) == ["deliver"]
        union.on_start(0, {"a": at})
    assert union.accepted == [0]
    assert verdicts(union, 1, *range(1, 7)) == ["ignored"] * 6
    union.on_start(1, {"a": 5})
    assert union.accepted == [0], "what it may write again was forgotten"
    union.on_start(1, {"a": 6})
    assert union.accepted == [0, 1], "everything that was forgotten is behind it"
    assert verdicts(union, 1, 7, 8, 9, 10) == ["known", "known", "known", "deliver"]
    assert union.complete == [0, 1], "replica 0 has passed the vector at which it was accepted"


def test_a_replica_that_was_accepted_beyond_all_others_is_not_complete() -> None:
    union = ReplicaUnion(2, 4)
    union.on_start(0, {"a": 5})
    union.on_start(1, {"a": 7})
    assert union.accepted == [0, 1]
    assert union.complete == [0], "what it wrote before was not delivered"
    union.on_start(0, {"a": 7})
    assert union.complete == [0, 1]


def test_ids_are_kept_while_there_is_room_for_a_replica_that_comes_later() -> None:
    union = ReplicaUnion(2, 100)
    for at in range(1, 50):
        assert verdicts(union, 0, at) == ["deliver"]
        union.on_start(0, {"a": at})
    union.on_start(1, {"a": 10})
    assert union.complete == [0, 1]
    assert verdicts(union, 1, *range(11, 50)) == ["known"] * 39
    union.on_start(1, {"a": 49})
    assert union.remembered == 0


def test_an_incomplete_replica_waits_for_the_complete_one_if_memory_is_full() -> None:
    union = ReplicaUnion(2, 2)
    union.on_start(1, {"a": 5})
    assert union.complete == [0]
    assert verdicts(union, 1, "x", "y", "z") == ["deliver", "deliver", "wait"]
    union.on_start(0, {"a": 0})
    assert verdicts(union, 0, "w") == ["deliver"], "the complete one never waits"
    assert union.accepted == [0]
    assert union.remembered == 2


def test_a_transaction_larger_than_memory_is_delivered_and_the_others_follow_later() -> None:
    union = ReplicaUnion(2, 3)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0})
    assert verdicts(union, 0, *range(8)) == ["deliver"] * 8
    assert verdicts(union, 1, *range(8)) == ["ignored"] * 8
    union.on_start(1, {"a": 8})
    assert union.accepted == [0], "how far the transaction goes is not known yet"
    union.on_start(0, {"a": 8})
    union.on_start(1, {"a": 9})
    assert union.accepted == [0, 1]


def test_if_the_only_complete_replica_begins_again_results_are_delivered_again() -> None:
    union = ReplicaUnion(1, 10)
    union.on_start(0, {"a": 0})
    verdicts(union, 0, "x")
    union.on_start(0, {"a": 5})
    assert union.on_start(0, {"a": 0}, ends={"a": 5})
    assert verdicts(union, 0, "x") == ["deliver"]


def test_if_the_only_complete_replica_writes_what_was_missing_nothing_is_delivered_again() -> None:
    union = ReplicaUnion(2, 4)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0})
    for at in range(1, 20):
        assert verdicts(union, 0, at) == ["deliver"]
        union.on_start(0, {"a": at})
    assert union.complete == [0]
    union.on_start(0, {}, ends={"a": 20})
    assert verdicts(union, 0, "missing") == ["deliver"]
    union.on_start(1, {"a": 1})
    assert verdicts(union, 1, 2) == ["ignored"], "it was delivered and forgotten"
    union.on_start(0, {"a": 20})
    union.on_start(1, {"a": 2})
    assert verdicts(union, 1, 3) == ["ignored"]
    union.on_start(1, {"a": 19})
    assert union.complete == [0, 1]


def test_a_transaction_that_begins_again_at_the_same_vector_may_have_written_more_than_the_vector_says() -> None:
    union = ReplicaUnion(2, 10)
    for replica in (0, 1):
        union.on_start(replica, {"a": 3})
    assert verdicts(union, 1, "x") == ["deliver"]
    union.on_start(1, {"a": 3}, ends={"a": 9})
    assert verdicts(union, 0, "x") == ["known"], "it is remembered until both have passed 9"


def test_what_was_written_before_the_first_start_record_is_not_delivered_again() -> None:
    union = ReplicaUnion(2, 10)
    verdicts(union, 0, "x")
    assert union.topics() == set()
    union.on_start(0, {}, ends={})
    union.on_start(1, {})
    union.on_start(1, {"a": 3})
    assert verdicts(union, 1, "x") == ["ignored"], "how far that goes is not known yet"
    union.on_start(0, {"a": 5})
    union.on_start(1, {"a": 4})
    assert verdicts(union, 1, "x") == ["ignored"]
    union.on_start(1, {"a": 5})
    assert union.complete == [0, 1]


def go_back(union: ReplicaUnion, replica: int, *, is_lost: bool) -> None:
    """Lose a replica's topic, or let it say that it does not continue, before the input topics are known."""
    if is_lost:
        union.lose(replica, {})
    else:
        union.on_start(replica, {}, ends={})


@pytest.mark.parametrize("is_lost", [False, True])
def test_ids_wait_for_who_wrote_them_if_another_replica_goes_back_before_the_input_topics_are_known(
    *, is_lost: bool
) -> None:
    """It may begin at a vector that is before them, although it has written them, too."""
    union = ReplicaUnion(2, 10)
    assert verdicts(union, 0, "x") == ["deliver"]
    # Retention has deleted the start record before this.
    assert verdicts(union, 1, "x") == ["known"]
    go_back(union, 1, is_lost=is_lost)
    union.on_start(1, {"a": 3})
    union.on_start(0, {"a": 5})
    assert verdicts(union, 1, "x") == ["known"]
    union.on_start(1, {"a": 5})
    assert (union.complete, union.remembered) == ([0, 1], 0)


@pytest.mark.parametrize("is_lost", [False, True])
def test_ids_get_no_tag_from_a_replica_that_goes_back_before_the_input_topics_are_known(*, is_lost: bool) -> None:
    union = ReplicaUnion(3, 10)
    assert verdicts(union, 0, "x") == ["deliver"]
    # Retention has deleted the start record before this.
    assert verdicts(union, 1, "x") == ["known"]
    go_back(union, 1, is_lost=is_lost)
    union.on_start(2, {"a": 0})
    assert verdicts(union, 2, "x") == ["known"]
    for replica in (1, 0, 2):
        union.on_start(replica, {"a": 1})
    assert (union.complete, union.remembered) == ([0, 1, 2], 0)


def test_without_a_start_record_replica_0_is_delivered_and_the_others_are_not() -> None:
    union = ReplicaUnion(2, 10)
    assert verdicts(union, 1, "x") == ["ignored"]
    assert verdicts(union, 0, "x") == ["deliver"]


def test_lost_messages_make_a_replica_incomplete_and_are_refused_of_the_only_complete_one() -> None:
    union = ReplicaUnion(2, 10)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0})
    assert union.complete == [0, 1]
    assert union.lose(0, {"a": 0})
    assert union.complete == [1]
    assert not union.lose(1, {"a": 0})


def test_a_new_input_topic_and_one_that_is_gone_are_noticed() -> None:
    union = ReplicaUnion(2, 10)
    for replica in (0, 1):
        union.on_start(replica, {"a": 3})
    assert not union.goes_back(1, {"a": 3})
    assert union.goes_back(1, {"a": 3, "b": 0})
    assert union.goes_back(1, {"b": 7})


def test_an_id_gets_its_tag_from_whichever_replica_ends_its_transaction_first() -> None:
    union = ReplicaUnion(3, 10)
    for replica in (0, 1, 2):
        union.on_start(replica, {"a": 0})
    verdicts(union, 1, "x")
    verdicts(union, 0, "x")
    verdicts(union, 2, "x")
    union.on_start(0, {"a": 4})
    union.on_start(2, {"a": 4})
    assert union.remembered == 1, "replica 1 may have written it in a transaction that was seen in part only"
    # Replica 1 is reset: the end of its transaction is never known.
    union.on_start(1, {"a": 0}, ends={"a": 4})
    union.on_start(1, {"a": 4})
    assert union.remembered == 0


def test_the_oldest_serial_is_that_of_the_oldest_id() -> None:
    union = ReplicaUnion(2, 10)
    union.on_start(1, {"a": 0})
    union.on_result(1, "x", 0)
    union.on_start(0, {"a": 0})
    union.on_result(0, "y", 1)
    union.on_start(0, {"a": 2})
    # The second transaction of replica 0 ends first of those with the oldest id.
    union.on_result(0, "x")
    union.on_result(0, "z", 2)
    union.on_start(0, {"a": 4})
    assert union.oldest_serial() == 0
    verdicts(union, 1, "y")
    union.on_start(1, {"a": 2})
    assert union.remembered == 2
    assert union.oldest_serial() == 0


def test_ids_of_a_transaction_whose_end_is_not_known_are_kept_until_all_have_passed_the_ends_of_the_input() -> None:
    union = ReplicaUnion(2, 10)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0})
    verdicts(union, 1, "x")
    with pytest.raises(ValueError, match="the ends of the input are needed"):
        union.on_start(1, {})
    union.on_start(1, {}, {"a": 9})
    for replica in (1, 0):
        union.on_start(replica, {"a": 8})
    assert union.oldest_serial() == 0
    again = restarted(union)
    assert verdicts(again, 0, "x") == ["known"]
    for replica in (0, 1):
        again.on_start(replica, {"a": 9})
    assert again.remembered == 0


@pytest.mark.parametrize("keeps_ids", [False, True])
def test_an_id_of_a_dead_replica_gets_its_tag_from_another_one_that_wrote_it_before_a_restart(
    *, keeps_ids: bool
) -> None:
    union = ReplicaUnion(2, 4)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0})
    verdicts(union, 1, "x")
    assert verdicts(union, 0, "x") == ["known"]
    if keeps_ids:
        again = ReplicaUnion(2, 4)
        again.restore(union.state())
        DELIVERED[again] = list(DELIVERED[union])
    else:
        again = restarted(union, limit=4, ends={"a": 3})
    for at in range(1, 20):
        again.on_start(0, {"a": at})
        assert verdicts(again, 0, at) == ["deliver"]
    oldest = again.oldest_serial()
    assert oldest is not None
    assert oldest > 10, "x is forgotten when memory is full, although replica 1 has not ended its transaction"


def test_what_others_were_first_to_write_is_noted_although_a_transaction_is_too_large() -> None:
    union = ReplicaUnion(2, 4)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0})
    verdicts(union, 1, "x")
    verdicts(union, 0, "x", *range(9))
    union.on_start(0, {"a": 5})
    for at in range(10, 20):
        verdicts(union, 0, at)
        union.on_start(0, {"a": at})
    oldest = union.oldest_serial()
    assert oldest is not None
    assert oldest >= 10


def test_one_replica_alone_remembers_nothing_but_what_it_has_not_written_yet() -> None:
    union = ReplicaUnion(2, 10)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0})
    verdicts(union, 1, "x", "y", "z")
    union.on_start(1, {"a": 3})
    verdicts(union, 0, "x", "w")
    alone = restarted(union, 1, 10, {"a": 7}, [(0, "x"), (0, "w")])
    assert alone.remembered == 2
    assert verdicts(alone, 0, "y", "v", "z", "u") == ["known", "deliver", "known", "deliver"]
    assert (alone.remembered, alone.oldest_serial()) == (0, None)
    two = restored(alone, 2, 10)
    two.on_start(1, {"a": 2}, {})
    assert verdicts(two, 1, "y", "z", "v") == ["ignored"] * 3
    two.on_start(0, {"a": 9})
    two.on_start(1, {"a": 9})
    assert two.complete == [0, 1]


@pytest.mark.parametrize("begins", [[{"a": 3}], [{}, {"a": 3}]])
def test_what_one_replica_alone_has_delivered_since_a_reset_is_not_delivered_by_another_one_that_is_added(
    begins: list[dict[str, int]],
) -> None:
    union = ReplicaUnion(2, 10)
    union.on_start(0, {"a": 9})
    verdicts(union, 0)
    alone = restored(union, 1, 10)
    # It is reset meanwhile, and writes no start records.
    assert verdicts(alone, 0, "x", "y") == ["deliver"] * 2
    two = restored(alone, 2, 10)
    for start in begins:
        two.on_start(0, start, {"a": 9})
    two.on_start(1, {"a": 1}, {"a": 9})
    assert verdicts(two, 1, "y") == ["ignored"]
    two.on_start(1, {"a": 3})
    assert two.complete == [0, 1]


@pytest.mark.parametrize("is_only", [False, True])
def test_a_topic_that_the_application_does_not_read_any_more_keeps_nobody_out(*, is_only: bool) -> None:
    union = ReplicaUnion(2, 4)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0, "b": 0})
    for at in range(1, 10):
        verdicts(union, 0, at)
        union.on_start(0, {"a": at, "b": 100})
    verdicts(union, 0, "x")
    assert union.complete == [0]
    if not is_only:
        union.on_start(1, {"a": 9, "b": 100})
        assert union.complete == [0, 1]
    # Topic b still exists.
    ends = {"a": 9, "b": 100}
    assert union.on_start(0, {}, ends) == is_only
    union.on_start(0, {"a": 2})
    for at in range(4, 12):
        union.on_start(0, {"a": at})
    if not is_only:
        assert union.complete == [1], "the other one still reads it"
        union.on_start(1, {}, ends)
    union.on_start(1, {"a": 11}, ends)
    union.on_start(0, {"a": 12})
    union.on_start(1, {"a": 12})
    assert (union.complete, union.remembered) == ([0, 1], 0)
    assert union.topics() == {"a"}


def test_a_replica_that_reads_other_topics_than_the_complete_ones_is_ignored() -> None:
    union = ReplicaUnion(2, 4)
    union.on_start(1, {"a": 5, "b": 5})
    assert union.accepted == [0, 1], "what replica 0 reads is not known yet"
    verdicts(union, 1, "x")
    union.on_start(0, {"a": 0})
    assert (union.accepted, union.topics()) == ([0], {"a"})
    union.on_start(1, {"a": 7, "b": 7})
    assert verdicts(union, 1, *range(9)) == ["ignored"] * 9, "it does not wait for what replica 0 never passes"
    union.on_start(0, {"a": 7})
    union.on_start(1, {"a": 9, "b": 9})
    union.on_start(0, {"a": 9})
    assert (union.accepted, union.remembered) == ([0], 0)
    # Now replica 0 reads b, too.
    for start in ({}, {"a": 0, "b": 0}):
        union.on_start(0, start, {"a": 9})
    union.on_start(1, {"a": 10, "b": 9})
    union.on_start(0, {"a": 10, "b": 9})
    assert union.complete == [0, 1]


def test_ids_do_not_wait_for_those_that_a_replica_wrote_before_it_went_back() -> None:
    union = ReplicaUnion(2, 100)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0})
    verdicts(union, 1, "far ahead")
    union.on_start(1, {"a": 700})
    for start in ({}, {"a": 0}):
        union.on_start(1, start, {"a": 900})
    for at in range(1, 20):
        assert verdicts(union, 1, at) == ["deliver"]
        union.on_start(1, {"a": at})
        assert verdicts(union, 0, at) == ["known"]
        union.on_start(0, {"a": at})
        again = restarted(union, ends={"a": 900})
        assert (union.remembered, again.remembered) == (1, 1)


def test_a_topic_that_was_recreated_has_lower_offsets() -> None:
    union = ReplicaUnion(2, 4)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0})
    verdicts(union, 0, "x")
    union.on_start(0, {"a": 700})
    union.on_start(1, {}, {"a": 3})
    assert union.on_start(0, {}, {"a": 3}), "replica 1 is incomplete"
    assert union.remembered == 1
    for replica in (0, 1, 0, 1):
        union.on_start(replica, {"a": 3})
    assert (union.complete, union.remembered) == ([0, 1], 0)


def test_a_state_is_continued_with_more_or_fewer_replicas() -> None:
    union = ReplicaUnion(2, 10)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0})
    verdicts(union, 1, "x", "y")
    union.on_start(1, {"a": 1})
    for count in (1, 2, 3):
        other = ReplicaUnion(count, 10)
        other.restore(union.state(), lambda: {"a": 1})
        assert other.remembered == 2
        assert verdicts(other, 0, "x", "z") == ["known", "deliver"]
    assert union.lose(0, {"a": 1})
    with pytest.raises(ValueError, match="no longer exists"):
        ReplicaUnion(1, 10).restore(union.state())


@pytest.mark.parametrize(("replicas", "limit"), [(0, 1), (1, 0)])
def test_a_union_of_nothing_is_refused(replicas: int, limit: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ReplicaUnion(replicas, limit)
