"""Defects in the runner, each planted by a small change to the production code. The simulation must find all of them.

Each is a context manager whose docstring describes the defect. They show that the histories reach the cases in
question, and that the verdict detects the errors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import msgspec
from confluent_kafka import KafkaException, TopicPartition

from broker.settings import KafkaSettings
from joiner.runtime.kafka import checkpoint_log, clients, pending_markers, snapshot_log, transaction, unit_producer
from joiner.runtime.kafka.batches.gaps import GapVerifier
from joiner.runtime.kafka.clients import log_range, make_consumer
from joiner.runtime.kafka.transaction import Aborted, Fenced, UnitTransactions
from joiner.runtime.model import StateLog, checkpoint_key, encode
from joiner.runtime.ownership import claim as claims
from joiner.runtime.ownership import dangling, restore
from joiner.runtime.ownership.assignment import AssignmentManager
from joiner.runtime.ownership.retry_policy import RetryTracker
from joiner.runtime.runners.active_task import ActiveTask
from joiner.runtime.runners.process_tasks import ProcessTasks
from joiner.runtime.runners.task_commits import TaskCommits
from joiner.runtime.task.decoding.keys import Keys
from joiner.runtime.task.effects import Effects
from joiner.runtime.task.unit import Unit

Bug = Callable[[], AbstractContextManager[None]]

_mine = threading.local()  # state of a planted defect, per thread of a simulated process


@contextmanager
def changed(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def offsets_before_results() -> AbstractContextManager[None]:
    """The checkpoint is committed in a separate transaction, before the results."""
    commit = UnitTransactions.commit

    def wrong(self: Any, messages: Any, checkpoint: Any, snapshot: Any = None, **more: Any) -> Any:
        if messages:
            commit(self, {}, checkpoint)
        return commit(self, messages, checkpoint, snapshot, **more)

    return changed(UnitTransactions, "commit", wrong)


def results_before_offsets() -> AbstractContextManager[None]:
    """The results are committed in a separate transaction, before the checkpoint."""
    commit = UnitTransactions.commit

    def wrong(self: Any, messages: Any, checkpoint: Any, snapshot: Any = None, **more: Any) -> Any:
        if messages:
            self._producer.begin()
            self._producer.write_all(messages)
            try:
                self._producer.commit()
            except KafkaException as error:
                raise Aborted from error
        return commit(self, {}, checkpoint, snapshot, **more)

    return changed(UnitTransactions, "commit", wrong)


def progress_of_the_batch_before() -> AbstractContextManager[None]:
    """The checkpoint contains the vector at the start of the batch, not at its end."""
    of = ActiveTask.next_checkpoint

    def wrong(self: Any, *failed: Any) -> Any:
        return msgspec.structs.replace(of(self, *failed), offsets=self.checkpoint.offsets)

    return changed(ActiveTask, "next_checkpoint", wrong)


def claim_before_init() -> AbstractContextManager[None]:
    """The checkpoint is read before the transactional id is initialised."""
    read, claim = checkpoint_log.read_newest, claims.claim

    def early(settings: Any, unit: int, *rest: Any, is_warm: bool) -> Any:
        _mine.early = (read(rest[-2], unit),)
        try:
            return claim(settings, unit, *rest, is_warm=is_warm)
        finally:
            del _mine.early

    @contextmanager
    def planted() -> Iterator[None]:
        with (
            changed(claims, "claim", early),
            changed(claims, "read_newest", lambda *given: _mine.early[0] if hasattr(_mine, "early") else read(*given)),
        ):
            yield

    return planted()


def progress_is_cached() -> AbstractContextManager[None]:
    """A process that claims a unit again continues from the checkpoint that it read at its first claim."""
    read = checkpoint_log.read_newest

    def wrong(readers: Any, unit: int) -> Any:
        seen = threading.current_thread().__dict__["process"].__dict__.setdefault("seen", {})
        if unit not in seen or seen[unit].checkpoint() is None:
            seen[unit] = read(readers, unit)
        return seen[unit]

    return changed(claims, "read_newest", wrong)


def manifest_before_chunks() -> AbstractContextManager[None]:
    """A snapshot's manifest is committed before its chunks."""
    return _torn_snapshot(lambda records: [records[-1:], records[:-1]])


