"""The demo: start, replay, wait until all is through, verify, show, stop.

events file -> simulator -> MQTT -> connector -> Kafka -> joiner -> Kafka -> db_connector -> InfluxDB
                                                              `--------- tester.py verify ---------'
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient

from broker.settings import load_settings
from broker.stack import LocalStack
from broker.stack.parts import parts_folder
from broker.topics import data_topic_specs, ensure_topics, state_topic_spec
from demo import latency
from demo.flow import Flow, parts_in
from demo.services import ServiceFailed, Services
from joiner.run.settings import JoinerSettings
from simulator.generate import Plan, write

_log = logging.getLogger(__name__)

_DATABASE_GROUP = "db_connector"


class Demo:
    """One run of the pipeline."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._folder: Path = options.folder
        self._published = self._folder / "published.tsv"
        self._acknowledged = self._folder / "acknowledged.tsv"
        self._report = self._folder / "verified.json"

    def run(self) -> bool:
        """Whether everything that was expected is there, once."""
        began_s = time.monotonic()
        self._folder.mkdir(parents=True, exist_ok=True)
        for file in (self._published, self._acknowledged, self._report):
            file.unlink(missing_ok=True)
        _say("Servers (the first run fetches them, which takes some minutes)")
        stack = LocalStack(self._folder, parts=parts_folder(Path(".lsb")), say=lambda line: print(line, flush=True))
        stack.down()
        stack.wipe()
        try:
            stack.up()
            # The simulator and load_settings read the same variables as the services.
            os.environ.update(stack.environment())
            services = Services(self._folder / "services", stack.environment())
            try:
                right = self._replay_and_verify(services)
            finally:
                _say("Stop")
                killed = services.stop()
                print("services stopped" if not killed else f"had to be killed: {', '.join(killed)}")
        finally:
            stack.down()
        print(f"\nlogs and data: {self._folder}   took {time.monotonic() - began_s:.0f} s")
        good = right and not killed
        print(
            "\nPASSED: every expected result is there, once, in Kafka and in InfluxDB."
            if good
            else "\nFAILED: see above."
        )
        return good

    def _replay_and_verify(self, services: Services) -> bool:
        settings = load_settings(JoinerSettings)
        specs = [*data_topic_specs(settings.topics), state_topic_spec(settings.application.name, settings.topics)]
        ensure_topics(AdminClient(settings.kafka.client_config(), logger=_log), specs)
        events = self._events()
        _say("Services")
        services.start("connector", "connector")
        services.start("joiner", "joiner", "run")
        services.start("db_connector", "db_connector", "--journal", str(self._acknowledged))
        services.wait_for("connector", "connected to MQTT")
        services.wait_for("joiner", "taken")
        print("connector, joiner, db_connector are up")
        lines, parts = parts_in(events)
        _say(f"Replay of {lines:,} events")
        began_s = time.monotonic()
        self._replay(events)
        flow = Flow(settings, _DATABASE_GROUP)
        try:
            flow.wait_in_kafka(parts, services)
            flow.wait_joined(services)
            flow.wait_in_database(services)
        finally:
            flow.close()
        took_s = time.monotonic() - began_s
        print(f"all is through after {took_s:.1f} s")
        _say("Verify: recompute everything independently, compare Kafka and InfluxDB")
        right = self._verify(events)
        self._show(settings, lines, took_s)
        return right

    def _events(self) -> Path:
        given: Path | None = self._options.events
        if given is not None:
            return given
        path = self._folder / "events.json"
        count, seed = self._options.events_count, self._options.seed
        _say(f"Events: {count:,} generated with seed {seed}")
        write(Plan(events=count, seed=seed, machines=7, disorder=0.02, repeats=0.005, equal=0.005), path)
        print(path)
        return path

    def _replay(self, events: Path) -> None:
        command = [sys.executable, "-m", "simulator", "--events", str(events), "--rate", str(self._options.rate)]
        command += ["--journal", str(self._published)]
        if self._options.as_recorded:
            command.append("--as-recorded")
        if subprocess.run(command, check=False).returncode:
            raise ServiceFailed("the simulator did not get everything through; see above")

    def _verify(self, events: Path) -> bool:
        command = [sys.executable, "-m", "joiner.tester", "verify", "--influx"]
        command += ["--events", str(events), "--json", str(self._report)]
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
            ("late", f"{_found(found, 'late records'):,}"),
            ("duplicates", f"{sum(side['duplicate'] for side in found['sides']):,}"),
            ("rejected", f"{_found(found, 'rejected records') + _found(found, 'rows that are no event'):,}"),
            ("missing", f"{found['total']['missing']:,}"),
            ("doubled", f"{found['total']['doubled']:,}"),
            ("points in InfluxDB", f"{_found(found, 'points'):,}"),
            ("records/s, end to end", f"{records / took_s:,.0f}  (replay at {self._options.rate} events/s)"),
        ]
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
