"""Does a reader that merges replicas deliver each result exactly once, in bounded memory, whatever happens to them?"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joiner.library.merging.protocol import ReplicaUnion
from tests.property.merging_mutations import MERGING_MUTATIONS, broken_union
from tests.property.mutation import Mutation
from tests.property.mutations import ROOT, broken
from tests.property.replica_histories import END, Defect, Reader, Replicas
from tests.property.replica_plays import history, play, play_change, play_recreation

SEEDS: Final = (1402, 3518, 4836, *range(1_200))
"""Enough to find each defect."""

RECREATED: Final = (5, 6, 8, 9)
"""Histories in which no ids are kept although an input topic was recreated."""

COMPLETE: Final = 310
STRICT: Final = 230
"""In how many of 400 histories at least no result may be missing, and none may be delivered again."""

_RESET: Final = 0.05
"""How likely a replica is reset before it writes, while their number changes."""


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

    def is_found(played: Callable[[int, Callable[[int, int], Any]], str | None], seed: int) -> bool:
        try:
            return played(seed, make) is not None
        except (AssertionError, IndexError, ValueError):
            return True

    in_recreations = any(is_found(play_recreation, seed) for seed in RECREATED)
    assert in_recreations or any(is_found(played, seed) for seed in SEEDS for played in (play, play_change))


@pytest.mark.parametrize(
    "defect",
    [Defect(late_by=1), Defect(hides_founding=True), Defect(hides_resolving=True)],
    ids=["late", "founding is hidden", "resolving is hidden"],
)
def test_a_replica_that_breaks_its_promise_is_found(defect: Defect) -> None:
    assert any(play(seed, ReplicaUnion, defect) is not None for seed in SEEDS)


def write_a_little(replicas: Replicas, chance: random.Random, number: int) -> None:
    at = replicas.writers[number].at
    assert at is not None
    replicas.write(number, tuple(min(END, offset + chance.randint(0, 6)) for offset in at))


def finish(replicas: Replicas, reader: Reader) -> None:
    """Let the replicas write everything, and the reader read it."""
    replicas.finish()
    assert reader.read_everything()
    replicas.write_starts()
    assert reader.read_everything()


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
    # As docs/replicas.md says: the topics of the other one are deleted, and the new results merged before it returns.
    replicas.writers[1].log.clear()
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
    finish(replicas, reader)
    assert sorted(identity for _, identity in reader.delivered) == sorted(
        replicas.emission.upto((END,) * replicas.topics)
    )
    assert (reader.union.remembered, reader.union.complete) == (0, [0, 1])


@given(seed=st.integers(0, 2**32), limit=st.integers(1, 20))
@example(seed=21, limit=10).via("what was delivered before the first start record was forgotten after a restart")
def test_each_result_is_delivered_once_if_a_replica_is_added_to_one_that_has_written_no_start_records(
    seed: int, limit: int
) -> None:
    chance = random.Random(seed)
    replicas = Replicas(chance, 2)
    replicas.writes_starts = replicas.writers[0].has_begun_anew = False
    reader = Reader(replicas, lambda: ReplicaUnion(2, limit), keeps_ids=chance.random() < 0.5)
    for _ in range(chance.randint(0, 10)):
        write_a_little(replicas, chance, 0)
    replicas.writes_starts = replicas.writers[0].wrote_last = True
    replicas.found(1)
    for _ in range(chance.randint(0, 20)):
        write_a_little(replicas, chance, chance.randrange(2))
        reader.read(chance.randrange(2), chance.randint(0, 20))
        if chance.random() < 0.3:
            reader.save()
        if chance.random() < 0.2:
            reader.restart()
    finish(replicas, reader)
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


@given(seed=st.integers(0, 2**32), limit=st.integers(1, 20))
@example(seed=202, limit=5).via("the topics of a replica that was taken away were not known")
def test_each_result_is_delivered_once_if_replicas_are_reset_added_and_taken_away(seed: int, limit: int) -> None:
    chance = random.Random(seed)
    replicas = Replicas(chance, 3)
    count = chance.randint(1, 3)
    reader = Reader(replicas, lambda: ReplicaUnion(3, limit), keeps_ids=chance.random() < 0.5)
    for number in (count, *(chance.randint(1, 3) for _ in range(chance.randint(1, 4)))):
        if min(reader.union.complete) < number:
            count = number
            replicas.writes_starts = count > 1
            for writer in replicas.writers[:count]:
                writer.wrote_last = True
            reader.change(lambda: ReplicaUnion(count, limit), count)  # noqa: B023 - always the current number
        for _ in range(chance.randint(0, 20)):
            one = chance.randrange(count)
            if replicas.writers[one].at is None or (count > 1 and chance.random() < _RESET):
                replicas.found(one)
            write_a_little(replicas, chance, one)
            reader.read(chance.randrange(count), chance.randint(0, 20))
            if chance.random() < 0.2:
                reader.save()
            if chance.random() < 0.1:
                reader.restart()
    finish(replicas, reader)
    found = {identity for _, identity in reader.delivered}
    assert found == replicas.emission.upto((END,) * replicas.topics) or reader.skips
    assert not reader.repeated()
    if count > 1:
        assert (reader.union.remembered, reader.union.complete) == (0, list(range(count)))


@given(seed=st.integers(0, 2**32), limit=st.integers(1, 20))
def test_each_new_result_is_delivered_once_if_settings_are_changed_while_there_is_one_replica(
    seed: int, limit: int
) -> None:
    chance = random.Random(seed)
    replicas = Replicas(chance, 2)
    reader = Reader(replicas, lambda: ReplicaUnion(2, limit), keeps_ids=chance.random() < 0.5)
    replicas.found(1)
    for _ in range(chance.randint(0, 20)):
        write_a_little(replicas, chance, chance.randrange(2))
        reader.read(chance.randrange(2), chance.randint(0, 20))
    if 0 not in reader.union.complete:
        return
    reader.change(lambda: ReplicaUnion(1, limit), 1)
    replicas.writers[1].log.clear()  # as docs/replicas.md says
    replicas.writes_starts = False
    replicas.change_topics(replicas.topics, is_recreated=False)
    replicas.writers[0].has_begun_anew = False
    for _ in range(chance.randint(0, 10)):
        write_a_little(replicas, chance, 0)
        reader.read(0, chance.randint(0, 20))
    assert reader.read_everything()
    replicas.writes_starts, replicas.writers[0].wrote_last = True, True
    replicas.found(1)
    reader.change(lambda: ReplicaUnion(2, limit), 2)
    for _ in range(chance.randint(0, 10)):
        write_a_little(replicas, chance, chance.randrange(2))
        reader.read(chance.randrange(2), chance.randint(0, 20))
    finish(replicas, reader)
    new = replicas.emission.upto((END,) * replicas.topics)
    assert sorted(identity for _, identity in reader.delivered if identity in new) == sorted(new)
    assert reader.union.complete == [0, 1]


@given(seed=st.integers(0, 2**32))
@example(seed=132).via("a topic that the reader had not asked for was in a tag")
@example(seed=1366).via("the same after a restart")
@example(seed=2925).via("the same, although another replica was complete")
@example(seed=3360).via("the same, when the only complete replica was reset")
@example(seed=1402).via("a replica waited for one that did not read all of its topics")
@example(seed=2121).via("the same after a second reset")
@example(seed=4836).via("the same, because the other one was reset meanwhile")
@example(seed=3518).via("ids waited for those of before a reset")
def test_replicas_become_complete_and_nothing_is_remembered_for_ever_if_input_topics_change(seed: int) -> None:
    assert play_change(seed, ReplicaUnion) is None


@pytest.mark.parametrize("seed", RECREATED)
def test_the_same_if_an_input_topic_is_deleted_and_recreated(seed: int) -> None:
    assert play_recreation(seed, ReplicaUnion) is None
