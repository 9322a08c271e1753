"""Decides, for one instance of a site, which membership records to write and what to do with each unit.

This is a state machine that uses neither Kafka nor a clock. It compares the assignment with what the instances report,
so a lost or late record causes at most a delay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from joiner.runtime.control import (
    TAIL,
    Assignment,
    Heartbeat,
    Left,
    Logged,
    MemberRecord,
    Retry,
    Summary,
    UnitAssignment,
)
from joiner.runtime.membership.assign import next_assignment
from joiner.runtime.membership.detector import FailureDetector
from joiner.runtime.membership.state import SiteState

BEATS_PER_S_MAX: Final = 100.0
"""The maximum number of heartbeats per second from all instances of a site together, unless something changes."""

PATIENCE_S: Final = 5.0
"""How long an owner may take to release a unit to a warm instance. After that, the warm instance claims it."""

SUMMARY_S: Final = 10.0
"""Interval between summaries. When an instance joins, one is written immediately."""

_RECONNECT_S: Final = 1.0
"""How long the silence of other instances is ignored after a Kafka outage."""

_STEADY_S: Final = 5.0
"""The minimum time before silence is ignored again, so that failures are noticed even on a slow machine."""

_BEATS_MISSED: Final = 3
"""A failure is suspected only after this many missed heartbeats."""

_RANK_S: Final = 0.05
"""Instances take turns at this interval to propose an assignment, so that usually only one of them writes it."""

_ANSWER_S: Final = 1.0
"""An assignment that was written but has not been read back after this long is considered lost."""


@dataclass(frozen=True)
class Work:
    """What an instance is currently doing, by unit.

    The sets are as in `Heartbeat`. ``in_doubt``: units that it has stopped serving or failed to claim, because another
    instance may have claimed them.
    """

    serves: frozenset[int] = frozenset()
    claims: frozenset[int] = frozenset()
    warm: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()
    in_doubt: frozenset[int] = frozenset()


class Orders(NamedTuple):
    """What an instance should do, by unit.

    ``serve``: claim and serve these units. ``release``: stop serving these units, because their new owner is ready to
    claim them. The instance keeps serving all other units that it serves. ``follow``: build the state of these units,
    and keep it at their owner's last checkpoint. ``hold``: do not claim these units yet. Who owns them stays in doubt.
    """

    serve: frozenset[int] = frozenset()
    release: frozenset[int] = frozenset()
    follow: frozenset[int] = frozenset()
    hold: frozenset[int] = frozenset()


class Timing(NamedTuple):
    """``interval_s``: time between heartbeats. ``failure_timeout_s``: the shortest silence considered a failure."""

    interval_s: float = 0.1
    failure_timeout_s: float = 0.5


@dataclass(frozen=True)
class Identity:
    """Who an instance is. ``standbys``: how many standbys each unit should have according to its settings."""

    site: str
    instance: str
    run: str
    host: str = ""
    capacity: float = 1.0
    standbys: int = 0


class _OutageBefore:
    """Finds out whether the log was silent just before a run's first heartbeat: Kafka may have been unreachable.

    ``until_s``: until then, those that were heard from before the silence may be reconnecting.
    """

    def __init__(self) -> None:
        self.until_s = -inf
        self._is_over = False
        # When the last record was appended, and when the first one after a silence was.
        self._appended_ms: int | None = None
        self._resumed_ms = -inf

    def note(self, appended_ms: int, silence_s: float) -> None:
        """Note that a record was appended. ``silence_s``: how long a silence lasts at least."""
        before_ms, self._appended_ms = self._appended_ms, appended_ms
        if not self._is_over and before_ms is not None and appended_ms - before_ms > 1000 * silence_s:
            self._resumed_ms = appended_ms

    def end(self, appended_ms: int, now_s: float) -> None:
        """Note that the first heartbeat was appended, which was read now."""
        self._is_over = True
        self.until_s = now_s - (appended_ms - self._resumed_ms) / 1000 + _RECONNECT_S


class _Proposals:
    """The assignments that an instance proposes: each in the instance's turn, and again if it is not read back."""

    def __init__(self, instance: str, units: int) -> None:
        self._instance, self._units = instance, units
        self.outage = _OutageBefore()
        self._since_s: float | None = None
        self._written_s: float | None = None
        self._computed: tuple[tuple[int, frozenset[tuple[str, int]]], Assignment | None] | None = None

    def end(self) -> None:
        """Note that another assignment is in force now, or that none is needed."""
        self._since_s = self._written_s = None

    def due(self, state: SiteState, silent: set[str], rank: int, now_s: float) -> Assignment | None:
        """Return the assignment to write now, if any. ``rank``: how many instances have their turn before this one."""
        if now_s < self.outage.until_s and state.live.keys() - {self._instance}:
            return None
        proposed = self._next(state, silent)
        if proposed is None:
            self.end()
            return None
        self._since_s = now_s if self._since_s is None else self._since_s
        is_awaited = self._written_s is not None and now_s - self._written_s < _ANSWER_S
        if is_awaited or now_s - self._since_s < rank * _RANK_S:
            return None
        self._written_s = now_s
        return proposed

    def move(self, unit: int) -> bool:
        """Return whether the assignment last computed gives a unit of this instance to another one."""
        proposed = None if self._computed is None else self._computed[1]
        return proposed is not None and proposed.units[unit].owner != self._instance

    def _next(self, state: SiteState, silent: set[str]) -> Assignment | None:
        key = state.version, frozenset((name, state.members[name].offset) for name in silent)
        if self._computed is None or self._computed[0] != key:
            self._computed = key, next_assignment(state, self._units, self._instance, silent)
        return self._computed[1]


