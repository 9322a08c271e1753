"""Finds and resolves a unit's dangling transactions: Kafka's coordinator has ended them, but a partition has not.

Initialising a transactional id should commit or abort every transaction under it. A broker can fail to do so: when
Kafka 4.3.1 is killed and restarted, it drops the markers of transactions that it ends during startup ("Couldn't find
leader endpoint … can be skipped"), in some or all of their partitions. Records without a marker stay open, and the
*next* commit of the same producer commits them too: aborted results would become visible in addition to the results of
their replay. An unclean leader election may also lose markers (KIP-664).

A claimant therefore looks for open transactions in the partitions that it writes to, and for transactions that were
ended wrongly. A client cannot see which producer an open transaction belongs to, and another program that writes to a
result topic has one open most of the time. So the claimant does not guess the outcome of a dangling transaction. All
output of the unit follows from its input, so the claimant takes these steps instead:

 1. write a note to the state topic, outside any transaction, that says how far results may have been written: the
    furthest checkpoint, committed or not
 2. fence the partitions (see below), which aborts our dangling transactions
 3. replay the input from an earlier state up to the checkpoint in the note. The claim's transaction then writes the
    effects that are not yet visible, and removes the note

If a claimant dies or is fenced at any point, the next one finds the note and repeats the procedure. A note is written
outside a transaction, so it may arrive after the next claim, if its author was frozen. Such a note does not count: its
author was fenced, so it has written nothing else. To show this, a note says where the state log ended before its author
has found that it still owns the unit: a later checkpoint is that of another claimant.

Every claim fences the partitions. A partition learns a producer's epoch only from the producer's records and markers.
Until the new owner has written one to a partition, that partition may still accept a request that the old owner's
client had in flight, even after the check for open transactions, and the new owner's first commit would commit it. The
fence is a record that the new owner writes to each partition and aborts. From then on, the partition rejects requests
of older epochs. The claimant then waits until all transactions that began before the fences have ended, including those
of other programs. (KIP-890 describes such requests. They belong to no committed transaction, so nothing needs to be
written again.)

After that, no transaction before the fences is open, but a dangling one may have been ended wrongly: if the transaction
after it is aborted, so is the dangling one. For each topic, checkpoints name the first record of the last transaction.
The records named by the newest visible checkpoint must be visible, and those named by later, aborted checkpoints must
not be. If either check fails, the procedure above resolves this too.

The search for visible results starts at the ends that the result topics had when the earlier state was saved, and stops
at the fences. Results are identified by their ids, which include the names of their joins; late and unmatched records
and dead letters also name the application. Only the ids that are being searched for are kept in memory.

An owner checks its own commits (see `kafka.transaction`).

Results that retention has removed are not written again. They can be distinguished from aborted results, because an
aborted record is still in the log. But if there was also a transaction in flight whose results may never have reached
the log, removed and missing results cannot be distinguished, and both are written. A consumer that has read the removed
part of the log may then see these results twice.

One case is not covered: before the transactions are resolved, retention removes input that follows the earlier of the
two snapshots.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException

from broker.wire.records import OutputRecord, Rejected, encode
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.checkpoint_log import read_newest, read_tried
from joiner.runtime.kafka.clients import (
    TIMEOUT_S,
    flush,
    log_ends,
    log_range,
    make_producer,
    read_to_end,
    timed_out,
    wait_until_ended,
)
from joiner.runtime.kafka.pending_markers import holds_results, identities_in, identity_of
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.kafka.transaction import UnitTransactions, offsets_as_text
from joiner.runtime.model import RESET_RUN, Checkpoint, FirstRecord, StateLog, dangling_key
from joiner.runtime.model import encode as encode_state
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.batch import Batch
from joiner.runtime.task.effects import Effects

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DanglingTransaction:
    """The dangling transactions of a unit, found now or by an earlier claimant that did not finish resolving them.

    ``open_from``: for each topic with an open transaction, the offset at which the first one begins. ``reached``: the
    furthest checkpoint that was ever written, committed or not; None if there is none.
    """

    unit: int
    open_from: dict[str, int]
    reached: Checkpoint | None

    @property
    def key(self) -> str:
        """The state topic key of the note about these transactions."""
        return dangling_key(self.unit)


class Resolved(NamedTuple):
    """What resolving dangling transactions has found.

    ``effects``: the missing output, for the claim to write. ``missing``: how much that is. ``fences``: the offsets, by
    topic, before which all transactions have ended now. ``visible``: the identities of the other output, by topic.
    """

    effects: Effects
    missing: int
    fences: dict[str, int]
    visible: dict[str, set[str]]


class ReplayedEffects(NamedTuple):
    """The effects of a replay from an earlier state.

    ``result_ends``: for each result topic, an offset such that none of these effects was written before it.
    """

    effects: Effects
    result_ends: dict[str, int]


def find_dangling(log: StateLog, readers: Readers) -> DanglingTransaction | None:
    """Return the transactions that are dangling even after the transactional id was initialised, or None.

    ``log``: the committed records of the unit's state log.
    """
    open_from = {topic: stable for topic, (stable, end) in _ends(log.unit, readers).items() if stable < end}
    note = log.dangling_note()
    if not open_from and note is None:
        return None
    tried = _tried(log, readers)
    return _dangling(log, open_from, [*tried, *([note] if note is not None else [])])


def find_wrongly_ended(log: StateLog, fences: Mapping[str, int], readers: Readers) -> DanglingTransaction | None:
    """Return transactions that Kafka has ended wrongly, or None.

    Compares the results that are visible before the fences with the first records named in the checkpoints.
    """
    committed = log.checkpoint()
    named = committed.written if committed is not None else {}
    tried = _tried(log, readers)
    # Leave out the first records of committed transactions, which later checkpoints repeat.
    beyond = [
        (topic, first)
        for one in tried
        for topic, first in one.written.items()
        if named.get(topic) is None or named[topic].identity != first.identity
    ]
    wanted = [*named.items(), *beyond]
    there = {topic: _there(readers, topic, log.unit, wanted, fences) for topic in dict(wanted)}
    gone = [
        topic
        for topic, first in named.items()
        if first.identity not in there[topic]
        and not _removed(readers, topic, log.unit, {first.identity}, first.start, fences[topic])
    ]
    unasked = [topic for topic, first in beyond if first.identity in there[topic]]
    if not gone and not unasked:
        return None
    for topic in sorted({*gone, *unasked}):
        what = "aborted a committed transaction" if topic in gone else "committed an aborted transaction"
        _log.warning("unit %s: Kafka has %s in %s", log.unit, what, topic)
    return _dangling(log, {}, tried)


def _dangling(log: StateLog, open_from: dict[str, int], tried: list[Checkpoint]) -> DanglingTransaction:
    committed = log.checkpoint()
    known = [*tried, *([committed] if committed is not None else [])]
    return DanglingTransaction(log.unit, open_from, max(known, key=lambda one: sum(one.offsets.values()), default=None))


def _tried(log: StateLog, readers: Readers) -> list[Checkpoint]:
    """Return the checkpoints after the newest visible one, which are from aborted or dangling transactions."""
    low, end = log_range(readers.everything, readers.settings.state_topic, log.unit)
    begin = log.checkpoint_at + 1 if log.checkpoint_at >= 0 else low
    if end <= begin + 1:
        # Only the marker of its transaction follows the newest checkpoint.
        return []
    found = read_tried(readers, log.unit, begin, end)
    return [one for one in found if one.run != RESET_RUN and not log.is_outdated(one)]


def _there(
    readers: Readers,
    topic: str,
    unit: int,
    wanted: Iterable[tuple[str, FirstRecord]],
    fences: Mapping[str, int],
) -> set[str]:
    """Return the ``wanted`` identities whose records in ``topic`` are visible before the fences."""
    here = [first for name, first in wanted if name == topic]
    missing = {first.identity for first in here}
    start = min(first.start for first in here)
    return missing - _missing_results(readers.log, readers.clock, topic, unit, missing, start, fences[topic])


def resolve(
    settings: JoinerSettings,
    dangling: DanglingTransaction,
    transactions: UnitTransactions,
    checkpoint: Checkpoint,
    clock: Clock,
    again: Callable[[], ReplayedEffects],
) -> Resolved:
    """Resolve dangling transactions. Return what is missing of the effects up to ``dangling.reached``.

    ``checkpoint`` is the newest committed checkpoint. ``again`` replays the unit from an earlier state up to
    ``reached``; it is called once no transaction is dangling. Raises `Fenced` if another runner claims the unit,
    `Aborted` if a transaction fails, `UnitStopped` if the unit cannot be replayed, and KafkaException if Kafka does not
    answer.
    """
    unit, reached = dangling.unit, dangling.reached or checkpoint
    _warn_about(dangling, reached)
    topics = settings.topics
    with closing(Readers(settings, clock)) as readers:
        _, end = log_range(readers.everything, settings.state_topic, unit)
        # In this order: whoever claims the unit later writes its checkpoint after that.
        transactions.check_owner()
        _note(settings, dangling.key, unit, msgspec.structs.replace(reached, noted_at=end))
        fences = fence_partitions(readers, unit, transactions, checkpoint)
        effects, begin = again()
        visible: dict[str, set[str]] = {}

        def missing_in(topic: str, values: list[bytes]) -> list[int]:
            """Return the indices of the values that are neither visible in the topic nor removed by retention."""
            identities = [identity_of(value) for value in values]
            absent = absent_in(topic, set(identities))
            return [number for number, identity in enumerate(identities) if identity in absent]

        def absent_in(topic: str, identities: set[str]) -> set[str]:
            """Return the identities that are neither visible in the topic nor removed by retention."""
            start, end = begin.get(topic, 0), fences.get(topic, -1)
            absent = _missing_results(readers.log, clock, topic, unit, identities, start, end)
            if reached.offsets == checkpoint.offsets:
                # All these effects were committed, so each was in the log at some point.
                absent -= _removed(readers, topic, unit, absent, start, end)
            visible[topic] = identities - absent
            return absent

        _keep_missing_results(effects, lambda identities: absent_in(topics.out, identities))
        effects.late = [effects.late[number] for number in missing_in(topics.late, _encoded(effects.late))]
        rejected = missing_in(topics.rejected, _encoded(effects.rejected))
        effects.rejected = [effects.rejected[number] for number in rejected]
        unmatched = missing_in(topics.unmatched, _encoded(effects.unmatched))
        effects.unmatched = [effects.unmatched[number] for number in unmatched]
    missing = effects.pairs + len(effects.late) + len(effects.rejected) + len(effects.unmatched)
    what = "results, late and unmatched records and dead letters"
    _log.warning("unit %s: resolved; writing %s missing %s with the claim", unit, missing, what)
    return Resolved(effects, missing, fences, visible)


def _warn_about(dangling: DanglingTransaction, reached: Checkpoint) -> None:
    where = ", ".join(f"{topic} [{dangling.unit}] from {at}" for topic, at in dangling.open_from.items())
    _log.warning(
        "unit %s: %s; resolving it up to %s",
        dangling.unit,
        f"a transaction is open that Kafka should have ended or that belongs to another program ({where})"
        if where
        else "Kafka has not ended the unit's transactions correctly",
        offsets_as_text(reached.offsets),
    )


def last_in_order(
    dangling: DanglingTransaction,
    checkpoint: Checkpoint,
    resolved: Resolved,
    readers: Readers,
    replay: Callable[[Checkpoint], ReplayedEffects],
) -> Checkpoint | None:
    """Return the newest checkpoint if it is proven that what is visible in each topic is what is due there, or None.

    Then all start records hold that readers have seen, and the claim may continue from there: what it writes is due
    later. It does not matter how many claimants have tried to resolve the transactions before, because all output is
    compared: what is due at the furthest checkpoint, and is visible, with what is due at the newest.

    ``checkpoint``: the one to continue from if none was ever committed. ``replay``: see `resolve`; up to a checkpoint.
    """
    log = read_newest(readers, dangling.unit)
    # Start records with an empty vector are no effects. If Kafka has rolled one back, only this finds it.
    if find_wrongly_ended(log, resolved.fences, readers) is not None:
        return None
    last = log.checkpoint() or checkpoint
    if last.offsets == (dangling.reached or checkpoint).offsets:
        return None if resolved.missing else last
    messages = replay(last).effects.messages(readers.settings.topics)
    due = {
        topic: {identity for value in batch.values.each() for identity in _identities(value)}
        for topic, batch in messages.items()
    }
    return last if due == {topic: seen for topic, seen in resolved.visible.items() if seen} else None


def _keep_missing_results(effects: Effects, absent_in: Callable[[set[str]], set[str]]) -> None:
    """Remove from ``effects`` the results that have already been written.

    ``absent_in``: returns which of the given identities are absent from the result topic. A replay may distribute the
    results over messages differently, so each result is checked individually.
    """
    values = effects.joined.values.each()
    identities = [_identities(value) for value in values]
    absent = absent_in({identity for some in identities for identity in some})
    rows = [[row for row, identity in enumerate(some) if identity in absent] for some in identities]
    effects.pairs = sum(map(len, rows))
    which = [at for at, some in enumerate(rows) if some]
    kept = effects.joined.take(np.array(which, dtype=np.int64))
    if any(len(rows[at]) < len(identities[at]) for at in which):
        from broker.wire.arrow.results import select_results  # noqa: PLC0415 - pyarrow is an extra

        kept = Batch.of(None, [select_results(values[at], rows[at]) for at in which])
    effects.joined_parts = [kept]


def _identities(value: bytes | None) -> list[str]:
    """Return the identity of a record in a result topic, or all identities if it is a message with many results."""
    return identities_in(value) if holds_results(value) else [identity_of(value)]


def _note(settings: JoinerSettings, key: str, unit: int, reached: Checkpoint) -> None:
    """Write the note about dangling transactions with a separate producer, so that aborting them does not remove it."""
    producer = make_producer(settings.kafka)
    outcome: list[KafkaError | None] = []
    producer.produce(
        settings.state_topic,
        encode_state(reached),
        key.encode(),
        unit,
        on_delivery=lambda error, _: outcome.append(error),
    )
    flush(producer, TIMEOUT_S)
    if not outcome:
        raise timed_out(f"a record could not be written to {settings.state_topic} [{unit}] within {TIMEOUT_S:.0f} s")
    if outcome[0] is not None:
        raise KafkaException(outcome[0])


def fence_partitions(
    readers: Readers, unit: int, transactions: UnitTransactions, checkpoint: Checkpoint
) -> dict[str, int]:
    """Write and abort a record in each partition of the unit, and wait until all earlier transactions there have ended.

    Returns the offsets of these records, by topic. Raises `Fenced` and `Aborted` as `UnitTransactions.roll_back` does,
    and KafkaException if a transaction remains open for too long.
    """
    settings, clock = readers.settings, readers.clock
    fences = transactions.roll_back(_topics(settings), checkpoint)
    wait_until_ended(readers.stable, settings.kafka, clock, fences, unit, "this unit")
    return fences


def _topics(settings: JoinerSettings) -> list[str]:
    """Return the topics a unit writes to."""
    return [settings.state_topic, *settings.output_topics.values()]


def _missing_results(
    consumer: Consumer, clock: Clock, topic: str, unit: int, wanted: set[str], start: int, end: int
) -> set[str]:
    """Return the ``wanted`` identities that are not visible between the offsets ``start`` and ``end``."""
    missing = set(wanted)
    low, _ = log_range(consumer, topic, unit) if missing else (0, 0)
    start = max(low, start)
    if not missing or start >= end:
        return missing
    for record in read_to_end(consumer, clock, topic, unit, start, end):
        missing.difference_update(_identities(record.value()))
        if not missing:
            break
    return missing


def _removed(readers: Readers, topic: str, unit: int, absent: set[str], start: int, end: int) -> set[str]:
    """Return the identities in ``absent`` that retention has removed, assuming that all were written after ``start``.

    A read-committed consumer does not see aborted records either, but a read-uncommitted one still finds them in the
    log.
    """
    low, _ = log_range(readers.everything, topic, unit) if absent else (start, end)
    if low <= start:
        return set()
    return _missing_results(readers.everything, readers.clock, topic, unit, absent, low, end)


def _encoded(records: Iterable[OutputRecord | Rejected]) -> list[bytes]:
    return [encode(one) for one in records]


def _ends(unit: int, readers: Readers) -> dict[str, tuple[int, int]]:
    """Return the last stable offset and the end of each partition that the unit writes to, by topic."""
    topics = _topics(readers.settings)
    # Request the stable ends last: if another program commits a transaction in between, it does not look open.
    end, stable = (log_ends(consumer, topics, unit) for consumer in (readers.everything, readers.stable))
    return {topic: (stable[topic], end[topic]) for topic in topics}
