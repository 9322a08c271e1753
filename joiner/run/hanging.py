"""Transactions of a unit that hang: ended for Kafka's coordinator, and open in the logs for ever.

Whoever initialises a transactional id expects that everything under it has been ended, one way or the other. A broker
can miss that: Kafka 4.3.1, killed and started again, drops the markers of transactions that it ends while it starts
("Couldn't find leader endpoint … can be skipped"), in all of their partitions or in some. Records without a marker stay
open, and the *next* commit of the same producer commits them, too: results that were rolled back would become
visible, and those of their replay beside them. An unclean leader election may lose markers as well (KIP-664).

So a claimant looks for what is open where it writes. The markers that are there say nothing to a client, so what hangs
is not judged. All that the unit has brought forth is known from its input, and therefore:

 1. note in the state topic, outside any transaction, how far results may have been written: up to the furthest
    progress record, committed or not
 2. draw a line (below), which rolls back whatever hangs
 3. replay from an earlier state up to there; what of it is not visible is written with the claim, and the note removed

A claimant that dies or is fenced at any point leaves the note to the next one, which does the same again.

Where nothing hangs, a claimant draws the line all the same. A partition knows only the owners that it was told of: as
long as it has no record and no marker of the new one, a request that the old owner's client had on its way may still be
taken, behind the look, and would come out of the new owner's first commit. The line is a record of the new owner in
each partition, rolled back. Nothing older is taken behind it, and what lies before it is decided. (KIP-890 tells of
such requests; they belong to no transaction that was committed, so there is nothing to write again.)

An owner whose commit takes long, as one does that meets a restart of Kafka, looks as well, and claims its unit anew.

What this does not cover: retention that removes input behind the earlier of the two snapshots before they are settled.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec
from confluent_kafka import KafkaError, KafkaException

from broker.wire import Rejected, Told, cut_lines
from joiner.run.clients import TIMEOUT_S, log_range, make_producer, make_reader, read_to_end, timed_out
from joiner.run.outlet import Results
from joiner.run.progress import Progress, encode, unsettled_key
from joiner.run.readers import Readers, reading
from joiner.run.settings import JoinerSettings
from joiner.run.state_log import StateLog, read_open
from joiner.run.transaction import Aborted, SnapshotPlace, UnitTransactions, offsets_as_text
from joiner.run.unit import Effects, Outgoing

_LOOK_S: Final = 0.05
_FIRST_LOOK_S: Final = 0.005
"""The markers of a rollback follow within milliseconds in most cases, and nobody serves the unit meanwhile."""
_MARKERS_S: Final = 5.0
"""Kafka marks a committed transaction in its partitions a moment after it has answered."""
_TAIL: Final = 100_000
"""Records at the end of a partition among which results are looked for, at least."""
_TAIL_FACTOR: Final = 4
"""And so many for each result that is looked for: control records and what was rolled back take offsets, too."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Unsettled:
    """What hangs of a unit, or was found hanging by a claimant that did not come to its end.

    ``open_from`` is the first open offset of each topic in which something is. ``reached`` is the furthest progress
    record that was ever written, committed or not; None where there is none.
    """

    unit: int
    open_from: dict[str, int]
    reached: Progress | None

    @property
    def key(self) -> str:
        """The key of the note."""
        return unsettled_key(self.unit)


def find_unsettled(settings: JoinerSettings, log: StateLog, readers: Readers | None = None) -> Unsettled | None:
    """Look for what hangs, behind the init; None: nothing does. ``log`` is what is committed in the state topic."""
    open_from = _open_from(settings, log.unit, readers)
    start = open_from.get(settings.state_topic)
    logs = [log]
    if start is not None:
        logs.append(read_open(settings.kafka, settings.application.name, settings.state_topic, log.unit, start))
    notes = [note for one in logs if (note := one.unsettled()) is not None]
    if not open_from and not notes:
        return None
    known = [*notes, *(progress for one in logs if (progress := one.progress()) is not None)]
    return Unsettled(log.unit, open_from, max(known, key=lambda one: sum(one.offsets.values()), default=None))


def check_ended(settings: JoinerSettings, unit: int, transactions: UnitTransactions) -> None:
    """Look whether the last commit hangs, where it was disturbed. Raises `Aborted`: the unit must be claimed anew."""
    deadline_s = time.monotonic() + _MARKERS_S
    while transactions.was_disturbed and _open_from(settings, unit):
        if time.monotonic() > deadline_s:
            raise Aborted("Kafka was away and may have left the transaction open")
        time.sleep(_LOOK_S)


def commit_checked(
    settings: JoinerSettings,
    transactions: UnitTransactions,
    messages: Outgoing,
    progress: Progress,
    snapshot: tuple[bytes, SnapshotPlace] | None = None,
) -> SnapshotPlace | None:
    """Write one transaction, and look whether it hangs; returns the place of the snapshot that was written.

    Raises `Fenced` or `Aborted`.
    """
    place = transactions.commit(messages, progress, snapshot)
    check_ended(settings, progress.unit, transactions)
    return place


