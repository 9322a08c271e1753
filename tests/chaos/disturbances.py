"""Counts how often units change their owner while an instance is frozen, cut off or slowed down.

``python -m tests.chaos.disturbances --report docs/evidence/disturbances``. Two joiners, each with a standby of the
other's units, share the units while data flows. Each disturbance ends before the next begins. Afterwards, the
checkpoints tell who owned a unit when, and the tester judges all results.

Clocks are not set here (but in `test_limits`, which judges only the results): libfaketime changes the time that a
process reads, but not the clock by which waits of the Kafka client end. A wait may then last as long as the difference.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from operator import ge
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import Message

from bench.harness.report import json_text, table
from bench.runners.site_watch import SiteWatch, is_settled
from broker.settings import load_settings
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.clients import log_range, make_reader, read_to_end
from joiner.runtime.model import decode_checkpoint
from joiner.runtime.settings import JoinerSettings
from simulator.generate import Plan, write
from tests.chaos.pipeline import PARTITIONS, ChaosPipeline, chaos_stack
from tests.chaos.play import verify
from tests.chaos.report import versions_of
from tests.chaos.settling import Settling
from tests.integration.services import wait_until

_EVENTS_PER_S: Final = 100
_JOINERS: Final = ("one", "two")
_CALM_S: Final = 2.0
_DEADLINE_S: Final = 120.0
_LOOK_S: Final = 0.05
_BEFORE_MS: Final = 200
_TURN_S: Final = 0.02
"""How often a slow process runs and is stopped again."""
_KAFKA: Final = {"log.cleaner.enable": "false"}
"""Keeps all checkpoints, which tell who owned a unit when."""


class Kind(NamedTuple):
    """A disturbance of an instance: its name in the report, how long it lasts, and how often it happens."""

    name: str
    lasting_s: float
    times: int


KINDS: Final = (
    *(Kind("frozen", lasting_s, times) for lasting_s, times in ((0.2, 6), (0.5, 6), (1, 6), (3, 6), (10, 4), (30, 2))),
    *(Kind("cut off", lasting_s, times) for lasting_s, times in ((0.2, 6), (1, 6), (10, 4))),
    *(Kind("silent connections", lasting_s, times) for lasting_s, times in ((0.5, 6), (3, 4), (10, 4))),
    Kind("ten times slower", 10, 6),
)


class Event(NamedTuple):
    """A disturbance that has happened, and the wall-clock times between which its effects are looked for."""

    kind: Kind
    instance: str
    at_ms: int
    until_ms: int


def last_for(seconds: float) -> None:
    """Let time pass."""
    until_s = time.monotonic() + seconds
    while (left_s := until_s - time.monotonic()) > 0:
        time.sleep(left_s)


class Disturber:
    """Disturbs the joiners of a pipeline, one at a time."""

    def __init__(self, pipeline: ChaosPipeline) -> None:
        self.events: list[Event] = []
        self._pipeline = pipeline
        settings = load_settings(JoinerSettings, pipeline.config)
        self._watch = SiteWatch(settings)
        self._out = settings.topics.out
        self._reader = make_reader(settings.kafka, "disturbances")

    def play(self, kind: Kind, joiner: str) -> None:
        """Let a disturbance happen and end, and wait until the units are shared again, and all write results."""
        at_ms = round(1000 * time.time())
        with self._disturbed(kind.name, joiner):
            last_for(kind.lasting_s)
        before = self._ends()
        self.wait_until_settled()
        wait_until(lambda: not any(map(ge, before, self._ends())), "each unit writes results again", _DEADLINE_S)
        last_for(_CALM_S)
        self.events.append(Event(kind, joiner, at_ms, round(1000 * time.time())))
        took_s = (self.events[-1].until_ms - at_ms) / 1000 - kind.lasting_s - _CALM_S
        sys.stdout.write(f"{joiner} {kind.name} for {kind.lasting_s:g} s: settled {took_s:.1f} s later\n")

    def wait_until_settled(self) -> None:
        """Wait until both joiners serve their share of the units, and all standbys are warm."""
        wait_until(self._is_settled, "the joiners share the units", _DEADLINE_S)

    def _is_settled(self) -> bool:
        last_for(_LOOK_S)
        died = [name for name in _JOINERS if self._pipeline.services[name].pid is None]
        assert not died, f"{died} ended: {self._pipeline.services[died[0]].text()[-2000:]}"
        return is_settled(self._watch.look(), PARTITIONS, len(_JOINERS), standbys=1)

    def _ends(self) -> list[int]:
        """Return the end of the committed results of each unit."""
        return [log_range(self._reader, self._out, unit)[1] for unit in range(PARTITIONS)]

    def close(self) -> None:
        """Stop watching the joiners and their results."""
        self._watch.close()
        self._reader.close()

    @contextmanager
    def _disturbed(self, name: str, joiner: str) -> Iterator[None]:
        servers = self._pipeline.servers
        wire = servers.kafka[joiner]
        with ExitStack() as undo:
            if name == "frozen":
                self._pipeline.signal(joiner, signal.SIGSTOP)
                undo.callback(self._pipeline.signal, joiner, signal.SIGCONT)
            elif name == "cut off":
                servers.wires.cut(wire)
                undo.callback(servers.wires.mend, wire)
            elif name == "silent connections":
                servers.wires.silence(wire)
                undo.callback(servers.wires.mend, wire)
            else:
                undo.enter_context(self._slow(joiner))
            yield

    @contextmanager
    def _slow(self, joiner: str) -> Iterator[None]:
        """Let a joiner run for a tenth of the time."""
        is_over = threading.Event()

        def stop_and_go() -> None:
            while not is_over.is_set():
                self._pipeline.signal(joiner, signal.SIGSTOP)
                is_over.wait(0.9 * _TURN_S)
                self._pipeline.signal(joiner, signal.SIGCONT)
                is_over.wait(0.1 * _TURN_S)

        thread = threading.Thread(target=stop_and_go, name="slow")
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


def effects(settings: JoinerSettings, events: list[Event]) -> list[dict[str, Any]]:
    """Return a row per event and unit: how often it changed its owner, and its longest pause in ms.

    A pause is a time in which no result was appended to the unit's partition, by the broker's clock. The part of it
    that lies within the event's window counts.
    """
    rows: list[dict[str, Any]] = []
    for unit in range(PARTITIONS):
        results_ms = [when_ms(one) for one in stored(settings, settings.topics.out, unit)]
        owners = [
            (when_ms(one), decode_checkpoint(one.value() or b"").run)
            for one in stored(settings, settings.state_topic, unit)
            if (one.key() or b"").endswith(b"/progress")
        ]
        for number, event in enumerate(events):
            first_ms, last_ms = event.at_ms - _BEFORE_MS, event.until_ms
            near = [at_ms for at_ms in results_ms if first_ms <= at_ms <= last_ms]
            runs = [run for at_ms, run in owners if first_ms <= at_ms <= last_ms]
            rows.append(
                {
                    "event": number,
                    "kind": event.kind.name,
                    "lasting_s": event.kind.lasting_s,
                    "unit": unit,
                    "changes": sum(before != after for before, after in pairwise(runs)),
                    "pause_ms": max(after - before for before, after in pairwise([first_ms, *near, last_ms])),
                }
            )
    return rows


def stored(settings: JoinerSettings, topic: str, unit: int) -> list[Message]:
    """Return all committed messages of a partition."""
    with closing(make_reader(settings.kafka, "disturbances")) as reader:
        return [*read_to_end(reader, SystemClock(), topic, unit, *log_range(reader, topic, unit))]


def when_ms(message: Message) -> int:
    """Return the time at which the broker appended a message."""
    return int(message.timestamp()[1])


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, default=Path("disturbances"), help="path of .json and .md")
    parser.add_argument("--times", type=int, help="how often each disturbance happens (default: two to six times)")
    options = parser.parse_args()
    kinds = [kind._replace(times=options.times or kind.times) for kind in KINDS]
    with tempfile.TemporaryDirectory(prefix="lsb-times-") as name, chaos_stack(kafka=_KAFKA) as servers:
        folder = Path(name)
        duration_s = sum(kind.times * (kind.lasting_s + 8 * _CALM_S) for kind in kinds)
        write(plan(round(_EVENTS_PER_S * duration_s)), folder / "events.json")
        pipeline = ChaosPipeline(servers, folder, folder / "events.json", _EVENTS_PER_S)
        with closing(pipeline):
            disturber = play(pipeline, kinds)
            total = verify(pipeline, has_all_events=False)["total"]
            rows = effects(load_settings(JoinerSettings, pipeline.config), disturber.events)
        versions = versions_of()
    counts = ", ".join(f"{what} {count:,}" for what, count in total.items())
    _write(options.report, rows, versions | {"results, as the tester finds them": counts})
    return 0


def plan(events: int) -> Plan:
    """Return a data set from which every unit has results at all times: several machines each, without gaps."""
    return Plan(events=events, seed=1, machines=30, gaps=0)


def play(pipeline: ChaosPipeline, kinds: list[Kind]) -> Disturber:
    """Let all disturbances happen while data flows, and stop the pipeline once everything is processed."""
    settling, disturber = Settling(pipeline), Disturber(pipeline)
    settling.create_topics()
    for service in ("connector", *_JOINERS, "db_connector", "simulator"):
        pipeline.start(service)
    disturber.wait_until_settled()
    last_for(5 * _CALM_S)
    for kind in kinds:
        for turn in range(kind.times):
            disturber.play(kind, _JOINERS[turn % 2])
    disturber.close()
    pipeline.kill("simulator")
    with closing(settling):
        settling.wait_until_written()
    for service in pipeline.services:
        pipeline.kill(service)
    return disturber


def _write(path: Path, rows: list[dict[str, Any]], about: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json_text({"about": about, "rows": rows}) + "\n")
    lines = ["# Changes of owner while an instance is disturbed", ""]
    lines += [f"- {name}: {value}" for name, value in about.items()]
    lines += [f"- units: {PARTITIONS}, on {len(_JOINERS)} joiners with a standby each, {_EVENTS_PER_S} events/s"]
    found = []
    for name, lasting_s in dict.fromkeys((row["kind"], row["lasting_s"]) for row in rows):
        of_kind = [row for row in rows if (row["kind"], row["lasting_s"]) == (name, lasting_s)]
        events = {row["event"] for row in of_kind}
        changes = [sum(row["changes"] for row in of_kind if row["event"] == event) for event in events]
        pauses = [max(row["pause_ms"] for row in of_kind if row["event"] == event) for event in events]
        mean, most = sum(changes) / len(changes), max(changes)
        of_unit = max(row["changes"] for row in of_kind)
        found.append(
            (name, lasting_s, len(events), f"{mean:.1f}", most, of_unit, sorted(pauses)[len(pauses) // 2], max(pauses))
        )
    heads = (
        "disturbance",
        "s",
        "times",
        "changes of owner, mean",
        "most",
        "most of one unit",
        "longest pause, median ms",
        "max ms",
    )
    text = "\n".join([*lines, *table(heads, found), ""])
    path.with_suffix(".md").write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    sys.exit(main())