class _Waits:
    """Decides when an instance claims the units that it owns."""

    def __init__(self, me: Identity) -> None:
        self._me = me
        # Since when this instance has been ready to take over units that another one serves.
        self._ready_s: dict[int, float] = {}
        # Since when units may have been lost, although the log says that this instance serves them.
        self._unreported: dict[int, float] = {}

    def may_serve(self, unit: int, work: Work, state: SiteState, now_s: float, *, is_moving: bool) -> bool:
        """Return whether to serve a unit now rather than wait for the instance that serves it to release it.

        ``is_moving``: whether this instance proposes that another one should own the unit.
        """
        if unit in work.serves or unit in work.claims:
            self.forget(unit)
            self._unreported.pop(unit, None)
            return True
        if state.is_taken(unit, but=self._me.instance):
            return unit in work.warm and now_s - self._ready_s.setdefault(unit, now_s) >= PATIENCE_S
        self.forget(unit)
        # A warm standby can serve the unit sooner. This instance proposes that, too, so it does not wait in vain.
        is_for_standby = state.is_abandoned(unit) and is_moving
        return not (self._is_unreported(unit, work, state, now_s) or is_for_standby)

    def forget(self, unit: int) -> None:
        """Forget for how long this instance has waited for a unit to be released."""
        self._ready_s.pop(unit, None)

    def _is_unreported(self, unit: int, work: Work, state: SiteState, now_s: float) -> bool:
        """Return whether a unit may have been lost, and the log still says that this instance serves it.

        Only afterwards is it known who has claimed it, and can a warm standby be proposed. Writing may fail.
        """
        said = state.live.get(self._me.instance)
        if said is None or said.run != self._me.run or unit not in said.serves:
            self._unreported.pop(unit, None)
        elif unit in work.in_doubt:
            self._unreported.setdefault(unit, now_s)
        return now_s - self._unreported.get(unit, -inf) < PATIENCE_S


