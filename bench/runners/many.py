"""Measures how fast many instances agree on who serves many units, and how much they write to the control topic.

``python -m bench.runners.many --report docs/evidence/bench_many_instances`` writes ``.json`` and ``.md``. Instances are
started, killed, stopped and restarted while records arrive. An assignment is settled when every unit is served by the
instance it is assigned to, and all instances have the same number of units.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.harness.pipeline import (
    FIRST_MS,
    Application,
    about,
    make_sender,
    make_topic,
    own_kafka,
    send,
    things_over_all_units,
)
from bench.harness.report import spread, table, write
from bench.runners.site_watch import SiteWatch, is_settled
from broker.settings import KafkaSettings
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.clients import log_range, make_reader, read_to_end

UNITS: Final = 64
INSTANCES: Final = 16
_COMMIT_INTERVAL: Final = "1s"
"""With a shorter interval, this many units on two cores would do nothing but commit."""
_CALM_S: Final = 3.0
_QUIET_S: Final = 20.0
_LOOK_S: Final = 0.02
_DEADLINE_S: Final = 300.0
_TICK_S: Final = 0.05


class Written(NamedTuple):
    """How much was written to the control topic during a period without events."""

    messages_per_s: float
    bytes_per_s: float


class Instances:
    """Instances that share the units of an application."""

    def __init__(self, application: Application) -> None:
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._application, self._watch = application, SiteWatch(application.settings)

    def start(self, name: str) -> None:
        """Start an instance."""
        self.running[name] = self._application.start(instance=name)

    def stop(self, name: str, *, kill: bool) -> None:
        """Kill an instance, or ask it to stop."""
        process = self.running.pop(name)
        (process.kill if kill else process.terminate)()

    def settle_s(self, act: Callable[[], None], wanted: int) -> tuple[float, float]:
        """Trigger an event. Return how long it takes until it is known, and from then until everything is settled.

        The event is known once the first assignment after it has been written.
        """
        epoch = self._watch.look().epoch
        began_s = time.monotonic()
        act()
        known_s: float | None = None
        while time.monotonic() < began_s + _DEADLINE_S:
            if any(one.poll() is not None for one in self.running.values()):
                raise RuntimeError("an instance has ended")
            state = self._watch.look()
            if state.epoch > epoch and known_s is None:
                known_s = time.monotonic()
            if known_s is not None and is_settled(state, UNITS, wanted, 0):
                return known_s - began_s, time.monotonic() - known_s
            time.sleep(_LOOK_S)
        raise RuntimeError("the assignment has not settled in time")

    def close(self) -> None:
        """Kill all instances."""
        for process in self.running.values():
            process.kill()
            process.wait()
        self._watch.close()


def measure(kafka: KafkaSettings, folder: Path, rate: int, turns: int) -> tuple[list[dict[str, Any]], Written, Any]:
    """Start, kill and stop instances.

    Return a row per event, how much is written in a calm period, and the tester's counts.
    """
    name = f"many-{uuid.uuid4().hex[:8]}"
    application = Application(kafka, folder, name, UNITS, data=f"{name}.data")
    os.environ["LSB_APPLICATION__COMMIT_INTERVAL"] = _COMMIT_INTERVAL
    make_topic(kafka, application.data, UNITS)
    instances, rows = Instances(application), []
    names = [f"i{number:02}" for number in range(INSTANCES)]

    def happens(kind: str, act: Callable[[], None], wanted: int) -> None:
        known_s, settled_s = instances.settle_s(act, wanted)
        rows.append({"kind": kind, "known_s": known_s, "settled_s": settled_s})
        print(f"{kind}: known after {known_s:.2f} s, settled {settled_s:.2f} s later", flush=True)
        time.sleep(_CALM_S)

    def start_all() -> None:
        for one in names:
            instances.start(one)

    try:
        with sending(kafka, application.data, rate):
            happens("all start", start_all, INSTANCES)
            written = _written(application)
            for turn in range(turns):
                one = names[turn % INSTANCES]
                happens("killed", lambda one=one: instances.stop(one, kill=True), INSTANCES - 1)  # type: ignore[misc]
                happens("joins", lambda one=one: instances.start(one), INSTANCES)  # type: ignore[misc]
                happens("leaves", lambda one=one: instances.stop(one, kill=False), INSTANCES - 1)  # type: ignore[misc]
                happens("joins", lambda one=one: instances.start(one), INSTANCES)  # type: ignore[misc]
        application.wait_until_through([*instances.running.values()])
    finally:
        instances.close()
    return rows, written, application.verify()


def _written(application: Application) -> Written:
    """Return how much is written to the control topic while nothing happens."""
    with closing(make_reader(application.settings.kafka, "bench")) as reader:
        topic = application.settings.control_topic
        _, first = log_range(reader, topic, 0)
        time.sleep(_QUIET_S)
        _, last = log_range(reader, topic, 0)
        size = sum(len(one.value() or b"") for one in read_to_end(reader, SystemClock(), topic, 0, first, last))
    return Written((last - first) / _QUIET_S, size / _QUIET_S)


@contextmanager
def sending(kafka: KafkaSettings, topic: str, rate: int) -> Iterator[None]:
    """Send records to all partitions at a steady rate, from a thread."""
    producer, is_over = make_sender(kafka), threading.Event()
    things = things_over_all_units("machine", UNITS, UNITS)

    def run() -> None:
        number, began_s = 0, time.monotonic()
        while not is_over.wait(_TICK_S):
            while number < (time.monotonic() - began_s) * rate:
                thing, partition = things[number % UNITS]
                record = {
                    "thing": thing,
                    "quantity": ("speed", "torque")[number // UNITS % 2],
                    "phenomenonTime": FIRST_MS + number,
                    "result": 100.0,
                    "id": str(number),
                }
                send(producer, topic, partition, record)
                number += 1
            producer.poll(0)
        producer.flush()

    thread = threading.Thread(target=run, name="sender")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=640, help="records a second (default 640)")
    parser.add_argument("--turns", type=int, default=5, help="how often each kind of event happens (default 5)")
    parser.add_argument(
        "--report", type=Path, default=Path(".lsb/bench_many_instances"), help="path of the .json and .md files"
    )
    options = parser.parse_args()
    with own_kafka() as (kafka, folder):
        rows, written, verdict = measure(kafka, folder, options.rate, options.turns)
    ran = about() | {"results, as the tester finds them": ", ".join(f"{what} {n:,}" for what, n in verdict.items())}
    ran |= {"records/s": options.rate, "units": UNITS, "instances": INSTANCES, "commit interval": _COMMIT_INTERVAL}
    figures = {"events": rows, "control_topic": written._asdict()}
    write(options.report, "Many instances and units", ran, figures, _lines(rows, written))
    print("\n".join(_lines(rows, written)))
    return 0


def _lines(rows: list[dict[str, Any]], written: Written) -> list[str]:
    found = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        of_kind = [row for row in rows if row["kind"] == kind]
        times = [[row[name] for row in of_kind] for name in ("known_s", "settled_s")]
        found.append((kind, len(of_kind), *map(spread, times)))
    text = (
        f"While nothing happens, the instances write {written.messages_per_s:.0f} records and "
        f"{written.bytes_per_s / 1000:.1f} kB a second to the control topic."
    )
    return [text, *table(["instance", "events", "s until an assignment follows", "s until it is settled"], found)]


if __name__ == "__main__":
    sys.exit(main())
