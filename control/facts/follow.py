"""Follows the topics of an application: the last checkpoint of each unit, the members of its sites, and its events.

A fold over the messages of the state topic and of the control topic. It neither reads Kafka nor uses a clock.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from control.facts.timeline import Timeline
from joiner.runtime.control import decode, decode_member
from joiner.runtime.kafka.checkpoint_log import AppendedCheckpoint
from joiner.runtime.membership.state import SiteState
from joiner.runtime.model import checkpoint_key, decode_checked, decode_checkpoint
from joiner.runtime.ownership.unit_reports import LASTS_S, describe
from joiner.runtime.ownership.unit_reports import decode as decode_notice

_NOTICES_MAX: Final = 10_000
_RATE_MS: Final = 5_000
"""The rate of a unit is that of this time before its last commit."""


class _Committed(NamedTuple):
    """How many records a unit had consumed at a commit."""

    at_ms: int
    records: int


class Followed:
    """What the messages so far say about an application. Not thread-safe."""

    def __init__(self, units: int) -> None:
        """``units``: the number of units of the application."""
        self.checkpoints: list[AppendedCheckpoint | None] = [None] * units
        self.sites: dict[str, SiteState] = {}
        self.timeline = Timeline()
        self._commits: list[deque[_Committed]] = [deque() for _ in range(units)]
        self._notices: deque[tuple[bytes | None, int]] = deque(maxlen=_NOTICES_MAX)

    def apply_control(self, value: bytes | None, offset: int, at_ms: int) -> None:
        """Apply a message of the control topic."""
        if (member := decode_member(value)) is not None:
            self.sites.setdefault(member.site, SiteState(member.site)).apply(member, offset)
            self.timeline.apply_member(member, at_ms)
        elif (record := decode(value)) is not None:
            self.timeline.apply_move(record, at_ms)
        elif decode_notice(value) is not None:
            self._notices.append((value, at_ms))

    def apply_state(self, unit: int, key: bytes | None, value: bytes | None, at_ms: int) -> None:
        """Apply a message of the unit's partition of the state topic.

        Raises `UnitStopped` if it is a checkpoint that is unreadable or in a newer format.
        """
        if key != checkpoint_key(unit).encode() or value is None:
            return
        now = AppendedCheckpoint(decode_checked(unit, decode_checkpoint, value), at_ms)
        self.timeline.apply_checkpoint(self.checkpoints[unit], now)
        self.checkpoints[unit] = now
        commits = self._commits[unit]
        commits.append(_Committed(at_ms, now.checkpoint.counts.get("records", 0)))
        # Keep one commit from before the time that counts.
        while len(commits) > 1 and commits[1].at_ms < at_ms - _RATE_MS:
            commits.popleft()

    def notices(self, now_ms: int) -> list[str]:
        """Return the current reports of units that are not served, as text."""
        while self._notices and self._notices[0][1] < now_ms - round(1000 * LASTS_S):
            self._notices.popleft()
        return describe(self._notices)

    def rates(self, now_ms: int) -> list[float]:
        """Return how many records a second each unit has lately consumed."""
        return [_rate(commits, now_ms) for commits in self._commits]


def _rate(commits: deque[_Committed], now_ms: int) -> float:
    recent = [one for one in commits if one.at_ms >= now_ms - _RATE_MS]
    if not recent:
        return 0.0
    first, last = commits[0], commits[-1]
    # The counts start again if the unit is reset.
    records = max(0, last.records - first.records)
    return records / (max(last.at_ms - first.at_ms, _RATE_MS) / 1e3)
