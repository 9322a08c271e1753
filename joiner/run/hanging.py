"""Transactions of a unit that hang: ended for Kafka's coordinator, and open in the logs for ever.

Whoever initialises a transactional id expects that everything under it has been ended, one way or the other. A broker
can miss that: Kafka 4.3.1, killed and started again, drops the markers of transactions that it ends while it starts
("Couldn't find leader endpoint … can be skipped"), in all of their partitions or in some. Records without a marker stay
open, and the *next* commit of the same producer commits them, too: results that were rolled back would become
visible, and those of their replay beside them. An unclean leader election may lose markers as well (KIP-664).

So a claimant looks for what is open where it writes. The markers that are there say nothing to a client, so what hangs
is not judged but finished: all that the batch of the open progress record brings forth is known from the input, and
what of it is not there is written with the claim. Each partition is ended by the next commit that writes to it: the
state topic's by the claim, those of results perhaps some results later.

What this does not cover: a claimant that dies in that one transaction, two such losses in a row, and an owner that
notices nothing, goes on, and has its next transaction rolled back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import msgspec

from joiner.run.clients import TIMEOUT_S, log_range, make_consumer, make_reader, read_to_end, timed_out
from joiner.run.progress import Progress
from joiner.run.settings import JoinerSettings
from joiner.run.state_log import read_open_progress
from joiner.run.transaction import UnitTransactions, offsets_as_text
from joiner.run.unit import Effects

_LOOK_S: Final = 0.05
_TAIL: Final = 100_000
"""Records at the end of a partition among which those of the unit's last transaction are looked for."""

_log = logging.getLogger(__name__)


@dataclass
class Settled:
    """What the claim has to write: the progress to go on from, and what of its batch is not visible."""

    progress: Progress
    effects: Effects


def settle_hanging(
    settings: JoinerSettings,
    unit: int,
    transactions: UnitTransactions,
    progress: Progress,
    effects_until: Callable[[Progress, dict[str, int]], Effects],
) -> Settled:
    """Find what hangs in the unit's partitions, and what to do about it; between init and the claim's commit.

    ``progress`` is the newest committed one, ``effects_until`` gives what its state brings forth up to other offsets.
    Raises `Fenced`, `Aborted`, and KafkaException where Kafka does not answer.
    """
    data_topics = [settings.topics.out, settings.topics.late, settings.topics.rejected]
    found = _open_from(settings, unit, [settings.state_topic, *data_topics])
    if not found:
        return Settled(progress, Effects())
    where = ", ".join(f"{topic} [{unit}] from {at}" for topic, at in found.items())
    _log.warning("unit %s: a transaction is open that Kafka should have ended (%s)", unit, where)
    last = _open_progress(settings, unit, found.get(settings.state_topic))
    if last is None or any(at < progress.offsets[topic] for topic, at in last.offsets.items()):
        # Without a progress record it was never committed. It was, where only its results are open and all of
        # them are of input that is done with: then the next commit ends it rightly.
        if settings.state_topic in found or _is_of_later_input(settings, unit, found, progress):
            _roll_back(settings, unit, transactions, list(found), progress)
        return Settled(progress, Effects())
    effects = effects_until(progress, last.offsets)
    there = {(topic, _id_of(value)) for topic in data_topics for value in _values(settings, unit, topic, found)}
    effects.joined = [one for one in effects.joined if (settings.topics.out, one.id) not in there]
    effects.late = [one for one in effects.late if (settings.topics.late, one.id) not in there]
    effects.rejected = [one for one in effects.rejected if (settings.topics.rejected, one.id) not in there]
    _log.warning(
        "unit %s: it is finished at %s; %s results of it are missing and written now",
        unit,
        offsets_as_text(last.offsets),
        len(effects.joined) + len(effects.late) + len(effects.rejected),
    )
    owner = {name: getattr(progress, name) for name in ("run", "instance", "placement")}
    return Settled(msgspec.structs.replace(last, **owner), effects)


def open_progress(settings: JoinerSettings, unit: int) -> Progress | None:
    """The last progress record of a transaction that hangs."""
    return _open_progress(settings, unit, _open_from(settings, unit, [settings.state_topic]).get(settings.state_topic))


