"""Founds the units of replicas: a unit of replica 1 or 2 begins with the state that replica 0 has saved.

Which output is due up to a vector C depends on the vector at which the application started the unit. So a replica that
is added to a running application must not start on its own. Its first state is replica 0's newest snapshot, at C0, and
it writes what becomes due after C0. If there is no snapshot yet, it begins where replica 0 began, with an empty state.
A unit that replica 0 has not started yet waits.

The foundation is written like a reset: a checkpoint at C0 without an owner, together with the snapshot. Only once it
is visible, and known to have ended in its partition, is the unit claimed, as any other. Until then, the unit has no
output, so a process that dies before that leaves nothing behind that counts, and the next claimant starts over.

If replica 0 is reset, it may start at another vector, and the other replicas must be reset too. A process checks this
when it starts to serve a unit or to keep it warm, if it can read replica 0's checkpoint. The claim of a unit that is
warm does not look at replica 0, because it must be fast, and because replica 0's host may be what has died.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from broker.kafka.topics import TopicFacts, topic_facts
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.checkpoint_log import read_checkpoint, read_newest, read_state
from joiner.runtime.kafka.clients import LATEST, describe, timed_out
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.kafka.transaction import UnitTransactions, offsets_as_text
from joiner.runtime.model import (
    FORMAT_VERSION,
    RESET_RUN,
    Checkpoint,
    Manifest,
    StateLog,
    UnitStopped,
    semantic_differences,
)
from joiner.runtime.ownership.dangling import fence_partitions
from joiner.runtime.ownership.eligibility import Claimant, FoundationAwaited, check_continues, log_ranges
from joiner.runtime.settings import JoinerSettings, replica_settings

_ORIGIN_S: Final = 2.0
"""How long a unit that has a checkpoint waits for replica 0's."""

_log = logging.getLogger(__name__)


class Foundation(NamedTuple):
    """How a unit of a replica begins: its first checkpoint, and its state as a snapshot (None: empty)."""

    checkpoint: Checkpoint
    snapshot: bytes | None


def check_origin(
    settings: JoinerSettings, unit: int, found: Checkpoint | None, admin: AdminClient, clock: Clock
) -> None:
    """Check that a replica can begin or continue a unit, given replica 0's checkpoint. ``found``: the replica's own.

    A replica must survive the loss of the others. So if it has a checkpoint, replica 0's is not needed: if that cannot
    be read soon, the unit is continued.

    Raises `FoundationAwaited` if neither has a checkpoint, `UnitStopped` if replica 0 has been reset since or has other
    settings, and, if the unit is to be founded, KafkaException. Does nothing for replica 0.
    """
    if not settings.application.replica:
        return
    if found is None:
        origin = replica_settings(settings, 0).state_topic
        # Replica 0 may never have been started. Reading from a topic that does not exist takes half a minute to fail.
        if origin not in topic_facts(admin, [origin]) or _read_origin(settings, unit, clock) is None:
            raise _awaited(settings, unit)
        return
    try:
        _ask_for_origin(settings, unit, admin)
        known = _read_origin(settings, unit, clock)
    except (KafkaException, UnitStopped, TimeoutError) as error:
        _log.warning(
            "unit %s: its owner does not know whether replica 0 was reset, because its checkpoint cannot be read (%s)",
            unit,
            describe(error),
        )
        return
    if known is None:
        return
    _check_same_semantics(settings, known)
    if (found.start, found.topics) != (known.start, known.topics):
        raise UnitStopped(
            f"unit {unit} of {settings.application.name!r} was founded before replica 0 was reset, so their results "
            f"would differ: run {settings.application.command('reset')}"
        )


def _check_same_semantics(settings: JoinerSettings, origin: Checkpoint) -> None:
    """Check that replica 0 computes the same. Otherwise, the same ids would stand for different results.

    The vector at which it begins may be the same as before it was reset. Raises `UnitStopped`.
    """
    expected = replica_settings(settings, 0)
    if origin.fingerprint == expected.fingerprint():
        return
    differences = semantic_differences(origin.semantics, expected.semantics())
    changed = ", ".join(f"{path}: {there} there, {here} here" for path, there, here in differences) or "the semantics"
    raise UnitStopped(
        f"unit {origin.unit} of {settings.application.name!r}: replica 0 was started with different values for "
        f"settings that affect its results ({changed}): give all replicas the same settings; if those of replica 0 are "
        f"the new ones, also run {settings.application.command('reset')}"
    )


def _ask_for_origin(settings: JoinerSettings, unit: int, admin: AdminClient) -> None:
    """Raise KafkaException soon if nobody leads the partition with replica 0's checkpoint. A reader waits for long."""
    place = TopicPartition(replica_settings(settings, 0).state_topic, unit)
    admin.list_offsets({place: LATEST}, request_timeout=_ORIGIN_S)[place].result(_ORIGIN_S + 1.0)


def _read_origin(settings: JoinerSettings, unit: int, clock: Clock) -> Checkpoint | None:
    with closing(Readers(replica_settings(settings, 0), clock)) as readers:
        return read_checkpoint(readers, unit)


