"""Defects of replicas, each planted by a small change to the production code. The histories must find all of them.

Each is a context manager whose docstring describes the defect, as in `tests.simulation.bugs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

import msgspec

from broker.wire.start_records import encode_start
from joiner.runtime.kafka import transaction
from joiner.runtime.kafka.checkpoint_log import read_checkpoint
from joiner.runtime.kafka.clients import log_ends
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.kafka.snapshot_log import Records, beginning
from joiner.runtime.kafka.transaction import UnitTransactions, _StartRecords
from joiner.runtime.model import RESET_RUN, checkpoint_key, encode
from joiner.runtime.ownership import claim, foundation
from joiner.runtime.ownership.assignment import AssignmentManager
from joiner.runtime.ownership.eligibility import log_ranges
from joiner.runtime.ownership.foundation import Foundation
from joiner.runtime.task.unit import Unit
from tests.simulation.bugs import Bug, changed


def start_is_one_ahead() -> AbstractContextManager[None]:
    """A start record is one message per topic ahead of where its transaction begins."""

    def wrong(offsets: Mapping[str, int]) -> bytes:
        return encode_start({topic: at + 1 for topic, at in offsets.items()})

    return changed(transaction, "encode_start", wrong)


def start_is_the_end() -> AbstractContextManager[None]:
    """A start record has the vector at which its transaction ends."""
    commit = UnitTransactions.commit

    def wrong(self: Any, messages: Any, checkpoint: Any, snapshot: Any = None, **more: Any) -> Any:
        return commit(self, messages, checkpoint, snapshot, **{"starts": [checkpoint.offsets], **more})

    return changed(UnitTransactions, "commit", wrong)


def only_output_has_starts() -> AbstractContextManager[None]:
    """A transaction without results has no start record among the results."""
    before = _StartRecords.before

    def wrong(self: Any, messages: Any, vectors: Any = ()) -> Any:
        found = before(self, messages, vectors)
        # Checkpoints name start records with an empty vector.
        return {topic: batch for topic, batch in found.items() if topic in messages or not all(vectors)}

    return changed(_StartRecords, "before", wrong)


def a_beginning_is_not_told() -> AbstractContextManager[None]:
    """A unit that begins, also after a reset, writes no start record with an empty vector."""
    return changed(claim, "_starts", lambda _found, last: [{} if last is None else last.offsets])


def a_lost_beginning_is_not_missed() -> AbstractContextManager[None]:
    """A claim does not notice that Kafka has rolled back the start record with an empty vector of the one before."""
    return changed(_StartRecords, "begins", lambda *_given: False)


def resolving_is_not_told() -> AbstractContextManager[None]:
    """A claim that resolves transactions continues from the furthest checkpoint."""
    return changed(claim, "last_in_order", lambda one, checkpoint, *_given: one.reached or checkpoint)


def blameless_without_a_proof() -> AbstractContextManager[None]:
    """A claim that resolves transactions assumes that Kafka has ended those of the unit correctly."""

    def wrong(one: Any, checkpoint: Any, _resolved: Any, readers: Any, _replay: Any) -> Any:
        return read_checkpoint(readers, one.unit) or checkpoint

    return changed(claim, "last_in_order", wrong)


def founding_is_not_fenced() -> AbstractContextManager[None]:
    """Nothing ends the transactions of an earlier founder before a unit is founded."""

    def ends(readers: Any, unit: int, _transactions: Any, _checkpoint: Any) -> dict[str, int]:
        settings = readers.settings
        return log_ends(readers.everything, [settings.state_topic, *settings.output_topics.values()], unit)

    return changed(foundation, "fence_partitions", ends)


def founding_begins_with_the_checkpoint() -> AbstractContextManager[None]:
    """If a foundation takes several transactions, the first one contains the checkpoint."""
    right = beginning

    def wrong(state: Any, checkpoint: Any, snapshot: Any) -> Records:
        deleted = len(right(state, checkpoint, None))
        records = right(state, checkpoint, snapshot)
        return [*records[:deleted], (checkpoint_key(checkpoint.unit), encode(checkpoint)), *records[deleted:]]

    return changed(transaction, "beginning", wrong)


def a_founder_counts_as_an_owner() -> AbstractContextManager[None]:
    """A process that is fenced at its first claim gives the unit up, although the other one has only founded it."""
    verify_first = AssignmentManager._verify_first  # noqa: SLF001 - it decides which runs may be claimed from

    def wrong(self: Any, number: int, doubt: Any, *rest: Any, **more: Any) -> None:
        verify_first(self, number, doubt, *rest, **more)
        then = self._waiting[number]
        if then.runs is not None and not getattr(doubt, "before", ""):
            self._waiting[number] = then._replace(runs=then.runs - {RESET_RUN})

    return changed(AssignmentManager, "_verify_first", wrong)


def founding_commits_the_offsets_of_the_group() -> AbstractContextManager[None]:
    """The transaction that founds a unit commits the group's offsets, which are visible even if it is not."""
    begin_anew = UnitTransactions.begin_anew

    def wrong(self: Any, *given: Any, with_offsets: bool = True) -> None:
        assert with_offsets in {True, False}
        begin_anew(self, *given, with_offsets=True)

    return changed(UnitTransactions, "begin_anew", wrong)


def founded_without_the_state() -> AbstractContextManager[None]:
    """A unit is founded at the vector of replica 0's snapshot, but with an empty state."""
    read = foundation.read_foundation

    def wrong(settings: Any, unit: int, *rest: Any) -> Foundation:
        checkpoint, snapshot = read(settings, unit, *rest)
        empty = None if snapshot is None else Unit(settings, unit, checkpoint.offsets).snapshot()
        return Foundation(checkpoint, empty)

    return changed(foundation, "read_foundation", wrong)


def founded_at_the_end_of_the_input() -> AbstractContextManager[None]:
    """A replica begins by itself, at the end of its input."""
    read = foundation.read_foundation

    def wrong(settings: Any, unit: int, topics: Any, claimant: Any, clock: Any) -> Foundation:
        checkpoint, _ = read(settings, unit, topics, claimant, clock)
        readers = Readers(settings, clock)
        ends = {topic: end for topic, (_, end) in log_ranges(readers, unit).items()}
        readers.close()
        return Foundation(msgspec.structs.replace(checkpoint, start=ends, offsets=ends, founded={}), None)

    return changed(foundation, "read_foundation", wrong)


REPLICA_BUGS: Final[dict[str, Bug]] = {
    bug.__name__: bug
    for bug in (
        start_is_one_ahead,
        start_is_the_end,
        only_output_has_starts,
        a_beginning_is_not_told,
        a_lost_beginning_is_not_missed,
        resolving_is_not_told,
        blameless_without_a_proof,
        founding_is_not_fenced,
        founding_begins_with_the_checkpoint,
        a_founder_counts_as_an_owner,
        founding_commits_the_offsets_of_the_group,
        founded_without_the_state,
        founded_at_the_end_of_the_input,
    )
}
