"""Claims a unit. The steps are the same after a start, a crash, a rebalance or a move. `restore` then builds its state.

0. Read and check the checkpoint (early), so that a process with different settings does not fence the owner.
1. Initialise the transactional id, which fences the previous owner.
2. Read the checkpoint again. If the unit is a replica's and has none, found it (see `foundation`).
3. Look for dangling transactions, which Kafka has failed to end (see `dangling`).
4. Check the site, fingerprint, topics, partitions and log range, to see whether this runner may continue the unit.
5. If no transaction is dangling: fence the partitions, so that no more records of earlier owners can be appended, and
   compare the visible results with the checkpoint, because Kafka may have ended a transaction wrongly.
6. If a transaction is dangling or was ended wrongly: resolve it, which also fences the partitions.
7. Commit a transaction that writes the checkpoint back with our run id, and any results found missing in step 6.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial

import msgspec
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from broker.kafka.topics import TopicFacts, topic_facts
from joiner.runtime.kafka.checkpoint_log import read_checkpoint, read_newest
from joiner.runtime.kafka.clients import TIMEOUT_S, log_range, make_consumer, read_to_end
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.kafka.transaction import Fenced, UnitTransactions, offsets_as_text
from joiner.runtime.model import FORMAT_VERSION, RESET_RUN, Checkpoint, StateLog, UnitStopped
from joiner.runtime.ownership.dangling import (
    DanglingTransaction,
    fence_partitions,
    find_dangling,
    find_wrongly_ended,
    last_in_order,
    resolve,
)
from joiner.runtime.ownership.eligibility import (
    Claimant,
    check_continues,
    check_log_range,
    check_partitions,
    check_topics_exist,
)
from joiner.runtime.ownership.foundation import check_origin, found_unit
from joiner.runtime.ownership.restore import replay_effects, unless_fenced
from joiner.runtime.ownership.services import Services
from joiner.runtime.ownership.warmup import Warm
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.effects import Outgoing

_log = logging.getLogger(__name__)


def claim(
    settings: JoinerSettings,
    unit: int,
    admin: AdminClient,
    transactions: UnitTransactions,
    claimant: Claimant,
    readers: Readers,
    early: Checkpoint | None,
    *,
    is_warm: bool = False,
) -> Checkpoint:
    """Claim a unit (steps 0-7). Return the checkpoint that was written.

    ``early``: the newest checkpoint, which has just been read, or None if there is none. ``is_warm``: the unit's state
    was built in advance.

    Raises `Fenced` if another runner claims the unit, `Aborted` if a transaction fails or its outcome is unknown,
    `UnitStopped` if this runner cannot continue the unit, and KafkaException if Kafka does not answer.
    """
    # Request the topic ids for every claim, because a topic may have been recreated since this process started.
    topics = topic_facts(admin, settings.input_topics)
    check_topics_exist(settings, unit, topics)
    if early is not None:
        check_continues(settings, early, topics, claimant)
    if not is_warm or early is None:
        check_origin(settings, unit, early, admin, readers.clock)
    transactions.init()
    # Read the checkpoint again, because the previous owner could still commit until the id was initialised.
    log = read_newest(readers, unit)
    with unless_fenced(transactions):
        if settings.application.replica and log.checkpoint() is None:
            _check_never_begun(readers, unit)
            log = found_unit(readers, log, transactions, topics, claimant)
        dangling = find_dangling(log, readers)
        checkpoint = _to_continue(readers, log, dangling, topics, claimant)
        check_log_range(readers, unit, checkpoint.offsets)
        if dangling is None:
            fences = fence_partitions(readers, unit, transactions, checkpoint)
            if log.checkpoint() is None:
                checkpoint = msgspec.structs.replace(checkpoint, result_ends=fences)
            dangling = find_wrongly_ended(log, fences, readers)
            if dangling is not None:
                checkpoint = _to_continue(readers, log, dangling, topics, claimant)
        messages: Outgoing = {}
        removed: list[str] = []
        last: Checkpoint | None = checkpoint
        if dangling is not None:
            reached = dangling.reached or checkpoint
            replay = partial(replay_effects, settings, clock=readers.clock)
            resolved = resolve(settings, dangling, transactions, checkpoint, readers.clock, partial(replay, reached))
            messages = resolved.effects.messages(settings.topics)
            removed = [dangling.key]
            # Only the start records depend on it.
            has_replicas = settings.application.replicas > 1
            last = last_in_order(dangling, checkpoint, resolved, readers, replay) if has_replicas else None
            checkpoint = _owned(reached, claimant)
    starts = _starts(log.checkpoint(), last)
    transactions.commit(messages, checkpoint, removed=removed, starts=starts)
    return checkpoint


def _starts(found: Checkpoint | None, last: Checkpoint | None) -> list[Mapping[str, int]]:
    """Return the vectors of the claim's start records. ``found``: the newest checkpoint before the claim.

    ``last``: the checkpoint at which exactly the output is due that precedes the claim, or None if none is known.

    An empty vector says that the output does not continue from the last start record: because the unit is new, was
    reset or was founded, or because start records may be missing or wrong. In that case, the next transaction is the
    first of which it is known what precedes it: the claim itself writes missing output of earlier ones.
    """
    if last is None:
        return [{}]
    return [{}, last.offsets] if found is None or found.run == RESET_RUN else [last.offsets]


def _to_continue(
    readers: Readers,
    log: StateLog,
    dangling: DanglingTransaction | None,
    topics: dict[str, TopicFacts],
    claimant: Claimant,
) -> Checkpoint:
    """Return the checkpoint to continue from, owned by the claimant. Raises `UnitStopped` if that is not allowed."""
    settings = readers.settings
    found, reached = log.checkpoint(), dangling.reached if dangling is not None else None
    for known in (found, reached):
        if known is not None:
            check_continues(settings, known, topics, claimant)
    if found is None and reached is not None:
        # No checkpoint is committed because even the unit's first transactions are dangling.
        found = msgspec.structs.replace(reached, offsets=reached.start, counts={}, joins={}, aligns={})
    if found is not None:
        return _owned(found, claimant)
    _check_never_begun(readers, log.unit)
    _log_existing_results(readers, log.unit)
    return first_checkpoint(settings, log.unit, topics, claimant)


def group_offsets(settings: JoinerSettings, unit: int) -> dict[str, int]:
    """Return the offsets that the consumer group has committed for a unit, by topic.

    Used to detect that the state topic has been lost.
    """
    consumer = make_consumer(settings.kafka, settings.application.name)
    try:
        places = [TopicPartition(topic, unit) for topic in settings.input_topics]
        return {place.topic: place.offset for place in consumer.committed(places, TIMEOUT_S) if place.offset >= 0}
    finally:
        consumer.close()


def _check_never_begun(readers: Readers, unit: int) -> None:
    """Check that the unit has never been started. Raises `UnitStopped` if it has, or if it cannot be new.

    If the consumer group has committed offsets but there is no checkpoint, the state was deleted. If unit 0 was started
    with a different number of partitions, this unit cannot be new either.
    """
    settings = readers.settings
    other = read_checkpoint(readers, 0) if unit else None
    if other is not None:
        check_partitions(settings, other)
    committed = group_offsets(settings, unit)
    if committed:
        raise UnitStopped(
            f"unit {unit} of {settings.application.name!r}: the consumer group has committed "
            f"{offsets_as_text(committed)}, but {settings.state_topic} holds no checkpoint: was the topic deleted? "
            f"Restore it, or start over with {settings.application.command('reset')} (existing results are then "
            "written again, under the same ids). If a reset was interrupted, repeat it"
        )


def _log_existing_results(readers: Readers, unit: int) -> None:
    """Warn if a unit starts for the first time, but the result topic already contains results.

    If both the state and the group's offsets have been lost, any start looks like a first start. However, the results
    may also belong to other applications.
    """
    settings = readers.settings
    topic = settings.topics.out
    low, end = log_range(readers.log, topic, unit)
    # Look for a visible record, because a claimant that died before its first commit leaves only invisible ones.
    found = next(read_to_end(readers.log, readers.clock, topic, unit, low, end), None)
    if found is not None:
        _log.warning(
            "unit %s of %r starts from scratch, but %s already contains results: if this application has run before "
            "and lost its state, it will write the results of its joins again, under the same ids",
            unit,
            settings.application.name,
            topic,
        )


def first_checkpoint(
    settings: JoinerSettings, unit: int, topics: dict[str, TopicFacts], claimant: Claimant
) -> Checkpoint:
    """Return the first checkpoint of a unit that is new or was reset.

    Its offsets are the beginning or the end of the current logs, depending on ``application.start``.
    """
    at_end = settings.application.start == "latest"
    consumer = make_consumer(settings.kafka, settings.application.name)
    try:
        start = {topic: log_range(consumer, topic, unit)[at_end] for topic in settings.input_topics}
    finally:
        consumer.close()
    return Checkpoint(
        format=FORMAT_VERSION,
        application=settings.application.name,
        unit=unit,
        run=claimant.run,
        instance=claimant.instance,
        site=claimant.site,
        offsets=start,
        start=start,
        topics={topic: topics[topic].topic_id for topic in settings.input_topics},
        partitions=settings.topics.partitions,
        fingerprint=settings.fingerprint(),
        semantics=settings.semantics(),
        counts={},
        joins={},
    )


def _owned(found: Checkpoint, claimant: Claimant) -> Checkpoint:
    return msgspec.structs.replace(
        found,
        format=FORMAT_VERSION,
        run=claimant.run,
        instance=claimant.instance,
        site=claimant.site,
        stopped=False,
        noted_at=-1,
    )


class ClaimLost(Fenced):
    """Another runner initialised the transactional id before our claim was written.

    ``before``: the run that the checkpoint named when our claim began; empty if there was no checkpoint. While the
    checkpoint still names this run, no runner has claimed the unit since.
    """

    def __init__(self, before: str) -> None:
        super().__init__()
        self.before = before


class Claimer:
    """Claims units for a runner. Each claim returns the unit's `UnitTransactions` and its checkpoint."""

    def __init__(self, settings: JoinerSettings, services: Services) -> None:
        self._settings, self._services = settings, services

    def claim(
        self, unit: int, claimant: Claimant, warm: Warm | None, readers: Readers
    ) -> tuple[UnitTransactions, Checkpoint]:
        """Claim a unit, using the clients of ``warm`` if it is given.

        Raises `ClaimLost` (instead of `Fenced`), `ClaimCancelled`, and anything else that the function `claim` raises.
        """
        early = read_checkpoint(readers, unit)
        transactions = warm.transactions if warm else self._services.make_transactions(self._settings, unit)
        readers.check()
        try:
            admin = self._services.admin
            given = self._settings, unit, admin, transactions, claimant, readers, early
            return transactions, claim(*given, is_warm=warm is not None)
        except Fenced as fenced:
            raise ClaimLost(early.run if early is not None else "") from fenced
