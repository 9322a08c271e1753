"""Asks for the committed offsets of assigned partitions until Kafka tells them.

Kafka does not tell an offset as long as a transaction that changes it is open. The client then asks again until its
timeout, and returns none of the offsets that it was asked for together. At first, that is right: if the transaction of
a process that has died ends soon, all partitions are copied from then on, merged by time. Otherwise, what has piled up
in one of them would be copied behind later messages from the others, and be late. A partition that has waited for long
is asked for alone: a transaction that Kafka has forgotten to end would keep all partitions from being copied.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException, TopicPartition

from broker.kafka.topics import is_passing
from joiner.runtime.repartition.copies import TRANSACTION_S

if TYPE_CHECKING:
    from confluent_kafka import Consumer

    from joiner.runtime.clock import Clock
    from joiner.runtime.repartition.merging import Place

ASK_S: Final = 0.5
"""How long to wait for an answer, and until the next request."""

ALONE_S: Final = TRANSACTION_S + 15.0
"""After how long a partition is asked for alone. A transaction of a process that has died ends by then: by default,
Kafka looks every 10 s for transactions that have timed out."""

LONG_S: Final = 2 * ALONE_S
"""After how long a partition that still waits is reported, and how often."""

SELDOM_S: Final = 5.0
"""The time between requests if all have waited for long. Nothing is copied while an answer is waited for."""

_log = logging.getLogger(__name__)


class AwaitedOffsets:
    """The partitions of a group member whose committed offsets are not known yet. Not thread-safe."""

    def __init__(self, consumer: Consumer, clock: Clock) -> None:
        """``consumer``: the member, which must be read-committed. Otherwise, Kafka tells offsets that may change."""
        self._consumer, self._clock = consumer, clock
        self._since: dict[Place, float] = {}
        """When each of them was added. The first is the next one to be asked for."""
        self._counts: dict[Place, int] = {}
        self._next_s = self._warn_s = 0.0

    @property
    def counts(self) -> Mapping[Place, int]:
        """The number of offsets in the logs of the partitions that have waited for long."""
        return self._counts

    def add(self, places: Collection[Place]) -> None:
        """Await the offsets of these partitions from now on."""
        self._since |= dict.fromkeys(places, self._clock.monotonic_s())
        self._next_s = 0.0

    def remove(self, place: Place) -> None:
        """Await the offset of a partition no longer."""
        self._since.pop(place, None)
        self._counts.pop(place, None)

    def ask(self) -> list[TopicPartition]:
        """Return the offsets that are known by now, with their notes. They are awaited no longer.

        Sends no request until the next one is due. Blocks for up to three times `ASK_S`. Raises KafkaException.
        """
        now_s = self._clock.monotonic_s()
        if not self._since or now_s < self._next_s:
            return []
        recent = [place for place, since_s in self._since.items() if now_s - since_s <= ALONE_S]
        others = [place for place, since_s in self._since.items() if now_s - since_s > ALONE_S]
        told = self._request(recent) if recent else []
        told += self._request_each(others)
        for place in told:
            self.remove((place.topic, place.partition))
        now_s = self._clock.monotonic_s()
        newest_s = max(self._since.values(), default=now_s)
        self._next_s = now_s + (SELDOM_S if now_s - newest_s > LONG_S else ASK_S)
        self._warn()
        return told

    def _request(self, places: list[Place]) -> list[TopicPartition]:
        try:
            found = self._consumer.committed([TopicPartition(*place) for place in places], ASK_S)
        except KafkaException as error:
            if not is_passing(error):
                raise
            return []
        return [place for place in found if place.error is None]

    def _request_each(self, places: list[Place]) -> list[TopicPartition]:
        """Ask for one after the other, until one of them is not told, or time is up. The others are then next."""
        told: list[TopicPartition] = []
        until_s = self._clock.monotonic_s() + ASK_S
        for place in places:
            if self._clock.monotonic_s() > until_s:
                break
            found = self._request([place])
            if not found:
                self._since[place] = self._since.pop(place)
                break
            told += found
        return told

    def _warn(self) -> None:
        now_s = self._clock.monotonic_s()
        waiting = sorted(place for place, since_s in self._since.items() if now_s - since_s > LONG_S)
        if not waiting or now_s < self._warn_s:
            return
        self._warn_s = now_s + LONG_S
        shown = ", ".join(f"{topic} [{partition}]" for topic, partition in waiting)
        _log.warning(
            "repartitioning: the committed offsets of %s cannot be read, so these partitions are not copied: either "
            "Kafka does not answer, or a transaction that commits them has not ended (see recovery.md)",
            shown,
        )
        # Until their committed offsets are known, all their messages count as not copied.
        with suppress(KafkaException):
            for place in waiting:
                low, high = self._consumer.get_watermark_offsets(TopicPartition(*place), timeout=ASK_S)
                self._counts[place] = high - low