def read_foundation(
    settings: JoinerSettings, unit: int, topics: dict[str, TopicFacts], claimant: Claimant, clock: Clock
) -> Foundation:
    """Return how a unit of a replica begins. ``topics``: the facts of the input topics.

    Raises `FoundationAwaited` if replica 0 has no checkpoint, or no snapshot from which it is possible to go on now;
    `UnitStopped` if its state must not be used; and KafkaException.
    """
    try:
        return _read_foundation(settings, unit, topics, claimant, clock)
    except _SnapshotLost:
        # While the log was being read, replica 0 may have written a new snapshot, and compaction removed the old one.
        return _read_foundation(settings, unit, topics, claimant, clock)


class _SnapshotLost(FoundationAwaited):
    """A snapshot of replica 0 is not complete. If that is only because it was being replaced, the next one is."""


def _read_foundation(
    settings: JoinerSettings, unit: int, topics: dict[str, TopicFacts], claimant: Claimant, clock: Clock
) -> Foundation:
    origin_settings = replica_settings(settings, 0)
    with closing(Readers(origin_settings, clock)) as readers:
        state = read_state(readers, unit)
        origin = state.checkpoint()
        if origin is None:
            raise _awaited(settings, unit)
        # Whichever site serves replica 0, only its state matters.
        check_continues(origin_settings, origin, topics, replace(claimant, force=True))
        manifest, snapshot = _newest_snapshot(settings, state, origin)
        offsets = origin.start if manifest is None else manifest.offsets
        _check_range(settings, unit, offsets, log_ranges(readers, unit))
    checkpoint = Checkpoint(
        format=FORMAT_VERSION,
        application=settings.application.name,
        unit=unit,
        run=RESET_RUN,
        instance=claimant.instance,
        site=claimant.site,
        offsets=offsets,
        start=origin.start,
        topics=origin.topics,
        partitions=origin.partitions,
        fingerprint=settings.fingerprint(),
        semantics=settings.semantics(),
        counts={},
        joins={},
        founded={} if manifest is None else manifest.offsets,
    )
    return Foundation(checkpoint, snapshot)


def _newest_snapshot(
    settings: JoinerSettings, state: StateLog, origin: Checkpoint
) -> tuple[Manifest, bytes] | tuple[None, None]:
    """Return replica 0's newest snapshot, or nothing if it has none. Raises `_SnapshotLost` if it cannot be used.

    Retrying that is right even if the snapshot is damaged: replica 0, which serves the unit, will write another one.
    """
    reset = replica_settings(settings, 0).application.command("reset")
    try:
        manifest = next(iter(state.manifests()), None)
        if manifest is None:
            return None, None
        if manifest.fingerprint != origin.fingerprint:
            raise UnitStopped("replica 0's snapshot and its checkpoint were written under different settings")
        return manifest, state.snapshot(manifest, reset)
    except UnitStopped as error:
        raise _SnapshotLost(
            f"unit {state.unit} of {settings.application.name!r} waits for another snapshot of replica 0: {error}"
        ) from error


def _check_range(
    settings: JoinerSettings, unit: int, offsets: Mapping[str, int], ranges: Mapping[str, tuple[int, int]]
) -> None:
    """Check that the input that follows ``offsets`` exists. Raises `FoundationAwaited` if not.

    A foundation counts once it is written. With one that cannot be continued, the unit would fail until it is reset,
    although replica 0's next snapshot may be a better one.
    """
    for topic, (low, end) in ranges.items():
        if not low <= offsets[topic] <= end:
            raise FoundationAwaited(
                f"unit {unit} of {settings.application.name!r} waits for another snapshot of replica 0: it would begin "
                f"at offset {offsets[topic]} of {topic}, but the log is from {low} to {end}"
            )


def found_unit(
    readers: Readers, log: StateLog, transactions: UnitTransactions, topics: dict[str, TopicFacts], claimant: Claimant
) -> StateLog:
    """Found a unit of a replica that has no checkpoint. Return the unit's log with its first one.

    ``transactions``: must be initialised. Raises `Fenced` and `Aborted` as `UnitTransactions.commit` does, anything
    that `read_foundation` raises, and `ClaimCancelled`.
    """
    settings, unit = readers.settings, log.unit
    checkpoint, snapshot = read_foundation(settings, unit, topics, claimant, readers.clock)
    # Reading a large snapshot takes long, and so does writing it.
    readers.check()
    # This also ends a foundation that Kafka has left open. It counts only if it has become visible.
    fences = fence_partitions(readers, unit, transactions, checkpoint)
    log = read_newest(readers, unit)
    if log.checkpoint() is None:
        checkpoint = msgspec.structs.replace(checkpoint, result_ends=fences)
        transactions.begin_anew(log, checkpoint, snapshot, with_offsets=False)
        _log.info("unit %s: founded at %s, as replica 0", unit, offsets_as_text(checkpoint.offsets))
        log = read_newest(readers, unit)
        if log.checkpoint() is None:
            raise timed_out(f"unit {unit}: its first checkpoint cannot be read yet")
    return log


def _awaited(settings: JoinerSettings, unit: int) -> FoundationAwaited:
    origin = replica_settings(settings, 0)
    return FoundationAwaited(
        f"unit {unit} of {settings.application.name!r} waits for replica 0 to begin it: there is no checkpoint in "
        f"{origin.state_topic}; start replica 0 (`joiner run`) if it is not running"
    )