def settle(
    settings: JoinerSettings,
    unsettled: Unsettled,
    transactions: UnitTransactions,
    progress: Progress,
    effects_again: Callable[[], Effects],
) -> Effects:
    """End what hangs; returns what the claim has to write, so that everything up to `Unsettled.reached` is there.

    ``progress`` is the newest committed one. ``effects_again`` gives what the unit has brought forth from an earlier
    state up to there; it is called when nothing hangs any more. Raises `Fenced`, `Aborted`, `UnitStopped`, and
    KafkaException where Kafka does not answer.
    """
    unit, reached = unsettled.unit, unsettled.reached or progress
    where = ", ".join(f"{topic} [{unit}] from {at}" for topic, at in unsettled.open_from.items())
    _log.warning(
        "unit %s: %s; settling it up to %s",
        unit,
        f"a transaction is open that Kafka should have ended ({where})" if where else "another claimant left a note",
        offsets_as_text(reached.offsets),
    )
    _note(settings, unsettled.key, unit, reached)
    draw_line(settings, unit, transactions, progress)
    effects = effects_again()
    topics = settings.topics
    effects.joined = _missing_results(settings, unit, effects.joined)
    effects.late = _missing(settings, unit, topics.late, effects.late)
    effects.rejected = _missing(settings, unit, topics.rejected, effects.rejected)
    effects.unmatched = _missing(settings, unit, topics.unmatched, effects.unmatched)
    missing = len(effects.joined) + len(effects.late) + len(effects.rejected) + len(effects.unmatched)
    _log.warning("unit %s: settled; %s results were missing and are written with the claim", unit, missing)
    return effects


def _note(settings: JoinerSettings, key: str, unit: int, reached: Progress) -> None:
    """Written by a producer of its own, so that no rollback of the unit's takes it away."""
    producer = make_producer(settings.kafka)
    outcome: list[KafkaError | None] = []
    producer.produce(
        settings.state_topic, encode(reached), key.encode(), unit, on_delivery=lambda error, _: outcome.append(error)
    )
    producer.flush(TIMEOUT_S)
    if not outcome:
        raise timed_out(f"a note in {settings.state_topic} [{unit}] could not be written within {TIMEOUT_S:.0f} s")
    if outcome[0] is not None:
        raise KafkaException(outcome[0])


def draw_line(
    settings: JoinerSettings,
    unit: int,
    transactions: UnitTransactions,
    progress: Progress,
    readers: Readers | None = None,
) -> None:
    """Roll back a record of ours in each partition of the unit, and wait until everything before it is decided."""
    line = transactions.roll_back(_topics(settings), progress)
    deadline_s, wait_s = time.monotonic() + TIMEOUT_S, _FIRST_LOOK_S
    with reading(settings, readers) as made:
        while behind := [topic for topic, at in line.items() if log_range(made.stable, topic, unit)[1] <= at]:
            if time.monotonic() > deadline_s:
                raise timed_out(f"the rollback in {', '.join(behind)} [{unit}] did not end within {TIMEOUT_S:.0f} s")
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LOOK_S)


def _topics(settings: JoinerSettings) -> list[str]:
    """Where a unit writes."""
    return [settings.state_topic, *settings.output_topics.values()]


class _Named(msgspec.Struct):
    """What results, late and unmatched records and dead letters tell of themselves, as far as it matters here."""

    id: str = ""


_Written = TypeVar("_Written", bound=Told | Rejected)


def _missing(settings: JoinerSettings, unit: int, topic: str, wanted: list[_Written]) -> list[_Written]:
    """Which of these late or unmatched records or dead letters are not visible at their partition's end."""
    there = _ids_there(settings, unit, topic, len(wanted))
    return [one for one in wanted if one.id not in there]


def _missing_results(settings: JoinerSettings, unit: int, wanted: Results) -> Results:
    """The same of results."""
    there = _ids_there(settings, unit, settings.topics.out, len(wanted))
    every = zip(wanted.keys, cut_lines(wanted.lines), strict=True)
    missing = [(key, value) for key, value in every if _id_of(value) not in there]
    return Results([key for key, _ in missing], b"".join(value + b"\n" for _, value in missing))


def _ids_there(settings: JoinerSettings, unit: int, topic: str, wanted: int) -> set[str]:
    """What is visible at a partition's end, where so many messages are looked for."""
    if not wanted:
        return set()
    with closing(make_reader(settings.kafka, settings.application.name)) as consumer:
        low, high = log_range(consumer, topic, unit)
        start = max(low, high - max(_TAIL, _TAIL_FACTOR * wanted))
        return {_id_of(record.value()) for record in read_to_end(consumer, topic, unit, start, high)}


def _id_of(value: bytes | None) -> str:
    """Empty where it has none."""
    try:
        return msgspec.json.decode(value or b"", type=_Named).id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def _open_from(settings: JoinerSettings, unit: int, readers: Readers | None = None) -> dict[str, int]:
    """Where the unit's partitions hold something that is neither committed nor rolled back: the first such offset."""
    with reading(settings, readers) as made:
        ends = {
            topic: (log_range(made.stable, topic, unit)[1], log_range(made.everything, topic, unit)[1])
            for topic in _topics(settings)
        }
    return {topic: settled for topic, (settled, end) in ends.items() if settled < end}
