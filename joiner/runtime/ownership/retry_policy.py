"""Why a unit is not served, and what becomes of it: whether the cause passes by itself, and how soon to try again.

A cause that passes is tried again with exponential back-off and jitter for as long as it lasts. One that stays is for
an operator: trying again would change nothing, or would change results.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple

from confluent_kafka import KafkaException

from joiner.runtime.kafka.transaction import Aborted, Fenced
from joiner.runtime.model import UnitStopped
from joiner.runtime.ownership.eligibility import LogShort, OwnedElsewhere, TopicUnknown


class Cause(NamedTuple):
    """A kind of failure. It passes where ``first_s`` is given: so long is the first wait, each next twice as long."""

    what: str
    faults: tuple[type[Exception], ...]
    first_s: float | None = None
    longest_s: float = 0.0
    """No wait is longer, before jitter."""
    lasts_s: float = math.inf
    """A cause that has lasted for longer does not pass any more."""

    @property
    def passes(self) -> bool:
        """Whether it may be gone the next time."""
        return self.first_s is not None


CAUSES: Final = (
    # The first that fits counts.
    Cause("the unit belongs to another site", (OwnedElsewhere,)),
    Cause("a broker does not know an input topic", (TopicUnknown,), 1.0, 30.0),
    # For a moment after an election. Not for longer: a log that was cut would grow beyond the offsets again.
    Cause("a log ends before what was consumed", (LogShort,), 0.5, 2.0, lasts_s=10.0),
    # Other settings, a damaged snapshot, a log with a hole, a full buffer: see where it is raised.
    Cause("the unit cannot be continued as it is", (UnitStopped,)),
    Cause("another runner claims it as well", (Fenced,), 1.0, 30.0),
    # Short, for others wait for the unit as soon as Kafka is back.
    Cause("Kafka does not answer", (Aborted, KafkaException), 1.0, 8.0),
    Cause("memory, files or threads are short", (MemoryError, OSError), 2.0, 120.0),
    Cause("a defect", (Exception,)),
)

JITTER: Final = (0.5, 1.5)
"""A wait is multiplied by a number between these: two runners that wait for each other do not stay in step."""

_STEADY_S: Final = 60.0
"""A unit that was served for so long begins at the first wait again."""


def cause_of(error: Exception) -> Cause:
    """The row of the table that an error belongs to."""
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        error = OSError(str(error))
    return next(cause for cause in CAUSES if isinstance(error, cause.faults))


class Obstacle(NamedTuple):
    """What a unit that is not served waits for, for how long already, and how long it waits yet.

    ``retry_s`` None: it was set aside, and is not tried again.
    """

    why: str
    lasts_s: float
    retry_s: float | None


@dataclass
class _Trouble:
    cause: Cause
    cause_since_s: float
    why: str
    since_s: float
    attempts: int = 0
    served_since_s: float | None = None


class RetryTracker:
    """The failures of units in a row: how long to wait before each next attempt. Moments are monotonic."""

    def __init__(self, draw: Random) -> None:
        """``draw``: for the jitter."""
        self._draw = draw
        self._units: dict[int, _Trouble] = {}

    def wait_s(self, number: int, cause: Cause, why: str) -> float | None:
        """Note a failure; returns how long to wait before the next attempt, None where there is to be none."""
        now_s = time.monotonic()
        trouble = self._units.get(number)
        if trouble is None or _is_steady(trouble, now_s):
            trouble = self._units[number] = _Trouble(cause, now_s, why, now_s)
        if trouble.served_since_s is not None:
            trouble.since_s, trouble.served_since_s = now_s, None
        if trouble.cause != cause:
            trouble.cause, trouble.cause_since_s = cause, now_s
        trouble.why = why
        if cause.first_s is None or now_s - trouble.cause_since_s > cause.lasts_s:
            return None
        wait_s = min(cause.longest_s, cause.first_s * 2.0 ** min(trouble.attempts, 30))
        trouble.attempts += 1
        return wait_s * self._draw.uniform(*JITTER)

    def has(self, number: int) -> bool:
        """Whether the unit has failed, not so long ago."""
        trouble = self._units.get(number)
        return trouble is not None and not _is_steady(trouble, time.monotonic())

    def served(self, number: int) -> None:
        """The unit is served from now on; its failures are forgotten when that lasts."""
        trouble = self._units.get(number)
        if trouble is not None:
            trouble.served_since_s = time.monotonic()

    def forget(self, number: int) -> None:
        """The unit is others' to serve now."""
        self._units.pop(number, None)

    def obstacle(self, number: int, not_before_s: float | None) -> Obstacle | None:
        """What a unit waits for that is to be tried at a moment; None where it has not failed."""
        trouble = self._units.get(number)
        if trouble is None or trouble.served_since_s is not None:
            return None
        now_s = time.monotonic()
        retry_s = None if not_before_s is None else max(0.0, not_before_s - now_s)
        return Obstacle(trouble.why, now_s - trouble.since_s, retry_s)


def _is_steady(trouble: _Trouble, now_s: float) -> bool:
    return trouble.served_since_s is not None and now_s - trouble.served_since_s > _STEADY_S
