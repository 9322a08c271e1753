"""Does a merged topic contain each result once, although the process that merges dies at any call to the broker?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaException

from broker.kafka.replicas import merged_topic, merging_state_topic, replica_name
from broker.wire.start_records import encode_start
from joiner.cli.merging import progress as progress_of
from joiner.cli.merging import restoring
from joiner.cli.merging.output import MergedOutput
from joiner.cli.merging.progress import Progress
from joiner.cli.merging.restoring import Restoring, Stopped
from joiner.cli.merging.serial_index import SerialIndex
from joiner.cli.merging.session import Session
from joiner.library.merging import protocol
from joiner.library.merging.partition import MergeError
from joiner.library.merging.protocol import ReplicaUnion
from tests.property.replica_histories import END
from tests.simulation.memory_log import ABORTED, Log
from tests.simulation.merging_world import IDLE_TURNS, MergingWorld, result

_SEEDS = 60
_STRICT = 10
"""In how many histories at least nothing is excused. It is 23 on average, with a standard deviation of 4."""
_RESTARTED = 0.05
"""How likely Kafka restarts, which may lose markers of the transaction that ends next."""
_SEEDS_MAX = 300
"""Enough to find each planted defect."""


def play(seed: int) -> tuple[str | None, MergingWorld]:
    """Play a history. Return what is wrong with the merged topics, or None, and the world."""
    with pytest.MonkeyPatch.context() as patch:
        world = MergingWorld(seed, patch)
        for _ in range(world.draw.randint(20, 120)):
            for replicas in world.replicas.values():
                replicas.step()
            if world.draw.random() < 0.5:
                world.send()
            if world.draw.random() < 0.3:
                world.link.calls_left = world.draw.randint(1, 60)
            if world.draw.random() < _RESTARTED:
                world.kafka.forgets = lambda _log: world.draw.random() < world.forgets
            world.link.loses_answers = world.draw.choice((0.0, 0.0, 0.3))
            world.turn()
        for replicas in world.replicas.values():
            replicas.finish()
        world.send()
        world.settle()
        for replicas in world.replicas.values():
            # One that could not be accepted yet at its last start record, because of others, is accepted now.
            replicas.write_starts()
        world.send()
        world.settle()
        wrong = world.difference()
        if wrong is None:
            # A process that begins much later finds nothing in the topics of the replicas, and misses nothing.
            world.retain_nothing()
            world.restart()
            world.settle()
            wrong = world.difference()
        return wrong, world


def test_each_result_is_merged_once_whenever_the_process_dies() -> None:
    found = {seed: play(seed) for seed in range(_SEEDS)}
    assert {seed: wrong for seed, (wrong, _) in found.items() if wrong is not None} == {}
    assert sum(not world.resets for _, world in found.values()) > _STRICT, "most histories excuse nothing"


def test_quiet_topics_are_committed_up_to_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    world = MergingWorld(1, monkeypatch)
    topics = world.settings.topics
    world.write(topics.late, encode_start({"a": 0}), b'{"id": "late"}')
    world.settle()
    # So that the positions are not due to be committed.
    world.turn()
    world.write(topics.late, b'{"id": "aborted"}', state=ABORTED)
    for _ in range(IDLE_TURNS):
        world.turn()
    # This is committed before the new end of the quiet topic is.
    world.write(topics.out, encode_start({"a": 0}), b'{"id": "j:0:1"}')
    world.settle()
    assert world.merged(world.settings.topics.out) == {1: 1}
    world.retain_nothing()
    world.restart()
    world.write(topics.late, encode_start({"a": 1}), b'{"id": "later"}')
    world.settle()
    assert world.merged_values(topics.late) == [b'{"id": "late"}', b'{"id": "later"}']


def start(at: int) -> bytes:
    return encode_start({"a": at})


def two_replicas(monkeypatch: pytest.MonkeyPatch) -> tuple[MergingWorld, str, str]:
    """Return a world of two complete replicas that have written nothing yet, and their result topics."""
    world = MergingWorld(1, monkeypatch)
    world.limit = 100
    world.use(2)
    out = world.settings.topics.out
    for topic in (out, replica_name(out, 1)):
        world.write(topic, start(0))
    world.settle()
    return world, out, replica_name(out, 1)


def merge_without_care(world: MergingWorld) -> None:
    """Let the session do what there is to do, and raise its errors."""
    assert world.session is not None
    for _ in range(IDLE_TURNS):
        world.session.turn()


def state_topic(world: MergingWorld) -> str:
    return merging_state_topic(world.settings.application.name)


def oldest(world: MergingWorld, topic: str) -> int | None:
    """Return the offset from which ids are remembered, as it was stored last."""
    entries, _ = world.kafka.log(state_topic(world), 0).read(0, 1_000_000, committed=True)
    stored = [entry.value for entry in entries if entry.key == merged_topic(topic).encode()]
    found = msgspec.json.decode(stored[-1] or b"", type=Progress).oldest
    return None if found is None else found[0]


def test_a_dead_replica_pins_nothing_if_the_merged_topic_does_not_go_back_far_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, out, other = two_replicas(monkeypatch)
    for at in range(1, 20):
        world.write(out, start(at), result(at))
    world.settle()
    assert (oldest(world, out) or 0) < 10
    log = world.kafka.log(merged_topic(out), 0)
    log.remove_before(log.stable_end - 3)
    world.restart()
    world.write(other, start(1), *map(result, range(1, 18)), start(18), result(18), result(19), start(20), result(20))
    world.write(out, start(20), result(20))
    world.settle()
    assert world.merged(world.settings.topics.out) == Counter(range(1, 21))


def test_ids_that_were_noted_before_a_restart_get_their_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    world, out, other = two_replicas(monkeypatch)
    world.limit = 4
    world.restart()
    world.write(other, result(1))
    world.settle()
    world.write(out, result(1))
    world.settle()
    world.restart()
    for at in range(2, 2 * END):
        world.write(out, start(at), result(at))
    world.settle()
    assert (oldest(world, out) or 0) > END, "although replica 1 does not end its transaction"
    assert world.merged(world.settings.topics.out) == Counter(range(1, 2 * END))


def test_what_was_forgotten_is_not_recalled_however_much_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "RECALLED_MORE", 10)
    world, out, other = two_replicas(monkeypatch)
    world.limit = 8
    world.restart()
    # Replica 1 is far ahead, and quiet.
    world.write(other, start(3_000), result(5_000))
    world.settle()
    for at in range(1, 2_000, 5):
        world.write(out, start(at), *map(result, range(at, at + 5)))
    world.settle()
    assert (oldest(world, out) or 0) < 10
    for _ in range(3):
        world.restart()
        world.settle()
        assert world.session is not None
        assert world.session.partitions[out, 0].union.remembered <= world.limit
    world.write(out, start(2_001), result(5_000), start(3_001))
    world.write(other, start(3_001))
    world.settle()
    assert world.merged(out) == Counter([*range(1, 2_001), 5_000])
    world.restart()
    world.settle()
    assert oldest(world, out) is None


def test_what_has_to_be_remembered_and_is_too_much_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "RECALLED_MORE", 10)
    world = MergingWorld(1, monkeypatch)
    world.limit = 100
    world.use(2)
    # Replica 0, the only complete one, has yet to write these.
    world.write(world.settings.topics.out, start(0))
    world.write(replica_name(world.settings.topics.out, 1), start(90), *map(result, range(50)), start(91))
    world.settle()
    world.limit = 8
    world.restart()
    with pytest.raises(MergeError, match=r"out\.merged partition 0: more than 18 ids must.*a larger --remembered-max"):
        world.settle()
    world.limit = 100
    world.settle()
    assert world.merged(world.settings.topics.out) == Counter(range(50))


def test_ids_are_found_again_if_retention_has_deleted_messages_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    world, out, other = two_replicas(monkeypatch)
    for at in range(1, 20):
        world.write(out, start(at), result(at))
        world.write(other, start(at), result(at))
    world.write(out, start(20), result(20))
    world.settle()
    log = world.kafka.log(merged_topic(out), 0)
    log.remove_before(log.stable_end - 2)
    world.restart()
    world.write(other, start(20), result(20), result(21))
    world.settle()
    assert world.merged(out) == Counter(range(1, 22))


def test_going_back_to_one_replica_and_to_two_again_loses_and_repeats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world, out, other = two_replicas(monkeypatch)
    world.write(other, start(1), *map(result, range(1, 5)))
    world.settle()
    world.write(out, result(1), result(2))
    world.settle()
    world.use(1)
    world.write(out, *map(result, range(3, 9)))
    world.settle()
    assert oldest(world, out) is None
    world.restart()
    world.write(out, start(9), result(9))
    world.use(2)
    world.settle()
    world.write(other, start(5), *map(result, range(5, 9)), start(9), result(9), result(10))
    world.settle()
    assert world.merged(world.settings.topics.out) == Counter(range(1, 11))


@pytest.mark.parametrize("is_remembered", [False, True])
def test_a_merged_topic_that_was_recreated_is_refused(monkeypatch: pytest.MonkeyPatch, *, is_remembered: bool) -> None:
    world, out, other = two_replicas(monkeypatch)
    world.write(out, start(1), result(1), start(2))
    if not is_remembered:
        world.write(other, start(2))
    world.settle()
    assert (oldest(world, out) is not None) == is_remembered
    world.restart()
    world.recreate(merged_topic(out))
    with pytest.raises(MergeError, match=r"merged was deleted and recreated.*To begin again, delete"):
        world.settle()


def test_a_merged_topic_that_has_lost_its_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    world, out, _ = two_replicas(monkeypatch)
    for at in (1, 2):
        world.write(out, start(at), result(at))
        world.settle()
    world.restart()
    world.kafka.topics[merged_topic(out)].logs = [Log()]
    with pytest.raises(MergeError, match="Kafka has lost some"):
        world.settle()


def test_a_long_merged_topic_of_which_nothing_is_known_is_refused_without_reading_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, out, _ = two_replicas(monkeypatch)
    for at in range(1, 10):
        world.write(out, start(at), result(at))
    world.settle()
    world.restart()
    world.recreate(state_topic(world))
    read: list[str] = []
    read_to_end: Any = vars(progress_of)["read_to_end"]

    def counted(consumer: Any, clock: Any, topic: str, *given: int) -> Iterator[Any]:
        for message in read_to_end(consumer, clock, topic, *given):
            read.append(topic)
            yield message

    monkeypatch.setattr(progress_of, "read_to_end", counted)
    with pytest.raises(MergeError, match="would be written a second time"):
        world.settle()
    assert read.count(merged_topic(out)) == 1


@pytest.mark.parametrize("interval_s", [0, 120])
def test_a_commit_interval_of_any_length_lets_a_process_stay_in_its_group(
    monkeypatch: pytest.MonkeyPatch, interval_s: int
) -> None:
    """In one turn, the process neither asks whether it should merge, nor whether it should stop."""
    world, out, _ = two_replicas(monkeypatch)
    application = world.settings.application.model_copy(update={"commit_interval": interval_s * 10**9})
    world.settings = world.settings.model_copy(update={"application": application})
    world.restart()
    world.write(out, start(1), result(1))
    world.settle()
    begun_s = world.clock.now_s
    world.turn()
    assert 0 < world.clock.now_s - begun_s <= 1
    assert world.merged(out) == {1: 1}


@pytest.mark.parametrize("is_merged", [False, True])
def test_a_transaction_that_kafka_has_ended_in_some_partitions_only_is_repaired(
    monkeypatch: pytest.MonkeyPatch, *, is_merged: bool
) -> None:
    world, out, other = two_replicas(monkeypatch)
    world.kafka.restart_s = 0.0
    world.write(out, start(1), result(1))
    world.settle()
    forgetful = world.kafka.log(merged_topic(out) if is_merged else state_topic(world), 0)
    world.kafka.forgets = lambda log: log is forgetful
    world.write(other, start(1), result(1), start(2), result(2))
    for _ in range(IDLE_TURNS):
        world.turn()
    assert world.kafka.times_forgotten == 1
    world.restart()
    world.settle()
    # What was aborted is not needed any more.
    world.kafka.log(state_topic(world), 0).compact(10**9)
    world.restart()
    world.write(out, start(2), result(2), start(3), result(3))
    world.settle()
    assert world.merged(out) == {1: 1, 2: 1, 3: 1}


def test_a_commit_during_which_kafka_has_restarted_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    world, out, _ = two_replicas(monkeypatch)
    world.kafka.forgets = lambda _log: True
    world.write(out, start(1), result(1))
    with pytest.raises(KafkaException, match=r"has left a committed transaction open in machine\.out\.merged \[0\]"):
        merge_without_care(world)
    assert world.kafka.times_forgotten == 1
    world.restart()
    world.settle()
    assert world.merged(out) == {1: 1}, "although nobody has noticed a failure"


def test_no_request_of_an_earlier_process_is_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    world, out, _ = two_replicas(monkeypatch)
    name = "app.merged"
    epoch = world.kafka.identities[name].epoch
    world.restart()
    world.settle()
    for topic in (
        merged_topic(out),
        merged_topic(world.settings.topics.late),
        state_topic(world),
    ):
        assert not world.kafka.arrive_belated(name, epoch, topic, 0, None, result(9))


def test_a_process_can_be_stopped_while_it_restores(monkeypatch: pytest.MonkeyPatch) -> None:
    world, out, _ = two_replicas(monkeypatch)
    for at in range(1, 10):
        world.write(out, start(at), result(at))
    world.settle()
    world.restart()
    calls: list[Restoring] = []

    def check(last: int, one: Restoring) -> None:
        calls.append(one)
        if len(calls) == last:
            raise Stopped

    def begin(last: int) -> None:
        calls.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Restoring, "_check", lambda one: check(last, one))
            world.begin_session().close()

    begin(10**6)
    count = len(calls)
    assert count > len(world.settings.output_topics), "not only once for each output"
    for last in range(1, count + 1):
        with pytest.raises(Stopped):
            begin(last)
    world.settle()
    assert world.merged(out) == Counter(range(1, 10))


def nothing_is_fenced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MergedOutput, "fence", lambda *_given: {0: {}})


def what_was_committed_is_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(restoring, "true_progress", lambda stored, *_given: stored.committed)


def ids_are_not_recalled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplicaUnion, "recall", lambda *_arguments: None)


def positions_are_ahead(patch: pytest.MonkeyPatch) -> None:
    original = Session._progress  # noqa: SLF001 - what is committed is nowhere else

    def ahead(one: Session, output: tuple[str, int]) -> Progress:
        progress = original(one, output)
        return msgspec.structs.replace(progress, positions={topic: at + 1 for topic, at in progress.positions.items()})

    patch.setattr(Session, "_progress", ahead)


def messages_are_numbered_wrongly(patch: pytest.MonkeyPatch) -> None:
    original = SerialIndex.find

    def wrong(index: SerialIndex, serial: int) -> tuple[int, int]:
        offset, first = original(index, serial)
        return offset, first + 1

    patch.setattr(SerialIndex, "find", wrong)


def who_was_first_is_not_known(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(progress_of, "replica_of", lambda _message: 0)


@pytest.mark.parametrize(
    "defect",
    [
        ids_are_not_recalled,
        positions_are_ahead,
        who_was_first_is_not_known,
        messages_are_numbered_wrongly,
        nothing_is_fenced,
        what_was_committed_is_believed,
    ],
)
def test_a_planted_defect_is_found(defect: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        defect(patch)
        assert any(is_found(seed) for seed in range(_SEEDS_MAX))


def is_found(seed: int) -> bool:
    try:
        wrong, _ = play(seed)
    except MergeError:
        return True
    return wrong is not None
