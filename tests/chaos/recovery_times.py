"""Measures how long units produce no output after their joiner is killed, with a restart and with a takeover.

``python -m tests.chaos.recovery_times --kills 20 --report docs/evidence/recovery_times``. Two joiners share the units
while data flows. A unit's time runs from SIGKILL until a read-committed consumer sees the first results that the unit's
next run has committed. The time of a kill is that of its slowest unit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from confluent_kafka import TopicPartition

from bench.harness.report import json_text
from broker.settings import load_settings
from joiner.runtime.kafka.clients import make_reader
from joiner.runtime.model import Checkpoint, decode_checkpoint
from joiner.runtime.settings import JoinerSettings
from simulator.generate import Plan, write
from tests.chaos.pipeline import PARTITIONS, ChaosPipeline, chaos_stack
from tests.chaos.report import versions_of
from tests.chaos.settling import Settling
from tests.integration.services import DEADLINE_S

_EVENTS_PER_S: Final = 100
_CALM_S: Final = 3.0
"""The pause between two kills, so that every kill hits the same state."""


class Watch:
    """Reads the checkpoints of all units as they are committed."""

    def __init__(self, settings: JoinerSettings) -> None:
        self.newest: dict[int, Checkpoint] = {}
        self._consumer = make_reader(settings.kafka, "recovery-times")
        self._consumer.assign([TopicPartition(settings.state_topic, unit, 0) for unit in range(PARTITIONS)])

    def look(self) -> None:
        """Read new checkpoints, waiting briefly for them."""
        for message in self._consumer.consume(500, 0.02):
            if message.error() is None and (message.key() or b"").endswith(b"/progress"):
                checkpoint = decode_checkpoint(message.value() or b"")
                self.newest[checkpoint.unit] = checkpoint

    def look_for(self, seconds: float) -> None:
        """Read for ``seconds``."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self.look()

    def close(self) -> None:
        """Close the client."""
        self._consumer.close()


def measure(pipeline: ChaosPipeline, watch: Watch, victim: str, *, restart: bool) -> float | None:
    """Return the seconds from a kill until all units of the victim have output again, or None if it had no unit."""
    before = {unit: one for unit, one in watch.newest.items() if one.instance == victim}
    if not before:
        return None
    began_s = time.monotonic()
    pipeline.kill(victim)
    if restart:
        pipeline.start(victim)
    waiting = set(before)
    while waiting:
        watch.look()
        waiting -= {unit for unit in waiting if _gives_output(watch.newest[unit], before[unit])}
        assert time.monotonic() - began_s < DEADLINE_S, f"units {waiting} produced no output"
    took_s = time.monotonic() - began_s
    if not restart:
        pipeline.start(victim)
    return took_s


def _gives_output(now: Checkpoint, before: Checkpoint) -> bool:
    return now.run != before.run and now.counts.get("pairs", 0) > before.counts.get("pairs", 0)


def main() -> int:
    """Measure and write the report."""
    options = _options()
    took: dict[str, list[float]] = {"restart": [], "taken over": []}
    with tempfile.TemporaryDirectory(prefix="lsb-times-") as name, chaos_stack() as servers:
        folder = Path(name)
        events = folder / "events.json"
        write(Plan(events=_EVENTS_PER_S * 60 * options.kills, seed=1, machines=7), events)
        pipeline = ChaosPipeline(servers, folder, events, _EVENTS_PER_S)
        Settling(pipeline).create_topics()
        with closing(pipeline), closing(Watch(load_settings(JoinerSettings, pipeline.config))) as watch:
            for service in ("connector", "one", "two", "simulator"):
                pipeline.start(service)
            watch.look_for(15)
            for kind, is_restart in (("restart", True), ("taken over", False)):
                for turn in range(options.kills):
                    took_s = measure(pipeline, watch, ("one", "two")[turn % 2], restart=is_restart)
                    took[kind] += [took_s] if took_s is not None else []
                    watch.look_for(_CALM_S if is_restart else 3 * _CALM_S)
        versions = versions_of()
    _write(options.report, took, versions)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of each kind (default 20)")
    parser.add_argument("--report", type=Path, default=Path("recovery_times"), help="path of .json and .md")
    return parser.parse_args()


def _write(path: Path, took: dict[str, list[float]], versions: dict[str, Any]) -> None:
    path.with_suffix(".json").write_text(json_text({"versions": versions, "seconds": took}) + "\n")
    lines = ["# From the kill of a joiner to the next results of its units", ""]
    lines += [f"- {name}: {value}" for name, value in versions.items()]
    lines += ["", "| after the kill | kills | min s | median s | max s |", "|---|---|---|---|---|"]
    for kind, times in took.items():
        row = [f"{value:.2f}" for value in (min(times), statistics.median(times), max(times))]
        lines.append(f"| {kind} | {len(times)} | " + " | ".join(row) + " |")
    text = "\n".join([*lines, ""])
    path.with_suffix(".md").write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    sys.exit(main())
