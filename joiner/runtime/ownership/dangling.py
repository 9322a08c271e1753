"""Transactions of a unit that hang: ended for Kafka's coordinator, and open in the logs for ever.

Whoever initialises a transactional id expects that everything under it has been ended, one way or the other. A broker
can miss that: Kafka 4.3.1, killed and started again, drops the markers of transactions that it ends while it starts
("Couldn't find leader endpoint … can be skipped"), in all of their partitions or in some. Records without a marker stay
open, and the *next* commit of the same producer commits them, too: results that were rolled back would become
visible, and those of their replay beside them. An unclean leader election may lose markers as well (KIP-664).

So a claimant looks for what is open where it writes, and for what was ended wrongly. A client cannot see whose an open
transaction is: another program that writes to a result topic has one most of the time. So what hangs is not judged.
All that the unit has brought forth is known from its input, and therefore:

 1. note in the state topic, outside any transaction, how far results may have been written: up to the furthest
    checkpoint, committed or not
 2. draw a line (below), which rolls back whatever hangs of ours
 3. replay from an earlier state up to there; what of it is not visible is written with the claim, and the note removed

A claimant that dies or is fenced at any point leaves the note to the next one, which does the same again.

Where nothing hangs, a claimant draws the line all the same. A partition knows only the owners that it was told of: as
long as it has no record and no marker of the new one, a request that the old owner's client had on its way may still be
taken, behind the look, and would come out of the new owner's first commit. The line is a record of the new owner in
each partition, rolled back. Nothing older is taken behind it, and what lies before it is decided, whoever's it was: the
claimant waits until what others had open there has ended. (KIP-890 tells of such requests; they belong to no
transaction that was committed, so there is nothing to write again.)

Behind the line nothing is open, and yet what was forgotten may have been ended the wrong way: the rollback of the
transaction that came after it has taken it along. Checkpoints name the first record of what was written last.
Those that the newest visible one names must be visible; those of checkpoints behind it, which were rolled back,
must not. If that is not so, it is settled as well.

The search for what is there begins where the result topics ended when the earlier state was saved, and ends at the
line. It holds what it looks for, and reads whatever others have written there without keeping it. Results are told
apart by their ids, which hold the names of their joins; what is told of input records names the application, too.

An owner looks after its own commits: see `transaction`.

Results that retention has removed are not written again: what was rolled back is still in the log, and what was removed
is not. Where a transaction was under way as well whose results may never have reached the log, the two cannot be told
apart, and what is not there is written: readers who have been through the removed part may then meet it twice.

What this does not cover: retention that removes input behind the earlier of the two snapshots before they are settled.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException

from broker.wire.records import OutputRecord, Rejected, cut_lines, encode
from joiner.runtime.kafka.checkpoint_log import read_tried
from joiner.runtime.kafka.clients import TIMEOUT_S, log_range, make_producer, read_to_end, timed_out
from joiner.runtime.kafka.pending_markers import identity_of
from joiner.runtime.kafka.readers import Readers, reading
from joiner.runtime.kafka.transaction import FIRST_LOOK_S, LOOK_S, UnitTransactions, offsets_as_text
from joiner.runtime.model import RESET_RUN, Checkpoint, FirstRecord, StateLog, dangling_key
from joiner.runtime.model import encode as encode_state
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.effects import Effects
from joiner.runtime.task.emit import Results

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DanglingTransaction:
    """What hangs of a unit, or was found hanging by a claimant that did not come to its end.

    ``open_from`` is the first open offset of each topic in which something is. ``reached`` is the furthest progress
    record that was ever written, committed or not; None where there is none.
    """

    unit: int
    open_from: dict[str, int]
    reached: Checkpoint | None

    @property
    def key(self) -> str:
        """The key of the note."""
        return dangling_key(self.unit)


class ReplayedEffects(NamedTuple):
    """What the unit brings forth again from an earlier state, and offsets of the result topics behind which all of that
    lies, as far as it was written.
    """

    effects: Effects
    result_ends: dict[str, int]


def find_dangling(
    settings: JoinerSettings, log: StateLog, readers: Readers | None = None
) -> DanglingTransaction | None:
    """Look for what hangs, behind the init; None: nothing does. ``log`` is what is committed in the state topic."""
    with reading(settings, readers) as made:
        ends = _ends(settings, log.unit, made)
        open_from = {topic: stable for topic, (stable, end) in ends.items() if stable < end}
        note = log.dangling_note()
        if not open_from and note is None:
            return None
        tried = _tried(settings, log, made)
    return _dangling(log, open_from, [*tried, *([note] if note is not None else [])])


def find_wrongly_ended(
    settings: JoinerSettings, log: StateLog, line: Mapping[str, int], readers: Readers | None = None
) -> DanglingTransaction | None:
    """Compare what is visible before ``line`` with what the checkpoints say; None: it is as they say."""
    committed = log.checkpoint()
    named = committed.written if committed is not None else {}
    with reading(settings, readers) as made:
        tried = _tried(settings, log, made)
        # What an earlier transaction has written is named again by those that follow.
        beyond = [
            (topic, first)
            for one in tried
            for topic, first in one.written.items()
            if named.get(topic) is None or named[topic].identity != first.identity
        ]
        wanted = [*named.items(), *beyond]
        there = {topic: _there(made.log, topic, log.unit, wanted, line) for topic in {topic for topic, _ in wanted}}
        gone = [
            topic
            for topic, first in named.items()
            if first.identity not in there[topic]
            and not _removed(made, topic, log.unit, {first.identity}, first.start, line[topic])
        ]
    unasked = [topic for topic, first in beyond if first.identity in there[topic]]
    if not gone and not unasked:
        return None
    for topic in sorted({*gone, *unasked}):
        what = "rolled back what was committed" if topic in gone else "committed what its progress was not"
        _log.warning("unit %s: Kafka has %s in %s", log.unit, what, topic)
    return _dangling(log, {}, tried)


def _dangling(log: StateLog, open_from: dict[str, int], tried: list[Checkpoint]) -> DanglingTransaction:
    committed = log.checkpoint()
    known = [*tried, *([committed] if committed is not None else [])]
    return DanglingTransaction(log.unit, open_from, max(known, key=lambda one: sum(one.offsets.values()), default=None))


def _tried(settings: JoinerSettings, log: StateLog, readers: Readers) -> list[Checkpoint]:
    """The checkpoints behind the newest visible one: of transactions that were rolled back, or hang."""
    low, end = log_range(readers.everything, settings.state_topic, log.unit)
    begin = log.checkpoint_at + 1 if log.checkpoint_at >= 0 else low
    if end <= begin + 1:
        # There is nothing but the end of the newest one's transaction.
        return []
    found = read_tried(readers.everything, settings.state_topic, log.unit, begin, end)
    return [one for one in found if one.run != RESET_RUN]


def _there(
    consumer: Consumer,
    topic: str,
    unit: int,
    wanted: Iterable[tuple[str, FirstRecord]],
    line: Mapping[str, int],
) -> set[str]:
    """Which of these first records are visible."""
    here = [first for name, first in wanted if name == topic]
    missing = {first.identity for first in here}
    start = min(first.start for first in here)
    return missing - _missing_results(consumer, topic, unit, missing, start, line[topic])


def resolve(
    settings: JoinerSettings,
    dangling_note: DanglingTransaction,
    transactions: UnitTransactions,
    checkpoint: Checkpoint,
    again: Callable[[], ReplayedEffects],
) -> Effects:
    """End what hangs; returns what the claim has to write, so that everything up to ``reached`` is there.

    ``checkpoint`` is the newest committed one. ``again`` gives what the unit has brought forth from an earlier
    state up to there; it is called when nothing hangs any more. Raises `Fenced`, `Aborted`, `UnitStopped`, and
    KafkaException where Kafka does not answer.
    """
    unit, reached = dangling_note.unit, dangling_note.reached or checkpoint
    where = ", ".join(f"{topic} [{unit}] from {at}" for topic, at in dangling_note.open_from.items())
    _log.warning(
        "unit %s: %s; settling it up to %s",
        unit,
        f"a transaction is open that Kafka should have ended, or another program's ({where})"
        if where
        else "Kafka has not ended its transactions as it should have",
        offsets_as_text(reached.offsets),
    )
    _note(settings, dangling_note.key, unit, reached)
    line = fence_partitions(settings, unit, transactions, checkpoint)
    effects, begin = again()
    topics = settings.topics
    with reading(settings, None) as readers:

        def missing_in(topic: str, values: list[bytes]) -> list[int]:
            """Which of these values are not visible, and have not been removed either, by number."""
            identities = [identity_of(value) for value in values]
            start, end = begin.get(topic, 0), line.get(topic, -1)
            absent = _missing_results(readers.log, topic, unit, set(identities), start, end)
            if reached.offsets == checkpoint.offsets:
                # All of them were committed, so all of them were in the log.
                absent -= _removed(readers, topic, unit, absent, start, end)
            return [number for number, identity in enumerate(identities) if identity in absent]

        lines = cut_lines(effects.joined.lines)
        which = missing_in(topics.out, lines)
        keys, values = effects.joined.keys, b"".join(lines[number] + b"\n" for number in which)
        effects.joined = Results([keys[number] for number in which], values)
        effects.late = [effects.late[number] for number in missing_in(topics.late, _encoded(effects.late))]
        rejected = missing_in(topics.rejected, _encoded(effects.rejected))
        effects.rejected = [effects.rejected[number] for number in rejected]
        unmatched = missing_in(topics.unmatched, _encoded(effects.unmatched))
        effects.unmatched = [effects.unmatched[number] for number in unmatched]
    missing = len(effects.joined) + len(effects.late) + len(effects.rejected) + len(effects.unmatched)
    _log.warning("unit %s: settled; %s results were missing and are written with the claim", unit, missing)
    return effects


def _note(settings: JoinerSettings, key: str, unit: int, reached: Checkpoint) -> None:
    """Written by a producer of its own, so that no rollback of the unit's takes it away."""
    producer = make_producer(settings.kafka)
    outcome: list[KafkaError | None] = []
    producer.produce(
        settings.state_topic,
        encode_state(reached),
        key.encode(),
        unit,
        on_delivery=lambda error, _: outcome.append(error),
    )
    producer.flush(TIMEOUT_S)
    if not outcome:
        raise timed_out(f"a note in {settings.state_topic} [{unit}] could not be written within {TIMEOUT_S:.0f} s")
    if outcome[0] is not None:
        raise KafkaException(outcome[0])


