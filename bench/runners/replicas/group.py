"""Runs an application as one of several groups of processes, and waits until they are at work."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaException
from prometheus_client.parser import text_string_to_metric_families

from bench.harness.pipeline import PARTITIONS, Application, ends, make_topic
from bench.harness.processes import Tree
from bench.harness.wire import Wire
from bench.runners.failover.effects import read_results
from bench.runners.replicas.sending import Sender
from bench.runners.site_watch import SiteWatch, is_settled
from broker.kafka.replicas import merged_topic
from broker.settings import KafkaSettings
from broker.stack.ports import LOOPBACK, choose_port
from joiner.runtime.kafka.clients import log_range, make_consumer
from joiner.runtime.settings import replica_settings

NAMES: Final = ("one", "two", "three")
MERGER: Final = "merge"

_LOOK_S: Final = 0.2
_DEADLINE_S: Final = 120.0
_STOP_S: Final = 15.0
_ASK_S: Final = 5.0
_TAIL: Final = 500
"""How many offsets at the end of a partition contain its newest result."""
_BEHIND_S: Final = 2.0
"""Results are up to date if the newest one is that of a record that was due at most this long ago."""
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""An HTTP client that ignores the proxy settings in the environment."""
_MORE: Final = 20
"""A unit has written results if its end has grown by more offsets than this. A claim alone writes fewer."""


class Setup(NamedTuple):
    """How an application runs: its replicas, the standbys of each unit, and whether the replicas' outputs are merged.

    Each replica runs in one process more than it has standbys.
    """

    name: str
    replicas: int = 1
    standbys: int = 0
    is_merged: bool = False


class Member(NamedTuple):
    """A process that runs a replica."""

    name: str
    replica: int


