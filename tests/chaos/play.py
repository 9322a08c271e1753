"""Runs a schedule of faults against a pipeline while data flows, then heals it, waits until it is idle and verifies it.

Services that have exited are restarted, as a supervisor would do in production. A service may exit when the schedule
kills it, signals it or limits its memory. Any other exit is a failure, unless the service is the simulator.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.chaos.pipeline import ChaosPipeline
from tests.chaos.schedule import Act
from tests.chaos.server_faults import ServerFaults
from tests.chaos.settling import Settling
from tests.integration.services import DEADLINE_S, ROOT, wait_until

_ARMED_S: Final = 25.0
"""How long to wait for a service to die at its point. If it has not reached the point by then, it is killed."""

_STARVING_BYTES: Final = 4 * 1024 * 1024
_REST_RATE: Final = 3_000
"""The rate at which the remaining events are sent after the last act, in events per second."""


@dataclass
class Played:
    """The outcome of a run: its timeline, the number of kills and other faults, and the failures."""

    timeline: list[dict[str, Any]] = field(default_factory=list)
    kills: int = 0
    others: int = 0
    failures: list[str] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)
    """The tester's report."""


class Play:
    """Runs the acts of one schedule against a pipeline."""

    def __init__(self, pipeline: ChaosPipeline, acts: list[Act]) -> None:
        self.played = Played()
        self._pipeline = pipeline
        self._acts = acts
        self._began_s = time.monotonic()
        self._away: set[str] = {"three"}
        self._dispensable: frozenset[str] = frozenset({"three"})
        """The services that need not run while the pipeline settles."""
        self._armed: dict[str, tuple[str, float]] = {}
        self._starving: set[str] = set()
        self._stopped: set[str] = set()
        self._replayed = False
        self._server_faults = ServerFaults(pipeline)

    def run(self) -> Played:
        """Start everything, run the acts, heal, wait until everything is processed, stop and verify."""
        self._start_all()
        steps = sorted(
            [(act.at_s, 0, n, act) for n, act in enumerate(self._acts)]
            + [(act.until_s, 1, n, act) for n, act in enumerate(self._acts)]
        )
        self._began_s = time.monotonic()
        for at_s, is_end, _, act in steps:
            if not is_end or act.until_s < 1e6:
                wait_until(lambda at_s=at_s: self._is_due(at_s), f"the moment {at_s}", at_s + 600)  # type: ignore[misc]
                self._end(act) if is_end else self._begin(act)
        wait_until(self._all_died, "every armed service has died", 2 * _ARMED_S)
        self._finish()
        return self.played

    def close(self) -> None:
        """Stop the threads of the server faults."""
        self._server_faults.close()

    def _start_all(self) -> None:
        Settling(self._pipeline).create_topics()
        for name in self._pipeline.services:
            if name != "simulator" and name not in self._away:
                self._pipeline.start(name)
        for name, words in self._signs_of_life():
            service = self._pipeline.services[name]
            wait_until(lambda service=service, words=words: words in service.text(), f"{name} is up")  # type: ignore[misc]
        self._pipeline.start("simulator")

    def _signs_of_life(self) -> list[tuple[str, str]]:
        """Return services, and what each logs once it takes part. The simulator is started when all have."""
        return [("connector", "connected to MQTT"), ("one", ": claimed"), ("db_connector", ": partitions ")]

    def _is_due(self, at_s: float) -> bool:
        self._supervise()
        return time.monotonic() - self._began_s >= at_s

    # Acts

    def _begin(self, act: Act) -> None:
        if act.target in self._armed:
            self._kill(act.target, "its point was not reached")
        self._note(act.fault, act.target, act.point and f"{act.point}:{act.count}")
        if act.fault == "join":
            self._away.discard(act.target)
            self._pipeline.start(act.target)
            return
        self.played.kills += act.fault in {"kill", "die"}
        self.played.others += act.fault not in {"kill", "die"}
        if not self._server_faults.begin(act):
            self._begin_on_service(act)

    def _end(self, act: Act) -> None:
        if not self._server_faults.end(act):
            self._end_on_service(act)
        if act.lasting_s:
            self._note(f"end of {act.fault}", act.target)

    def _begin_on_service(self, act: Act) -> None:
        pipeline, name = self._pipeline, act.target
        if act.fault == "freeze":
            if pipeline.services[name].pid is not None:
                pipeline.signal(name, signal.SIGSTOP)
        elif act.fault == "starve":
            self._starving.add(name)
            pipeline.starve(name, _STARVING_BYTES)
        elif act.fault == "stop":
            self._away.add(name)
            self._stop(name)
        elif act.fault == "kill":
            self._away.add(name)
            pipeline.kill(name)
        elif act.fault == "die":
            pipeline.kill(name)
            if name != "simulator" or not self._replayed:
                pipeline.start(name, f"{act.point}:{act.count}")
                self._armed[name] = (act.point, time.monotonic() + _ARMED_S)

    def _end_on_service(self, act: Act) -> None:
        if act.fault == "freeze":
            self._pipeline.signal(act.target, signal.SIGCONT)
        elif act.fault == "starve" and act.target in self._starving:
            self._kill(act.target, "starved and still running")
        elif act.fault in {"kill", "stop"}:
            self._away.discard(act.target)

    # Supervision

    def _supervise(self) -> None:
        for name, service in self._pipeline.services.items():
            armed = self._armed.get(name)
            if armed is not None and service.pid is not None and time.monotonic() > armed[1]:
                self._kill(name, f"{armed[0]} was not reached")
            if service.process is None or service.pid is not None or name in self._away:
                continue
            if name == "simulator" and self._has_replayed(service.process.returncode):
                continue
            self._judge(name, service.process.returncode, armed)
            self._armed.pop(name, None)
            self._starving.discard(name)
            self._stopped.discard(name)
            self._pipeline.start(name)

    def _has_replayed(self, status: int) -> bool:
        """Return whether the simulator has sent everything, given its exit status. Status 0 may also follow SIGTERM."""
        self._replayed = self._replayed or (status == 0 and "simulator" not in self._stopped)
        return self._replayed

    def _judge(self, name: str, status: int, armed: tuple[str, float] | None) -> None:
        """Record that a service has exited. If the schedule does not account for it, record a failure."""
        if armed is not None and status == -signal.SIGKILL:
            self.played.kills += 1
            self._note("died", name, armed[0])
            return
        if status == -signal.SIGKILL or name in self._stopped:
            return
        end = self._pipeline.services[name].text()[-2000:]
        self._note("ended by itself", name, f"status {status}")
        if name not in self._starving and name != "simulator":
            self.played.failures.append(f"{name} ended by itself with {status}:\n{end}")

    def _kill(self, name: str, why: str) -> None:
        self._note("kill", name, why)
        self.played.kills += 1
        self._armed.pop(name, None)
        self._starving.discard(name)
        self._pipeline.kill(name)

    def _stop(self, name: str) -> None:
        """Stop a service with SIGTERM. It is a failure if the service does not exit, or exits with an error.

        How long a stop may take is checked by tests of the services.
        """
        process = self._pipeline.services[name].process
        if process is None or process.poll() is not None:
            return
        self._stopped.add(name)
        process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.played.failures.append(f"{name} did not end within {DEADLINE_S:g} s of SIGTERM")
            self._pipeline.kill(name)
            return
        # The simulator exits with 1 if it has not sent everything. A process that is still importing modules is killed
        # by the signal.
        if status not in ({0, 1, -signal.SIGTERM} if name == "simulator" else {0, -signal.SIGTERM}):
            self.played.failures.append(f"{name} ended with {status} after SIGTERM")

    def _all_died(self) -> bool:
        self._supervise()
        return not self._armed

    def _note(self, what: str, target: str, detail: str = "") -> None:
        moment_s = round(time.monotonic() - self._began_s, 2)
        self.played.timeline.append({"s": moment_s, "what": what, "target": target, "detail": detail})

    # The end

    def _finish(self) -> None:
        self._server_faults.wait()
        self._away = set(self._dispensable)
        if not self._replayed:
            # Send the remaining events quickly.
            self._stop("simulator")
            self._pipeline.rate = _REST_RATE
            self._stopped.discard("simulator")
            self._pipeline.start("simulator")
        settling = Settling(self._pipeline)
        try:
            settling.wait(self._supervise_to_the_end)
        finally:
            settling.close()
        self._note("everything is processed", "pipeline")
        for name in self._pipeline.services:
            self._stop(name)
        self.played.report = verify(self._pipeline)

    def _supervise_to_the_end(self) -> bool:
        self._supervise()
        return self._replayed


