"""Keeps warm the state of units that other instances of the site serve, so that this instance can take over quickly.

A unit's state is built at its owner's last checkpoint and then follows each newer checkpoint without ever passing it:
the emitted set is a function of the consumed offsets, so only what the owner has committed is known to be emitted.
Followers write nothing.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaException

from joiner.runtime.kafka.checkpoint_log import read_newest
from joiner.runtime.kafka.clients import describe
from joiner.runtime.kafka.readers import ClaimCancelled
from joiner.runtime.model import UnitStopped
from joiner.runtime.ownership.eligibility import Claimant, OwnedElsewhere, check_site
from joiner.runtime.ownership.restore import build_state
from joiner.runtime.ownership.retry_policy import cause_of
from joiner.runtime.ownership.services import Services
from joiner.runtime.ownership.warmup import Warm, warm_up
from joiner.runtime.settings import JoinerSettings

INTERVAL_S: Final = 0.2
"""How often each unit is brought up to its owner's last checkpoint, if the commit interval is not longer."""

_INTERVAL_MAX_S: Final = 0.5
"""How often it is done however long the commit interval is. One failed attempt must not make a state too old to use."""

BEHIND_S: Final = 3.0
"""A state that has not been at its owner's last checkpoint for this long is no longer warm."""

UNSERVED_S: Final = 1.0
"""How often to check if an instance of this site has begun to serve a unit that none has served so far."""

_RETRY_S: Final = 2.0

_PREPARE_S: Final = 60.0
"""How often to prepare to run a unit that is kept warm, because brokers close connections that have long been idle."""

_FAILURES_MAX: Final = 3
_UNABLE_S: Final = 60.0
_UNABLE_MAX_S: Final = 960.0
"""After `_FAILURES_MAX` failed attempts to build its state, a unit is considered impossible to serve here for
`_UNABLE_S`, unless the last error was transient. Each repetition doubles this time, up to `_UNABLE_MAX_S`."""

_TAKE_S: Final = 0.1
"""How long a claim waits for a step in progress to finish. After that, the unit is restored from its snapshot, because
the step may still be changing the state."""

_HARMLESS: Final = (KafkaException, ClaimCancelled)
"""Errors that leave a state intact, though perhaps further on: a replay raises them only between its batches."""

_log = logging.getLogger(__name__)


@dataclass
class _Followed:
    warm: Warm | None = None
    """None if the state has not been built yet, the unit has never been claimed, or it belongs to another site."""
    step: Future[Warm | None] | None = None
    due_s: float = 0.0
    began_s: float = 0.0
    """When the last step began."""
    current_s: float = -math.inf
    """When the state was last at its owner's last checkpoint."""
    is_behind: bool = False
    """Whether it was warm but has since fallen behind."""
    failures: int = 0
    """How many attempts to build the state have failed."""
    logged: type[BaseException] | None = None
    """The type of the last error. Its stack trace need not be logged again."""
    over: threading.Event = field(default_factory=threading.Event)
    """Set once the unit is no longer followed, so that the step in progress ends early."""