def one_slot_in_two_transactions() -> AbstractContextManager[None]:
    """All snapshots use the same slot. Their chunks are committed before the manifest."""

    @contextmanager
    def planted() -> Iterator[None]:
        with changed(snapshot_log, "SLOTS", 1), _torn_snapshot(lambda records: [records[:-1], records[-1:]]):
            yield

    return planted()


def _torn_snapshot(split: Callable[[list[Any]], list[list[Any]]]) -> AbstractContextManager[None]:
    produce_snapshot = UnitTransactions._produce_snapshot  # noqa: SLF001 - the defect is planted here

    def wrong(self: Any, data: bytes, place: Any, checkpoint: Any) -> Any:
        records, producer = list[Any](), self._producer
        producer.write = lambda *record: records.append(record)
        try:
            written = produce_snapshot(self, data, place, checkpoint)
        finally:
            del producer.write
        first, second = split(records)
        [producer.write(*record) for record in first]
        producer.commit()
        before = dict(producer.firsts)
        producer.begin()
        [producer.write(*record) for record in second]
        producer.firsts = before | producer.firsts
        return written

    return changed(UnitTransactions, "_produce_snapshot", wrong)


def last_record_is_the_end() -> AbstractContextManager[None]:
    """The vector ends after the last record that was read, even if control records follow it."""

    def wrong(_self: Any, batches: Any, _met: Any) -> dict[str, int]:
        return {topic: batch.last + 1 for topic, batch in batches.items()}

    return changed(ActiveTask, "ends", wrong)


def snapshot_of_a_later_state() -> AbstractContextManager[None]:
    """The snapshot is taken when the commit is written, when the state may already include the next batch."""
    commit = TaskCommits.write

    def wrong(self: Any, transactions: Any, effects: Any, checkpoint: Any, snapshot: Any) -> Any:
        owned = self._tasks.get(checkpoint.unit)
        if snapshot is not None and owned is not None:
            snapshot = (owned.unit.snapshot(), snapshot[1])
        return commit(self, transactions, effects, checkpoint, snapshot)

    return changed(TaskCommits, "write", wrong)


def own_run_is_not_checked() -> AbstractContextManager[None]:
    """A fenced owner claims its unit back without checking which run owns it."""
    return changed(AssignmentManager, "_check_still_ours", lambda *_: None)


def fenced_state_goes_on() -> AbstractContextManager[None]:
    """A fenced owner initialises the transactional id again and continues with its own state."""
    return _commit_again_after(Fenced)


def lost_answer_is_sent_again() -> AbstractContextManager[None]:
    """A batch whose commit timed out is written again, whether it was committed or not."""
    return _commit_again_after(Aborted)


def _commit_again_after(fault: type[Exception]) -> AbstractContextManager[None]:
    commit = UnitTransactions.commit

    def wrong(self: Any, messages: Any, checkpoint: Any, snapshot: Any = None, **more: Any) -> Any:
        try:
            return commit(self, messages, checkpoint, snapshot, **more)
        except fault:
            fresh = UnitTransactions(self._settings, self._unit, self._group_metadata_consumer, self._clock)
            fresh.init()
            self._producer = fresh._producer  # noqa: SLF001 - the defect is planted here
            return commit(self, messages, checkpoint, snapshot, **more)

    return changed(UnitTransactions, "commit", wrong)


def failed_commit_is_ignored() -> AbstractContextManager[None]:
    """The state is kept after a failed commit, as if the batch had been written."""
    finish = TaskCommits.finish

    def wrong(self: Any, number: int, owned: Any) -> bool:
        if owned.commit is None or not isinstance(owned.commit.written.exception(), Aborted):
            return bool(finish(self, number, owned))
        group_metadata_consumer, owned.commit = owned.transactions._group_metadata_consumer, None  # noqa: SLF001 - the defect is planted here
        owned.transactions = UnitTransactions(self._settings, number, group_metadata_consumer, self._clock)
        owned.transactions.init()
        return True

    return changed(TaskCommits, "finish", wrong)


def everybody_has_an_id_of_his_own() -> AbstractContextManager[None]:
    """The transactional id contains the process name, so that no producer is fenced."""
    make = clients.make_producer

    def wrong(kafka: Any, **more: Any) -> Any:
        more["transactional_id"] += threading.current_thread().name
        return make(kafka, **more)

    return changed(unit_producer, "make_producer", wrong)


