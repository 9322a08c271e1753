"""A producer whose records Kafka acknowledges at the next poll or flush, unless it is slow."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException


class SlowProducer:
    """See the module. ``most``: the most records it has had unacknowledged.

    Refuses records with ``fault``, and `poll` and `flush` raise ``late_fault``, if these are set.
    """

    def __init__(self) -> None:
        self.is_slow = False
        self.fault: KafkaError | None = None
        self.late_fault: KafkaError | None = None
        self.places: set[tuple[str, int]] = set()
        self.unacknowledged: list[bytes] = []
        self.written: list[bytes] = []
        self.most = 0

    def __len__(self) -> int:
        return len(self.unacknowledged)

    def poll(self, _timeout_s: float) -> int:
        """See `confluent_kafka.Producer`."""
        if self.late_fault is not None:
            raise KafkaException(self.late_fault)
        if not self.is_slow:
            self.written += self.unacknowledged
            self.unacknowledged = []
        return 0

    flush = poll

    def produce(self, topic: str, value: bytes, *, partition: int) -> None:
        """See `confluent_kafka.Producer`."""
        if self.fault is not None:
            raise KafkaException(self.fault)
        self.places.add((topic, partition))
        self.unacknowledged.append(value)
        self.most = max(self.most, len(self.unacknowledged))