def verify(pipeline: ChaosPipeline, *, has_all_events: bool = True) -> dict[str, Any]:
    """Return the tester's report on everything from the events file to the database, with the totals of all reports.

    There is one report for each application, or one for the union of its replicas and one for each of them. The first
    one covers the events if the application reads the connector's records, and the points if the database has the
    application's results. ``has_all_events``: whether the simulator sent the whole file. If not, the reports begin with
    the records in Kafka.
    """
    reports = []
    for application in pipeline.applications:
        config = pipeline.configs[application.name]
        covered = [f"--events={pipeline.events}"] if has_all_events and config == pipeline.config else []
        covered += ["--influx"] if config == pipeline.last_config else []
        if application.mergers:
            reports.append(_report(pipeline, config, "--merged", *covered))
            reports += [_report(pipeline, config, f"--replica={at}") for at in range(len(application.replicas))]
        else:
            reports.append(_report(pipeline, config, *covered))
    total = {name: sum(report["total"][name] for report in reports) for name in reports[0]["total"]}
    compared = [tally for report in reports for tally in report["compared"]]
    is_right = all(report["is_right"] for report in reports)
    return {**reports[0], "total": total, "compared": compared, "is_right": is_right, "reports": reports}


def _report(pipeline: ChaosPipeline, config: Path, *arguments: str) -> dict[str, Any]:
    """Return a report of the tester, and whether it found no difference."""
    report = config.with_suffix(".json")
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "joiner.tester", "verify", f"--config={config}", f"--json={report}", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    with (pipeline.folder / "verified.txt").open("a") as text:
        text.write(done.stdout + done.stderr)
    assert report.exists(), done.stdout + done.stderr
    return {**json.loads(report.read_text()), "is_right": done.returncode == 0}