def uncommitted_is_read() -> AbstractContextManager[None]:
    """Consumers also read uncommitted records."""
    config = KafkaSettings.client_config

    def wrong(self: Any, **more: Any) -> dict[str, Any]:
        given = config(self, **more)
        return given | {"isolation.level": "read_uncommitted"} if "isolation.level" in given else given

    return changed(KafkaSettings, "client_config", wrong)


def replay_writes() -> AbstractContextManager[None]:
    """The output of a replay is written with the next batch."""
    apply = Unit.apply

    def wrong(self: Any, batches: Any, ends: Any, *, silent: bool = False, is_part: bool = False) -> Effects:
        effects = apply(self, batches, ends, is_part=is_part)
        kept = self.__dict__.setdefault("_unsent", Effects())
        kept.add(effects)
        self.__dict__["_unsent"] = kept if silent else Effects()
        return Effects() if silent else kept

    return changed(Unit, "apply", wrong)


def replay_goes_beyond_c() -> AbstractContextManager[None]:
    """The replay ends at the current end of the log, not at C."""
    replay = restore._replay  # noqa: SLF001 - the defect is planted here

    def wrong(readers: Any, unit: Any, until: dict[str, int], *effects: Any) -> int:
        consumer = make_consumer(readers.settings.kafka, readers.settings.application.name)
        ends = {topic: log_range(consumer, topic, unit.number)[1] for topic in until}
        return replay(readers, unit, ends, *effects)

    return changed(restore, "_replay", wrong)


def group_offsets_are_believed() -> AbstractContextManager[None]:
    """A unit continues from the group's committed offsets, not from those of the checkpoint."""
    read = checkpoint_log.read_newest

    def wrong(readers: Any, unit: int) -> Any:
        log = read(readers, unit)
        found = log.checkpoint()
        if found is None:
            return log
        consumer = make_consumer(readers.settings.kafka, readers.settings.application.name)
        places = consumer.committed([TopicPartition(name, unit) for name in found.offsets], 1.0)
        believed = {place.topic: place.offset for place in places if place.offset >= 0}
        wrongly = msgspec.structs.replace(found, offsets=found.offsets | believed)
        return StateLog(unit, log.values | {checkpoint_key(unit): encode(wrongly)})

    return changed(claims, "read_newest", wrong)


def snapshot_is_one_ahead() -> AbstractContextManager[None]:
    """The vector of the snapshot is one record per topic ahead of its state."""
    snapshot = Unit.snapshot

    def wrong(self: Any) -> bytes:
        right = self.offsets
        self.offsets = {topic: at + 1 for topic, at in right.items()}
        try:
            return snapshot(self)
        finally:
            self.offsets = right

    return changed(Unit, "snapshot", wrong)


def keys_are_not_in_the_snapshot() -> AbstractContextManager[None]:
    """A restored unit numbers its keys from zero again."""
    init = Keys.__init__

    def wrong(self: Any, unit: int, partitions: int, _things: Any = ()) -> None:
        init(self, unit, partitions)

    return changed(Keys, "__init__", wrong)


def hanging_is_not_looked_for() -> AbstractContextManager[None]:
    """A claimant assumes that Kafka has ended every transaction."""
    return changed(claims, "find_dangling", lambda *_: None)


def no_line_is_drawn() -> AbstractContextManager[None]:
    """A claimant that finds no open transaction assumes that no older records can still arrive."""
    return changed(claims, "fence_partitions", lambda *_: None)


def what_hangs_is_rolled_back_without_a_note() -> AbstractContextManager[None]:
    """A claimant that dies while it resolves dangling transactions leaves no record for the next one."""
    return changed(dangling, "_note", lambda *_: None)


def dangling_counts_as_rolled_back() -> AbstractContextManager[None]:
    """A dangling transaction counts as aborted, and the unit continues from its last visible checkpoint."""
    resolve = dangling.resolve

    def wrong(settings: Any, found: Any, transactions: Any, checkpoint: Any, clock: Any, _again: Any) -> Any:
        nothing = dangling.ReplayedEffects(Effects(), {})
        return resolve(settings, found, transactions, checkpoint, clock, lambda: nothing)

    return changed(claims, "resolve", wrong)