def fence_partitions(
    settings: JoinerSettings,
    unit: int,
    transactions: UnitTransactions,
    checkpoint: Checkpoint,
    readers: Readers | None = None,
) -> dict[str, int]:
    """Roll back a record of ours in each partition of the unit, and wait until everything before it is decided.

    Returns the offsets of those records. Raises KafkaException where something stays open for too long.
    """
    line = transactions.roll_back(_topics(settings), checkpoint)
    deadline_s, wait_s = time.monotonic() + TIMEOUT_S, FIRST_LOOK_S
    with reading(settings, readers) as made:
        while True:
            stable = {topic: log_range(made.stable, topic, unit)[1] for topic in line}
            behind = {topic: at for topic, at in stable.items() if at <= line[topic]}
            if not behind:
                return line
            if time.monotonic() > deadline_s:
                raise timed_out(_what_is_open(settings, unit, behind))
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, LOOK_S)


def _what_is_open(settings: JoinerSettings, unit: int, open_from: Mapping[str, int]) -> str:
    """What is open behind our own rollback is not of this unit's transactional id, or not of its present life."""
    places = ", ".join(f"{topic} [{unit}] from offset {at}" for topic, at in open_from.items())
    topic, at = next(iter(open_from.items()))
    command = f"kafka-transactions.sh --bootstrap-server {settings.kafka.bootstrap_servers}"
    return (
        f"a transaction that is not this unit's has been open for {TIMEOUT_S:.0f} s in {places}. It is another "
        "program's, which must end it, or its broker does after that program's transaction.timeout.ms; or Kafka has "
        f"forgotten it: `{command} find-hanging --topic {topic} --partition {unit}` tells, and `{command} abort "
        f"--topic {topic} --partition {unit} --start-offset {at}` ends it"
    )


