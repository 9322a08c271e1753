"""Decides when the next messages are due. The caller passes in the time, and nothing in this module sleeps.

The schedule is absolute: message n is due at start + n / rate. The mean rate therefore does not drift, no matter how
long the replay runs or how late the process wakes up. A token bucket smooths the output: a burst contains at most as
many messages as are due in 10 ms, and after a stall, the backlog is sent at no more than twice the rate. Times are
integers in ns, and the rate is an integer in millionths of a message per second, so no rounding errors accumulate.
"""

from __future__ import annotations

from typing import Protocol

NS_PER_S = 1_000_000_000
BURST_NS = 10_000_000
"""Maximum size of a burst, given as the time in which that many messages are due at the configured rate."""
CATCH_UP = 2
"""After a stall, the backlog is sent at up to this multiple of the configured rate."""
UNLIMITED_BURST = 256
"""Number of messages per burst at the rate `max`: enough to keep the socket busy, but few enough that acknowledgements
are read in between."""

_MICRO = 1_000_000
_TOKEN = NS_PER_S * _MICRO
"""The number of tokens that one message costs. A token is 1 ns times one millionth of a message per second."""


class Pacer(Protocol):
    """Decides how many messages may be sent at a given time. The caller reports sent messages by calling `take`."""

    def due(self, now_ns: int) -> int:
        """Return the number of messages that may be sent at `now_ns`."""
        ...

    def take(self, count: int) -> None:
        """Record that `count` messages were sent. `count` must not exceed the value last returned by `due`."""
        ...

    def wait_ns(self, now_ns: int) -> int:
        """Return how long to wait from `now_ns` until the next message is due, or 0 if one is already due."""
        ...


class SteadyPacer:
    """Sends at a constant rate, on an absolute schedule that starts at the first call.

    `rate_per_s` is the number of messages per second. It is rounded to millionths. Raises ValueError if the result is 0
    or less.
    """

    def __init__(self, rate_per_s: float) -> None:
        self._rate_micro = round(rate_per_s * _MICRO)
        if self._rate_micro < 1:
            msg = f"the rate must be at least one millionth of a message per second, not {rate_per_s}"
            raise ValueError(msg)
        self._capacity = max(_TOKEN, self._rate_micro * BURST_NS)
        self._tokens = self._capacity
        self._sent = 0
        self._start_ns: int | None = None
        self._filled_ns = 0

    def due(self, now_ns: int) -> int:
        """Return how many messages are due by `now_ns`, limited by the tokens in the bucket."""
        start_ns = self._begin(now_ns)
        scheduled = (now_ns - start_ns) * self._rate_micro // _TOKEN + 1
        self._fill(now_ns)
        return max(0, min(scheduled - self._sent, self._tokens // _TOKEN))

    def take(self, count: int) -> None:
        """Record that `count` messages were sent, and take their tokens from the bucket."""
        self._sent += count
        self._tokens -= count * _TOKEN

    def wait_ns(self, now_ns: int) -> int:
        """Return how long to wait until both the schedule and the token bucket allow another message."""
        start_ns = self._begin(now_ns)
        self._fill(now_ns)
        on_schedule = start_ns + _divide_up(self._sent * _TOKEN, self._rate_micro) - now_ns
        until_token = _divide_up(_TOKEN - self._tokens, CATCH_UP * self._rate_micro)
        return max(0, on_schedule, until_token)

    def _begin(self, now_ns: int) -> int:
        if self._start_ns is None:
            self._start_ns = self._filled_ns = now_ns
        return self._start_ns

    def _fill(self, now_ns: int) -> None:
        gained = (now_ns - self._filled_ns) * CATCH_UP * self._rate_micro
        self._tokens = min(self._capacity, self._tokens + gained)
        self._filled_ns = now_ns


class UnlimitedPacer:
    """Sends as fast as the broker accepts messages: a full burst is always due, and there is never a wait."""

    def due(self, now_ns: int) -> int:  # noqa: ARG002 - independent of the time
        """Return a burst."""
        return UNLIMITED_BURST

    def take(self, count: int) -> None:
        """Do nothing."""

    def wait_ns(self, now_ns: int) -> int:  # noqa: ARG002 - independent of the time
        """Return 0."""
        return 0


def pacer_for(rate_per_s: float | None) -> Pacer:
    """Return a pacer for the given rate in messages per second. None means as fast as possible."""
    return UnlimitedPacer() if rate_per_s is None else SteadyPacer(rate_per_s)


def _divide_up(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
