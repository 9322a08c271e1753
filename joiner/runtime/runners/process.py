"""The plain process: reads, joins and commits the units that the consumer group assigns to it.

One consumer reads all units, from offsets that the process specifies. Each unit has its own transactions, so a failure
of one unit does not affect the others. Transactions are written in the background while the next batch is read and
joined. Uncommitted work of a unit may be discarded at any time, because its state can be rebuilt from its last commit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from broker.kafka.topics import TopicError
from joiner.runtime.ownership.membership import Membership
from joiner.runtime.runners.active_task import ActiveTask
from joiner.runtime.runners.gc_tuning import tune_gc
from joiner.runtime.runners.process_tasks import ProcessTasks
from joiner.runtime.runners.runner import Parts, Runner
from joiner.runtime.runners.supervisor import Supervisor
from joiner.runtime.telemetry.unit_gauges import UnitStatus

_LAST_COMMIT_S: Final = 3.0
"""Time limit for writing the last snapshots when units are released, so that a shutdown takes only seconds even if
Kafka does not respond."""

_log = logging.getLogger(__name__)


class JoinerProcess(Runner["ProcessLoop"]):
    """Serves units in a plain process. `run` also raises `InstanceInUse`."""

    def _make(self, parts: Parts) -> ProcessLoop:
        return ProcessLoop(parts)

    def _work(self, loop: ProcessLoop) -> int:
        application, claimant = self._settings.application, self._claimant
        who = application.instance, claimant.site, claimant.run
        _log.info("joiner %s at %s (%s): waiting for units of %r", *who, application.name)
        tune_gc()
        return loop.run(self._is_over)


class ProcessLoop:
    """See `runner.Loop`."""

    def __init__(self, parts: Parts) -> None:
        """Create the loop. Raises KafkaException."""
        settings, claimant, services, telemetry, metrics, watch, standby = parts
        self._telemetry, self._watch, self._clock = telemetry, watch, services.clock
        self.tasks = ProcessTasks(settings, services, metrics)
        self.supervisor: Supervisor[ActiveTask] = Supervisor(
            settings, claimant, self.tasks, services, metrics, standby=standby
        )
        self._membership = Membership(settings, claimant.site, self.give_back, services.clock)
        telemetry.why_unready = self.why_unready

    def statuses(self) -> Mapping[int, UnitStatus]:
        """See `runner.Loop`."""
        return self.tasks.statuses()

    def run(self, is_over: Callable[[], bool]) -> int:
        """Serve units until ``is_over()`` is true. Return the exit status. Raises the same errors as `Runner.run`."""
        try:
            while not is_over() and not self._have_all_failed():
                self._membership.poll()
                self.supervisor.poll(self._membership.units)
                self.tasks.turn()
                self.supervisor.collect_failures()
                if self._telemetry.is_look_due():
                    self.tasks.note_log_ends()
                self.tasks.report(self.tasks.held())
                self._watch.check()
            # Determine the status before leaving the group, because leaving also releases failed units.
            return 1 if self.supervisor.failed_units else 0
        except TopicError:
            # The last messages may come from a recreated topic, so a state that includes them must not be saved.
            for number in list(self.tasks.tasks):
                self.tasks.drop(number)
            raise

    def close(self) -> None:
        """Release all units within seconds, and leave the group."""
        held = self.finish_all()
        self._membership.close()
        self.supervisor.collect_failures()
        self.tasks.close()
        self.tasks.report(held, last=True)

    def why_unready(self) -> str:
        """Return why the process is not ready, or an empty string if it serves every unit assigned to it."""
        if not self._membership.is_assigned:
            return "the group has not assigned any units yet"
        missing = self._membership.units - self.tasks.tasks.keys()
        return f"units {sorted(missing)} are not served, see the log" if missing else ""

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
            _log.info("units %s: %s", mine, "lost to the group" if lost else "given back")

    def finish_all(self) -> dict[int, int]:
        """Write the last snapshots and stop all units. Return the number of records that each unit held."""
        until_s = self._clock.monotonic_s() + _LAST_COMMIT_S
        self.supervisor.cancel_claims(None, 0.0)
        self.tasks.write_last_snapshots(list(self.tasks.tasks), until_s, stopped=True)
        self.supervisor.cancel_claims(None, until_s)
        held = self.tasks.held()
        for number in held:
            self.tasks.drop(number)
        return held

    def _have_all_failed(self) -> bool:
        failed = self.supervisor.failed_units
        return bool(failed) and self._membership.units <= failed
