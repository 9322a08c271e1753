"""Decides how many worker processes a host needs.

A state machine that uses neither Kafka nor a clock. It receives an observation every few seconds and rarely changes the
number, because it starts observing afresh after each change.

More workers are needed if input arrives faster than busy workers consume it. A backlog that is being worked off is no
reason to add any. Neither are held records or input waiting for a silent stream, because the workers are not busy then.
Fewer are needed if the remaining ones could comfortably consume the input. A worker's capacity is measured while the
workers cannot keep up, so a number that was too small for a load is not chosen again for the same load.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

OBSERVED_S: Final = 30.0
"""How long the workers must be behind before some are added."""

CALM_S: Final = 300.0
"""How long to observe before removing a worker. The busiest part of this time decides."""

_LAG_S: Final = 2.0
"""The workers are behind if their unconsumed input would take them longer than this."""

_NOW_S: Final = 10.0
"""The rates over this time show whether a backlog is being worked off."""

_CATCH_UP_S: Final = 300.0
"""A backlog that will be worked off within this time is no reason to add workers."""

_BUSY_CORES: Final = 0.6
"""A worker is busy if it uses this much of a core."""

_ROOM_CORES: Final = 0.3
"""Workers are added only if this much of the host's cores is idle."""

_RATES_MAX: Final = 1000

_HOT: Final = 0.8
"""If one unit has this share of the lag, more workers would not help: it cannot be split, and others would not gain."""

_LOAD_AFTER_ADDING: Final = 0.8
_LOAD_AFTER_REMOVING: Final = 0.6
"""The share of the workers' capacity that the input should use after the change."""


class Observation(NamedTuple):
    """What was observed at one moment.

    ``at_s``: when, in seconds. ``lag``: by unit, the number of unconsumed records in its input logs. The rest are
    totals since some arbitrary start: ``consumed`` is the number of records consumed by all units, ``cpu_s`` the CPU
    time used by the workers, and ``idle_s`` the idle time, summed over the host's cores.
    """

    at_s: float
    consumed: int
    lag: Mapping[int, int]
    cpu_s: float
    idle_s: float


class Decision(NamedTuple):
    """How many workers to run from now on, and why."""

    workers: int
    reason: str


@dataclass(frozen=True)
class _Load:
    """What the observations over some time amount to, in records per second and cores."""

    consumed: float
    arrived: float
    lag: int
    hottest: int
    hottest_share: float
    busy: float
    idle: float

    @property
    def is_behind(self) -> bool:
        """Whether the lag is large and will not be worked off soon."""
        if self.lag <= _LAG_S * max(self.consumed, 1.0):
            return False
        gain = self.consumed - self.arrived
        return gain <= 0 or self.lag / gain > _CATCH_UP_S


