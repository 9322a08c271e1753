"""Founds the units of replicas: a unit of replica 1 or 2 begins with the state that replica 0 has saved.

Which output is due up to a vector C depends on the vector at which the application started the unit. So a replica that
is added to a running application must not start on its own. Its first state is replica 0's newest snapshot, at C0, and
it writes what becomes due after C0. If there is no snapshot yet, it begins where replica 0 began, with an empty state.
A unit that replica 0 has not started yet waits.

The foundation is written like a reset: a checkpoint at C0 without an owner, together with the snapshot. Only once it
is visible, and known to have ended in its partition, is the unit claimed, as any other. Until then, the unit has no
output, so a process that dies before that leaves nothing behind that counts, and the next claimant starts over.

If replica 0 is reset, it may start at another vector, and the other replicas must be reset too. A claim checks this.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

import msgspec
from confluent_kafka.admin import AdminClient

from broker.kafka.topics import TopicFacts, topic_facts
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.checkpoint_log import read_checkpoint, read_newest, read_state
from joiner.runtime.kafka.clients import timed_out
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.kafka.transaction import UnitTransactions, offsets_as_text
from joiner.runtime.model import FORMAT_VERSION, RESET_RUN, Checkpoint, StateLog, UnitStopped
from joiner.runtime.ownership.dangling import fence_partitions
from joiner.runtime.ownership.eligibility import Claimant, FoundationAwaited, check_continues
from joiner.runtime.settings import JoinerSettings, replica_settings

_log = logging.getLogger(__name__)


class Foundation(NamedTuple):
    """How a unit of a replica begins: its first checkpoint, and its state as a snapshot (None: empty)."""

    checkpoint: Checkpoint
    snapshot: bytes | None


def check_origin(
    settings: JoinerSettings, unit: int, found: Checkpoint | None, admin: AdminClient, clock: Clock
) -> None:
    """Check that a replica can begin or continue a unit, given replica 0's checkpoint. ``found``: the replica's own.

    Raises `FoundationAwaited` if neither has a checkpoint, `UnitStopped` if replica 0 has been reset since, and
    KafkaException. Does nothing for replica 0.
    """
    if not settings.application.replica:
        return
    origin_settings, origin = replica_settings(settings, 0), None
    # Replica 0 may never have been started. Reading from a topic that does not exist takes half a minute to fail.
    if origin_settings.state_topic in topic_facts(admin, [origin_settings.state_topic]):
        with closing(Readers(origin_settings, clock)) as readers:
            origin = read_checkpoint(readers, unit)
    if origin is None:
        if found is None:
            raise _awaited(settings, unit)
        return
    if found is not None and (found.start, found.topics) != (origin.start, origin.topics):
        raise UnitStopped(
            f"unit {unit} of {settings.application.name!r} was founded before replica 0 was reset, so their results "
            f"would differ: run `joiner reset --replica {settings.application.replica}`"
        )


def read_foundation(
    settings: JoinerSettings, unit: int, topics: dict[str, TopicFacts], claimant: Claimant, clock: Clock
) -> Foundation:
    """Return how a unit of a replica begins. ``topics``: the facts of the input topics.

    Raises `FoundationAwaited` if replica 0 has no checkpoint, `UnitStopped` if its state cannot be used, and
    KafkaException.
    """
    try:
        return _read_foundation(settings, unit, topics, claimant, clock)
    except FoundationAwaited:
        raise
    except UnitStopped:
        # While the log was being read, replica 0 may have written a new snapshot, and compaction removed the old one.
        return _read_foundation(settings, unit, topics, claimant, clock)


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
    manifest = next(iter(state.manifests()), None)
    if manifest is not None and manifest.fingerprint != origin.fingerprint:
        raise UnitStopped(
            f"unit {unit} of {origin_settings.application.name!r}: its snapshot and its checkpoint were written under "
            "different settings: start over with `joiner reset`"
        )
    checkpoint = Checkpoint(
        format=FORMAT_VERSION,
        application=settings.application.name,
        unit=unit,
        run=RESET_RUN,
        instance=claimant.instance,
        site=claimant.site,
        offsets=origin.start if manifest is None else manifest.offsets,
        start=origin.start,
        topics=origin.topics,
        partitions=origin.partitions,
        fingerprint=settings.fingerprint(),
        semantics=settings.semantics(),
        counts={},
        joins={},
        founded={} if manifest is None else manifest.offsets,
    )
    return Foundation(checkpoint, None if manifest is None else state.snapshot(manifest))


def found_unit(
    readers: Readers, log: StateLog, transactions: UnitTransactions, topics: dict[str, TopicFacts], claimant: Claimant
) -> StateLog:
    """Found a unit of a replica that has no checkpoint. Return the unit's log with its first one.

    ``transactions``: must be initialised. Raises `Fenced` and `Aborted` as `UnitTransactions.commit` does, and anything
    that `read_foundation` raises.
    """
    settings, unit = readers.settings, log.unit
    checkpoint, snapshot = read_foundation(settings, unit, topics, claimant, readers.clock)
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