def errors_inside_a_batch_are_only_logged() -> AbstractContextManager[None]:
    """The records after a partition error are processed as if no record were missing before them."""

    @contextmanager
    def planted() -> Iterator[None]:
        with (
            changed(ProcessTasks, "_read_error", lambda *_: None),
            changed(GapVerifier, "check", lambda *_: None),
        ):
            yield

    return planted()


def what_was_ended_wrongly_is_not_looked_for() -> AbstractContextManager[None]:
    """A claimant that finds no open transaction assumes that every transaction ended as its owner had decided."""
    return changed(claims, "find_wrongly_ended", lambda *_: None)


def progress_that_was_rolled_back_is_not_read() -> AbstractContextManager[None]:
    """A claimant that finds no open transaction assumes that the newest visible checkpoint is the last one."""
    return changed(dangling, "_tried", lambda *_: [])


def only_the_end_of_a_topic_is_searched() -> AbstractContextManager[None]:
    """A claimant searches only the last few offsets of the log for existing results, whichever program wrote them."""
    search = dangling._missing_results  # noqa: SLF001 - the defect is planted here

    def wrong(consumer: Any, clock: Any, topic: str, unit: int, wanted: set[str], start: int, end: int) -> set[str]:
        return search(consumer, clock, topic, unit, wanted, max(start, end - 8), end)

    return changed(dangling, "_missing_results", wrong)


def records_of_other_applications_are_taken_for_ours() -> AbstractContextManager[None]:
    """Output about an input record is identified only by the record's id, which is the same in every application."""
    named = pending_markers.identity_of

    def wrong(value: bytes | None) -> str:
        return named(value).rpartition(" ")[2]

    @contextmanager
    def planted() -> Iterator[None]:
        with changed(dangling, "identity_of", wrong), changed(transaction, "identity_of", wrong):
            yield

    return planted()


def nobody_looks_behind_a_commit() -> AbstractContextManager[None]:
    """An owner assumes that Kafka ends its committed transactions in every partition."""
    return changed(UnitTransactions, "check_ended", lambda _self: None)


def a_snapshot_does_not_wait() -> AbstractContextManager[None]:
    """The older snapshot is replaced too early. Random histories rarely show this; `test_postponed_snapshots` does."""
    return changed(UnitTransactions, "_may_replace_snapshot", lambda _self: True)


def a_manifest_outlives_its_chunks() -> AbstractContextManager[None]:
    """Chunks are replaced in separate transactions while the manifest still refers to them."""
    cut = snapshot_log.cut
    return changed(transaction, "cut", lambda records, bytes_max: cut(records[1:], bytes_max))


def who_was_fenced_does_not_wait() -> AbstractContextManager[None]:
    """A fenced owner claims its unit again immediately, every time."""
    return changed(RetryTracker, "wait_s", lambda _self, _number, _cause, _why: 0.0)


BUGS: Final[dict[str, Bug]] = {
    bug.__name__: bug
    for bug in (
        offsets_before_results,
        results_before_offsets,
        progress_of_the_batch_before,
        claim_before_init,
        progress_is_cached,
        manifest_before_chunks,
        one_slot_in_two_transactions,
        last_record_is_the_end,
        snapshot_of_a_later_state,
        own_run_is_not_checked,
        fenced_state_goes_on,
        lost_answer_is_sent_again,
        failed_commit_is_ignored,
        everybody_has_an_id_of_his_own,
        uncommitted_is_read,
        replay_writes,
        replay_goes_beyond_c,
        group_offsets_are_believed,
        snapshot_is_one_ahead,
        keys_are_not_in_the_snapshot,
        hanging_is_not_looked_for,
        no_line_is_drawn,
        what_hangs_is_rolled_back_without_a_note,
        dangling_counts_as_rolled_back,
        errors_inside_a_batch_are_only_logged,
        progress_that_was_rolled_back_is_not_read,
        only_the_end_of_a_topic_is_searched,
        records_of_other_applications_are_taken_for_ours,
        nobody_looks_behind_a_commit,
        a_manifest_outlives_its_chunks,
        who_was_fenced_does_not_wait,
    )
}
