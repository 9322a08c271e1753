"""Taking a unit over and building its state at C: the same for a start, a crash, a rebalance, and another runner.

Claim:    0. look at the progress record, so that a process with other settings fences nobody
          1. initialise the transactional id (fences whoever had the unit)
          2. read the progress record
          3. check that it is ours to continue: placement, fingerprint, topics, partitions, the log's range
          4. draw a line, behind which nothing of older owners comes (see `hanging`)
          5. settle what Kafka has left open by mistake, or ended wrongly (the same)
          6. a transaction that writes the record back with our run id
Recover:  7. read the newest snapshot, at C0 <= C
          8. replay silently from C0 to C
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from broker.topics import TopicFacts, TopicSpec, control_topic_spec, data_topic_specs, state_topic_spec, topic_facts
from joiner.run.clients import (
    TIMEOUT_S,
    log_range,
    make_consumer,
    make_reader,
    read_to_end,
    timed_out,
)
from joiner.run.continuity import Claimant, TopicUnknown, check_continues, check_log_range, check_partitions, log_ranges
from joiner.run.gaps import SecondReader
from joiner.run.hanging import Again, Unsettled, draw_line, find_ended_wrongly, find_unsettled, settle
from joiner.run.intake import Messages
from joiner.run.progress import FORMAT_VERSION, Progress
from joiner.run.ranges import read_range
from joiner.run.readers import Readers, reading
from joiner.run.settings import JoinerSettings
from joiner.run.snapshot_log import SnapshotPlace
from joiner.run.state_log import StateLog, read_newest, read_progress, read_state
from joiner.run.transaction import Fenced, UnitTransactions, offsets_as_text
from joiner.run.unit import Effects, Outgoing, Unit, UnitStopped

_REPLAY_BATCH: Final = 50_000
"""Messages that a replay takes at a time. A step of the engine costs what its keys hold, besides what is new: it is
better done in few; and every message is an object until it is taken."""

_log = logging.getLogger(__name__)


@dataclass
class Recovered:
    """A unit that is ours, with its state at C; ``snapshot_offsets`` is the vector C0 of its newest snapshot."""

    unit: Unit
    progress: Progress
    place: SnapshotPlace
    snapshot_offsets: dict[str, int]


def application_topics(settings: JoinerSettings) -> list[TopicSpec]:
    """The topics that an application needs, its state topic among them."""
    return [
        *data_topic_specs(settings.topics, settings.input_topics),
        state_topic_spec(settings.application.name, settings.topics),
        control_topic_spec(settings.application.name, settings.topics),
    ]


def claim(
    settings: JoinerSettings,
    unit: int,
    admin: AdminClient,
    transactions: UnitTransactions,
    claimant: Claimant,
    kept: Readers | None = None,
) -> Progress:
    """Steps 0-6; returns the progress record that we wrote. ``kept``: consumers that are connected already.

    Raises `Fenced`, `Aborted`, `UnitStopped`, and KafkaException where Kafka does not answer.
    """
    with reading(settings, kept) as readers:
        return _claim(settings, unit, admin, transactions, claimant, readers)


def _claim(
    settings: JoinerSettings,
    unit: int,
    admin: AdminClient,
    transactions: UnitTransactions,
    claimant: Claimant,
    readers: Readers,
) -> Progress:
    # Asked anew each time: a topic may have been made anew while this process runs.
    topics = topic_facts(admin, settings.input_topics)
    absent = [topic for topic in settings.input_topics if topic not in topics]
    if absent:
        raise TopicUnknown(
            f"unit {unit}: {', '.join(absent)} does not exist any more: restore it, or begin anew with `joiner reset` "
            "and a restart, which creates it"
        )
    early = read_progress(settings.kafka, settings.application.name, settings.state_topic, unit, readers)
    if early is not None:
        check_continues(settings, early, topics, claimant)
    transactions.init()
    # Only what is read behind the init cannot change any more.
    log = read_newest(settings.kafka, settings.application.name, settings.state_topic, unit, readers)
    with unless_fenced(transactions):
        unsettled = find_unsettled(settings, log, readers)
        progress = _to_continue(settings, log, unsettled, topics, claimant)
        check_log_range(settings, unit, progress.offsets, readers)
        if unsettled is None:
            line = draw_line(settings, unit, transactions, progress, readers)
            if log.progress() is None:
                progress = msgspec.structs.replace(progress, result_ends=line)
            unsettled = find_ended_wrongly(settings, log, line, readers)
            if unsettled is not None:
                progress = _to_continue(settings, log, unsettled, topics, claimant)
        messages: Outgoing = {}
        if unsettled is not None:
            reached = unsettled.reached or progress
            effects = settle(settings, unsettled, transactions, progress, partial(_brought_forth, settings, reached))
            messages = effects.messages(settings.topics)
            messages[settings.state_topic] = ([unsettled.key.encode()], [None])
            progress = _owned(reached, claimant)
    transactions.commit(messages, progress)
    return progress


def _to_continue(
    settings: JoinerSettings,
    log: StateLog,
    unsettled: Unsettled | None,
    topics: dict[str, TopicFacts],
    claimant: Claimant,
) -> Progress:
    """The progress record to go on from, as ours."""
    found, reached = log.progress(), unsettled.reached if unsettled is not None else None
    for known in (found, reached):
        if known is not None:
            check_continues(settings, known, topics, claimant)
    if found is None and reached is not None:
        # Its very first transactions hang.
        found = msgspec.structs.replace(reached, offsets=reached.start, counts={}, joins={})
    if found is not None:
        return _owned(found, claimant)
    _check_never_begun(settings, log.unit)
    _tell_results_that_are_there(settings, log.unit)
    return first_progress(settings, log.unit, topics, claimant)


def recover(
    settings: JoinerSettings,
    unit: int,
    transactions: UnitTransactions,
    progress: Progress,
    warm: Unit | None = None,
    kept: Readers | None = None,
) -> Recovered:
    """Steps 7-8; ``warm``: the unit at an earlier vector, where somebody has built it already; ``kept``: those that
    the claim was made with.

    Raises `UnitStopped` where the state cannot be built, `Fenced` where another has the unit by now.
    """
    with unless_fenced(transactions), reading(settings, kept) as readers:
        # The claim has read it behind its init, and only we have written since.
        state = readers.state
        if state is None:
            state = read_state(settings.kafka, settings.application.name, settings.state_topic, unit)
        # What was built before a reset is another application's state, though it may lie between the same vectors.
        usable = warm if readers.begun_at == progress.start else None
        built = build_state(settings, progress, state, usable, readers)
    return Recovered(built, progress, SnapshotPlace.after(state), newest_offsets(progress, state))


def build_state(
    settings: JoinerSettings,
    progress: Progress,
    state: StateLog,
    warm: Unit | None = None,
    kept: Readers | None = None,
) -> Unit:
    """The unit at the vector of ``progress``; ``state``: what the state topic holds of it.

    From ``warm`` where that is not behind the newest snapshot, which may be all that is left of the input: retention.
    Raises `UnitStopped` where neither reaches.
    """
    unit = progress.unit
    restored = _nearest(settings, progress, state, warm)
    began_at = dict(restored.offsets)
    with reading(settings, kept) as readers:
        check_log_range(settings, unit, restored.offsets, readers)
        started = time.monotonic()
        replayed = _replay(settings, restored, progress.offsets, None, readers)
    _log.info(
        "unit %s: recovered at %s (%s records replayed from %s in %.1f s, %s held)",
        unit,
        offsets_as_text(progress.offsets),
        replayed,
        offsets_as_text(began_at),
        time.monotonic() - started,
        restored.held(),
    )
    return restored


def _nearest(settings: JoinerSettings, progress: Progress, state: StateLog, warm: Unit | None) -> Unit:
    if warm is not None:
        newest = newest_offsets(progress, state)
        if all(newest[topic] <= at <= progress.offsets[topic] for topic, at in warm.offsets.items()):
            return warm
    return _from_snapshot(settings, progress.unit, state, progress)


def newest_offsets(progress: Progress, state: StateLog) -> dict[str, int]:
    """The vector of the newest snapshot; without any, that at which the unit began."""
    manifests = state.manifests()
    return dict(manifests[0].offsets if manifests else progress.start)


def _brought_forth(settings: JoinerSettings, until: Progress) -> Again:
    """What the unit has brought forth before ``until``, as far back as an earlier state of it can be built."""
    unit = until.unit
    state = read_state(settings.kafka, settings.application.name, settings.state_topic, unit)
    # Where the older one is gone, it was being replaced, and nothing before the newer one is in doubt.
    kept = state.manifests()
    earlier = state if len(kept) == 1 and kept[0].serial else state.without_newest_snapshot()
    restored = _from_snapshot(settings, unit, earlier, until)
    if any(low > restored.offsets[topic] for topic, (low, _) in log_ranges(settings, unit).items()):
        earlier = state
        restored = _from_snapshot(settings, unit, earlier, until)
        check_log_range(settings, unit, restored.offsets)
    check_log_range(settings, unit, until.offsets)
    effects = Effects()
    _replay(settings, restored, until.offsets, effects)
    manifests = earlier.manifests()
    return Again(effects, (manifests[0] if manifests else until).result_ends)


def group_offsets(settings: JoinerSettings, unit: int) -> dict[str, int]:
    """What the consumer group has committed of a unit, by topic: for tools, and to notice that the state is gone."""
    consumer = make_consumer(settings.kafka, settings.application.name)
    try:
        places = [TopicPartition(topic, unit) for topic in settings.input_topics]
        return {place.topic: place.offset for place in consumer.committed(places, TIMEOUT_S) if place.offset >= 0}
    finally:
        consumer.close()


@contextmanager
def unless_fenced(transactions: UnitTransactions) -> Iterator[None]:
    """A fault that is found counts only while nobody has taken the unit. Raises `Fenced` where somebody has.

    A process that hung in the middle sees the state of one moment and the log of another: whoever has taken the
    unit since has written a newer snapshot, and retention has removed what lies behind that.
    """
    try:
        yield
    except UnitStopped:
        transactions.check_owner()
        raise


def _check_never_begun(settings: JoinerSettings, unit: int) -> None:
    """A group offset without a progress record means that the state was deleted, not that this is a first start.

    Nor is it one where another unit was begun when there were fewer units.
    """
    other = read_progress(settings.kafka, settings.application.name, settings.state_topic, 0) if unit else None
    if other is not None:
        check_partitions(settings, other)
    committed = group_offsets(settings, unit)
    if committed:
        raise UnitStopped(
            f"unit {unit} of {settings.application.name!r}: the group has committed {offsets_as_text(committed)}, but "
            f"{settings.state_topic} holds no progress: was the topic deleted? Restore it, or start anew with "
            "`joiner reset` (results that were written already are then written again, under the same ids)"
        )


def _tell_results_that_are_there(settings: JoinerSettings, unit: int) -> None:
    """A first start cannot be told from one after both state and group are lost: the results may be of others."""
    topic = settings.topics.out
    with closing(make_reader(settings.kafka, settings.application.name)) as consumer:
        low, end = log_range(consumer, topic, unit)
        # The log of a claimant that died before its first commit holds nothing that can be seen.
        found = next(read_to_end(consumer, topic, unit, low, end), None)
    if found is not None:
        _log.warning(
            "unit %s of %r begins anew, and %s holds results already: those of its joins are written again, under the "
            "same ids, if this application has run before and its state is lost",
            unit,
            settings.application.name,
            topic,
        )


def first_progress(settings: JoinerSettings, unit: int, topics: dict[str, TopicFacts], claimant: Claimant) -> Progress:
    """The progress record of a unit that begins, or begins anew: at ``application.start`` of today's logs."""
    at_end = settings.application.start == "latest"
    consumer = make_consumer(settings.kafka, settings.application.name)
    try:
        start = {topic: log_range(consumer, topic, unit)[at_end] for topic in settings.input_topics}
    finally:
        consumer.close()
    return Progress(
        format=FORMAT_VERSION,
        application=settings.application.name,
        unit=unit,
        run=claimant.run,
        instance=claimant.instance,
        placement=claimant.placement,
        offsets=start,
        start=start,
        topics={topic: topics[topic].topic_id for topic in settings.input_topics},
        partitions=settings.topics.partitions,
        fingerprint=settings.fingerprint(),
        semantics=settings.semantics(),
        counts={},
        joins={},
    )


