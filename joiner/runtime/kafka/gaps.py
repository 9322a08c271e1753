"""Offsets that are missing in an input: whether a second reader sees the same gap, or records were lost on their way.

Offsets may be missing where a producer of the input uses transactions. Nothing else may leave a gap.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from confluent_kafka import Consumer, KafkaException, TopicPartition

from joiner.runtime.kafka.clients import TIMEOUT_S, is_passing, log_range, make_consumer, timed_out
from joiner.runtime.kafka.transaction import Fenced
from joiner.runtime.model import UnitStopped
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.decode import Messages

_AT_ONCE: Final = 10_000
_WAIT_S: Final = 0.01
"""`Consumer.consume` stays so long for a full batch."""

_log = logging.getLogger(__name__)


class GapVerifier:
    """Reads again where gaps were met.

    Made when it is first needed, and kept: a producer that commits often leaves a gap before every batch.
    """

    def __init__(self, settings: JoinerSettings) -> None:
        self._settings = settings
        self._consumer: Consumer | None = None

    def check(self, number: int, offsets: Mapping[str, int], batches: Mapping[str, Messages]) -> None:
        """Look at the gaps before and within the batches of a unit that has come to ``offsets``.

        Raises `UnitStopped` where there is a record in one, `Fenced` where the log begins later by now, KafkaException
        where Kafka does not answer.
        """
        for topic, batch in batches.items():
            if found := gaps_in(offsets[topic], batch.offset):
                self._check(topic, number, found, batch.offset)

    def _check(self, topic: str, number: int, gaps: list[tuple[int, int]], offsets: Sequence[int]) -> None:
        """All gaps by one reading: each of its own would be a request of its own, and they may be hundreds."""
        if self._consumer is None:
            name = self._settings.application.name
            self._consumer = make_consumer(self._settings.kafka, name, fetch_wait_max_ms=1, fetch_queue_backoff_ms=2)
        begin, last = gaps[0][0], gaps[-1][1]
        low, _ = log_range(self._consumer, topic, number)
        if low > begin:
            # If the unit is still ours, the claim finds this out and says so. If not, only what its owner is done
            # with was removed.
            _log.warning("unit %s: %s now begins at %s, behind %s", number, topic, low, begin)
            raise Fenced
        wanted = [offset for offset in offsets if begin <= offset <= last]
        found = _offsets_of(self._consumer, topic, number, begin, last)
        if found == wanted:
            return
        left_out, gone = sorted(set(found) - set(wanted)), sorted(set(wanted) - set(found))
        what = f"left out {_some(left_out)}" if left_out else f"gave {_some(gone)}, which cannot be read again"
        raise UnitStopped(
            f"unit {number}: the Kafka client {what} of {topic} between {begin} and {last}: restart the joiner; if it "
            "happens again, this is a defect to report"
        )

    def close(self) -> None:
        """Close what was made."""
        if self._consumer is not None:
            self._consumer.close()


def gaps_in(at: int, offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Where offsets are missing among those that should follow from ``at`` on: the first missing, what came instead.

    ``offsets`` are in order. Where none is missing, this costs nothing for a single one.
    """
    if offsets[-1] - at < len(offsets):
        return []
    came = np.asarray(offsets, dtype=np.int64)
    expected = np.concatenate((np.array([at], dtype=np.int64), came[:-1] + 1))
    where = (came > expected).nonzero()[0]
    return list(zip(expected[where].tolist(), came[where].tolist(), strict=True))


def _offsets_of(consumer: Consumer, topic: str, number: int, begin: int, last: int) -> list[int]:
    """Where there are records from ``begin`` to ``last``, which is one."""
    found: list[int] = []
    consumer.assign([TopicPartition(topic, number, begin)])
    deadline_s = time.monotonic() + TIMEOUT_S
    try:
        while not found or found[-1] < last:
            messages = consumer.consume(min(_AT_ONCE, last + 1 - begin), _WAIT_S)
            for message in messages:
                error = message.error()
                if error is not None and not is_passing(error, message.partition()):
                    raise KafkaException(error)
            found += [int(message.offset() or 0) for message in messages if message.error() is None]
            if messages:
                deadline_s = time.monotonic() + TIMEOUT_S
            elif time.monotonic() > deadline_s:
                raise timed_out(f"{topic}@{begin} could not be read again within {TIMEOUT_S:.0f} s")
    finally:
        consumer.unassign()
    return [offset for offset in found if offset <= last]


def _some(offsets: list[int]) -> str:
    return f"{len(offsets)} records ({', '.join(map(str, offsets[:3]))}{', …' if len(offsets) > 3 else ''})"  # noqa: PLR2004
