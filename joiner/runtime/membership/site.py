"""A process's membership in its site, through the control topic, or through the consumer group (see `older_release`).

A thread reads the control topic and sends heartbeats, so that a long batch or a long commit is not mistaken for a
failure. The thread pauses if the process has not polled for a minute.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import closing
from functools import partial
from typing import Final, Protocol

from confluent_kafka import KafkaException

from joiner.runtime.kafka.clients import log_range, make_consumer
from joiner.runtime.kafka.member_log import MemberLog
from joiner.runtime.membership.consumer_group import GroupMembership, InstanceReplaced
from joiner.runtime.membership.member import Identity, Member, Orders, Timing, Work
from joiner.runtime.membership.older_release import OlderRelease
from joiner.runtime.membership.state import SiteState
from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.ownership.services import Services
from joiner.runtime.settings import JoinerSettings

_STUCK_S: Final = 60.0

_BEATS: Final = 5
"""Heartbeats per failure timeout."""

_AWAY_S: Final = 1.0
"""An instance that is stopping and has read nothing for this long does not wait for others."""

_SILENT_S: Final = 10.0
_PAUSE_S: Final = 1.0
_TURN_S: Final = 0.02
_CLOSE_S: Final = 0.5

_log = logging.getLogger(__name__)


class Host(Protocol):
    """What a membership needs from its process."""

    def work(self) -> Work:
        """Return what the process is currently doing."""
        ...

    def hand_over(self, units: list[int]) -> None:
        """Stop serving units that another instance is ready to claim."""
        ...

    def held_up(self) -> AbstractSet[int]:
        """Return the units that cannot be handed over at the moment, because a large snapshot is being written."""
        ...

    def retry(self, units: AbstractSet[int]) -> None:
        """Forget why these units could not be served or kept warm, and try again."""
        ...

    def give_back(self, units: list[int], lost: bool) -> None:  # noqa: FBT001 - a callback of the consumer group
        """Stop serving units. ``lost``: whether other processes may already have been assigned them."""
        ...


def _has_never_run(settings: JoinerSettings) -> bool:
    """Return whether the application's state topic is empty, or False if a request to Kafka fails."""
    try:
        with closing(make_consumer(settings.kafka, settings.application.name)) as consumer:
            ends = [log_range(consumer, settings.state_topic, unit)[1] for unit in range(settings.topics.partitions)]
    except KafkaException:
        return False
    return not any(ends)


def start_thread(target: Callable[[], None]) -> threading.Thread | None:
    """Start the thread that keeps a membership alive. The simulation replaces this function and relies on polls."""
    thread = threading.Thread(target=target, name="membership", daemon=True)
    thread.start()
    return thread


