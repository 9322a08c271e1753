"""Computes the consumer lag: the number of offsets between the acknowledged offset and the end of the log.

Until a write is acknowledged, the lag is counted from the offset at which reading started.

The client learns where a partition ends by fetching from it, so the end is unknown before the first fetch and stale
while the partition is paused. In these cases, Kafka is queried instead. The queries are rare and have a short
timeout, because they block the loop that keeps this member in its group.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException, TopicPartition

from db_connector.progress import RateLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from confluent_kafka import Consumer

ASK_EVERY_S: Final = 5.0
"""Seconds between queries. Together with the timeout below, this limits how much of the loop's time they can use."""

_ASK_S: Final = 0.5


class Lag:
    """Counts, per partition, the offsets in ``topic`` that the database has not yet acknowledged."""

    def __init__(self, topic: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._topic = topic
        self._begins: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._asks = RateLimit(ASK_EVERY_S, clock)

    def begin(self, places: Iterable[TopicPartition]) -> None:
        """Start counting from these partitions' offsets. A negative offset means the beginning of the log."""
        for place in places:
            self._begins[place.partition] = place.offset
            self._ends.pop(place.partition, None)

    def drop(self, partitions: Iterable[int]) -> None:
        """Stop counting these partitions."""
        for partition in partitions:
            self._begins.pop(partition, None)

    def of(self, consumer: Consumer, acknowledged: Mapping[int, int], *, paused: bool) -> dict[int, int]:
        """Return the lag of each partition whose start and end are known.

        It is counted from the partition's offset in ``acknowledged``, if any. ``paused``: whether reading is paused.
        """
        may_ask: bool | None = None
        lags: dict[int, int] = {}
        for partition, begin in self._begins.items():
            at = acknowledged.get(partition, begin)
            place = TopicPartition(self._topic, partition)
            _, high = consumer.get_watermark_offsets(place, cached=True)
            if paused or at < 0 or max(high, self._ends.get(partition, -1)) < 0:
                may_ask = self._asks.allows() if may_ask is None else may_ask
                found = _query_offsets(consumer, place) if may_ask else None
                # If one query fails, leave the remaining partitions to the next round.
                may_ask = found is not None
                if found is not None:
                    low, high = found
                    at = low if at < 0 else at
                    self._begins[partition] = low if begin < 0 else begin
            self._ends[partition] = end = max(high, self._ends.get(partition, -1))
            if at >= 0 and end >= 0:
                lags[partition] = max(0, end - at)
        return lags


def _query_offsets(consumer: Consumer, place: TopicPartition) -> tuple[int, int] | None:
    try:
        found: tuple[int, int] | None = consumer.get_watermark_offsets(place, timeout=_ASK_S)
    except KafkaException:
        return None
    return found
