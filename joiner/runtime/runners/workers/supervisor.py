"""Runs several joiner processes on one machine, because each uses little more than one core.

Each worker is an instance in its own right, like a process started on its own. A worker that exits is restarted after a
back-off. The number of workers can be changed while they run (``joiner scale``). The supervisor itself serves no units.
If it dies, its workers hand over their units and exit.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from broker.settings import SettingsError
from joiner.runtime.clock import Clock
from joiner.runtime.control import MemberRecord, Scale
from joiner.runtime.settings import PROCESSES_MAX

_LOOK_S: Final = 0.05
_REPORT_S: Final = 5.0
_BACK_OFF_S: Final = (0.5, 30.0)
"""The first and the longest wait before a worker that has exited is restarted."""

_STEADY_S: Final = 60.0
"""Once a worker has run for this long, its back-off starts over."""

_REFUSALS_MAX: Final = 3
_RUNS_S: Final = 10.0
"""A worker that has run for this long is known to start with these settings."""

_STOP_S: Final = 10.0
_SETTINGS_STATUS: Final = 2
"""The exit status of a worker that cannot start with these settings. The supervisor exits only if this happens several
times in a row before any worker has run for a while. Otherwise, the cause may be a file that is being edited, or a port
that is briefly in use."""

IN_USE_STATUS: Final = 3
"""The exit status of a process that ended because another one started under its name. The supervisor then exits too: if
it restarted the worker, the two processes would keep replacing each other."""

PARENT: Final = "LSB_SUPERVISOR"
"""The environment variable that holds the process id of a worker's supervisor."""

RUN: Final = "LSB_WORKER_RUN"
"""The environment variable that holds the id of a worker's run."""

_log = logging.getLogger(__name__)


class Command(NamedTuple):
    """A command, and environment variables for it."""

    arguments: Sequence[str]
    environment: Mapping[str, str]


@dataclass
class _Worker:
    name: str
    run: str = ""
    """The id of its last run."""
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    wait_s: float = field(default_factory=lambda: _BACK_OFF_S[0])
    due_s: float = 0.0
    refusals: int = 0
    """How many times in a row it has rejected its settings."""