class Group:
    """The processes of an application. ``members`` are those that join.

    ``wires``: by process, how it reaches Kafka. Without a wire, it does so directly.
    """

    def __init__(self, kafka: KafkaSettings, folder: Path, setup: Setup, wires: Mapping[str, Wire]) -> None:
        # The tester, which runs in this process, reads these variables, too.
        os.environ["LSB_APPLICATION__REPLICAS"] = str(setup.replicas)
        os.environ["LSB_APPLICATION__STANDBYS"] = str(setup.standbys)
        name = f"{setup.name.partition(',')[0].replace(' ', '-')}-{uuid.uuid4().hex[:8]}"
        self.setup, self._wires = setup, wires
        self.application = Application(kafka, folder, name, PARTITIONS, data=f"{name}.data")
        make_topic(kafka, self.application.data, PARTITIONS)
        self._replicas = [replica_settings(self.application.settings, number) for number in range(setup.replicas)]
        places = [number for number in range(setup.replicas) for _ in range(1 + setup.standbys)]
        self.members = [Member(*one) for one in zip(NAMES, places, strict=False)]
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        joining, merging = list[subprocess.Popen[bytes]](), list[subprocess.Popen[bytes]]()
        self._roots = {**dict.fromkeys(NAMES, joining), MERGER: merging}
        self.joining, self.merging = Tree(joining), Tree(merging)
        """The processes that join, and the one that merges, with those that have ended."""
        self._metrics = choose_port()
        self._watches = [SiteWatch(settings) for settings in self._replicas]
        self._consumer = make_consumer(kafka, "bench")

    @property
    def outputs(self) -> dict[str, str]:
        """The topics with results, by name: ``replica 0``, …, and ``merged``."""
        found = {f"replica {number}": settings.topics.out for number, settings in enumerate(self._replicas)}
        return found | ({"merged": merged_topic(found["replica 0"])} if self.setup.is_merged else {})

    def start_all(self) -> None:
        """Start all processes, and wait until they are at work. Raises RuntimeError as `settle` does."""
        for member in self.members:
            self.start(member)
        if self.setup.is_merged:
            variables = {"LSB_METRICS__LISTEN": str(self._metrics)}
            self._run(MERGER, self.application.command(instance=MERGER, command="merge"), variables)
        self.settle()

    def start(self, member: Member) -> None:
        """Start a process that joins."""
        command = self.application.command("--replica", str(member.replica), instance=member.name)
        wire = self._wires.get(member.name)
        self._run(
            member.name,
            command,
            {} if wire is None else {"LSB_KAFKA__BOOTSTRAP_SERVERS": f"{LOOPBACK}:{wire.port}"},
        )

    def kill(self, member: Member) -> None:
        """Kill a process that joins."""
        process = self.running.pop(member.name)
        self.joining.look()
        process.kill()
        process.wait()
        # Its id may soon be that of another process.
        self._roots[member.name].remove(process)

    def signal(self, member: Member, number: signal.Signals) -> None:
        """Send a signal to a process that joins."""
        self.running[member.name].send_signal(number)

    def settle(self) -> None:
        """Wait until all processes serve as they should, and all units have written further, recent results everywhere.

        Raises RuntimeError if that takes too long, or if a process has ended.
        """
        before = self._ends()
        self._wait(lambda: self._is_settled(before), "the processes are not at work in time")

    def wait_until_through(self, sender: Sender) -> None:
        """Wait until all input is committed and merged. Raises RuntimeError as `settle` does."""
        kafka, data, outputs = self.application.settings.kafka, self.application.data, self.outputs
        self._wait(lambda: sum(ends(kafka, data, PARTITIONS)) >= sender.sent, "the records are not in Kafka in time")
        for number in range(self.setup.replicas):
            self.application.wait_until_through([*self.running.values()], number)
        if self.setup.is_merged:
            newest = self._newest(outputs["replica 0"])
            self._wait(lambda: self._newest(outputs["merged"]) == newest, "the results are not merged in time")

    def stop(self) -> None:
        """Ask all processes to stop, and kill those that do not."""
        for process in self.running.values():
            process.terminate()
        deadline_s = time.monotonic() + _STOP_S
        for process in self.running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline_s - time.monotonic()))
        self._kill_all()

    def close(self) -> None:
        """Kill all processes, and close the clients."""
        self._kill_all()
        for watch in self._watches:
            watch.close()
        self._consumer.close()

    def verify(self) -> dict[str, dict[str, int] | str]:
        """Return the tester's counts, by output, or why there are none."""
        which = {f"replica {number}": ("--replica", str(number)) for number in range(self.setup.replicas)}
        found: dict[str, dict[str, int] | str] = {}
        for name, arguments in [*which.items(), *([("merged", ("--merged",))] if self.setup.is_merged else [])]:
            try:
                found[name] = self.application.verify(*arguments)
            except (OSError, RuntimeError, ValueError) as error:
                found[name] = f"not judged: {error!r}"
        return found

    def _kill_all(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()
        self.running.clear()

    def _run(self, name: str, command: Sequence[str], variables: Mapping[str, str]) -> None:
        # In a session of its own, so that Ctrl-C does not reach it.
        process = subprocess.Popen(command, env={**os.environ, **variables}, start_new_session=True)  # noqa: S603 - the joiner
        self.running[name] = process
        self._roots[name].append(process)

    def _wait(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline_s = time.monotonic() + _DEADLINE_S
        while not condition():
            ended = [name for name, process in self.running.items() if process.poll() is not None]
            if ended:
                message = f"{', '.join(ended)} of {self.setup.name} has ended"
                raise RuntimeError(message)
            if time.monotonic() > deadline_s:
                raise RuntimeError(otherwise)
            time.sleep(_LOOK_S)

    def _is_settled(self, before: Mapping[tuple[str, int], int]) -> bool:
        each, standbys = 1 + self.setup.standbys, self.setup.standbys
        return (
            all(at > before[place] + _MORE for place, at in self._ends().items())
            and all(is_settled(watch.look(), PARTITIONS, each, standbys) for watch in self._watches)
            and (not self.setup.is_merged or self._are_complete())
            and self._are_up_to_date()
        )

    def _ends(self) -> dict[tuple[str, int], int]:
        """Return up to where each output is committed."""
        return {(topic, unit): self._end(topic, unit) for topic in self.outputs.values() for unit in range(PARTITIONS)}

    def _end(self, topic: str, unit: int) -> int:
        try:
            return log_range(self._consumer, topic, unit)[1]
        except KafkaException:
            # The topic is being created. The client may not look for it again for minutes.
            self._consumer.close()
            self._consumer = make_consumer(self.application.settings.kafka, "bench")
            return 0

    def _newest(self, topic: str) -> list[int]:
        """Return when the newest record with a result in each partition was due, in ns. 0: there is none."""
        kafka = self.application.settings.kafka
        return [max(read_results(kafka, topic, unit, _TAIL)[0].tolist(), default=0) for unit in range(PARTITIONS)]

    def _are_up_to_date(self) -> bool:
        return all(self._is_up_to_date(topic) for topic in self.outputs.values())

    def _is_up_to_date(self, topic: str) -> bool:
        # Reading takes a second.
        now_ns = time.time_ns()
        return now_ns - min(self._newest(topic)) < _BEHIND_S * 1e9

    def _are_complete(self) -> bool:
        """Return whether the process that merges can do without any one of the replicas, in all partitions."""
        text = metrics_of(self._metrics) or ""
        return complete_of(text, self.outputs["replica 0"]) == dict.fromkeys(range(self.setup.replicas), PARTITIONS)


def metrics_of(port: int) -> str | None:
    """Return the metrics of a process, or None if it does not listen."""
    try:
        with closing(_DIRECT.open(f"http://{LOOPBACK}:{port}/metrics", timeout=_ASK_S)) as answer:
            return str(answer.read().decode())
    except OSError:
        return None


def complete_of(metrics: str, topic: str) -> dict[int, int]:
    """Return in how many partitions of ``topic`` each replica is complete, from the metrics of ``joiner merge``."""
    samples: list[Any] = [one for family in text_string_to_metric_families(metrics) for one in family.samples]
    return {
        int(one.labels["replica"]): int(one.value)
        for one in samples
        if one.name == "lsb_joiner_merge_complete" and one.labels["topic"] == topic
    }
