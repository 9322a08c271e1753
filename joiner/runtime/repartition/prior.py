"""What the repartition topics already hold of partitions whose committed offsets do not say up to where to continue.

That is the case if an offset is missing, because it has expired or was deleted, or if its note names another
repartition topic. Only the copies themselves then tell what has been copied: their headers name the originals. They
also name the id of the copied topic, because Kafka deletes a topic's offsets, and with them the notes, when it deletes
the topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from broker.wire.origin import ORIGIN_HEADER, Origin, decode_origin
from joiner.runtime.kafka.clients import (
    TransactionOpen,
    describe,
    log_range,
    make_reader,
    read_to_end,
    wait_until_ended,
)
from joiner.runtime.repartition.progress import decode_progress
from joiner.runtime.repartition.status import committed_offsets

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

    from broker.kafka.topics import TopicFacts
    from broker.settings import KafkaSettings
    from joiner.runtime.clock import Clock
    from joiner.runtime.repartition.merging import Place
    from joiner.runtime.settings import JoinerSettings

_REPORT_S: Final = 10.0

_FETCHED_KIB: Final = 16 * 1024

_IDS_MAX: Final = 2
"""How many ids of a copied topic are remembered. With two, one of them is not the current one."""

_log = logging.getLogger(__name__)


class RepartitionError(Exception):
    """A topic cannot be copied. The message says why, and what to do."""


class Prior(NamedTuple):
    """What is known of a partition whose committed offset does not say up to where to continue.

    ``offset`` and ``note``: what was committed before the copies were read. If it is the same when copying begins,
    nobody has copied anything since. ``first`` and ``last``: the offsets of the first and last original of which there
    is a copy, or None if there is no copy. ``has_begun``: whether copying of its topic has begun, with any partition.
    """

    offset: int
    note: str
    first: int | None
    last: int | None
    has_begun: bool = False


@dataclass
class Scan:
    """What has been read of a repartition topic.

    ``topic_id``: its id. ``ends``: the offset up to which each of its partitions was read. ``ranges``: the offsets of
    the first and last original with a committed copy, by partition of the copied topic. ``sources``: the ids of that.
    ``is_ours``: whether its first copy is one of that.
    """

    topic_id: str
    ends: dict[int, int] = field(default_factory=dict)
    ranges: dict[int, tuple[int, int]] = field(default_factory=dict)
    sources: set[str] = field(default_factory=set)
    is_ours: bool = False

    def add(self, origin: Origin) -> None:
        """Add the original of a copy."""
        first, last = self.ranges.get(origin.partition, (origin.offset, origin.offset))
        self.ranges[origin.partition] = min(first, origin.offset), max(last, origin.offset)
        if origin.topic_id and len(self.sources) < _IDS_MAX:
            self.sources.add(origin.topic_id)


class CopyScans:
    """What has been read of all repartition topics. So each copy is read once, however often copying starts over."""

    def __init__(self) -> None:
        self._scans: dict[str, Scan] = {}

    def of(self, target: str, topic_id: str) -> Scan:
        """Return what has been read of a repartition topic with this id."""
        found = self._scans.get(target)
        if found is None or found.topic_id != topic_id:
            found = self._scans[target] = Scan(topic_id)
        return found


def read_prior(
    settings: JoinerSettings,
    facts: Mapping[str, TopicFacts],
    clock: Clock,
    is_over: Callable[[], bool],
    scans: CopyScans,
) -> dict[Place, Prior]:
    """Return what is known of the partitions that need it, usually none. Their topics are then read, except for what
    ``scans`` already contains.

    ``is_over``: whether to stop reading, called for each message. Raises `RepartitionError` if a repartition topic
    holds copies of another topic, or of an earlier one of the same name, `Stopped`, and KafkaException.
    """
    # An open transaction may still change a committed offset. Copying begins only once it has ended.
    relaxed = {"isolation_level": "read_uncommitted"}
    group = settings.repartition_group
    found: dict[Place, Prior] = {}
    with (
        closing(make_reader(settings.kafka, group, **relaxed)) as asking,
        closing(make_reader(settings.kafka, group, queued_max_messages_kbytes=_FETCHED_KIB)) as reading,
    ):
        log = _CopyReader(settings.kafka, asking, reading, clock, is_over)
        for topic, target in settings.repartitioned.items():
            scan = scans.of(target, facts[target].topic_id)
            log.check_origin(scan, target, facts[target].partitions, topic)
            doubtful, has_begun = {}, False
            for place in committed_offsets(asking, topic, facts[topic].partitions):
                progress = decode_progress(place.metadata)
                other = progress is not None and progress.target != facts[target].topic_id
                if place.offset < 0 or other:
                    doubtful[place.partition] = place.offset, place.metadata or ""
                else:
                    has_begun = True
            if doubtful:
                log.read(scan, target, facts[target].partitions, topic)
                if scan.sources - {facts[topic].topic_id}:
                    raise recreated(settings, topic)
                has_begun = has_begun or bool(scan.ranges)
                for number, (offset, note) in doubtful.items():
                    first, last = scan.ranges.get(number, (None, None))
                    found[topic, number] = Prior(offset, note, first, last, has_begun)
    return found


def reset_offset(settings: JoinerSettings, topic: str, partition: int, to: str) -> str:
    """Return what an operator has to do to continue copying a partition elsewhere. ``to``: an option of the command."""
    return (
        "stop all processes that repartition, then set the group's offset of this partition: kafka-consumer-groups "
        f"--bootstrap-server … --group {settings.repartition_group} --topic {topic}:{partition} --reset-offsets {to} "
        "--execute"
    )


def recreated(settings: JoinerSettings, topic: str) -> RepartitionError:
    """Return the error for a copied topic that is another one than before."""
    return RepartitionError(
        f"topic {topic} was deleted and recreated, so the offsets up to which it was copied refer to other messages: "
        f"stop the joiner and all processes that repartition, and start over with `joiner reset`, which deletes "
        f"{settings.repartitioned[topic]} and the offsets"
    )


class _CopyReader:
    """Reads copies. ``asking``: a read-uncommitted consumer for ends of logs. ``reading``: a read-committed one."""

    def __init__(
        self, kafka: KafkaSettings, asking: Consumer, reading: Consumer, clock: Clock, is_over: Callable[[], bool]
    ) -> None:
        self._kafka, self._asking, self._reading, self._clock, self._is_over = kafka, asking, reading, clock, is_over

    def check_origin(self, scan: Scan, target: str, partitions: int, topic: str) -> None:
        """Raise `RepartitionError` if the first copy is of another topic than ``topic``.

        The names of two applications and of two topics, joined by a dot, can be the same.
        """
        for partition in range(0 if scan.is_ours else partitions):
            # Only what is committed by now: an open transaction need not be waited for.
            low, high = log_range(self._reading, target, partition)
            origin = next(self._origins(target, partition, low, high), None)
            if origin is not None and origin.topic != topic:
                message = (
                    f"{target} holds copies of {origin.topic}, not of {topic}: another application or an earlier "
                    "[[stream]] uses this name; give this application another name"
                )
                raise RepartitionError(message)
            if origin is not None:
                scan.is_ours = True
                return

    def read(self, scan: Scan, target: str, partitions: int, topic: str) -> None:
        """Read the committed copies that have not been read yet."""
        count, report_s = 0, self._clock.monotonic_s() + _REPORT_S
        for partition in range(partitions):
            # With the end of a read-uncommitted consumer, open transactions are waited for: copies may be behind them.
            low, high = log_range(self._asking, target, partition)
            self._wait_until_stable(target, partition, high)
            for origin in self._origins(target, partition, max(low, scan.ends.get(partition, 0)), high):
                count += 1
                if origin.topic == topic:
                    scan.add(origin)
                if (now_s := self._clock.monotonic_s()) > report_s:
                    report_s = now_s + _REPORT_S
                    what = "repartitioning: reading which messages of %s were copied: %s copies, partition %s of %s"
                    _log.info(what, topic, count, partition, target)
            scan.ends[partition] = high
        if count and scan.ranges:
            _log.warning(
                "repartitioning: %s has no valid committed offsets, but %s holds copies of it up to the offsets %s",
                topic,
                target,
                {number: last for number, (_, last) in sorted(scan.ranges.items())},
            )

    def _wait_until_stable(self, target: str, partition: int, end: int) -> None:
        """Wait until all transactions that have begun before ``end`` have ended.

        Raises `RepartitionError` if one of them lasts for too long, and `Stopped`.
        """
        asked = self._reading, self._kafka, self._clock, {target: end - 1}, partition, "this process"
        try:
            wait_until_ended(*asked, check=self._check)
        except TransactionOpen as error:
            message = f"the copies in {target} [{partition}] cannot be read: {describe(error)}"
            raise RepartitionError(message) from error

    def _check(self) -> None:
        if self._is_over():
            raise Stopped

    def _origins(self, target: str, partition: int, low: int, high: int) -> Iterator[Origin]:
        """Yield the origins of the committed copies between two offsets. Raises `Stopped` if it is to stop."""
        self._check()
        if low >= high:
            return
        for message in read_to_end(self._reading, self._clock, target, partition, low, high):
            self._check()
            if (origin := origin_of(message)) is not None:
                yield origin


class Stopped(Exception):
    """Reading was stopped before its end."""


def origin_of(message: Message) -> Origin | None:
    """Return the place of the original, or None if the message is no copy."""
    value = origin_header(message)
    try:
        return None if value is None else decode_origin(value)
    except ValueError:
        return None


def origin_header(message: Message) -> bytes | None:
    """Return the header that names the original, or None if there is none, as in a record that was put back."""
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    return next((value or b"" for name, value in headers if name == ORIGIN_HEADER), None)
