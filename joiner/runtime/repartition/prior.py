"""What the repartition topics already hold of partitions whose committed offsets do not say up to where to continue.

That is the case if an offset is missing, because it has expired or was deleted, or if its note names another
repartition topic. Only the copies themselves then tell what has been copied: their headers name the originals.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from broker.wire.origin import ORIGIN_HEADER, Origin, decode_origin
from joiner.runtime.kafka.clients import log_range, make_reader, read_to_end
from joiner.runtime.repartition.progress import decode_progress
from joiner.runtime.repartition.status import committed_offsets

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

    from broker.kafka.topics import TopicFacts
    from joiner.runtime.clock import Clock
    from joiner.runtime.repartition.merging import Place
    from joiner.runtime.settings import JoinerSettings

_REPORT_S: Final = 10.0

_FETCHED_KIB: Final = 16 * 1024

_log = logging.getLogger(__name__)


class RepartitionError(Exception):
    """A topic cannot be copied. The message says why, and what to do."""


class Prior(NamedTuple):
    """What is known of a partition whose committed offset does not say up to where to continue.

    ``offset`` and ``note``: what was committed before the copies were read. If it is the same when copying begins,
    nobody has copied anything since. ``first`` and ``last``: the offsets of the first and last original of which there
    is a copy, or None if there is no copy.
    """

    offset: int
    note: str
    first: int | None
    last: int | None


def read_prior(
    settings: JoinerSettings, facts: Mapping[str, TopicFacts], clock: Clock, is_over: Callable[[], bool]
) -> dict[Place, Prior]:
    """Return what is known of the partitions that need it, usually none. Their topics are then read once.

    ``is_over``: whether to stop reading, called for each message. Raises `RepartitionError` if a repartition topic
    holds copies of another topic, `Stopped`, and KafkaException.
    """
    # An open transaction may still change a committed offset. Copying begins only once it has ended.
    relaxed = {"isolation_level": "read_uncommitted"}
    group = settings.repartition_group
    found: dict[Place, Prior] = {}
    with (
        closing(make_reader(settings.kafka, group, **relaxed)) as asking,
        closing(make_reader(settings.kafka, group, queued_max_messages_kbytes=_FETCHED_KIB)) as reading,
    ):
        log = _CopyReader(asking, reading, clock, is_over)
        for topic, target in settings.repartitioned.items():
            log.check_origin(target, facts[target].partitions, topic)
            doubtful = {}
            for place in committed_offsets(asking, topic, facts[topic].partitions):
                progress = decode_progress(place.metadata)
                other = progress is not None and progress.target != facts[target].topic_id
                if place.offset < 0 or other:
                    doubtful[place.partition] = place.offset, place.metadata or ""
            if doubtful:
                ranges = log.ranges(target, facts[target].partitions, topic)
                for number, (offset, note) in doubtful.items():
                    first, last = ranges.get(number, (None, None))
                    found[topic, number] = Prior(offset, note, first, last)
    return found


class _CopyReader:
    """Reads copies. ``asking``: a read-uncommitted consumer for ends of logs. ``reading``: a read-committed one."""

    def __init__(self, asking: Consumer, reading: Consumer, clock: Clock, is_over: Callable[[], bool]) -> None:
        self._asking, self._reading, self._clock, self._is_over = asking, reading, clock, is_over

    def check_origin(self, target: str, partitions: int, topic: str) -> None:
        """Raise `RepartitionError` if the first copy is of another topic than ``topic``.

        The names of two applications and of two topics, joined by a dot, can be the same.
        """
        for partition in range(partitions):
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
                return

    def ranges(self, target: str, partitions: int, topic: str) -> dict[int, tuple[int, int]]:
        """Return the offsets of the first and last original with a committed copy, by partition of ``topic``."""
        found: dict[int, tuple[int, int]] = {}
        count, report_s = 0, self._clock.monotonic_s() + _REPORT_S
        for partition in range(partitions):
            # With the end of a read-uncommitted consumer, open transactions are waited for: copies may be behind them.
            low, high = log_range(self._asking, target, partition)
            for origin in self._origins(target, partition, low, high):
                count += 1
                if origin.topic == topic:
                    first, last = found.get(origin.partition, (origin.offset, origin.offset))
                    found[origin.partition] = min(first, origin.offset), max(last, origin.offset)
                if (now_s := self._clock.monotonic_s()) > report_s:
                    report_s = now_s + _REPORT_S
                    what = "repartitioning: reading which messages of %s were copied: %s copies, partition %s of %s"
                    _log.info(what, topic, count, partition, target)
        if found:
            _log.warning(
                "repartitioning: %s has no valid committed offsets, but %s holds copies of it up to the offsets %s",
                topic,
                target,
                {number: last for number, (_, last) in sorted(found.items())},
            )
        return found

    def _origins(self, target: str, partition: int, low: int, high: int) -> Iterator[Origin]:
        """Yield the origins of the committed copies between two offsets. Raises `Stopped` if it is to stop."""
        if self._is_over():
            raise Stopped
        if low >= high:
            return
        for message in read_to_end(self._reading, self._clock, target, partition, low, high):
            if self._is_over():
                raise Stopped
            if (origin := origin_of(message)) is not None:
                yield origin


class Stopped(Exception):
    """Reading was stopped before its end."""


def origin_of(message: Message) -> Origin | None:
    """Return the place of the original, or None if the message is no copy, such as a record that was put back."""
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    values = [value for name, value in headers if name == ORIGIN_HEADER]
    try:
        return decode_origin(values[0] or b"") if values else None
    except ValueError:
        return None
