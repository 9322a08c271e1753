"""A process's membership in its site, through the control topic.

A thread reads the control topic and sends heartbeats, so that a long batch or a long commit is not mistaken for a
failure. It stops if the process has not polled for a minute.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from typing import Final

from joiner.runtime.clock import Clock
from joiner.runtime.kafka.member_log import MemberLog
from joiner.runtime.membership.member import Identity, Member, Timing, Work
from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.ownership.membership import InstanceInUse
from joiner.runtime.settings import JoinerSettings

_STUCK_S: Final = 60.0

_BEATS: Final = 5
"""Heartbeats per failure timeout."""

_TURN_S: Final = 0.02
_CLOSE_S: Final = 0.5

_log = logging.getLogger(__name__)


def start_thread(target: Callable[[], None]) -> threading.Thread | None:
    """Start the thread that keeps a membership alive. The simulation replaces this function: there, polls do."""
    thread = threading.Thread(target=target, name="membership", daemon=True)
    thread.start()
    return thread


class SiteMembership:
    """`units`: the units that this process should serve now."""

    def __init__(
        self,
        settings: JoinerSettings,
        claimant: Claimant,
        work: Callable[[], Work],
        give_back: Callable[[list[int]], None],
        clock: Clock,
    ) -> None:
        """``work`` returns what the process does. ``give_back`` is called with units that it must stop serving,
        because another instance serves them or is ready to.
        """
        application = settings.application
        self._instance = application.instance
        self.units: set[int] = set()
        self.follow: frozenset[int] = frozenset()
        self._work, self._give_back, self._clock = work, give_back, clock
        self._log = MemberLog(settings)
        self._member = Member(
            Identity(claimant.site, claimant.instance, claimant.run, socket.gethostname()),
            settings.topics.partitions,
            application.standbys,
            Timing(application.failure_timeout / _BEATS / 1e9, application.failure_timeout / 1e9),
            clock.monotonic_s(),
        )
        self._known = Work()
        self._polled_s = clock.monotonic_s()
        self._epoch = 0
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = start_thread(self._stay_alive)

    @property
    def is_assigned(self) -> bool:
        """Whether this process knows the assignment."""
        return self._member.is_assigned

    @property
    def has_heirs(self) -> bool:
        """Whether another instance could serve this one's units."""
        return self._member.is_assigned and self._member.has_others

    def leave(self) -> None:
        """Ask for other owners of this instance's units."""
        self._member.leaving = True

    def poll(self) -> None:
        """Decide anew which units to serve and to follow, and give back the others.

        Raises `InstanceInUse` if another process has started under the same instance name.
        """
        work = self._work()
        with self._lock:
            self._known, self._polled_s = work, self._clock.monotonic_s()
            self._turn()
            orders = self._member.orders(work, self._polled_s)
        if self._member.is_replaced:
            raise InstanceInUse(
                f"another process has started as instance {self._instance!r}: give each process of the application its "
                "own name with --instance or application.instance"
            )
        self._note_assignment()
        self.follow = orders.follow
        units = set(orders.serve | (work.serves - orders.release))
        revoked, self.units = self.units - units, units
        if revoked:
            self._give_back(sorted(revoked))
            with self._lock:
                self._known = self._work()
                self._turn()

    def close(self) -> None:
        """Leave the site. No unit may be served any more."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join(1.0)
        with self._lock:
            self._log.write(self._member.leave())
            self._log.close(_CLOSE_S)

    def _turn(self) -> None:
        for logged in self._log.read():
            self._member.hear(logged, self._clock.monotonic_s())
        for record in self._member.beat(self._known, self._clock.monotonic_s()):
            self._log.write(record)

    def _stay_alive(self) -> None:
        while not self._is_over.wait(_TURN_S):
            with self._lock:
                if self._clock.monotonic_s() - self._polled_s < _STUCK_S:
                    self._turn()

    def _note_assignment(self) -> None:
        state = self._member.state
        if state.epoch != self._epoch:
            self._epoch = state.epoch
            owned = sorted(self._member.owned)
            _log.info("assignment %s (%s): units %s", state.epoch, state.reason or "as found", owned)
