"""Sessions of logged-in users, and rate limits. Both are kept in memory.

A restarted service has no sessions, so its users have to log in again.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from control.access.users import User

if TYPE_CHECKING:
    from joiner.runtime.clock import Clock

_SESSIONS_MAX: Final = 10_000
_CALLERS_MAX: Final = 10_000


@dataclass(frozen=True)
class _Session:
    user: User
    until_s: float


class Sessions:
    """Sessions by secret id. Only the hash of the id is kept. Thread-safe."""

    def __init__(self, life_s: float, clock: Clock) -> None:
        """``life_s``: how long until a user must log in again."""
        self.life_s = life_s
        self._clock = clock
        self._open: OrderedDict[bytes, _Session] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, user: User) -> str:
        """Start a session and return its id. If there are too many, the oldest one ends."""
        identity = secrets.token_urlsafe(32)
        with self._lock:
            self._open[_digest(identity)] = _Session(user, self._clock.monotonic_s() + self.life_s)
            while len(self._open) > _SESSIONS_MAX:
                self._open.popitem(last=False)
        return identity

    def user(self, identity: str) -> User | None:
        """Return a session's user, or None if there is no such session or it has expired."""
        key = _digest(identity)
        with self._lock:
            found = self._open.get(key)
            if found is not None and found.until_s <= self._clock.monotonic_s():
                del self._open[key]
                return None
        return None if found is None else found.user

    def end(self, identity: str) -> None:
        """End a session."""
        with self._lock:
            self._open.pop(_digest(identity), None)


def _digest(identity: str) -> bytes:
    return hashlib.sha256(identity.encode(errors="surrogatepass")).digest()


class RateLimit:
    """A token bucket for each caller: ``burst`` requests at once, ``per_s`` per second in the long run. Thread-safe."""

    def __init__(self, burst: int, per_s: float, clock: Clock) -> None:
        self._burst, self._per_s, self._clock = burst, per_s, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def wait_s(self, caller: str) -> float:
        """Take a token and return 0. If there is none, return how many seconds to wait for one."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            left, at_s = self._left.pop(caller, (float(self._burst), now_s))
            left = min(self._burst, left + (now_s - at_s) * self._per_s)
            allowed = left >= 1
            self._left[caller] = (left - 1 if allowed else left), now_s
            while len(self._left) > _CALLERS_MAX:
                self._left.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self._per_s