class SiteMembership:
    """The process as a member of its site. `units`: the units that it should serve now, except those in `hold`."""

    def __init__(
        self,
        settings: JoinerSettings,
        claimant: Claimant,
        host: Host,
        services: Services,
    ) -> None:
        """Join the site."""
        application, clock = settings.application, services.clock
        self._instance = application.instance
        self.units: set[int] = set()
        self.follow: frozenset[int] = frozenset()
        self.hold: frozenset[int] = frozenset()
        self._host, self._clock = host, clock
        self._log = MemberLog(settings)
        self._group = GroupMembership(settings, claimant.site, self._on_revoke, clock)
        group = settings.membership_group(claimant.site)
        self._older = OlderRelease(services.admin, settings.kafka, group, partial(_has_never_run, settings), clock)
        self._member = Member(
            Identity(
                claimant.site,
                claimant.instance,
                claimant.run,
                socket.gethostname(),
                standbys=application.standbys,
            ),
            settings.topics.partitions,
            Timing(application.failure_timeout / _BEATS / 1e9, application.failure_timeout / 1e9),
            clock.monotonic_s(),
        )
        self._known = Work()
        self._polled_s = self._silent_s = clock.monotonic_s()
        self._epoch = 0
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._news = threading.Event()
        self._thread = start_thread(self._stay_alive)

    @property
    def state(self) -> SiteState:
        """What this process has read about its site."""
        return self._member.state

    @property
    def is_assigned(self) -> bool:
        """Whether this process knows the assignment."""
        return self._group.is_assigned if self._member.is_mixed else self._member.is_assigned

    @property
    def is_current(self) -> bool:
        """Whether this process has recently read who should serve the units."""
        return self._member.is_mixed or self._member.is_current(self._clock.monotonic_s())

    @property
    def has_heirs(self) -> bool:
        """Whether another instance could serve this one's units."""
        member = self._member
        is_in_touch = member.is_in_touch(self._clock.monotonic_s(), _AWAY_S)
        return member.has_others and not member.is_mixed and is_in_touch

    @property
    def has_news(self) -> bool:
        """Whether something has happened since the last poll that the next one should not wait for.

        Without the thread, as in the simulation, a poll is due only after its interval.
        """
        return self._thread is not None and self._news.is_set()

    def wake(self) -> None:
        """Have `has_news` return True until the next poll. Thread-safe."""
        self._news.set()

    def leave(self) -> None:
        """Ask for this instance's units to be assigned to others."""
        self._member.leaving = True

    def poll(self) -> None:
        """Decide which units to serve and to follow from now on, and give up the others.

        Raises `InstanceReplaced` if another process has started under the same instance name.
        """
        self._news.clear()
        self._group.poll()
        self._older.poll()
        # A report written after an order must not describe the situation before it.
        self._pass_on_retries()
        orders = self._exchange()
        if self._member.is_replaced:
            raise InstanceReplaced(self._instance)
        self._note_assignment()
        self._note_silence()
        self._pass_on_retries()
        serves = self._known.serves
        if self._member.is_mixed:
            before, self.units = self.units, set(self._group.units)
            self.follow, self.hold = orders.follow - self.units, frozenset()
            self._note_gained(before)
            if lost := sorted((serves | before) - self.units):
                self._host.give_back(lost, lost=True)
                self._exchange()
            return
        self.follow, self.hold = orders.follow, orders.hold
        units = set(orders.serve | orders.hold | (serves - (orders.release - self._host.held_up())))
        before, self.units = self.units, units
        self._note_gained(before)
        if revoked := before - units:
            self._host.hand_over(sorted(revoked))
            self._exchange()

    def close(self) -> None:
        """Leave the site. The process must have stopped serving units."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join(1.0)
        with self._lock:
            self._log.write(self._member.leave())
            self._log.close(_CLOSE_S)
        self._group.close()

    def _on_revoke(self, units: list[int], lost: bool) -> None:  # noqa: FBT001 - a callback's signature
        """The consumer group has revoked units."""
        if self._member.is_mixed:
            self.units -= set(units)
            self._host.give_back(units, lost)

    def _exchange(self) -> Orders:
        """Report to the other instances, and read their reports."""
        work = self._host.work()
        with self._lock:
            self._known, self._polled_s = work, self._clock.monotonic_s()
            self._member.sees_older = self._older.is_running
            self._turn()
            return self._member.orders(work, self._polled_s)

    def _pass_on_retries(self) -> None:
        with self._lock:
            units = self._member.take_retries()
        if units:
            _log.info(
                "units %s: forgetting earlier failures, because they were ordered to be tried again", sorted(units)
            )
            self._host.retry(units)

    def _turn(self) -> None:
        if not self._older.is_known:
            return
        for logged in self._log.read():
            self._member.hear(logged, self._clock.monotonic_s())
        for record in self._member.beat(self._known, self._clock.monotonic_s()):
            self._log.write(record)

    def _stay_alive(self) -> None:
        while not self._is_over.wait(_TURN_S):
            self._turn_in_thread()

    def _turn_in_thread(self) -> None:
        with self._lock:
            if self._clock.monotonic_s() - self._polled_s >= _STUCK_S:
                return
            try:
                version = self._member.state.version
                self._turn()
                if self._member.state.version != version:
                    self.wake()
            except Exception:  # noqa: BLE001 - a defect must not stop the heartbeats
                _log.exception("the control topic could not be processed")
                self._is_over.wait(_PAUSE_S)

    def _note_silence(self) -> None:
        """Log a warning if, for some time, this process has not read back what it writes."""
        now_s = self._clock.monotonic_s()
        if self._member.is_in_touch(now_s):
            self._silent_s = now_s
        elif now_s - self._silent_s >= _SILENT_S:
            self._silent_s = now_s
            _log.warning(
                "this instance has not read its own records back from the control topic for %.0f s: Kafka is "
                "unreachable, or this process lacks permission to write to the topic or to read it",
                _SILENT_S,
            )

    def _note_gained(self, before: set[int]) -> None:
        if gained := sorted(self.units - before):
            _log.info("units %s: to be served by this instance", gained)

    def _note_assignment(self) -> None:
        state = self._member.state
        if state.epoch != self._epoch:
            self._epoch = state.epoch
            owned = sorted(self._member.owned)
            _log.info("assignment %s (%s): units %s", state.epoch, state.reason or "as found", owned)