def _roll_back(
    settings: JoinerSettings, unit: int, transactions: UnitTransactions, topics: list[str], progress: Progress
) -> None:
    """End what is open in these partitions by an aborted transaction over them, and wait until Kafka has done it."""
    before = _open_from(settings, unit, topics)
    transactions.roll_back(topics, progress)
    deadline_s = time.monotonic() + TIMEOUT_S
    while any(at <= before.get(topic, -1) for topic, at in _open_from(settings, unit, topics).items()):
        if time.monotonic() > deadline_s:
            # Perhaps somebody else has taken the unit since and has a transaction open; then this one fails.
            transactions.roll_back(topics, progress)
            raise timed_out(f"the rollback in {', '.join(topics)} [{unit}] did not end within {TIMEOUT_S:.0f} s")
        time.sleep(_LOOK_S)


def _open_progress(settings: JoinerSettings, unit: int, start: int | None) -> Progress | None:
    """The last progress record from the first open offset of the state topic on; None: nothing is open."""
    if start is None:
        return None
    return read_open_progress(settings.kafka, settings.application.name, settings.state_topic, unit, start)


def _is_of_later_input(settings: JoinerSettings, unit: int, found: dict[str, int], progress: Progress) -> bool:
    """Whether something open comes from input at or behind the progress, and was hence never committed."""
    return any(
        at >= progress.offsets.get(source, at + 1)
        for topic, start in found.items()
        for value in _open_values(settings, unit, topic, start)
        for source, at in _input_of(settings, unit, value)
    )


def _input_of(settings: JoinerSettings, unit: int, value: bytes | None) -> list[tuple[str, int]]:
    """Topics and offsets of the input that a result, a late record or a dead letter of this application comes from."""
    try:
        told = msgspec.json.decode(value or b"", type=_Told)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    if told.source == settings.application.name and told.offset is not None:
        return [(told.topic, told.offset)]
    join_name, _, places = told.id.partition(f":{unit}:")
    join = next((one for one in settings.join if one.name == join_name), None)
    first, _, second = places.partition(":")
    if join is None or not second.isdigit():
        return []
    sides = {side: str(settings.stream(getattr(join, side))["topic"]) for side in ("left", "right")}
    if first in sides:
        return [(sides[first], int(second))]
    return [(sides["left"], int(first)), (sides["right"], int(second))] if first.isdigit() else []


def _id_of(value: bytes | None) -> str:
    """The id of a result, a late record or a dead letter; empty where it has none."""
    try:
        return msgspec.json.decode(value or b"", type=_Told).id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


class _Told(msgspec.Struct):
    """What results, late records and dead letters tell of themselves, as far as it matters here."""

    id: str = ""
    source: str = ""
    topic: str = ""
    offset: int | None = None


def _values(settings: JoinerSettings, unit: int, topic: str, found: dict[str, int]) -> Iterator[bytes | None]:
    """The last values in a partition that are committed, or are going to be with the next commit there."""
    with closing(make_reader(settings.kafka, settings.application.name)) as consumer:
        low, high = log_range(consumer, topic, unit)
        for record in read_to_end(consumer, topic, unit, max(low, high - _TAIL), high):
            yield record.value()
    if topic in found:
        yield from _open_values(settings, unit, topic, found[topic])


def _open_values(settings: JoinerSettings, unit: int, topic: str, start: int) -> Iterator[bytes | None]:
    """The values from the first open offset of a partition on."""
    with closing(
        make_reader(settings.kafka, settings.application.name, isolation_level="read_uncommitted")
    ) as consumer:
        _, end = log_range(consumer, topic, unit)
        for record in read_to_end(consumer, topic, unit, start, end):
            yield record.value()


def _open_from(settings: JoinerSettings, unit: int, topics: list[str]) -> dict[str, int]:
    """Where the unit's partitions hold something that is neither committed nor rolled back: the first such offset."""
    with (
        closing(make_consumer(settings.kafka, settings.application.name)) as stable,
        closing(make_consumer(settings.kafka, settings.application.name, isolation_level="read_uncommitted")) as all_of,
    ):
        ends = {topic: (log_range(stable, topic, unit)[1], log_range(all_of, topic, unit)[1]) for topic in topics}
    return {topic: settled for topic, (settled, end) in ends.items() if settled < end}
