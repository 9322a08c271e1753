"""Does a reader that merges replicas deliver each result exactly once, in bounded memory, whatever happens to them?"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joiner.library.merging.protocol import ReplicaUnion, Verdict
from tests.property.merging_mutations import MERGING_MUTATIONS, broken_union
from tests.property.mutation import Mutation
from tests.property.mutations import ROOT, broken
from tests.property.replica_histories import END, Defect, Reader, Replicas, history, play

SEEDS: Final = 1_200
"""Enough to find each defect."""

COMPLETE: Final = 250
STRICT: Final = 150
"""In how many of 400 histories at least no result may be missing, and none may be delivered again."""


@given(seed=st.integers(0, 2**32))
@example(seed=49).via("an empty start vector was accepted")
def test_each_result_is_delivered_once_whatever_happens(seed: int) -> None:
    assert play(seed, ReplicaUnion) is None


def test_the_same_for_hundreds_of_histories() -> None:
    found = {seed: history(seed, ReplicaUnion) for seed in range(400)}
    assert {seed: wrong for seed, (wrong, _) in found.items() if wrong is not None} == {}
    assert sum(not reader.skips for _, reader in found.values()) > COMPLETE
    assert sum(not reader.resets for _, reader in found.values()) > STRICT


@pytest.mark.parametrize("mutation", MERGING_MUTATIONS, ids=lambda mutation: mutation.rule.replace(" ", "-"))
def test_a_broken_rule_is_found(mutation: Mutation, tmp_path: Path) -> None:
    make = broken_union(mutation, broken((ROOT / mutation.path).read_text(), mutation), tmp_path)

    def is_found(seed: int) -> bool:
        try:
            return play(seed, make) is not None
        except (AssertionError, IndexError, ValueError):
            return True

    assert any(is_found(seed) for seed in range(SEEDS))


@pytest.mark.parametrize(
    "defect",
    [Defect(late_by=1), Defect(hides_founding=True), Defect(hides_resolving=True)],
    ids=["late", "founding is hidden", "resolving is hidden"],
)
def test_a_replica_that_breaks_its_promise_is_found(defect: Defect) -> None:
    assert any(play(seed, ReplicaUnion, defect) is not None for seed in range(SEEDS))


def write_a_little(replicas: Replicas, chance: random.Random, number: int) -> None:
    at = replicas.writers[number].at
    assert at is not None
    replicas.write(number, tuple(min(END, offset + chance.randint(0, 6)) for offset in at))


@given(seed=st.integers(0, 2**32), limit=st.integers(1, 20))
def test_each_result_is_delivered_once_if_one_replica_goes_on_alone_and_another_one_returns(
    seed: int, limit: int
) -> None:
    chance = random.Random(seed)
    replicas = Replicas(chance, 2)
    zero = (0,) * replicas.topics
    replicas.writers[1].at = zero
    reader = Reader(replicas, lambda: ReplicaUnion(2, limit), keeps_ids=chance.random() < 0.5)
    for number in (0, 1):
        replicas.write(number, zero)
    assert reader.read_everything()
    for _ in range(chance.randint(0, 20)):
        write_a_little(replicas, chance, chance.randrange(2))
        reader.read(chance.randrange(2), chance.randint(0, 20))
    if 0 not in reader.union.complete:
        return
    reader.change(lambda: ReplicaUnion(1, limit), 1)
    replicas.writes_starts = False
    for _ in range(chance.randint(0, 10)):
        write_a_little(replicas, chance, 0)
        reader.read(0, chance.randint(0, 20))
        if chance.random() < 0.3:
            reader.restart()
    reader.save()
    replicas.writes_starts = True
    for number in (0, 1):
        replicas.writers[number].wrote_last = True
    reader.change(lambda: ReplicaUnion(2, limit), 2)
    for _ in range(chance.randint(0, 10)):
        write_a_little(replicas, chance, chance.randrange(2))
        reader.read(chance.randrange(2), chance.randint(0, 20))
        if chance.random() < 0.3:
            reader.restart()
    replicas.finish()
    assert reader.read_everything()
    replicas.write_starts()
    assert reader.read_everything()
    assert sorted(identity for _, identity in reader.delivered) == sorted(
        replicas.emission.upto((END,) * replicas.topics)
    )
    assert (reader.union.remembered, reader.union.complete) == (0, [0, 1])


@given(seed=st.integers(0, 2**32), limit=st.integers(1, 20))
def test_a_dead_replica_is_not_waited_for_if_another_one_is_complete(seed: int, limit: int) -> None:
    replicas = Replicas(random.Random(seed), 2)
    zero = (0,) * replicas.topics
    replicas.writers[1].at = zero
    reader = Reader(replicas, lambda: ReplicaUnion(2, limit), keeps_ids=True)
    for number in (0, 1):
        replicas.write(number, zero)
    assert reader.read_everything()
    assert reader.union.complete == [0, 1], "both begin at the same vector"
    for end in range(1, 41):
        replicas.write(1, tuple(end for _ in zero))
        assert reader.read_everything()
    assert {identity for _, identity in reader.delivered} == replicas.emission.upto(tuple(40 for _ in zero))


def verdicts(union: ReplicaUnion, replica: int, *identities: Any) -> list[str]:
    return [union.on_result(replica, identity).value for identity in identities]


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
    assert not union.goes_back(1, {"a": 3, "b": 0})
    union.on_start(1, {"a": 3, "b": 0})
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
    union.on_start(1, {"a": 0}, 0)
    verdicts(union, 1, "x")
    union.on_start(0, {"a": 0}, 1)
    verdicts(union, 0, "y")
    union.on_start(0, {"a": 2}, 2)
    # The second transaction of replica 0 ends first of those with the oldest id.
    verdicts(union, 0, "x", "z")
    union.on_start(0, {"a": 4}, 3)
    assert union.oldest_serial() == 0
    verdicts(union, 1, "y")
    union.on_start(1, {"a": 2}, 3)
    assert union.remembered == 2
    assert union.oldest_serial() == 0


def test_ids_of_a_transaction_whose_end_is_not_known_are_kept_until_all_have_passed_the_ends_of_the_input() -> None:
    union = ReplicaUnion(2, 10)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0}, 0)
    verdicts(union, 1, "x")
    with pytest.raises(ValueError, match="the ends of the input are needed"):
        union.on_start(1, {}, 1)
    union.on_start(1, {}, 1, {"a": 9})
    for replica in (1, 0):
        union.on_start(replica, {"a": 8}, 1)
    assert union.oldest_serial() == 0
    again = ReplicaUnion(2, 10)
    again.restore(union.summary())
    again.recall(union.summary(), [(0, 1, "x")], [])
    assert again.on_result(0, "x") is Verdict.KNOWN
    for replica in (0, 1):
        again.on_start(replica, {"a": 9}, 1)
    assert again.remembered == 0


def restarted(
    union: ReplicaUnion, delivered: list[tuple[int, int, Any]], written: list[tuple[int, Any]]
) -> ReplicaUnion:
    again = ReplicaUnion(len(union.summary()["replicas"]), 4)
    again.restore(union.summary())
    again.recall(union.summary(), delivered, written)
    return again


@pytest.mark.parametrize("keeps_ids", [False, True])
def test_an_id_of_a_dead_replica_gets_its_tag_from_another_one_that_wrote_it_before_a_restart(
    *, keeps_ids: bool
) -> None:
    union = ReplicaUnion(2, 4)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0}, 0)
    verdicts(union, 1, "x")
    assert verdicts(union, 0, "x") == ["known"]
    if keeps_ids:
        again = ReplicaUnion(2, 4)
        again.restore(union.state())
    else:
        again = restarted(union, [(0, 1, "x")], [(1, "x"), (0, "x")])
    for at in range(1, 20):
        again.on_start(0, {"a": at}, at)
        assert verdicts(again, 0, at) == ["deliver"]
    oldest = again.oldest_serial()
    assert oldest is not None
    assert oldest > 10, "x is forgotten when memory is full, although replica 1 has not ended its transaction"


def test_what_others_were_first_to_write_is_noted_although_a_transaction_is_too_large() -> None:
    union = ReplicaUnion(2, 4)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0}, 0)
    verdicts(union, 1, "x")
    verdicts(union, 0, "x", *range(9))
    union.on_start(0, {"a": 5}, 10)
    for at in range(10, 20):
        verdicts(union, 0, at)
        union.on_start(0, {"a": at}, at)
    oldest = union.oldest_serial()
    assert oldest is not None
    assert oldest >= 10


def test_one_replica_alone_remembers_nothing_but_what_it_has_not_written_yet() -> None:
    union = ReplicaUnion(2, 10)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0}, 0)
    verdicts(union, 1, "x", "y", "z")
    union.on_start(1, {"a": 3}, 3)
    verdicts(union, 0, "x", "w")
    alone = ReplicaUnion(1, 10)
    alone.restore(union.summary(), lambda: {"a": 7})
    delivered = [(0, 1, "x"), (1, 1, "y"), (2, 1, "z"), (3, 0, "w")]
    alone.recall(union.summary(), delivered, [(0, "x"), (0, "w")])
    assert alone.remembered == 2
    assert verdicts(alone, 0, "y", "v", "z", "u") == ["known", "deliver", "known", "deliver"]
    assert (alone.remembered, alone.oldest_serial()) == (0, None)
    two = ReplicaUnion(2, 10)
    two.restore(alone.summary())
    two.on_start(1, {"a": 2}, 6)
    assert verdicts(two, 1, "y", "z", "v") == ["ignored"] * 3
    two.on_start(0, {"a": 9}, 6)
    two.on_start(1, {"a": 9}, 6)
    assert two.complete == [0, 1]


def test_replicas_that_are_behind_are_ignored_if_what_was_delivered_cannot_be_recalled() -> None:
    union = ReplicaUnion(2, 100)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0}, 0)
    for at in range(1, 10):
        verdicts(union, 0, at)
        union.on_start(0, {"a": at}, at)
    verdicts(union, 0, "x")
    again = ReplicaUnion(2, 100)
    again.restore(union.summary())
    assert again.give_up(union.summary(), 9)
    again.recall(union.summary(), [(9, 0, "x")], [(0, "x")])
    assert (again.accepted, again.remembered) == ([0], 1)
    assert verdicts(again, 1, 4) == ["ignored"]
    again.on_start(1, {"a": 9}, 10)
    assert verdicts(again, 1, "x") == ["known"]


def test_if_what_cannot_be_recalled_has_no_tag_only_the_replica_that_wrote_it_goes_on() -> None:
    union = ReplicaUnion(2, 100)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0}, 0)
    verdicts(union, 1, "x")
    again = ReplicaUnion(2, 100)
    again.restore(union.summary())
    assert again.give_up(union.summary(), 1)
    assert verdicts(again, 0, "x") == ["ignored"]
    again.on_start(0, {"a": 1}, 1)
    assert again.accepted == [1], "how far the transaction goes is not known yet"
    again.on_start(1, {"a": 2}, 1)
    again.on_start(0, {"a": 2}, 1)
    assert again.complete == [0, 1]


def test_it_is_told_if_what_cannot_be_recalled_may_be_delivered_again() -> None:
    union = ReplicaUnion(2, 100)
    for replica in (0, 1):
        union.on_start(replica, {"a": 0}, 0)
    verdicts(union, 1, "x")
    verdicts(union, 0, "y")
    again = ReplicaUnion(2, 100)
    again.restore(union.summary())
    assert not again.give_up(union.summary(), 2)
    assert len(again.accepted) == 1


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
