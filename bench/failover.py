"""Measures how long units pause while instances are killed, leave, join and are drained under load.

``python -m bench.failover --report docs/evidence/bench_failover`` writes ``.json`` and ``.md``. Two instances share the
units while records arrive at a steady rate. The pause of a unit is the longest time around an event in which no result
was appended to its partition, by the broker's clock. The pause of an event is that of its slowest unit, among those
that changed their owner.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from confluent_kafka import KafkaException

from bench.harness.pipeline import PARTITIONS, Application, about, make_topic, own_kafka
from bench.harness.report import table, write
from bench.moving import start_sender
from broker.settings import KafkaSettings
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.clients import log_range, make_reader, read_to_end
from joiner.runtime.membership.observer import read_sites
from joiner.runtime.membership.state import SiteState
from joiner.runtime.model import decode_checkpoint

NAMES: Final = ("one", "two")
KINDS: Final = ("killed", "joins", "leaves", "drained", "undrained")

_CALM_S: Final = 2.0
_BEFORE_MS: Final = 200
_LOOK_S: Final = 0.1
_DEADLINE_S: Final = 60.0


class Event(NamedTuple):
    """What happened to the instance ``name``, and the wall-clock times between which its effects are looked for."""

    kind: str
    name: str
    at_ms: int
    until_ms: int


class Bench:
    """Two instances under load, and what happens to them."""

    def __init__(self, kafka: KafkaSettings, folder: Path, standbys: int) -> None:
        name = f"failover-{uuid.uuid4().hex[:8]}"
        self.application = Application(kafka, folder, name, PARTITIONS, data=f"{name}.data")
        os.environ["LSB_APPLICATION__STANDBYS"] = str(standbys)
        self.standbys = standbys
        make_topic(kafka, self.application.data, PARTITIONS)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.events: list[Event] = []

    def happens(self, kind: str, name: str, act: Callable[[], None], wanted: int) -> None:
        """Let something happen, and wait until ``wanted`` instances have shares of the units and are warm."""
        at_ms = round(1000 * time.time())
        act()
        self.settle(wanted)
        time.sleep(_CALM_S)
        self.events.append(Event(kind, name, at_ms, round(1000 * time.time())))
        print(f"{name} {kind}: settled after {self.events[-1].until_ms - at_ms - 1000 * _CALM_S:.0f} ms", flush=True)

    def play(self, name: str) -> None:
        """Let each kind of event happen to an instance."""
        self.happens("killed", name, lambda: self.stop(name, kill=True), 1)
        self.happens("joins", name, lambda: self.start(name), 2)
        self.happens("leaves", name, lambda: self.stop(name, kill=False), 1)
        self.happens("joins", name, lambda: self.start(name), 2)
        self.happens("drained", name, lambda: self.drain(name), 1)
        self.happens("undrained", name, lambda: self.drain(name, "--undo"), 2)

    def start(self, name: str) -> None:
        """Start an instance."""
        self.running[name] = self.application.start(instance=name)

    def stop(self, name: str, *, kill: bool) -> None:
        """Kill an instance, or let it end."""
        process = self.running.pop(name)
        (process.kill if kill else process.terminate)()
        process.wait(_DEADLINE_S)

    def drain(self, name: str, *more: str) -> None:
        """Drain an instance, or end that."""
        command = [sys.executable, "-m", "joiner", "drain", name, *more, "--config", str(self.application.config)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - the joiner

    def settle(self, wanted: int) -> None:
        """Wait until the units are served as they are assigned, and the standbys are warm."""
        deadline_s = time.monotonic() + _DEADLINE_S
        while not self._is_settled(wanted):
            if time.monotonic() > deadline_s or any(one.poll() is not None for one in self.running.values()):
                raise RuntimeError("the instances do not share the units")
            time.sleep(_LOOK_S)

    def _is_settled(self, wanted: int) -> bool:
        try:
            state = read_sites(self.application.settings, SystemClock()).get("process")
        except KafkaException:
            return False  # the control topic is being created
        return state is not None and is_settled(state, wanted, min(self.standbys, wanted - 1))


def is_settled(state: SiteState, wanted: int, standbys: int) -> bool:
    """Return whether ``wanted`` instances serve the units as assigned, with warm standbys."""
    able = {name: beat for name, beat in state.live.items() if name not in state.drained}
    shares = [len(beat.serves) for beat in able.values()]
    return (
        len(able) == wanted
        and len(state.units) == PARTITIONS
        and max(shares) - min(shares) <= 1
        and all(one.owner in able and unit in able[one.owner].serves for unit, one in enumerate(state.units))
        and all(
            len(one.standbys) == standbys and all(name in able and unit in able[name].warm for name in one.standbys)
            for unit, one in enumerate(state.units)
        )
    )


def measure(
    kafka: KafkaSettings, folder: Path, rate: int, count: int, standbys: int
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Let each kind of event happen ``count`` times. Return a row per event and unit, and the counts of the tester."""
    bench = Bench(kafka, folder, standbys)
    sender = start_sender(kafka, bench.application.data, rate)
    try:
        for name in NAMES:
            bench.start(name)
        bench.settle(2)
        time.sleep(5 * _CALM_S)
        for turn in range(count):
            bench.play(NAMES[turn % 2])
        sender.terminate()
        sender.wait()
        bench.application.wait_until_through([*bench.running.values()])
    finally:
        for process in [sender, *bench.running.values()]:
            process.kill()
            process.wait()
    return pauses(bench), bench.application.verify()


