"""The side that orders a move: sends requests, cancels them, and tracks outcomes. Uses neither Kafka nor a clock."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto

from joiner.runtime.control import Back, Cancelled, Claiming, Ready, Record, Refused, Released, Request, Resumed, Stop
from joiner.runtime.migration.protocol import RECLAIMED, REPEAT_S


class Step(Enum):
    """The progress of a unit's move, as known to the requesting side."""

    ASKED = auto()
    READY = auto()
    RELEASED = auto()
    MOVED = auto()
    KEPT = auto()


@dataclass
class MoveStatus:
    """The status of one unit in a move, as known to the requesting side.

    ``pause_ms``: the time from the report of the source's last commit to the target's first commit, or to the target's
    claim if no commit followed soon (see `handover`). None if unknown.
    """

    step: Step = Step.ASKED
    why: str = ""
    source: str = ""
    target: str = ""
    released_ms: int = 0
    pause_ms: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether the outcome of the move is known."""
        return self.step in {Step.MOVED, Step.KEPT}


class Order:
    """An order to move units to another site. ``now_s`` may come from any monotonic clock."""

    def __init__(self, move: str, to: str, units: Collection[int], until_s: float) -> None:
        """Create an order. Units that have not been released by ``until_s`` stay where they are."""
        self.move, self.to = move, to
        self.units = {unit: MoveStatus() for unit in sorted(units)}
        self._until_s = until_s
        self._repeat_s: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the outcome is known for every unit."""
        return all(one.is_over for one in self.units.values())

    @property
    def underway(self) -> list[int]:
        """Units that may be between two sites, because their target was ready. Checkpoints show where they are."""
        return [unit for unit, one in self.units.items() if one.step in {Step.READY, Step.RELEASED}]

    def due(self, now_s: float) -> list[Record]:
        """Return the records to write to the control topic now."""
        open_units = [unit for unit, one in self.units.items() if one.step in {Step.ASKED, Step.READY}]
        if not open_units:
            return []
        if now_s >= self._until_s:
            return self.cancel("no target was ready in time")
        if self._repeat_s is not None and now_s < self._repeat_s:
            return []
        self._repeat_s = now_s + REPEAT_S
        return [Request(move=self.move, units=open_units, to=self.to)]

    def cancel(self, why: str) -> list[Record]:
        """Withdraw the order for all units that are not known to have been released.

        A unit whose target is ready may be about to be released; its checkpoint will show the outcome.
        """
        cancelled = []
        for unit, one in self.units.items():
            if one.step is Step.ASKED:
                one.step, one.why = Step.KEPT, one.why or why
            elif one.step is Step.READY:
                one.step = Step.RELEASED
            else:
                continue
            cancelled.append(unit)
        return [Cancelled(move=self.move, units=cancelled)] if cancelled else []

    def hear(self, record: Record, at_ms: int) -> int | None:
        """Process a record from the control topic, appended at ``at_ms``.

        Return the unit if the record has changed its step, otherwise None.
        """
        if record.move != self.move or isinstance(record, Request | Cancelled | Claiming | Stop):
            return None
        if record.unit not in self.units:
            return None
        one = self.units[record.unit]
        before = one.step
        match record:
            case Ready() if one.step is Step.ASKED:
                one.step, one.target = Step.READY, record.instance
            case Released() if not one.is_over:
                if one.step is not Step.RELEASED or not one.released_ms:
                    one.released_ms = at_ms
                one.step, one.source = Step.RELEASED, record.instance
            case Resumed() if one.step is not Step.MOVED:
                one.step, one.target = Step.MOVED, record.instance
                # A target that found the release in the state topic may report before the source does.
                one.pause_ms = max(0, at_ms - record.late_ms - one.released_ms) if one.released_ms else None
            case Refused(why=why):
                one.why = why
                if one.step in {Step.ASKED, Step.READY}:
                    one.step = Step.KEPT
            case Back() if not one.is_over:
                one.step, one.why = Step.KEPT, one.why or RECLAIMED
            case _:
                pass
        return record.unit if one.step is not before else None

    def finish(self, unit: int, step: Step, why: str) -> None:
        """Set the outcome of a unit's move, found in its checkpoint. A reason already reported is kept."""
        one = self.units[unit]
        one.step, one.why = step, one.why or why
