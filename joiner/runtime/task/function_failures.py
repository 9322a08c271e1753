"""Counts the failures of joining functions in the checkpoint, and logs them at a bounded rate.

A failed pair becomes a dead letter. The checkpoint counts failed pairs as `failed` (over all joins) and as
`<join>:failed`. The counts are not part of the unit's state, because a replay without output does not call joining
functions. Instead, each checkpoint adds to the counts of the previous one, across restarts and moves.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from joiner.runtime.clock import Clock
    from joiner.runtime.settings import JoinerSettings

FAILED: Final = "failed"
"""The count of failed pairs in a checkpoint."""

_FIRST_LENGTH_MAX: Final = 300
"""Maximum length of a reason. Longer ones are truncated, because a user's error message may have any length."""

_AGAIN_S: Final = 60.0
"""Minimum number of seconds between two log lines about a join, after the first line."""

_log = logging.getLogger(__name__)


class Failures(msgspec.Struct, frozen=True):
    """How many pairs of a join have failed, and the reason and place of the first failure."""

    count: int
    first: str

    @classmethod
    def of(cls, count: int, reason: str, place: str) -> Failures:
        """Return the failures of ``count`` pairs. ``reason``: why the first one failed; truncated, on one line."""
        shown = reason if len(reason) <= _FIRST_LENGTH_MAX else f"{reason[:_FIRST_LENGTH_MAX]}..."
        shown = " ".join(shown.encode(errors="backslashreplace").decode().split())
        return cls(count, f"{shown} ({place})" if place else shown)

    def __add__(self, more: Failures) -> Failures:
        return Failures(self.count + more.count, self.first)


def add_up(failed: dict[str, Failures], more: Mapping[str, Failures]) -> None:
    """Add ``more``, failures by join, to ``failed``."""
    for join, one in more.items():
        failed[join] = failed[join] + one if join in failed else one


def counts_with(counts: Mapping[str, int], before: Mapping[str, int], failed: Mapping[str, Failures]) -> dict[str, int]:
    """Return a checkpoint's counts: those from the unit's state, and the failures (``before`` plus ``failed``)."""
    found = dict(counts) | {name: count for name, count in before.items() if name == FAILED or of_join(name)}
    for join, one in failed.items():
        for name in (FAILED, f"{join}:{FAILED}"):
            found[name] = found.get(name, 0) + one.count
    return found


def of_join(name: str) -> str | None:
    """Return the join whose failures the count ``name`` refers to; None for other counts."""
    join, _, what = name.rpartition(":")
    return join if join and what == FAILED else None


class FailureLog:
    """Logs the first failure of a join at once, and the total of the later ones once a minute."""

    def __init__(self, settings: JoinerSettings, clock: Clock) -> None:
        self._topic = settings.topics.rejected
        self._functions = {join.name: join.function for join in settings.join}
        self._clock = clock
        self._told_s: dict[str, float] = {}
        self._unreported: dict[str, Failures] = {}

    def note(self, unit: int, failed: Mapping[str, Failures]) -> None:
        """Record the failures of a unit's batch, by join."""
        for join, one in failed.items():
            told_s = self._told_s.get(join)
            if told_s is None:
                self._told_s[join] = self._clock.monotonic_s()
                self._tell(join, f"{one.count:,} pairs of unit {unit}", one)
            elif self._clock.monotonic_s() - told_s < _AGAIN_S:
                add_up(self._unreported, {join: one})
            else:
                before = self._unreported.pop(join, None)
                self._told_s[join] = self._clock.monotonic_s()
                self._tell(join, f"{one.count + (before.count if before else 0):,} more pairs", one)

    def close(self) -> None:
        """Log the failures that have not been logged yet."""
        for join, one in self._unreported.items():
            self._tell(join, f"{one.count:,} more pairs", one)
        self._unreported.clear()

    def _tell(self, join: str, which: str, one: Failures) -> None:
        _log.warning(
            "join %r: the function %s failed for %s: %s. Each such pair becomes a dead letter in %s, not a result",
            join,
            self._functions.get(join, "?"),
            which,
            one.first,
            self._topic,
        )