def pauses(bench: Bench) -> list[dict[str, Any]]:
    """Return a row per event and unit: its pause in ms, and whether it changed its owner."""
    settings = bench.application.settings
    rows: list[dict[str, Any]] = []
    for unit in range(PARTITIONS):
        with closing(make_reader(settings.kafka, "bench")) as reader:
            times_ms = np.array([one.timestamp()[1] for one in _all(reader, settings.topics.out, unit)])
            commits = [
                (int(one.timestamp()[1]), decode_checkpoint(one.value() or b"").instance)
                for one in _all(reader, settings.state_topic, unit)
                if (one.key() or b"").endswith(b"/progress")
            ]
        for number, event in enumerate(bench.events):
            near = times_ms[(times_ms >= event.at_ms - _BEFORE_MS) & (times_ms <= event.until_ms)]
            owners = [name for at_ms, name in commits if event.at_ms - _BEFORE_MS <= at_ms <= event.until_ms]
            has_changed = any(before != after for before, after in pairwise(owners))
            row = {"event": number, "kind": event.kind, "instance": event.name, "unit": unit}
            rows.append(row | {"has_changed": has_changed, "pause_ms": int(np.diff(near).max())})
    return rows


def _all(reader: Any, topic: str, unit: int) -> Any:
    low, high = log_range(reader, topic, unit)
    return read_to_end(reader, SystemClock(), topic, unit, low, high)


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=5_000, help="records a second (default 5000)")
    parser.add_argument("--events", type=int, default=50, help="of each kind (default 50)")
    parser.add_argument("--standbys", type=int, default=1, help="of each unit (default 1)")
    parser.add_argument("--report", type=Path, default=Path(".lsb/bench_failover"), help="path of .json and .md")
    options = parser.parse_args()
    with own_kafka() as (kafka, folder):
        rows, verdict = measure(kafka, folder, options.rate, options.events, options.standbys)
    ran = about() | {"results, as the tester finds them": ", ".join(f"{what} {n:,}" for what, n in verdict.items())}
    ran |= {"records/s": options.rate, "units": PARTITIONS, "standbys": options.standbys}
    write(options.report, "The pauses of units when instances come and go", ran, rows, _lines(rows))
    print("\n".join(_lines(rows)))
    return 0


def _lines(rows: list[dict[str, Any]]) -> list[str]:
    found = []
    for kind in KINDS:
        changed: dict[int, int] = {}
        for row in rows:
            if row["kind"] == kind and row["has_changed"]:
                changed[row["event"]] = max(changed.get(row["event"], 0), row["pause_ms"])
        others = [row["pause_ms"] for row in rows if row["kind"] == kind and not row["has_changed"]]
        found.append((kind, len(changed), *_spread([*changed.values()]), *_spread(others)))
    heads = ["instance", "events", "p50 ms", "p99", "max", "units that stay: p50 ms", "p99", "max"]
    text = "The longest pause of a unit that changes its owner, by event, and the pauses of the units that do not:"
    return [text, *table(heads, found)]


def _spread(values: list[int]) -> tuple[str, str, str]:
    if not values:
        return "-", "-", "-"
    return tuple(f"{value:.0f}" for value in (*np.percentile(values, [50, 99]), max(values)))  # type: ignore[return-value]


if __name__ == "__main__":
    sys.exit(main())
