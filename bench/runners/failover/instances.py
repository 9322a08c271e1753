"""Runs two instances under load, and kills, stops, starts and drains them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from bench.harness.pipeline import PARTITIONS, Application, make_topic
from bench.harness.processes import processes
from bench.runners.computing import COMPUTES, compute
from bench.runners.site_watch import SiteWatch, is_settled
from broker.settings import KafkaSettings

NAMES: Final = ("one", "two")
SUPERVISOR: Final = "host"
WORKER_KILLED: Final = "worker killed"
KINDS: Final = ("killed", WORKER_KILLED, "joins", "leaves", "drained", "undrained", COMPUTES)

CALM_S: Final = 2.0
"""How long to wait after an event, once the units are served as assigned again."""

_LOOK_S: Final = 0.05
_DEADLINE_S: Final = 60.0


class Event(NamedTuple):
    """What happened to the instance ``name``, and when, by the wall clock.

    ``settled_ms`` is when the units were served as assigned again, and ``until_ms`` when the next event was due.
    ``owners`` are the owners of all units, by number: before the event, and whenever the units were served as assigned.
    """

    kind: str
    name: str
    at_ms: int
    settled_ms: int
    until_ms: int
    owners: Sequence[tuple[str, ...]]

    def changes(self, unit: int) -> int:
        """Return how often a unit changed owner."""
        return sum(before[unit] != after[unit] for before, after in pairwise(self.owners))


class Bench:
    """Instances under load, and the events that happen to them."""

    def __init__(self, kafka: KafkaSettings, folder: Path, standbys: int) -> None:
        name = f"failover-{uuid.uuid4().hex[:8]}"
        self.application = Application(kafka, folder, name, PARTITIONS, data=f"{name}.data")
        os.environ["LSB_APPLICATION__STANDBYS"] = str(standbys)
        self.standbys = standbys
        make_topic(kafka, self.application.data, PARTITIONS)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.events: list[Event] = []
        self._owners: list[tuple[str, ...]] = []
        """The owners of all units whenever they were served as assigned."""
        self._watch = SiteWatch(self.application.settings)

    def happens(self, kind: str, name: str, act: Callable[[], None], wanted: int) -> None:
        """Trigger an event, and wait until ``wanted`` instances share the units and their standbys are warm."""
        self._owners, at_ms = self._owners[-1:], _now_ms()
        act()
        self.settle(wanted)
        settled_ms = _now_ms()
        time.sleep(CALM_S)
        self.events.append(Event(kind, name, at_ms, settled_ms, _now_ms(), tuple(self._owners)))
        print(f"{name} {kind}: settled after {settled_ms - at_ms} ms", flush=True)

    def play(self, name: str) -> None:
        """Put an instance through each kind of event."""
        self.happens("killed", name, lambda: self.stop(name, kill=True), 1)
        self.happens("joins", name, lambda: self.start(name), 2)
        self.happens("leaves", name, lambda: self.stop(name, kill=False), 1)
        self.happens("joins", name, lambda: self.start(name), 2)
        self.happens("drained", name, lambda: self.drain(name), 1)
        self.happens("undrained", name, lambda: self.drain(name, "--undo"), 2)
        self.happens(COMPUTES, "nobody", compute, 2)

    def start(self, name: str, *more: str) -> None:
        """Start an instance."""
        self.running[name] = self.application.start(*more, instance=name)

    def stop(self, name: str, *, kill: bool) -> None:
        """Kill an instance, or ask it to stop."""
        process = self.running.pop(name)
        (process.kill if kill else process.terminate)()
        process.wait(_DEADLINE_S)

    def drain(self, name: str, *more: str) -> None:
        """Drain an instance, or undo a drain."""
        command = [sys.executable, "-m", "joiner", "drain", name, *more, "--config", str(self.application.config)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - the joiner

    def supervise(self) -> None:
        """Replace all instances with the worker processes of one supervisor."""
        for name in [*self.running]:
            self.stop(name, kill=False)
        self.start(SUPERVISOR, "--processes", str(len(NAMES)))
        self.settle(len(NAMES))
        time.sleep(CALM_S)

    def kill_worker(self, number: int) -> None:
        """Kill a worker of the supervisor, which restarts it."""
        name = f"{SUPERVISOR}-{number + 1}"

        def kill() -> None:
            os.kill(self._worker(name), signal.SIGKILL)
            self.settle(1)  # until then, nobody has noticed

        self.happens(WORKER_KILLED, name, kill, len(NAMES))

    def _worker(self, name: str) -> int:
        parent = self.running[SUPERVISOR].pid
        children = [number for number, one in processes().items() if one.parent == parent]
        return next(one for one in children if name in Path(f"/proc/{one}/cmdline").read_text().split("\0"))

    def settle(self, wanted: int) -> None:
        """Wait until the units are served as assigned, and the standbys are warm."""
        deadline_s = time.monotonic() + _DEADLINE_S
        while not is_settled(state := self._watch.look(), PARTITIONS, wanted, min(self.standbys, wanted - 1)):
            if time.monotonic() > deadline_s or any(one.poll() is not None for one in self.running.values()):
                raise RuntimeError("the assignment has not settled in time, or an instance has ended")
            time.sleep(_LOOK_S)
        self._owners.append(tuple(one.owner for one in state.units))

    def close(self) -> None:
        """Kill all instances."""
        for process in self.running.values():
            process.kill()
            process.wait()
        self._watch.close()


def _now_ms() -> int:
    return round(1000 * time.time())
