"""Verifies gaps in the offsets of an input: a second consumer reads them again, in case the first one skipped records.

A log has gaps only if one of its producers uses transactions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
from confluent_kafka import Consumer, KafkaException, TopicPartition

from joiner.runtime.clock import Clock
from joiner.runtime.kafka.clients import TIMEOUT_S, is_passing, log_range, make_reader, timed_out
from joiner.runtime.kafka.transaction import OwnershipInDoubt
from joiner.runtime.model import UnitStopped
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.decoding.messages import Messages

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_AT_ONCE: Final = 10_000
_WAIT_S: Final = 0.01
"""How long a read waits for records before it looks at the time."""

_log = logging.getLogger(__name__)


class GapVerifier:
    """Verifies that gaps in the offsets contain no records, by reading them again.

    The consumer that reads them is created on first use and kept open, because a producer that commits often leaves a
    gap before every batch.
    """

    def __init__(self, settings: JoinerSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._consumer: Consumer | None = None

    def check(self, number: int, offsets: Mapping[str, int], batches: Mapping[str, Messages]) -> None:
        """Verify the gaps before and within the batches that follow the unit's ``offsets``.

        Raises `UnitStopped` if a gap contains a record or a record cannot be read again, `OwnershipInDoubt` if the log
        now begins after the start of the first gap, and KafkaException if reading from Kafka fails.
        """
        for topic, batch in batches.items():
            if found := gaps_in(offsets[topic], batch.offset):
                self._check(topic, number, found, batch.offset)

    def _check(self, topic: str, number: int, gaps: list[tuple[int, int]], offsets: Ints) -> None:
        """Verify all gaps of a batch in one pass. There may be hundreds, and a request for each would be slow."""
        if self._consumer is None:
            name = self._settings.application.name
            # A gap is not at the end of a log, so no end needs to be reported.
            more = {"fetch_wait_max_ms": 1, "enable_partition_eof": False}
            self._consumer = make_reader(self._settings.kafka, name, **more)
        begin, last = gaps[0][0], gaps[-1][1]
        low, _ = log_range(self._consumer, topic, number)
        if low > begin:
            # If the unit is still ours, the next claim reports the lost records. If not, retention has removed only
            # records that the new owner has consumed.
            _log.warning(
                "%s partition %s now begins at offset %s, so the gap starting at offset %s cannot be verified",
                topic,
                number,
                low,
                begin,
            )
            raise OwnershipInDoubt
        wanted = offsets[(begin <= offsets) & (offsets <= last)].tolist()
        found = _offsets_of(self._consumer, self._clock, topic, number, begin, last)
        if found == wanted:
            return
        skipped, gone = sorted(set(found) - set(wanted)), sorted(set(wanted) - set(found))
        what = f"skipped {_some(skipped)}" if skipped else f"returned {_some(gone)}, which cannot be read again"
        raise UnitStopped(
            f"the Kafka client {what} in {topic} partition {number} between offsets {begin} and {last}: restart the "
            "joiner; if this happens again, report it as a bug"
        )

    def close(self) -> None:
        """Close the consumer, if it was created."""
        if self._consumer is not None:
            self._consumer.close()


def gaps_in(at: int, offsets: Ints) -> list[tuple[int, int]]:
    """Return the gaps in ``offsets``, which must be increasing and not empty. ``at``: the first offset expected.

    Each gap is a pair: its first missing offset and the next existing one. Takes constant time if there are no gaps.
    """
    if offsets[-1] - at < len(offsets):
        return []
    expected = np.concatenate((np.array([at], dtype=np.int64), offsets[:-1] + 1))
    where = (offsets > expected).nonzero()[0]
    return list(zip(expected[where].tolist(), offsets[where].tolist(), strict=True))


def _offsets_of(consumer: Consumer, clock: Clock, topic: str, number: int, begin: int, last: int) -> list[int]:
    """Read the records from ``begin`` through ``last`` and return their offsets. A record must exist at ``last``."""
    found: list[int] = []
    consumer.assign([TopicPartition(topic, number, begin)])
    deadline_s = clock.monotonic_s() + TIMEOUT_S
    try:
        while not found or found[-1] < last:
            messages = consumer.consume(min(_AT_ONCE, last + 1 - begin), _WAIT_S)
            for message in messages:
                error = message.error()
                if error is not None and not is_passing(error, message.partition()):
                    raise KafkaException(error)
            found += [int(message.offset() or 0) for message in messages if message.error() is None]
            if messages:
                deadline_s = clock.monotonic_s() + TIMEOUT_S
            elif clock.monotonic_s() > deadline_s:
                where = f"{topic} [{number}] again from offset {begin}"
                raise timed_out(f"no message arrived for {TIMEOUT_S:.0f} s while reading {where}")
    finally:
        consumer.unassign()
    return [offset for offset in found if offset <= last]


def _some(offsets: list[int]) -> str:
    shown = [*map(str, offsets[:3]), *(["…"] if len(offsets) > 3 else [])]  # noqa: PLR2004
    return f"{len(offsets)} {'record' if len(offsets) == 1 else 'records'} ({', '.join(shown)})"