def _owned(found: Progress, claimant: Claimant) -> Progress:
    return msgspec.structs.replace(
        found,
        format=FORMAT_VERSION,
        run=claimant.run,
        instance=claimant.instance,
        placement=claimant.placement,
        stopped=False,
    )


def _from_snapshot(settings: JoinerSettings, unit: int, state: StateLog, progress: Progress) -> Unit:
    manifests = state.manifests()
    if not manifests:
        return Unit(settings, unit, progress.start)
    manifest = manifests[0]
    if manifest.fingerprint != progress.fingerprint:
        raise UnitStopped(
            f"unit {unit}: its snapshot was taken under other settings than its progress: "
            "start anew with `joiner reset`"
        )
    if any(at > progress.offsets.get(topic, -1) for topic, at in manifest.offsets.items()):
        raise UnitStopped(
            f"unit {unit}: its snapshot is at {offsets_as_text(manifest.offsets)} and its progress only at "
            f"{offsets_as_text(progress.offsets)}: the state topic has lost records it had acknowledged"
        )
    return Unit.restore(settings, unit, state.snapshot(manifest))


def _replay(
    settings: JoinerSettings,
    unit: Unit,
    until: dict[str, int],
    effects: Effects | None = None,
    kept: Readers | None = None,
) -> int:
    """Feed the unit up to the vector ``until``; returns how many records that were.

    Silently, but where ``effects`` is given: what is brought forth is added there. Whether there is room is not judged:
    the unit held all that before, when one topic could wait for the other.
    """
    if unit.offsets == until:
        return 0
    replayed = 0
    with reading(settings, kept) as readers, closing(SecondReader(settings)) as second:
        for batches, end in read_range(readers.log, unit.number, unit.offsets, until, _REPLAY_BATCH):
            readers.check()
            _check_gaps(second, unit, batches)
            brought = unit.apply(batches, end, silent=effects is None, is_part=True)
            if effects is not None:
                effects.add(brought)
            replayed += sum(map(len, batches.values()))
    return replayed


def _check_gaps(second: SecondReader, unit: Unit, batches: dict[str, Messages]) -> None:
    try:
        second.check(unit.number, unit.offsets, batches)
    except Fenced:
        # Nobody was fenced: a replay needs what retention has just removed, and the next claim says so.
        raise timed_out(f"unit {unit.number}: input was removed while it was replayed") from None
