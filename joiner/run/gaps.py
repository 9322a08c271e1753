"""Offsets that are missing in an input: whether a second reader sees the same gap, or records were lost on their way.

Offsets may be missing where a producer of the input uses transactions. Nothing else may leave a gap.
"""

from __future__ import annotations

import logging

from confluent_kafka import Consumer, TopicPartition

from joiner.run.clients import TIMEOUT_S, log_range, make_consumer, raise_for, timed_out
from joiner.run.settings import JoinerSettings
from joiner.run.transaction import Fenced
from joiner.run.unit import UnitStopped

_log = logging.getLogger(__name__)


class SecondReader:
    """Reads again where a gap was met.

    Made when it is first needed, and kept: a producer that commits often leaves a gap before every batch.
    """

    def __init__(self, settings: JoinerSettings) -> None:
        self._settings = settings
        self._consumer: Consumer | None = None

    def check_gap(self, topic: str, number: int, expected: int, found: int) -> None:
        """Raises `UnitStopped` where there is a record in between, `Fenced` where the log begins later by now."""
        if self._consumer is None:
            self._consumer = make_consumer(self._settings.kafka, self._settings.application.name)
        low, _ = log_range(self._consumer, topic, number)
        self._consumer.assign([TopicPartition(topic, number, expected)])
        first = self._consumer.poll(TIMEOUT_S)
        self._consumer.unassign()
        if low <= expected:
            if first is None:
                raise timed_out(f"{topic}@{expected} could not be read again within {TIMEOUT_S:.0f} s")
            raise_for(first)
        if low > expected:
            # If the unit is still ours, the claim finds this out and says so. If not, only what its owner is done
            # with was removed.
            _log.warning("unit %s: %s now begins at %s, behind %s", number, topic, low, expected)
            raise Fenced
        if first is None or first.offset() != found:
            raise UnitStopped(
                f"unit {number}: after {topic}@{expected - 1} the offset {expected} should follow and {found} came: "
                "restart the joiner; if it happens again, this is a defect to report"
            )

    def close(self) -> None:
        """Close what was made."""
        if self._consumer is not None:
            self._consumer.close()
