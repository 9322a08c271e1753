"""Observes, for the autoscaler, how busy the workers of a host are and how far they are behind."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from confluent_kafka import OFFSET_END, KafkaException, TopicPartition

from joiner.runtime.clock import Clock
from joiner.runtime.kafka.clients import TIMEOUT_S, make_consumer
from joiner.runtime.runners.workers.autoscaler import Observation
from joiner.runtime.settings import JoinerSettings

_PROC: Final = Path("/proc")
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


def can_observe() -> bool:
    """Return whether the load of this host can be observed: only Linux has the files that this module reads."""
    return (_PROC / "stat").exists()


class HostLoad:
    """Reads the offsets that the units have committed, the ends of their logs, and the CPU time of the workers.

    Records of open transactions count as input that has arrived.
    """

    def __init__(self, settings: JoinerSettings, clock: Clock) -> None:
        self._topics, self._units, self._clock = settings.input_topics, settings.topics.partitions, clock
        # A read-committed consumer would also ask for stable offsets. While a transaction is open, as one nearly always
        # is under load, Kafka does not return those, and the consumer would keep retrying until the timeout.
        more = {"isolation_level": "read_uncommitted"}
        self._consumer = make_consumer(settings.kafka, settings.application.name, **more)

    def observe(self, process_ids: Iterable[int]) -> Observation:
        """Return an observation as of now. ``process_ids``: the workers. Raises KafkaException if a request fails."""
        at = [(topic, unit) for topic in self._topics for unit in range(self._units)]
        committed = self._consumer.committed([TopicPartition(*place) for place in at], TIMEOUT_S)
        ends = self._consumer.offsets_for_times([TopicPartition(*place, OFFSET_END) for place in at], TIMEOUT_S)
        for place in (*committed, *ends):
            if place.error is not None:
                raise KafkaException(place.error)
        end_of = {(place.topic, place.partition): place.offset for place in ends}
        consumed, lag = 0, Counter(dict.fromkeys(range(self._units), 0))
        for place in committed:
            if place.offset < 0:
                continue  # the unit has never been started
            consumed += place.offset
            lag[place.partition] += max(0, end_of[place.topic, place.partition] - place.offset)
        return Observation(self._clock.monotonic_s(), consumed, lag, sum(map(_cpu_s, process_ids)), _idle_s())

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


def _cpu_s(process_id: int) -> float:
    """Return the CPU time of a process, or 0 if it has ended."""
    with suppress(OSError):
        # The fields follow the name of the process, which is in parentheses and may itself contain any character.
        fields = (_PROC / f"{process_id}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * _TICK_S
    return 0.0


def _idle_s() -> float:
    """Return how long the cores of this host have been idle, in total."""
    _, _, _, _, idle, waiting, *_ = (_PROC / "stat").read_text().splitlines()[0].split()
    return (int(idle) + int(waiting)) * _TICK_S