class Followers:
    """The units whose state is kept warm. Used only by the runner's thread."""

    def __init__(
        self,
        settings: JoinerSettings,
        claimant: Claimant,
        services: Services,
        prepare: Callable[[int], None] = lambda _: None,
    ) -> None:
        """``prepare``: prepares to run a unit that may be claimed soon. Called in the pool. Must not raise."""
        self._settings, self._claimant, self._services, self._clock = settings, claimant, services, services.clock
        self._prepare = prepare
        self._prepared_s: dict[int, float] = {}
        """When each unit was last prepared. Only steps use it, and there is one step per unit at a time."""
        self._interval_s = min(max(INTERVAL_S, settings.application.commit_interval / 1e9), _INTERVAL_MAX_S)
        self._units: dict[int, _Followed] = {}
        self._ending: list[tuple[int, _Followed]] = []
        self._unable: dict[int, tuple[float, float]] = {}
        """Until when each unit is considered impossible to serve here, and how long the last such period was."""

    @property
    def warm(self) -> set[int]:
        """The units whose state is at their owner's last checkpoint, or was a moment ago."""
        return {unit for unit, lag_s in self.lags_s().items() if lag_s <= BEHIND_S}

    def lags_s(self) -> dict[int, float]:
        """Return, for each unit with a state, how long ago it was at the owner's last checkpoint. Thread-safe."""
        now_s = self._clock.monotonic_s()
        found = [(unit, now_s - followed.current_s) for unit, followed in [*self._units.items()]]
        return {unit: lag_s for unit, lag_s in found if lag_s < math.inf}

    @property
    def unable(self) -> set[int]:
        """The units whose state could not be built here recently, for a reason that is not transient."""
        now_s = self._clock.monotonic_s()
        return {unit for unit, (until_s, _) in [*self._unable.items()] if now_s < until_s}

    def poll(self, wanted: AbstractSet[int], claimed_soon: AbstractSet[int] = frozenset()) -> None:
        """Follow the ``wanted`` units and no others. Keep the state of ``claimed_soon`` units for `take`."""
        now_s = self._clock.monotonic_s()
        for unit in self._units.keys() - wanted - claimed_soon:
            self._end(unit, self._units.pop(unit))
        self._close_ended()
        ending = {unit for unit, _ in self._ending}
        for unit in sorted(wanted):
            followed = self._units.setdefault(unit, _Followed())
            if followed.step is not None and followed.step.done():
                self._after(unit, followed, now_s)
                followed = self._units[unit]
            if (
                followed.step is None
                and unit not in ending
                and now_s >= followed.due_s
                and (followed.warm is not None or not self._is_building)
            ):
                followed.began_s = now_s
                followed.step = self._services.followers.submit(self._follow, unit, followed.warm, followed.over.is_set)
            self._note_lag(unit, followed, now_s)

    @property
    def _is_building(self) -> bool:
        """Whether a unit's state is being built for the first time.

        This may take long, so only one build runs at a time, which limits the delay for units already being followed.
        """
        return any(one.warm is None and one.step is not None for one in self._units.values())

    def retry(self, units: AbstractSet[int]) -> None:
        """Forget that the states of these units could not be built. Try again at the next poll."""
        for unit in units:
            self._unable.pop(unit, None)
            followed = self._units.get(unit)
            if followed is not None and followed.warm is None:
                followed.failures, followed.due_s = 0, 0.0

    def take(self, unit: int) -> Warm | None:
        """Stop following a unit and return its state for a claim, or None if there is no state.

        The state is at or before its owner's last checkpoint, and no other thread uses it.
        """
        followed = self._units.pop(unit, None)
        self._unable.pop(unit, None)
        if followed is None:
            return None
        step = followed.step
        if step is None or step.cancel():
            return followed.warm
        if followed.warm is not None:
            # The claim replays the rest.
            followed.over.set()
        self._clock.wait_until_done([step], self._clock.monotonic_s() + _TAKE_S)
        if step.done():
            if (error := step.exception()) is None:
                return step.result()
            if isinstance(error, _HARMLESS):
                return followed.warm
        self._end(unit, followed)
        return None

    def close(self) -> None:
        """Stop following all units."""
        self.poll(frozenset())

    def _follow(self, unit: int, warm: Warm | None, is_over: Callable[[], bool]) -> Warm | None:
        """Bring a unit's state up to its owner's last checkpoint. Runs in the pool."""
        if warm is None:
            warm = warm_up(self._settings, unit, self._services, self._claimant, of_own_site=True, is_over=is_over)
        else:
            self._catch_up(unit, warm)
        if warm is not None:
            # Before the unit counts as warm: its owner may then hand it over at once.
            self._keep_prepared(unit)
        return warm

    def _catch_up(self, unit: int, warm: Warm) -> None:
        state = read_newest(warm.readers, unit)
        checkpoint = state.checkpoint()
        if checkpoint is None or checkpoint.basis != warm.readers.basis:
            raise UnitStopped(f"unit {unit}: it was reset")
        check_site(self._settings, checkpoint, self._claimant)
        warm.unit = build_state(checkpoint, state, warm.readers, warm.unit, level=logging.DEBUG)

    def _keep_prepared(self, unit: int) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._prepared_s.get(unit, -math.inf) >= _PREPARE_S:
            self._prepared_s[unit] = now_s
            self._prepare(unit)

    def _after(self, unit: int, followed: _Followed, now_s: float) -> None:
        step, followed.step = followed.step, None
        if step is None:
            return
        if (error := step.exception()) is None:
            self._unable.pop(unit, None)
            followed.failures = 0
            is_first, followed.warm = followed.warm is None, step.result()
            followed.due_s = now_s + (UNSERVED_S if followed.warm is None else self._interval_s)
            if is_first and now_s - followed.began_s > BEHIND_S:
                # The owner kept going while the state was being built.
                followed.due_s = now_s
            else:
                followed.current_s = followed.began_s
            return
        if isinstance(error, OwnedElsewhere):
            self._end(unit, followed)
            self._units[unit] = _Followed(due_s=now_s + UNSERVED_S)
            return
        # A standby's errors must not affect the units served here.
        if followed.warm is not None and isinstance(error, _HARMLESS):
            _log.info("unit %s: cannot update its warm state for now: %s", unit, describe(error))
            followed.due_s = now_s + _RETRY_S
            return
        failures = followed.failures + 1
        if isinstance(error, Exception) and not cause_of(error).is_transient and failures >= _FAILURES_MAX:
            until_s, before_s = self._unable.get(unit, (0.0, _UNABLE_S / 2))
            lasts_s = before_s if now_s < until_s else min(2 * before_s, _UNABLE_MAX_S)
            self._unable[unit] = now_s + lasts_s, lasts_s
        is_known = isinstance(error, UnitStopped | KafkaException) or type(error) is followed.logged
        details = None if is_known else error
        _log.info("unit %s: cannot keep its state warm for now: %s", unit, describe(error), exc_info=details)
        self._end(unit, followed)
        self._units[unit] = _Followed(due_s=now_s + _RETRY_S, failures=failures, logged=type(error))

    def _note_lag(self, unit: int, followed: _Followed, now_s: float) -> None:
        is_behind = -math.inf < followed.current_s < now_s - BEHIND_S
        if is_behind != followed.is_behind:
            followed.is_behind = is_behind
            how = "cannot keep up with its owner, so it does not count as warm" if is_behind else "has caught up again"
            _log.warning("unit %s: the state followed here %s", unit, how)

    def _end(self, unit: int, followed: _Followed) -> None:
        """Drop a state once the step in progress has ended."""
        followed.over.set()
        if followed.step is None or followed.step.cancel():
            _close(followed.warm)
        else:
            self._ending.append((unit, followed))

    def _close_ended(self) -> None:
        ending, self._ending = self._ending, []
        for unit, followed in ending:
            step = followed.step
            if step is None or not step.done():
                self._ending.append((unit, followed))
            else:
                _close(step.result() if step.exception() is None else followed.warm)


def _close(warm: Warm | None) -> None:
    if warm is not None:
        warm.readers.close()
