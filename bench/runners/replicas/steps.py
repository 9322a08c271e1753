"""Measures how long results pause while a replica is added to a running application, and taken away again.

``python -m bench.runners.replicas.steps --report docs/evidence/bench_replica_steps`` takes the steps of
``docs/replicas.md`` under load. Replica 0 has two instances, each the standby of the other; two processes merge, one of
which waits. Replica 1 is started and stopped several times, which is all there is to do once the others expect it.
Per step, the gaps between two results of a unit count, in the topic of replica 0 and in the merged one, as the broker
timestamped them. Quiet periods between the steps tell what is usual.

All processes share the machine, and one that starts computes for seconds. The step *a program computes* shows what that
alone does to the others. With the default commit interval, the processes would use two cores fully even in quiet
periods, so that it is longer here.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from bench.harness.pipeline import LOW_PAUSE_JAVA, PARTITIONS, Application, about, make_topic, own_kafka
from bench.harness.report import table, write
from bench.runners.computing import COMPUTES, compute
from bench.runners.failover.effects import read_results
from bench.runners.replicas.group import complete_of, metrics_of
from bench.runners.replicas.sending import Sender
from bench.runners.site_watch import SiteWatch, is_settled
from broker.kafka.replicas import merged_topic
from broker.settings import KafkaSettings
from broker.stack.ports import choose_port
from joiner.runtime.settings import replica_settings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

QUIET: Final = "quiet"
OUTPUTS: Final = ("replica 0", "merged")
_JOINING: Final = ("one", "two")
_MERGING: Final = ("merge", "other-merge")
_ADDED: Final = "three"
_STANDBYS: Final = 1

_LOOK_S: Final = 0.1
_DEADLINE_S: Final = 120.0
_BEFORE_MS: Final = 200
"""A pause that begins this long before a step may be due to it."""

_AFTER_S: Final = 2.0
"""A pause that begins within this time after a step may be, too."""

_TIMES: Final = 15
"""How often replica 1 is started and stopped."""

_COMMIT_INTERVAL: Final = "50ms"


class Step(NamedTuple):
    """A step, or a quiet period, with its beginning and its end by the wall clock, in ms. A step may be repeated."""

    name: str
    begin_ms: int
    end_ms: int


class Pipeline:
    """An application under load whose number of replicas changes."""

    def __init__(self, kafka: KafkaSettings, folder: Path, quiet_s: float) -> None:
        name = f"steps-{uuid.uuid4().hex[:8]}"
        os.environ["LSB_APPLICATION__COMMIT_INTERVAL"] = _COMMIT_INTERVAL
        self.set_replicas(2)  # so that the settings know both
        self.application = Application(kafka, folder, name, PARTITIONS, data=f"{name}.data")
        make_topic(kafka, self.application.data, PARTITIONS)
        self.steps: list[Step] = []
        self._quiet_s = quiet_s
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = {name: choose_port() for name in _MERGING}
        self._watches = [SiteWatch(replica_settings(self.application.settings, number)) for number in range(2)]
        self.set_replicas(1)

    @staticmethod
    def set_replicas(count: int) -> None:
        """Set the number of replicas for processes that are started from now on, and for the tester."""
        os.environ["LSB_APPLICATION__REPLICAS"] = str(count)
        os.environ["LSB_APPLICATION__STANDBYS"] = str(_STANDBYS)

    def take(self, name: str, act: Callable[[], None]) -> None:
        """Take a step, and note it. A quiet period follows."""
        begin_ms = _now_ms()
        act()
        took_s = (_now_ms() - begin_ms) / 1000
        time.sleep(_AFTER_S)
        end_ms = _now_ms()
        self.steps.append(Step(name, begin_ms, end_ms))
        time.sleep(self._quiet_s)
        self.steps.append(Step(QUIET, end_ms, _now_ms()))
        print(f"{name}: {took_s:.1f} s", flush=True)

    def join(self, *instances: str, replica: int = 0) -> None:
        """Start instances of a replica one after the other, and stop those that run before."""
        for instance in instances:
            self.stop(instance)
            self._wait(lambda name=instance: not self._is_listed(replica, name), "an instance that has ended is listed")  # type: ignore[misc] # a default
            self._run(instance, "run", "--replica", str(replica))
            self._wait(lambda: self._is_settled(replica), "the units are not served in time")

    def merge(self) -> None:
        """Start the processes that merge one after the other, and stop those that run before."""
        for name in _MERGING:
            self.stop(name)
            self._run(name, "merge", LSB_METRICS__LISTEN=str(self._ports[name]))
            self._wait(lambda name=name: self._answers(name), "the process that merges does not answer")  # type: ignore[misc] # a default
            self._wait(lambda: self._is_complete(0), "replica 0 is not complete in time")

    def add(self) -> None:
        """Start the other replica, and wait until it is complete."""
        os.environ["LSB_APPLICATION__STANDBYS"] = "0"  # it has one instance
        self.join(_ADDED, replica=1)
        self.set_replicas(2)
        self._wait(lambda: self._is_complete(0) and self._is_complete(1), "the replicas are not complete in time")

    def stop(self, name: str) -> None:
        """Stop a process, if it runs."""
        if (process := self._running.pop(name, None)) is not None:
            process.terminate()
            process.wait(_DEADLINE_S)

    def finish(self) -> None:
        """Wait until all input is joined and merged, and stop all processes."""
        self.application.wait_until_through([self._running[name] for name in _JOINING])
        settings = self.application.settings
        plain, merged = settings.topics.out, merged_topic(settings.topics.out)
        self._wait(lambda: self._count(merged) == self._count(plain), "the results are not merged in time")
        for name in [*self._running]:
            self.stop(name)

    def gaps(self) -> dict[str, list[tuple[Ints, Ints]]]:
        """Return by output, for each unit, when results were appended (ms, ascending), and the gaps that follow."""
        settings = self.application.settings
        topics = (settings.topics.out, merged_topic(settings.topics.out))
        found: dict[str, list[tuple[Ints, Ints]]] = {}
        for name, topic in zip(OUTPUTS, topics, strict=True):
            times = [np.unique(read_results(settings.kafka, topic, unit)[1]) for unit in range(PARTITIONS)]
            found[name] = [(one[:-1], np.diff(one)) for one in times]
        return found

    def close(self) -> None:
        """Kill all processes."""
        for process in self._running.values():
            process.kill()
            process.wait()
        for watch in self._watches:
            watch.close()

    def _run(self, name: str, command: str, *more: str, **variables: str) -> None:
        arguments = self.application.command(*more, instance=name, command=command)
        # In a session of its own, so that Ctrl-C does not reach it.
        self._running[name] = subprocess.Popen(arguments, env=os.environ | variables, start_new_session=True)  # noqa: S603 - the joiner

    def _count(self, topic: str) -> int:
        kafka = self.application.settings.kafka
        return sum(len(read_results(kafka, topic, unit)[1]) for unit in range(PARTITIONS))

    def _wait(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline_s = time.monotonic() + _DEADLINE_S
        while not condition():
            ended = [name for name, process in self._running.items() if process.poll() is not None]
            if ended or time.monotonic() > deadline_s:
                raise RuntimeError(f"{', '.join(ended)} has ended" if ended else otherwise)
            time.sleep(_LOOK_S)

    def _is_listed(self, replica: int, instance: str) -> bool:
        return instance in self._watches[replica].look().live

    def _is_settled(self, replica: int) -> bool:
        names = [name for name in (_JOINING if replica == 0 else (_ADDED,)) if name in self._running]
        return is_settled(self._watches[replica].look(), PARTITIONS, len(names), len(names) - 1)

    def _answers(self, name: str) -> bool:
        return metrics_of(self._ports[name]) is not None

    def _is_complete(self, replica: int) -> bool:
        """Return whether the process that merges shows that a replica is complete in all partitions."""
        topic = self.application.settings.topics.out
        texts = [text for name in _MERGING if name in self._running and (text := metrics_of(self._ports[name]))]
        return any(complete_of(text, topic).get(replica) == PARTITIONS for text in texts)


def take_steps(pipeline: Pipeline, warm_up_s: float) -> None:
    """Go from one replica to two and back, as ``docs/replicas.md`` says."""
    pipeline.join(*_JOINING)
    time.sleep(warm_up_s)
    pipeline.take("nothing", lambda: None)
    pipeline.set_replicas(2)
    pipeline.take("restart replica 0 with two replicas", lambda: pipeline.join(*_JOINING))
    pipeline.take("start `joiner merge`", pipeline.merge)
    for _ in range(_TIMES):
        pipeline.take(COMPUTES, compute)
        pipeline.take("start replica 1", pipeline.add)
        pipeline.take("stop replica 1", lambda: pipeline.stop(_ADDED))
    pipeline.take("start replica 1", pipeline.add)
    pipeline.set_replicas(1)
    pipeline.take("restart `joiner merge` with one replica", pipeline.merge)
    pipeline.take("stop replica 1", lambda: pipeline.stop(_ADDED))
    pipeline.take("restart replica 0 with one replica", lambda: pipeline.join(*_JOINING))


def pauses(steps: Sequence[Step], gaps: Mapping[str, Sequence[tuple[Ints, Ints]]]) -> list[dict[str, Any]]:
    """Return a row per name of a step, quiet periods last.

    Each has how often the step was taken, how long it took in total in s, and by output, in ms, the longest gap of any
    unit (the median of all times, and the maximum) and the 99.9th percentile of all gaps. An output without results at
    the time is left out.
    """
    rows: list[dict[str, Any]] = []
    names = dict.fromkeys(step.name for step in steps if step.name != QUIET)
    for name in [*names, QUIET]:
        its = [step for step in steps if step.name == name]
        row: dict[str, Any] = {"step": name, "times": len(its)}
        row["took_s"] = sum(step.end_ms - step.begin_ms for step in its) / 1000
        for output, units in gaps.items():
            each = [_of(units, step) for step in its]
            longest = [int(found.max()) for found in each if len(found)]
            if longest:
                share = float(np.percentile(np.concatenate(each), 99.9))
                row[output] = {"median": float(np.median(longest)), "longest": max(longest), "p99.9": share}
        rows.append(row)
    return rows


def _of(units: Iterable[tuple[Ints, Ints]], step: Step) -> Ints:
    """Return all gaps that begin during a step or just before it. Those just before a step do not count as quiet."""
    from_ms = step.begin_ms if step.name == QUIET else step.begin_ms - _BEFORE_MS
    until_ms = step.end_ms - _BEFORE_MS if step.name == QUIET else step.end_ms
    found = [np.zeros(0, dtype=np.int64)]
    for begins_ms, gaps_ms in units:
        found.append(gaps_ms[(begins_ms >= from_ms) & (begins_ms <= until_ms)])
    return np.concatenate(found)


def _now_ms() -> int:
    return round(1000 * time.time())


def main() -> int:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=1_000, help="records a second (default 1000)")
    parser.add_argument("--warm-up", type=float, default=60.0, help="seconds until the first step (default 60)")
    parser.add_argument("--quiet", type=float, default=10.0, help="seconds between two steps (default 10)")
    parser.add_argument(
        "--report", type=Path, default=Path(".lsb/bench_replica_steps"), help="path of the .json and .md files"
    )
    options = parser.parse_args()
    # Otherwise, the processes that were started would go on.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        own_kafka(LOW_PAUSE_JAVA) as (kafka, folder),
        closing(Pipeline(kafka, folder, options.quiet)) as pipeline,
        closing(Sender(kafka, pipeline.application.data)) as sender,
    ):
        sender.send(options.rate)
        take_steps(pipeline, options.warm_up)
        sender.end()
        pipeline.finish()
        rows = pauses(pipeline.steps, pipeline.gaps())
        verdicts = {name: pipeline.application.verify(*more) for name, more in (("out", ()), ("merged", ("--merged",)))}
    ran = about() | {"records/s": options.rate, "units": PARTITIONS, "commit interval": _COMMIT_INTERVAL}
    for name, verdict in verdicts.items():
        ran[f"the tester on {name}"] = ", ".join(f"{what} {count:,}" for what, count in verdict.items())
    write(options.report, "Pauses while a replica is added and taken away", ran, {"pauses": rows}, lines(rows))
    print("\n".join(lines(rows)))
    return 0


def lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the report."""
    heads = ["step", "times", "took s", *(f"{name}: median / longest pause / p99.9, ms" for name in OUTPUTS)]
    found = [
        (row["step"], str(row["times"]), f"{row['took_s']:.1f}", *(_cell(row.get(name)) for name in OUTPUTS))
        for row in rows
    ]
    return [
        "The gaps between two results of a unit that begin during a step: the longest of any unit (the median of all",
        f"times, and the maximum), and the 99.9th percentile of all gaps. *{QUIET}*: between the steps.",
        *table(heads, found),
    ]


def _cell(pause: Mapping[str, float] | None) -> str:
    return "-" if pause is None else " / ".join(f"{pause[what]:,.0f}" for what in ("median", "longest", "p99.9"))


if __name__ == "__main__":
    sys.exit(main())
