"""The plain process: reads, joins and commits the units of its site that are assigned to it.

One consumer reads all units, from offsets that the process specifies. Each unit has its own transactions, so a failure
of one unit does not affect the others. Transactions are written in the background while the next batch is read and
joined. A unit's uncommitted work may be discarded at any time, because its state can be rebuilt from its last commit.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import closing, contextmanager
from typing import Final, NamedTuple

from broker.commandline import GRACE_S
from broker.kafka.topics import TopicError, wait_for_topics
from broker.metrics import TelemetryServer
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.clients import KAFKA_LOG
from joiner.runtime.kafka.topics import TopicWatch, application_topics, check_sources
from joiner.runtime.membership.gauges import expose_membership
from joiner.runtime.membership.member import Work
from joiner.runtime.membership.site import SiteMembership
from joiner.runtime.membership.state import SiteState
from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.ownership.followers import Followers
from joiner.runtime.ownership.services import Services, open_services
from joiner.runtime.repartition.repartitioner import Repartitioner, RepartitionMetrics
from joiner.runtime.runners.active_task import ActiveTask
from joiner.runtime.runners.gc_tuning import tune_gc
from joiner.runtime.runners.lifecycle import UnitState
from joiner.runtime.runners.process_tasks import ProcessTasks
from joiner.runtime.runners.supervisor import Supervisor
from joiner.runtime.settings import SPARK, JoinerSettings
from joiner.runtime.task.unit import load_loops
from joiner.runtime.telemetry.metrics import JoinerMetrics
from joiner.runtime.telemetry.unit_gauges import UnitStatus

_LAST_COMMIT_S: Final = 3.0
"""Time limit for writing the last snapshots when units are released, so that a shutdown takes only seconds even if
Kafka does not respond."""

_POLL_S: Final = 0.02
"""The minimum time between two checks of assignments, claims and moves, unless there is news. Turns may follow each
other more quickly."""

_HAND_OVER_S: Final = 2.0
"""Time limit for handing the units over to other instances at shutdown."""

_STOP_S: Final = GRACE_S - 0.5
"""Time limit for both of these at shutdown. Soon after it, the process is forcibly terminated."""

_REPARTITION_STOP_S: Final = 1.0
"""How long to wait at shutdown until this process has left the group of those that repartition."""

_log = logging.getLogger(__name__)


class JoinerProcess:
    """Serves the units of an application until it is stopped."""

    def __init__(self, settings: JoinerSettings, claimant: Claimant, clock: Clock, *, standby: bool = False) -> None:
        """``standby``: whether to wait for units that belong to other sites, instead of treating them as an error."""
        self._settings, self._claimant, self._clock, self._standby = settings, claimant, clock, standby
        self._stop = threading.Event()
        self._telemetry = TelemetryServer(settings.metrics)
        self._loop: ProcessLoop | None = None
        """None until the topics exist."""
        self._metrics = JoinerMetrics(settings, claimant, self._telemetry, self._statuses, self._failed_units, clock)
        expose_membership(self._telemetry.readings, self._site_state, self._standby_lags_s)
        self._repartitioner: Repartitioner | None = None
        # In Spark, `joiner repartition` does this.
        if settings.repartitioned and claimant.site != SPARK:
            self._repartitioner = Repartitioner(settings, clock, RepartitionMetrics(self._telemetry.readings))

    @property
    def states(self) -> Mapping[int, UnitState]:
        """The state of each unit known to this runner."""
        return {} if (loop := self._loop) is None else loop.supervisor.states

    def stop(self) -> None:
        """Ask the runner to stop. Safe to call from a signal handler."""
        self._stop.set()

    def run(self) -> int:
        """Serve units until stopped, or until all have failed. Return the exit status: 1 if a unit has failed.

        Raises KafkaException or `TopicError` if no unit can be served, `InstanceInUse` if another process has the same
        instance name, and `SettingsError` if the metrics cannot be exposed.
        """
        settings = self._settings
        load_loops(settings)
        with self._telemetry, self._repartitioning():
            specs = application_topics(settings)
            facts = wait_for_topics(settings.kafka, specs, self._is_over, _log, KAFKA_LOG)
            if facts is None:
                return 0
            with open_services(settings, self._clock) as services:
                check_sources(services.admin, settings)
                known = {name: facts[name] for name in settings.input_topics}
                reset = settings.application.command("reset")
                watch = TopicWatch(services.admin, known, self._clock, reset=reset)
                loop = ProcessLoop(
                    LoopParts(settings, self._claimant, services, self._telemetry, self._metrics, watch, self._standby)
                )
                self._loop = loop
                try:
                    with closing(loop):
                        who = settings.application.instance, self._claimant.site, self._claimant.run
                        name = settings.application.name
                        _log.info("instance %s at site %s (run %s): waiting for units of %r", *who, name)
                        tune_gc()
                        return loop.run(self._is_over)
                finally:
                    self._loop = None

    @contextmanager
    def _repartitioning(self) -> Iterator[None]:
        """Repartition in the background, if there is anything to repartition."""
        repartitioner = self._repartitioner
        if repartitioner is None:
            yield
            return
        # A thread, because there need not be another process then. It shares the interpreter's lock with the joiner,
        # which it slows down while it decodes and copies: with a large volume, `joiner repartition` is better. Daemon,
        # because a call to Kafka must not delay the end of the process.
        self._telemetry.why_stuck = repartitioner.why_stuck
        thread = threading.Thread(target=repartitioner.run, name="repartition", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._telemetry.why_stuck = lambda: ""
            repartitioner.stop()
            thread.join(_REPARTITION_STOP_S)

    def _is_over(self) -> bool:
        """Send a heartbeat to the telemetry, and return whether to stop. Called in every iteration of the loop."""
        self._telemetry.heartbeat()
        return self._stop.is_set()

    def _statuses(self) -> Mapping[int, UnitStatus]:
        return {} if (loop := self._loop) is None else loop.statuses()

    def _site_state(self) -> SiteState | None:
        return None if (loop := self._loop) is None else loop.site_state

    def _standby_lags_s(self) -> Mapping[int, float]:
        return {} if (loop := self._loop) is None else loop.standby_lags_s()

    def _failed_units(self) -> Collection[int]:
        return () if (loop := self._loop) is None else loop.supervisor.failed_units


class LoopParts(NamedTuple):
    """The components from which a runner's loop is built.

    ``watch``: checks that the input topics stay the same. ``standby``: whether to wait for units of other sites.
    """

    settings: JoinerSettings
    claimant: Claimant
    services: Services
    telemetry: TelemetryServer
    metrics: JoinerMetrics
    watch: TopicWatch
    standby: bool


class ProcessLoop:
    """The loop that a plain process runs once the topics exist."""

    def __init__(self, parts: LoopParts) -> None:
        """Create the loop. Raises KafkaException if a Kafka client cannot be created."""
        settings, claimant, services, telemetry, metrics, watch, standby = parts
        self._telemetry, self._watch, self._clock = telemetry, watch, services.clock
        self.tasks = ProcessTasks(settings, services, metrics)
        self._followers = Followers(settings, claimant, services, self.tasks.prepare_early)
        self.supervisor: Supervisor[ActiveTask] = Supervisor(
            settings,
            claimant,
            self.tasks,
            services,
            metrics,
            standby=standby,
            take_warm=self._followers.take,
            wake=self._wake,
        )
        self._membership = SiteMembership(settings, claimant, self, services)
        self._units = settings.topics.partitions
        self._leaves_s: float | None = None
        self._polled_s = -math.inf
        telemetry.why_unready = self.why_unready

    def _wake(self) -> None:
        """Have the next poll not wait. Thread-safe."""
        self._membership.wake()

    def statuses(self) -> Mapping[int, UnitStatus]:
        """Return the figures that the metrics show for each unit. Thread-safe."""
        return self.tasks.statuses()

    @property
    def site_state(self) -> SiteState:
        """What this process has read about its site."""
        return self._membership.state

    def standby_lags_s(self) -> Mapping[int, float]:
        """See `Followers.lags_s`."""
        return self._followers.lags_s()

    def run(self, is_over: Callable[[], bool]) -> int:
        """Serve units until ``is_over()`` is true or all units have failed.

        Return the exit status: 1 if a unit has failed. Raises `TopicError` if the input topics have changed, and
        `InstanceInUse` and KafkaException as `Membership.poll` does.
        """
        try:
            while not self._may_end(is_over) and not self._have_all_failed():
                self._poll()
                self.tasks.turn()
                self.supervisor.collect_failures()
                if self._telemetry.is_look_due():
                    self.tasks.note_log_ends()
            # Determine the status before leaving the group, because leaving also releases failed units.
            return 1 if self.supervisor.failed_units or self._have_all_failed() else 0
        except TopicError:
            # The last messages may come from a recreated topic, so a state that includes them must not be saved.
            for number in list(self.tasks.tasks):
                self.tasks.drop(number)
            raise

    def _poll(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._polled_s < _POLL_S and not self._membership.has_news:
            return
        self._polled_s = now_s
        membership = self._membership
        membership.poll()
        self._followers.poll(membership.follow, membership.units - self.tasks.tasks.keys())
        self.supervisor.poll(membership.units, is_current=membership.is_current, hold=membership.hold)
        self.tasks.report(self.tasks.held())
        self._watch.check()

    def _may_end(self, is_over: Callable[[], bool]) -> bool:
        """Return whether to stop now. If there are other instances, give them time to claim the units first."""
        if not is_over():
            return False
        now_s = self._clock.monotonic_s()
        if self._leaves_s is None:
            self._leaves_s = now_s + _HAND_OVER_S
            self._membership.leave()
        return now_s >= self._leaves_s or not self._membership.has_heirs or not self.tasks.tasks

    def work(self) -> Work:
        """See `site.Host`."""
        supervisor = self.supervisor
        return Work(
            serves=frozenset(self.tasks.tasks),
            claims=frozenset(supervisor.claiming),
            warm=frozenset(self._followers.warm),
            failed=frozenset(self._unable | supervisor.elsewhere),
            in_doubt=frozenset(supervisor.in_doubt),
        )

    def held_up(self) -> AbstractSet[int]:
        """See `site.Host`."""
        return {number for number, task in self.tasks.tasks.items() if task.is_writing_long}

    def retry(self, units: AbstractSet[int]) -> None:
        """See `site.Host`."""
        self.supervisor.retry(units)
        self._followers.retry(units)

    def close(self) -> None:
        """Release all units within seconds, and leave the site."""
        held = self.finish_all()
        # Others claim the units as soon as this instance has left.
        self._membership.close()
        self._followers.close()
        self.supervisor.collect_failures()
        self.tasks.close()
        self.tasks.report(held, last=True)

    def why_unready(self) -> str:
        """Return why the process is not ready, or an empty string if it serves every unit assigned to it."""
        if not self._membership.is_assigned:
            return "the assignment of the units is not known yet"
        missing = (self._membership.units | self._followers.unable) - self.tasks.tasks.keys()
        return f"units {sorted(missing)} cannot be served: see the log" if missing else ""

    def give_back(self, units: list[int], lost: bool) -> None:  # noqa: FBT001 - a callback's signature
        """Release revoked units. ``lost``: whether the group may already have assigned them to other processes."""
        mine = [number for number in units if number in self.tasks.tasks]
        until_s = self._clock.monotonic_s() + (0.0 if lost else _LAST_COMMIT_S)
        # Cancel the claims first, so that they can end while the running units write their last transactions.
        self.supervisor.cancel_claims(units, 0.0)
        if not lost:
            self.tasks.write_last_snapshots(mine, until_s)
        self.supervisor.cancel_claims(units, until_s)
        for number in mine:
            self.tasks.drop(number)
        self.supervisor.forget(units)
        if mine:
            how = (
                "lost; the group may already have assigned them to other processes"
                if lost
                else "given back to the group"
            )
            _log.info("units %s: %s", mine, how)

    def hand_over(self, units: list[int]) -> None:
        """See `site.Host`. Commits what has been joined, without a snapshot."""
        mine = [number for number in units if number in self.tasks.tasks]
        self.supervisor.cancel_claims(units, 0.0)
        self.tasks.finish_commits(mine, self._clock.monotonic_s() + _LAST_COMMIT_S)
        for number in mine:
            self.tasks.drop(number)
        self.supervisor.forget(units)
        if mine:
            _log.info("units %s: handed over", mine)

    def finish_all(self) -> dict[int, int]:
        """Write the last snapshots and stop all units. Return the number of records that each unit held."""
        until_s = self._clock.monotonic_s() + _LAST_COMMIT_S
        if self._leaves_s is not None:
            until_s = min(until_s, self._leaves_s - _HAND_OVER_S + _STOP_S)
        self.supervisor.cancel_claims(None, 0.0)
        self.tasks.write_last_snapshots(list(self.tasks.tasks), until_s, stopped=True)
        self.supervisor.cancel_claims(None, until_s)
        held = self.tasks.held()
        for number in held:
            self.tasks.drop(number)
        return held

    @property
    def _unable(self) -> set[int]:
        """The units that cannot continue here, or whose state cannot be built here."""
        return self.supervisor.failed_units | (self._followers.unable - self.tasks.tasks.keys())

    def _have_all_failed(self) -> bool:
        failed, units = self.supervisor.failed_units, self._membership.units
        return (bool(failed) and bool(units) and units <= failed) or len(self._unable) == self._units
