"""Decides which failures are transient, and how long to wait before each retry.

Transient failures are retried with exponential back-off and jitter for as long as they persist. All others need an
operator, because a retry would either fail again or change the results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple

from confluent_kafka import KafkaException

from joiner.runtime.clock import Clock
from joiner.runtime.kafka.batches.registry import SchemaUnavailable
from joiner.runtime.kafka.transaction import Aborted, OwnershipInDoubt
from joiner.runtime.model import UnitStopped
from joiner.runtime.ownership.eligibility import FoundationAwaited, LogShort, OwnedElsewhere, TopicUnknown


class Cause(NamedTuple):
    """A cause of failure. If ``first_s`` is set, the cause is transient, and the first back-off lasts that long.

    The back-off doubles with every retry.
    """

    what: str
    faults: tuple[type[Exception], ...]
    first_s: float | None = None
    longest_s: float = 0.0
    """The longest back-off, before jitter."""
    lasts_s: float = math.inf
    """If the cause persists for longer than this, it is no longer treated as transient."""

    @property
    def is_transient(self) -> bool:
        """Whether the cause is transient."""
        return self.first_s is not None


CAUSES: Final = (
    # The first matching row applies.
    Cause("the unit belongs to another site", (OwnedElsewhere,)),
    Cause("a broker does not know an input topic", (TopicUnknown,), 1.0, 30.0),
    # Can happen briefly after a leader election. Retries stop soon: if the log was truncated, new records would fill
    # the gap and hide the loss.
    Cause("a log ends before the consumed offset", (LogShort,), 0.5, 2.0, lasts_s=10.0),
    Cause("a schema is not available", (SchemaUnavailable,), 1.0, 15.0),
    Cause("replica 0 has no state of the unit to begin with", (FoundationAwaited,), 1.0, 5.0),
    # Changed settings, a damaged snapshot, missing records or a full buffer. The error message says what to do.
    Cause("the unit cannot be continued as it is", (UnitStopped,)),
    Cause("the owner of the unit is in doubt", (OwnershipInDoubt,), 1.0, 30.0),
    # The back-off is short, so that the unit continues soon after Kafka is back.
    Cause("Kafka does not answer", (Aborted, KafkaException), 1.0, 8.0),
    Cause("memory, file handles or threads have run out", (MemoryError, OSError), 2.0, 120.0),
    Cause("a defect", (Exception,)),
)

JITTER: Final = (0.5, 1.5)
"""Each back-off is multiplied by a random factor from this range, so that runners do not all retry at the same time."""

_STEADY_S: Final = 60.0
"""Once a unit has been served for this long, its earlier failures are forgotten."""


def cause_of(error: Exception) -> Cause:
    """Return the row of `CAUSES` for an error."""
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        error = OSError(str(error))
    return next(cause for cause in CAUSES if isinstance(error, cause.faults))


class Obstacle(NamedTuple):
    """Why a unit is not being served.

    ``lasts_s``: how many seconds it has gone unserved. ``retry_s``: the seconds until the next retry, or None if the
    unit has failed and will not be retried.
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
    """Tracks the consecutive failures of each unit and computes the back-off before each retry."""

    def __init__(self, draw: Random, clock: Clock) -> None:
        """``draw``: the source of the jitter."""
        self._draw, self._clock = draw, clock
        self._units: dict[int, _Trouble] = {}

    def wait_s(self, number: int, cause: Cause, why: str) -> float | None:
        """Record a failure. Return the back-off before the retry, or None if the unit must not be retried."""
        now_s = self._clock.monotonic_s()
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
        """Return whether the unit has failed recently."""
        trouble = self._units.get(number)
        return trouble is not None and not _is_steady(trouble, self._clock.monotonic_s())

    def served(self, number: int) -> None:
        """Record that the unit is being served. Its failures are forgotten once this has lasted `_STEADY_S`."""
        trouble = self._units.get(number)
        if trouble is not None:
            trouble.served_since_s = self._clock.monotonic_s()

    def forget(self, number: int) -> None:
        """Forget the failures of a unit that was assigned to another runner, or that an operator wants retried."""
        self._units.pop(number, None)

    def obstacle(self, number: int, not_before_s: float | None) -> Obstacle | None:
        """Return why a unit is not being served, or None if it is being served or has not failed.

        ``not_before_s``: the monotonic time of the next retry, or None if the unit will not be retried.
        """
        trouble = self._units.get(number)
        if trouble is None or trouble.served_since_s is not None:
            return None
        now_s = self._clock.monotonic_s()
        retry_s = None if not_before_s is None else max(0.0, not_before_s - now_s)
        return Obstacle(trouble.why, now_s - trouble.since_s, retry_s)


def _is_steady(trouble: _Trouble, now_s: float) -> bool:
    return trouble.served_since_s is not None and now_s - trouble.served_since_s > _STEADY_S