class Member:
    """An instance as a member of its site. All times are from the instance's own monotonic clock."""

    def __init__(self, identity: Identity, units: int, timing: Timing, now_s: float) -> None:
        """``units``: the number of units."""
        self.state = SiteState(identity.site)
        self.leaving = False
        self.sees_older = False
        """Whether processes of an older release are in the consumer group."""
        self._me, self._units, self._timing = identity, units, timing
        self._detector = FailureDetector(timing.failure_timeout_s)
        self._beat: Heartbeat | None = None
        self._beat_s = now_s
        # Records that were read before the state they apply to is known; None once it is known.
        self._unsure: deque[Logged] | None = deque(maxlen=TAIL)
        # The first heartbeat of this run, and when it was read back.
        self._joined: Logged | None = None
        self._joined_s = now_s
        # When a heartbeat of this run was last read back.
        self._own_s = now_s
        # Other instances may still be reconnecting until this time.
        self._reconnecting_s = -inf
        self._summary_s = now_s
        self._summed: set[str] = set()
        # When to contradict an outdated summary.
        self._correction_s: float | None = None
        self._proposals = _Proposals(identity.instance, units)
        self._retries: set[int] = set()
        self._waits = _Waits(identity)

    @property
    def owned(self) -> frozenset[int]:
        """The units that this instance should serve."""
        return frozenset(unit for unit, one in enumerate(self._assigned) if one.owner == self._me.instance)

    @property
    def _assigned(self) -> list[UnitAssignment]:
        # The records may have been written by another program.
        return self.state.units[: self._units]

    @property
    def is_assigned(self) -> bool:
        """Whether this instance knows the assignment."""
        return self._unsure is None and self.state.epoch > 0

    @property
    def is_mixed(self) -> bool:
        """Whether the consumer group assigns the units."""
        return self.sees_older or self.state.is_mixed

    @property
    def is_replaced(self) -> bool:
        """Whether another process has started under this instance's name, even if it has left again."""
        return self.state.has_replaced(self._me.instance, self._me.run)

    def is_in_touch(self, now_s: float, within_s: float | None = None) -> bool:
        """Return whether this instance has recently read back what it has written.

        ``within_s``: how recently. None: recently enough for the silence of others to mean something.
        """
        within_s = self._shortest_s / 2 if within_s is None else within_s
        return self._joined is not None and now_s - self._own_s <= within_s

    def is_current(self, now_s: float) -> bool:
        """Return whether this instance has read the log recently enough to know who the units are assigned to."""
        return self.is_in_touch(now_s, 2 * self._shortest_s)

    @property
    def has_others(self) -> bool:
        """Whether another live member could serve units."""
        return any(
            name != self._me.instance and not beat.leaving and name not in self.state.drained
            for name, beat in self.state.live.items()
        )

    def hear(self, logged: Logged, now_s: float) -> None:
        """Process a record from the control topic."""
        record = logged.record
        self._proposals.outage.note(logged.appended_ms, self._shortest_s / 2)
        if isinstance(record, Heartbeat) and record.run == self._me.run:
            if self._joined is None:
                self._joined, self._joined_s = logged, now_s
                self._proposals.outage.end(logged.appended_ms, now_s)
            elif (late_s := now_s - self._own_s - 2 * self._interval_s) > 0:
                # If this heartbeat is late, so are those of others.
                self._detector.forgive(late_s, now_s)
                if late_s > self._shortest_s / 2 and now_s > self._reconnecting_s + _STEADY_S:
                    # After a Kafka outage, others may take longer to reconnect.
                    self._reconnecting_s = now_s + _RECONNECT_S
            self._own_s = now_s
        match record:
            case Retry(site=self.state.site, unit=unit) if self._joined is not None and unit < self._units:
                # Orders from before this run are not meant for it.
                self._retries.add(unit)
            case _:
                pass
        if self._unsure is None:
            self._apply(logged, now_s)
            return
        self._unsure.append(logged)
        if self._joined is None:
            return
        first = self._unsure[0].offset
        for one in reversed(self._unsure):
            if isinstance(one.record, Summary) and one.record.site == self._me.site and one.record.read >= first - 1:
                self._begin(SiteState.of(one.record), now_s)
                return

    def _begin(self, state: SiteState, now_s: float) -> None:
        """Start from a state, and apply the records after it."""
        unsure, self._unsure = self._unsure or deque(), None
        self.state = state
        for logged in unsure:
            # A summary does not include members.
            if logged.offset > state.read or isinstance(logged.record, Heartbeat | Left):
                self._apply(logged, now_s)

    def _apply(self, logged: Logged, now_s: float) -> None:
        record = logged.record
        before = self.state.members.get(record.instance) if isinstance(record, Heartbeat) else None
        accepted = self.state.apply(record, logged.offset)
        match record:
            case Heartbeat(site=self.state.site, instance=instance, run=run) if instance != self._me.instance:
                if before is not None and before.heartbeat.run != run:
                    # The time between two runs is not a gap between heartbeats.
                    self._detector.forget(instance)
                known = self.state.members.get(instance)
                if known is not None and known.heartbeat.run == run:
                    self._detector.hear(instance, self._time_of(logged, now_s))
            case Left(site=self.state.site, instance=instance) if instance not in self.state.members:
                self._detector.forget(instance)
            case Summary(site=self.state.site):
                # Its author has missed records, because the log was truncated while it was suspended.
                is_late = record.epoch < self.state.epoch or self.state.orders.are_missing_in(record)
                self._correction_s = now_s + self._rank(set()) * _RANK_S if is_late else None
            case _:
                pass
        if accepted:
            self._proposals.end()
            self._detector.watch_only(self.state.members.keys())

    def _time_of(self, logged: Logged, now_s: float) -> float:
        """Return when a record was written, by this instance's clock. Records from before it joined may be old."""
        joined = self._joined
        if joined is None or logged.offset > joined.offset:
            return now_s
        return min(now_s, self._joined_s - (joined.appended_ms - logged.appended_ms) / 1000)

    def beat(self, work: Work, now_s: float) -> list[MemberRecord]:
        """Return the records to write now. Call this after `hear`, and often. ``work``: what this instance is doing."""
        records: list[MemberRecord] = [*self._heartbeat(work, now_s)]
        if self._unsure is not None:
            # If nobody answers, this instance is the first, or the others are starting as well.
            if self._joined is not None and now_s - self._joined_s >= self._timing.failure_timeout_s:
                self._begin(SiteState(self._me.site), now_s)
            return records
        return [*records, *self._propose(now_s), *self._sum_up(now_s)]

    def orders(self, work: Work, now_s: float) -> Orders:
        """Return what this instance should do. ``work``: what it is currently doing."""
        serve, release, follow, hold = set[int](), set[int](), set[int](), set[int]()
        for unit, one in enumerate(self._assigned if self.is_assigned else ()):
            if one.owner == self._me.instance:
                is_moving = self._proposals.move(unit)
                may_serve = self._waits.may_serve(unit, work, self.state, now_s, is_moving=is_moving)
                (serve if may_serve else follow).add(unit)
                # If another instance says that it has a unit, there is nothing to check.
                if not may_serve and unit in work.in_doubt and not self.state.is_taken(unit, but=self._me.instance):
                    hold.add(unit)
                continue
            self._waits.forget(unit)
            if unit in work.serves and one.owner in self.state.live and unit in self.state.live[one.owner].warm:
                release.add(unit)
            elif self._me.instance in one.standbys and unit not in work.serves:
                follow.add(unit)
        return Orders(frozenset(serve), frozenset(release), frozenset(follow), frozenset(hold))

    def take_retries(self) -> set[int]:
        """Return the units that this instance has been ordered to try again since the last call."""
        retries, self._retries = self._retries, set()
        return retries

    def leave(self) -> Left:
        """Return the record by which the instance leaves. The instance must already have stopped serving units."""
        return Left(site=self._me.site, instance=self._me.instance, run=self._me.run)

    def _heartbeat(self, work: Work, now_s: float) -> Iterator[MemberRecord]:
        me = self._me
        beat = Heartbeat(
            site=me.site,
            instance=me.instance,
            run=me.run,
            host=me.host,
            capacity=me.capacity,
            serves=sorted(work.serves),
            claims=sorted(work.claims),
            warm=sorted(work.warm),
            failed=sorted(work.failed),
            leaving=self.leaving,
            mixed=self.sees_older,
            standbys=me.standbys,
            began=-1 if self._joined is None else self._joined.offset,
        )
        if beat != self._beat or now_s - self._beat_s >= self._interval_s:
            self._beat, self._beat_s = beat, now_s
            yield beat

    @property
    def _interval_s(self) -> float:
        """The time between heartbeats in seconds. It is longer if there are many members."""
        return max(self._timing.interval_s, len(self.state.live) / BEATS_PER_S_MAX)

    @property
    def _shortest_s(self) -> float:
        """The shortest silence considered a failure, in seconds."""
        return max(self._timing.failure_timeout_s, _BEATS_MISSED * self._interval_s)

    def _propose(self, now_s: float) -> Iterator[MemberRecord]:
        self._detector.shortest_s = self._shortest_s
        # An instance that does not read its own heartbeats cannot know whether others are sending theirs.
        can_tell = self.is_in_touch(now_s) and now_s >= self._reconnecting_s
        silent = self._detector.silent(now_s) & self.state.live.keys() if can_tell else set[str]()
        if (proposed := self._proposals.due(self.state, silent, self._rank(silent), now_s)) is not None:
            yield proposed

    def _sum_up(self, now_s: float) -> Iterator[MemberRecord]:
        live = self.state.live
        runs = {beat.run for beat in live.values()}
        is_due = not runs <= self._summed or now_s - self._summary_s >= SUMMARY_S
        is_mine = is_due and min(live, default="") == self._me.instance
        is_correction = self._correction_s is not None and now_s >= self._correction_s
        if self.state.epoch and (is_mine or is_correction):
            self._summary_s, self._summed, self._correction_s = now_s, runs, None
            yield self.state.summary()

    def _rank(self, silent: set[str]) -> int:
        return sum(name < self._me.instance for name in self.state.live if name not in silent)