class WorkerSupervisor:
    """Runs the workers of an instance."""

    def __init__(
        self,
        instance: str,
        count: int,
        command: Callable[[str, int], Command],
        clock: Clock,
        *,
        orders: Callable[[], Sequence[MemberRecord]],
        report: Callable[[int, int], None],
        report_end: Callable[[str, str], None],
    ) -> None:
        """``command(name, number)``: how to start a worker. ``orders`` returns new records from the control topic.
        ``report(running, wanted)`` writes to it, and ``report_end(name, run)`` writes that a worker's run has ended, so
        that others need not wait for its heartbeats to time out.
        """
        self._instance, self._wanted, self._command, self._clock = instance, count, command, clock
        self._orders, self._report, self._report_end = orders, report, report_end
        self._workers: list[_Worker] = []
        self._leaving: list[_Worker] = []
        self._said: tuple[int, int] | None = None
        self._said_s = 0.0
        self._status = 0
        self._has_run = False

    @property
    def wanted(self) -> int:
        """How many workers there should be."""
        return self._wanted

    def want(self, count: int, reason: str) -> None:
        """Change how many workers there should be. Safe to call from any thread."""
        count = min(max(1, count), PROCESSES_MAX)
        if count != self._wanted:
            _log.info("%s worker processes instead of %s: %s", count, self._wanted, reason)
            self._wanted = count

    def running(self, for_s: float = 0.0) -> dict[str, int]:
        """Return the process ids of the workers that have been running for ``for_s`` seconds, by name. Thread-safe."""
        before_s = self._clock.monotonic_s() - for_s
        running = [(one.name, one.process, one.started_s) for one in [*self._workers]]
        return {name: process.pid for name, process, at_s in running if process is not None and at_s <= before_s}

    def run(self, stop: threading.Event) -> int:
        """Run the workers until ``stop`` is set, or until one of them rejects its settings or its name is taken.

        Return the exit status.
        """
        try:
            while not stop.wait(_LOOK_S) and not self._status:
                self._obey()
                self._change_number()
                self._restart()
                self._say()
        finally:
            self._end([*self._workers, *self._leaving])
        return self._status

    def _obey(self) -> None:
        for record in self._orders():
            if isinstance(record, Scale) and record.instance == self._instance:
                self.want(record.processes, "ordered by `joiner scale`")

    def _change_number(self) -> None:
        while len(self._workers) < self._wanted:
            self._workers.append(_Worker(f"{self._instance}-{len(self._workers) + 1}"))
        while len(self._workers) > self._wanted:
            # It hands over its units before it exits.
            leaving = self._workers.pop()
            if leaving.process is not None:
                leaving.process.send_signal(signal.SIGTERM)
                self._leaving.append(leaving)
        ended = [one for one in self._leaving if one.process is None or one.process.poll() is not None]
        for worker in ended:
            self._leaving.remove(worker)
            self._report_end(worker.name, worker.run)

    def _restart(self) -> None:
        now_s = self._clock.monotonic_s()
        for number, worker in enumerate(self._workers):
            status = None if worker.process is None else worker.process.poll()
            if status is not None:
                self._note_end(worker, status, now_s)
            is_leaving = any(one.name == worker.name for one in self._leaving)
            if worker.process is not None:
                self._has_run |= now_s - worker.started_s >= _RUNS_S
            elif now_s >= worker.due_s and not is_leaving and not self._status:
                try:
                    worker.run = uuid.uuid4().hex
                    worker.process, worker.started_s = self._start(worker, number), now_s
                except (OSError, SettingsError) as error:  # too many processes, too little memory, too high a port
                    self._start_later(worker, f"not started: {error}", now_s)

    def _note_end(self, worker: _Worker, status: int, now_s: float) -> None:
        worker.process = None
        self._report_end(worker.name, worker.run)
        if status == IN_USE_STATUS:
            _log.error(
                "another process has started under the name of worker %s: ending all workers; give each process that "
                "runs workers its own name with --instance or application.instance",
                worker.name,
            )
            self._status = status
            return
        worker.refusals = worker.refusals + 1 if status == _SETTINGS_STATUS else 0
        if worker.refusals >= _REFUSALS_MAX and not self._has_run:
            _log.error("worker %s cannot start with these settings; see its message", worker.name)
            self._status = status
            return
        if now_s - worker.started_s >= _STEADY_S:
            worker.wait_s = _BACK_OFF_S[0]
        self._start_later(worker, f"signal {-status}" if status < 0 else f"status {status}", now_s)

    def _start_later(self, worker: _Worker, why: str, now_s: float) -> None:
        worker.due_s = now_s + worker.wait_s
        _log.warning("worker %s has ended (%s); restarting it in %.1f s", worker.name, why, worker.wait_s)
        worker.wait_s = min(2 * worker.wait_s, _BACK_OFF_S[1])

    def _start(self, worker: _Worker, number: int) -> subprocess.Popen[bytes]:
        # In a session of its own, so that Ctrl-C reaches only the supervisor, which then stops the workers.
        command, more = self._command(worker.name, number)
        environment = {**os.environ, **more, PARENT: str(os.getpid()), RUN: worker.run}
        return subprocess.Popen(command, env=environment, start_new_session=True)  # noqa: S603 - a joiner

    def _say(self) -> None:
        running = sum(one.process is not None and one.process.poll() is None for one in self._workers)
        now_s = self._clock.monotonic_s()
        if self._said != (running, self._wanted) or now_s - self._said_s >= _REPORT_S:
            self._said, self._said_s = (running, self._wanted), now_s
            self._report(running, self._wanted)

    def _end(self, workers: Sequence[_Worker]) -> None:
        running = [(one, one.process) for one in workers if one.process is not None]
        for _, process in running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        until_s = self._clock.monotonic_s() + _STOP_S
        for worker, process in running:
            try:
                process.wait(max(0.1, until_s - self._clock.monotonic_s()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._report_end(worker.name, worker.run)


def is_worker() -> bool:
    """Return whether this process was started by a supervisor."""
    return PARENT in os.environ


def run_of_this_process() -> str:
    """Return the id of this process's run: the one chosen by its supervisor, or a new one."""
    return os.environ.get(RUN) or uuid.uuid4().hex


def stop_with_supervisor(stop: Callable[[], None]) -> None:
    """If this process is a worker, call ``stop`` once its supervisor has ended."""
    supervisor = os.environ.get(PARENT)
    if supervisor is None or not supervisor.isdecimal():
        return

    def watch() -> None:
        while os.getppid() == int(supervisor):
            threading.Event().wait(_LOOK_S)
        _log.warning("the supervisor has ended: stopping")
        stop()

    threading.Thread(target=watch, name="supervisor", daemon=True).start()
