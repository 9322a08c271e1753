"""Defects in repartitioning, planted as those in `bugs`. The simulation must find all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any, Final

from confluent_kafka import KafkaException

from joiner.runtime.kafka.clients import log_range
from joiner.runtime.repartition import copies, prior, repartitioner
from joiner.runtime.repartition.copies import CopyWriter
from joiner.runtime.repartition.merging import TimeMerger, merged_order
from joiner.runtime.repartition.prior import Scan, read_prior
from joiner.runtime.repartition.progress import Progress, decode_progress
from joiner.runtime.repartition.starts import Starts
from tests.simulation.bugs import Bug, changed
from tests.simulation.memory_groups import GroupMetadata

_add = Scan.add


def offsets_outside_the_transaction() -> AbstractContextManager[None]:
    """The offsets are committed in a transaction of their own, after that of the copies."""
    commit = CopyWriter.commit

    def wrong(self: Any, parts: Any, offsets: Any, member: Any) -> None:
        if parts:
            commit(self, parts, [], member)
        commit(self, [], offsets, member)

    return changed(CopyWriter, "commit", wrong)


def offsets_before_the_copies() -> AbstractContextManager[None]:
    """The offsets are committed in a transaction of their own, before that of the copies."""
    commit = CopyWriter.commit

    def wrong(self: Any, parts: Any, offsets: Any, member: Any) -> None:
        commit(self, [], offsets, member)
        if parts:
            commit(self, parts, [], member)

    return changed(CopyWriter, "commit", wrong)


def the_generation_is_not_checked() -> AbstractContextManager[None]:
    """The offsets are committed as those of a stranger to the group, which are never refused."""
    commit = CopyWriter.commit

    def wrong(self: Any, parts: Any, offsets: Any, member: Any) -> None:
        group = GroupMetadata(member.consumer_group_metadata().group)
        commit(self, parts, offsets, SimpleNamespace(consumer_group_metadata=lambda: group))  # type: ignore[arg-type]

    return changed(CopyWriter, "commit", wrong)


def a_failed_commit_is_ignored() -> AbstractContextManager[None]:
    """After a failed commit, copying continues with the next messages."""
    commit = CopyWriter.commit

    def wrong(self: Any, parts: Any, offsets: Any, member: Any) -> None:
        try:
            commit(self, parts, offsets, member)
        except KafkaException:
            self.close()
            self._is_open = False

    return changed(CopyWriter, "commit", wrong)


def copies_are_not_looked_for() -> AbstractContextManager[None]:
    """If an offset is missing, copying begins where the application starts, although there are copies."""

    def wrong(*given: Any) -> Any:
        return {place: one._replace(first=None, last=None) for place, one in read_prior(*given).items()}

    return changed(repartitioner, "read_prior", wrong)


def _add_without_source(self: Scan, origin: Any) -> None:
    _add(self, origin._replace(topic_id=""))


def the_scan_ends_at_an_open_transaction() -> AbstractContextManager[None]:
    """If an offset is missing, the copies behind an open transaction are not looked for."""

    def stable_range(consumer: Any, topic: str, partition: int) -> tuple[int, int]:
        log = consumer._kafka.log(topic, partition)  # noqa: SLF001 - the in-memory client
        return log.low, log.stable_end

    return changed(prior, "log_range", stable_range)


def an_added_partition_begins_at_its_end() -> AbstractContextManager[None]:
    """If the application starts at the end, so does a partition that was added later."""
    continue_from = Starts._continue_from  # noqa: SLF001 - the place of the defect

    def wrong(self: Any, committed: Any, target: str) -> Any:
        start, at = continue_from(self, committed, target)
        if self._settings.application.start == "earliest" or start != at:
            return start, at
        end = log_range(self._consumer, committed.topic, committed.partition)[1]
        return end, end

    return changed(Starts, "_continue_from", wrong)


@contextmanager
def the_id_of_the_copied_topic_is_not_checked() -> Iterator[None]:
    """Offsets and copies of an earlier topic of the same name count as those of the topic."""
    with changed(Starts, "_check_same", lambda *_: None), changed(Scan, "add", _add_without_source):
        yield


def the_id_in_the_copies_is_not_checked() -> AbstractContextManager[None]:
    """Copies of an earlier topic of the same name count as those of the topic, if the offsets are gone."""
    return changed(Scan, "add", _add_without_source)


def the_id_of_the_repartition_topic_is_not_checked() -> AbstractContextManager[None]:
    """Offsets up to which messages were copied to an earlier repartition topic count for the new one."""
    of = Starts.of

    def wrong(self: Any, committed: Any) -> Any:
        before = decode_progress(committed.metadata)
        now = self._facts[self._settings.repartitioned[committed.topic]].topic_id
        if committed.offset >= 0 and before is not None and before.target != now:
            return committed.offset, Progress(before.source, now, before.key, before.start)
        return of(self, committed)

    return changed(Starts, "of", wrong)


def what_is_held_back_counts_as_copied() -> AbstractContextManager[None]:
    """The committed offset is beyond messages that wait in memory."""
    return changed(TimeMerger, "holds", lambda *_: False)


def revoked_partitions_are_still_copied() -> AbstractContextManager[None]:
    """What is in memory of a partition is copied although the group has revoked it."""
    return changed(TimeMerger, "remove", lambda *_: None)


def copies_are_out_of_order() -> AbstractContextManager[None]:
    """The messages of a transaction are copied in the opposite order."""
    return changed(copies, "merged_order", lambda parts: merged_order(parts)[::-1])


COPY_BUGS: Final[dict[str, Bug]] = {
    found.__name__: found
    for found in (
        offsets_outside_the_transaction,
        offsets_before_the_copies,
        the_generation_is_not_checked,
        a_failed_commit_is_ignored,
        copies_are_not_looked_for,
        the_scan_ends_at_an_open_transaction,
        an_added_partition_begins_at_its_end,
        the_id_of_the_copied_topic_is_not_checked,
        the_id_in_the_copies_is_not_checked,
        the_id_of_the_repartition_topic_is_not_checked,
        what_is_held_back_counts_as_copied,
        revoked_partitions_are_still_copied,
        copies_are_out_of_order,
    )
}