class Autoscaler:
    """Decides how many workers to run, between ``at_least`` and ``at_most``.

    `note`: why the number stays the same, although more workers seem to be needed or some are not serving units.
    """

    def __init__(self, at_least: int, at_most: int) -> None:
        self._at_least, self._at_most = at_least, at_most
        self._observed = deque[Observation]()
        # The arrival rate in records per second, with the time it was observed.
        self._arrived = deque[tuple[float, float]](maxlen=_RATES_MAX)
        # Since when the workers have been behind.
        self._behind_s: float | None = None
        # Since when some workers have not been serving units.
        self._missing_s: float | None = None
        # Records per second that a worker was seen to consume while the workers could not keep up.
        self._capacity: float | None = None
        self.note = ""

    def observe(self, seen: Observation, workers: int, running: int) -> Decision | None:
        """Take an observation into account. Return a decision if the number of workers should change.

        ``workers``: how many there should be. ``running``: how many serve units. While they differ, nothing is decided.
        """
        if running != workers:
            self.begin_anew()
            self._note_missing(seen.at_s, running)
            return None
        self._missing_s = None
        self._observed.append(seen)
        # Keep one that is at least `CALM_S` old, because the intervals between observations vary.
        while len(self._observed) > 1 and self._observed[1].at_s <= seen.at_s - CALM_S:
            self._observed.popleft()
        decided = self._add(workers) or self._remove(workers)
        if decided is not None:
            self.begin_anew()
        return decided

    def begin_anew(self) -> None:
        """Forget all observations, for example because the number of workers has changed."""
        self._observed.clear()
        self._arrived.clear()
        self._behind_s = None

    def _note_missing(self, at_s: float, running: int) -> None:
        if self._missing_s is None:
            self._missing_s, self.note = at_s, ""
        # Workers that have just been started do not serve units yet.
        if at_s - self._missing_s >= OBSERVED_S:
            self.note = (
                f"only {running} of them can serve units, because the others are drained or keep exiting; the "
                "number is not changed until all can"
            )

    def _add(self, workers: int) -> Decision | None:
        load, now, at_s = self._load(OBSERVED_S, workers), self._load(_NOW_S, workers), self._observed[-1].at_s
        self.note = ""
        if now is None or not now.is_behind:
            self._behind_s = None
            return None
        if self._behind_s is None:
            self._behind_s = at_s
        if load is None or at_s - self._behind_s < OBSERVED_S:
            return None
        behind = (
            f"{load.lag:,} records behind; {load.arrived:,.0f} arrive and {load.consumed:,.0f} are consumed per second"
        )
        if len(self._observed[-1].lag) > 1 and load.hottest_share >= _HOT:
            self.note = f"{behind}; almost all of them are in unit {load.hottest}, which more workers cannot share"
        elif load.busy < _BUSY_CORES:
            self.note = f"{behind}; the workers are not busy: a stream may be silent, or Kafka slow"
        elif load.consumed <= 0:
            self.note = f"{behind}; the workers are restoring their units, or Kafka does not respond"
        else:
            self._capacity = load.consumed / workers
            if load.idle < _ROOM_CORES:
                self.note = f"{behind}; no core is idle"
            elif workers >= self._limit:
                self.note = f"{behind}; more than {self._limit} workers are not allowed, or would not help"
        if self.note or not self._capacity:
            return None
        wanted = math.ceil(load.arrived / self._capacity / _LOAD_AFTER_ADDING)
        room = workers + max(1, math.floor(load.idle / load.busy))
        return Decision(min(max(wanted, workers + 1), room, self._limit), behind)

    def _remove(self, workers: int) -> Decision | None:
        load = self._load(OBSERVED_S, workers)
        if load is None:
            return None
        self._arrived.append((self._observed[-1].at_s, load.arrived))
        if workers <= self._at_least or load.is_behind or self._load(CALM_S, workers) is None:
            return None
        if self._capacity is not None:
            self._capacity = max(self._capacity, load.consumed / workers)
        # A worker can use about one core.
        per_core = load.consumed / load.busy / workers if load.busy else math.inf
        arrived = max(rate for at_s, rate in self._arrived if at_s >= self._observed[0].at_s)
        if arrived > _LOAD_AFTER_REMOVING * min(per_core, self._capacity or math.inf) * (workers - 1):
            return None
        return Decision(workers - 1, f"at most {arrived:,.0f} records arrive per second, so that is enough")

    @property
    def _limit(self) -> int:
        return max(self._at_least, min(self._at_most, len(self._observed[-1].lag)))

    def _load(self, since_s: float, workers: int) -> _Load | None:
        """Return the load of the last ``since_s`` seconds, or None if they were not observed in full."""
        last = self._observed[-1]
        before = [one for one in self._observed if one.at_s <= last.at_s - since_s]
        if not before:
            return None
        first = before[-1]
        passed_s = last.at_s - first.at_s
        consumed = (last.consumed - first.consumed) / passed_s
        lag = sum(last.lag.values())
        hottest = max(last.lag, key=lambda unit: last.lag[unit], default=0)
        return _Load(
            consumed=consumed,
            arrived=consumed + (lag - sum(first.lag.values())) / passed_s,
            lag=lag,
            hottest=hottest,
            hottest_share=last.lag.get(hottest, 0) / max(1, lag),
            busy=(last.cpu_s - first.cpu_s) / passed_s / workers,
            idle=(last.idle_s - first.idle_s) / passed_s,
        )
