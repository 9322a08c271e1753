"""Counts the failures of the functions of joins and aligns in the checkpoint, and logs them at a bounded rate.

A failed pair or row becomes a dead letter. The checkpoint counts failed pairs as `failed` (over all joins) and as
`<join>:failed`, and failed rows as `failed_rows` (over all aligns) and as `<align>:failed`. The counts are not part of
the unit's state, because a replay without output does not call functions. Instead, each checkpoint adds to the counts
of the previous one, across restarts and moves.
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

FAILED_ROWS: Final = "failed_rows"
"""The count of failed rows in a checkpoint."""

_FIRST_LENGTH_MAX: Final = 300
"""Maximum length of a reason. Longer ones are truncated, because a user's error message may have any length."""

_AGAIN_S: Final = 60.0
"""Minimum number of seconds between two log lines about a join or an align, except for the line written at the end."""

_log = logging.getLogger(__name__)


class Failures(msgspec.Struct, frozen=True):
    """How many pairs of a join, or rows of an align, have failed, and the reason and place of the first failure."""

    count: int
    first: str
    of_rows: bool = False

    @classmethod
    def of(cls, count: int, reason: str, place: str, *, of_rows: bool = False) -> Failures:
        """Return the failures of ``count`` pairs or rows.

        ``reason``: why the first one failed, shortened here to one line. ``place``: where in the user's code; may be
        empty.
        """
        shown = reason if len(reason) <= _FIRST_LENGTH_MAX else f"{reason[:_FIRST_LENGTH_MAX]}..."
        shown = " ".join(shown.encode(errors="backslashreplace").decode().split())
        return cls(count, f"{shown} ({place})" if place else shown, of_rows)

    def __add__(self, more: Failures) -> Failures:
        return Failures(self.count + more.count, self.first, self.of_rows)


def add_up(failed: dict[str, Failures], more: Mapping[str, Failures]) -> None:
    """Add ``more`` to ``failed``. Both contain failures by join or align."""
    for join, one in more.items():
        failed[join] = failed[join] + one if join in failed else one


def counts_with(counts: Mapping[str, int], before: Mapping[str, int], failed: Mapping[str, Failures]) -> dict[str, int]:
    """Return a checkpoint's counts: those from the unit's state, and the failures (``before`` plus ``failed``)."""
    totals = {FAILED, FAILED_ROWS}
    found = dict(counts) | {name: count for name, count in before.items() if name in totals or of_join(name)}
    for join, one in failed.items():
        for name in (FAILED_ROWS if one.of_rows else FAILED, f"{join}:{FAILED}"):
            found[name] = found.get(name, 0) + one.count
    return found


def of_join(name: str) -> str | None:
    """Return the join or align whose failures the count ``name`` refers to; None for other counts."""
    join, _, what = name.rpartition(":")
    return join if join and what == FAILED else None


class FailureLog:
    """Logs the first failures of a join or an align at once, and the number of later ones at most once a minute."""

    def __init__(self, settings: JoinerSettings, clock: Clock) -> None:
        self._topic = settings.topics.rejected
        of_joins, of_aligns = settings.functions
        self._functions = of_joins | of_aligns
        self._clock = clock
        self._told_s: dict[str, float] = {}
        self._unreported: dict[str, Failures] = {}

    def note(self, unit: int, failed: Mapping[str, Failures]) -> None:
        """Record the failures of a unit's batch, by join or align."""
        for join, one in failed.items():
            told_s = self._told_s.get(join)
            if told_s is None:
                self._told_s[join] = self._clock.monotonic_s()
                self._tell(join, f"{one.count:,} {_noun(one, one.count)} of unit {unit}", one)
            elif self._clock.monotonic_s() - told_s < _AGAIN_S:
                add_up(self._unreported, {join: one})
            else:
                before = self._unreported.pop(join, None)
                count = one.count + (before.count if before else 0)
                self._told_s[join] = self._clock.monotonic_s()
                self._tell(join, f"{count:,} more {_noun(one, count)}", one)

    def close(self) -> None:
        """Log the failures that have not been logged yet."""
        for join, one in self._unreported.items():
            self._tell(join, f"{one.count:,} more {_noun(one, one.count)}", one)
        self._unreported.clear()

    def _tell(self, join: str, which: str, one: Failures) -> None:
        _log.warning(
            "%s %r: the function %s failed for %s: %s. Each such %s becomes a dead letter in %s instead of a result",
            "align" if one.of_rows else "join",
            join,
            self._functions.get(join, "?"),
            which,
            one.first,
            _noun(one, 1),
            self._topic,
        )


def _noun(one: Failures, count: int) -> str:
    """Return the noun for ``count`` failed pairs or rows."""
    noun = "row" if one.of_rows else "pair"
    return noun if count == 1 else f"{noun}s"