def _topics(settings: JoinerSettings) -> list[str]:
    """Where a unit writes."""
    return [settings.state_topic, *settings.output_topics.values()]


def _missing_results(consumer: Consumer, topic: str, unit: int, wanted: set[str], start: int, end: int) -> set[str]:
    """Which of these are not visible between two offsets."""
    missing = set(wanted)
    low, _ = log_range(consumer, topic, unit) if missing else (0, 0)
    start = max(low, start)
    if not missing or start >= end:
        return missing
    for record in read_to_end(consumer, topic, unit, start, end):
        missing.discard(identity_of(record.value()))
        if not missing:
            break
    return missing


def _removed(readers: Readers, topic: str, unit: int, absent: set[str], start: int, end: int) -> set[str]:
    """Which of these, which were written behind ``start`` and are not visible, retention has taken out of the log.

    What was rolled back is still in it, for who reads everything.
    """
    low, _ = log_range(readers.everything, topic, unit) if absent else (start, end)
    return _missing_results(readers.everything, topic, unit, absent, low, end) if low > start else set()


def _encoded(told: Iterable[OutputRecord | Rejected]) -> list[bytes]:
    return [encode(one) for one in told]


def _ends(settings: JoinerSettings, unit: int, readers: Readers) -> dict[str, tuple[int, int]]:
    """How far each partition of the unit is decided, and where it ends."""
    return {
        topic: (log_range(readers.stable, topic, unit)[1], log_range(readers.everything, topic, unit)[1])
        for topic in _topics(settings)
    }
