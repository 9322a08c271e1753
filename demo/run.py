"""Runs the demo: start, replay, move the join, wait until everything has arrived, verify, show, stop.

events file -> simulator -> MQTT -> connector -> Kafka -> joiner -> Kafka -> db_connector -> InfluxDB
                                                              `--------- tester.py verify ---------'

By default, the joiner starts as a process. Midway through the replay, its units move to a Spark stage, which joins the
rest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient

from broker.kafka.client_log import client_logger
from broker.kafka.topics import data_topic_specs, ensure_topics, state_topic_spec
from broker.stack import LocalStack
from broker.stack.parts import parts_folder
from demo import latency, page
from demo.aligned import row_and_point
from demo.flow import Flow, parts_in
from demo.services import ServiceFailed, Services
from demo.task import Pipeline, Task, load_pipeline
from joiner.runtime.settings import PROCESS, SPARK, JoinerSettings
from simulator.generate import write
from simulator.settings import NO_EVENTS

_COMMANDS: Final = {PROCESS: "run", SPARK: "spark"}
"""The joiner's command for each site."""

_TARGET: Final = "joiner-target"


class Demo:
    """One run of the whole pipeline, from starting the servers to the verdict."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._folder = task.folder
        self._published = self._folder / "published.tsv"
        self._acknowledged = self._folder / "acknowledged.tsv"
        self._report = self._folder / "verified.json"
        self._moved: str | None = None

    def run(self) -> bool:
        """Run the demo. Return whether every expected result exists exactly once, and no service had to be killed."""
        began_s = time.monotonic()
        for file in (self._published, self._acknowledged, self._report):
            file.unlink(missing_ok=True)
        lines, parts = self._prepare_events()
        _say("Servers (the first run downloads them, which takes a few minutes)")
        stack = LocalStack(self._folder, parts=parts_folder(Path(".lsb")), say=lambda line: print(line, flush=True))
        stack.down()
        stack.wipe()
        try:
            stack.up()
            # The simulator and `load_pipeline` also read these variables, and they use this process's environment.
            os.environ.update(stack.environment())
            services = Services(self._folder / "services", stack.environment())
            try:
                right = self._replay_and_verify(services, lines, parts)
                if self._task.ui:
                    page.keep_open(services)
            finally:
                _say("Stop")
                killed = services.stop()
                print("services stopped" if not killed else f"killed, because they did not stop: {', '.join(killed)}")
        finally:
            stack.down()
        print(f"\nlogs and data: {self._folder}   took {time.monotonic() - began_s:.0f} s")
        good = right and not killed
        print(
            "\nPASSED: every expected result is in Kafka and in InfluxDB exactly once."
            if good
            else "\nFAILED: see above."
        )
        return good

    def _prepare_events(self) -> tuple[int, int]:
        """Generate the events file, unless the user has given a recording.

        Return the number of lines in the file, and the number of records and dead letters they become in total.
        """
        events, plan = self._task.events, self._task.plan
        if plan is not None:
            _say(f"Events: {plan.events:,} generated with seed {plan.seed}")
            write(plan, events)
            print(events)
        return parts_in(events, load_pipeline().connector.events)

    def _replay_and_verify(self, services: Services, lines: int, parts: int) -> bool:
        pipeline = load_pipeline()
        self._start(services, pipeline)
        _say(f"Replay of {lines:,} events")
        began_s = time.monotonic()
        flow = Flow(pipeline)
        try:
            self._replay(flow, parts, services)
            flow.wait_in_kafka(parts, services)
            flow.wait_joined(services)
            flow.wait_in_database(services)
        finally:
            flow.close()
        took_s = time.monotonic() - began_s
        print(f"everything arrived after {took_s:.1f} s")
        _say("Verify: recompute every result independently, and compare with Kafka and InfluxDB")
        right = self._verify()
        if right and (lines_of_row := row_and_point(pipeline)):
            _say("An aligned row: the record in Kafka, and its point in InfluxDB")
            print(*lines_of_row, sep="\n")
        self._show(pipeline.joiner, lines, took_s)
        return right

    def _start(self, services: Services, pipeline: Pipeline) -> None:
        settings = pipeline.joiner
        specs = [*data_topic_specs(settings.topics), state_topic_spec(settings.application.name, settings.topics)]
        ensure_topics(AdminClient(settings.kafka.client_config(), logger=client_logger("demo.librdkafka")), specs)
        _say("Services")
        services.start("connector", "connector")
        services.start("joiner", "joiner", _COMMANDS[self._task.runner])
        services.start("db_connector", "db_connector", "--journal", str(self._acknowledged))
        services.wait_for("connector", "connected to MQTT")
        services.wait_for("joiner", ": claimed")
        services.wait_for("db_connector", f"{settings.topics.out}: partitions ")
        print(f"connector, joiner ({self._task.runner}), db_connector are up")
        if self._task.moves_to is not None:
            services.start(_TARGET, "joiner", _COMMANDS[self._task.moves_to], "--standby", "--instance", _TARGET)
            services.wait_for(_TARGET, "waiting until it is moved here")
            print(f"a second joiner ({self._task.moves_to}) is on standby: the join will move to it")
        if self._task.ui:
            page.open_page(services)

    def _replay(self, flow: Flow, parts: int, services: Services) -> None:
        command = [sys.executable, "-m", "simulator", *self._task.replay, f"--journal={self._published}"]
        replay = subprocess.Popen(command)
        try:
            if self._task.moves_to is not None:
                # The command takes a few seconds. If it starts a third of the way through the replay, it moves the join
                # around the middle.
                flow.wait_in_kafka(parts // 3, services)
                self._moved = self.move(self._task.moves_to)
            # `NO_EVENTS` means that some lines are not events. This is not a failure; the verification checks them.
            failed = replay.wait() not in {0, NO_EVENTS}
        finally:
            replay.kill()
        if failed:
            raise ServiceFailed("the simulator did not publish every event; see above")

    def move(self, site: str) -> str:
        """Move the running join with ``joiner move``, print its output, and return its verdict.

        Raises `ServiceFailed` if the join did not move.
        """
        _say(f"Moving the running join from {self._task.runner} to {site}")
        command = [sys.executable, "-m", "joiner", "move", "--to", site]
        verdict = ""
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as moving:
            try:
                for line in moving.stdout or ():
                    print(line, end="", flush=True)
                    verdict = line.strip()
            except BaseException:
                moving.kill()
                raise
        if moving.returncode:
            raise ServiceFailed("the join did not move; see above")
        return verdict.removeprefix("MOVED: ")

    def _verify(self) -> bool:
        command = [sys.executable, "-m", "joiner.tester", "verify", "--influx"]
        command += [f"--events={self._task.events}", f"--json={self._report}"]
        return subprocess.run(command, check=False).returncode == 0

    def _show(self, settings: JoinerSettings, lines: int, took_s: float) -> None:
        if not self._report.exists():
            return
        found: dict[str, Any] = json.loads(self._report.read_text())
        waits = latency.measure(settings, self._published, self._acknowledged)
        records = found["counts"].get("input records", 0)
        rows = [
            ("events replayed", f"{lines:,}"),
            ("records in", f"{records:,}"),
            ("pairs out", f"{_found(found, 'results'):,}"),
            ("aligned rows", f"{_found(found, 'aligned rows'):,}"),
            ("late", f"{_found(found, 'late records'):,}"),
            ("duplicates", f"{sum(side['duplicate'] for side in found['sides']):,}"),
            ("rejected", f"{_found(found, 'rejected records') + _found(found, 'rows that are not events'):,}"),
            ("missing", f"{found['total']['missing']:,}"),
            ("doubled", f"{found['total']['doubled']:,}"),
            ("points in InfluxDB", f"{_found(found, 'points'):,}"),
            ("records/s, end to end", f"{records / took_s:,.0f}  (replay at {self._task.rate} events/s)"),
        ]
        if self._moved is not None:
            rows.append(("move to Spark" if self._task.moves_to == SPARK else "move to a process", self._moved))
        if waits is not None:
            rows.append(
                ("latency p50 / p99", f"{waits.p50_ms:,.0f} / {waits.p99_ms:,.0f} ms from MQTT publish to database")
            )
        _say("Summary")
        for name, value in rows:
            print(f"  {name:24}{value}")


def _found(report: dict[str, Any], what: str) -> int:
    return sum(row["found"] for row in report["compared"] if what in row["what"])


def _say(what: str) -> None:
    print(f"\n== {what}", flush=True)
