"""Measures how the joiner's CPU time is divided among its steps, Kafka to Kafka, exactly once, at full speed.

``python -m bench.kafka.profile --report docs/evidence/bench_profile`` writes ``.json`` and ``.md``. Each run starts a
joiner whose steps read the CPU clock of their thread when they begin and end. Time spent in a nested step counts only
for the nested one. The CPU time of the Kafka client's own threads is what remains of the process's time. Only the
steady state is measured: the time in which the joiner processes the part of the input between `BEGIN` and `END`.

The pass-through in C, on the same input, is measured from outside, from its start to its end.
"""

from __future__ import annotations

import argparse
import functools
import json
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.harness.pipeline import PARTITIONS, Application, about, make_topic, own_stack
from bench.harness.processes import processes
from bench.harness.report import table, write
from bench.kafka import BATCH, produce
from bench.peers.ceiling.programs import build
from broker.settings import KafkaSettings

BEGIN: Final = 0.2
END: Final = 0.9
_IN_C: Final = "pass-through in C"
_DATA: Final = "profile.data"
_WAIT_S: Final = 600.0
CLIENT: Final = "the Kafka client's own threads"
OTHER: Final = "other Python code"


@dataclass
class _Running:
    """A running step. ``since_ns`` is when it began, or when its last nested step ended."""

    step: str
    since_ns: int


class Stopwatch:
    """Sums the CPU time of the steps of all threads."""

    def __init__(self) -> None:
        self._spent_ns: list[Counter[str]] = []
        self._own = threading.local()

    def time(self, owner: type, method: str, step: str) -> None:
        """Wrap a method of a class so that its CPU time counts for ``step``."""
        timed = getattr(owner, method)

        @functools.wraps(timed)
        def call(*args: Any, **kwargs: Any) -> Any:
            running, spent_ns = self._of_thread()
            now_ns = time.thread_time_ns()
            if running:
                spent_ns[running[-1].step] += now_ns - running[-1].since_ns
            running.append(_Running(step, now_ns))
            try:
                return timed(*args, **kwargs)
            finally:
                now_ns = time.thread_time_ns()
                ended = running.pop()
                spent_ns[ended.step] += now_ns - ended.since_ns
                if running:
                    running[-1].since_ns = now_ns

        setattr(owner, method, call)

    def spent_s(self) -> dict[str, float]:
        """Return the CPU time of each step so far, without steps that are still running."""
        total_ns = sum(self._spent_ns, Counter[str]())
        return {step: spent / 1e9 for step, spent in total_ns.items()}

    def _of_thread(self) -> tuple[list[_Running], Counter[str]]:
        if not hasattr(self._own, "running"):
            self._own.running, self._own.spent_ns = [], Counter[str]()
            self._spent_ns.append(self._own.spent_ns)
        return self._own.running, self._own.spent_ns


def time_steps(stopwatch: Stopwatch) -> None:
    """Measure the CPU time of every step of the joiner."""
    # Import here: only the measured process needs the joiner's modules.
    from joiner.core.engine import LocalStreamBuffer  # noqa: PLC0415 - as above
    from joiner.runtime.kafka.transaction import UnitTransactions  # noqa: PLC0415 - as above
    from joiner.runtime.kafka.unit_producer import UnitProducer  # noqa: PLC0415 - as above
    from joiner.runtime.runners.input import InputConsumer, PendingInput  # noqa: PLC0415 - as above
    from joiner.runtime.task.decoding.decoder import TopicDecoder  # noqa: PLC0415 - as above
    from joiner.runtime.task.emit import Emitter  # noqa: PLC0415 - as above
    from joiner.runtime.task.operators.unit_join import UnitJoin  # noqa: PLC0415 - as above

    for owner, method, step in (
        (InputConsumer, "read", "taking messages from the client"),
        (PendingInput, "take", "taking messages from the client"),
        (TopicDecoder, "decode", "parsing records"),
        (LocalStreamBuffer, "push", "finding neighbours"),
        (UnitJoin, "push", "storing and looking up what results contain"),
        (Emitter, "results", "computing and composing results"),
        (UnitProducer, "write_all", "passing results to the client"),
        (UnitTransactions, "commit", "committing"),
    ):
        stopwatch.time(owner, method, step)


class Moment:
    """The CPU time that the joiner's steps, the whole process and Kafka have used up to now, and the wall time."""

    def __init__(self, stopwatch: Stopwatch, kafka_pid: int) -> None:
        self.at_s = time.monotonic()
        self.steps_s = stopwatch.spent_s()
        threads = [thread.ident for thread in threading.enumerate() if thread.ident]
        self.python_s = sum(time.clock_gettime(time.pthread_getcpuclockid(thread)) for thread in threads)
        self.main_s = time.thread_time()
        self.process_s = time.process_time()
        self.kafka_s = processes()[kafka_pid].cpu_s

    def since(self, before: Moment, records: int) -> dict[str, Any]:
        """Return the CPU seconds of each part since another moment, per million of the ``records`` between them."""
        millions = records / 1e6
        steps = {step: (spent - before.steps_s.get(step, 0.0)) / millions for step, spent in self.steps_s.items()}
        python_s = (self.python_s - before.python_s) / millions
        process_s = (self.process_s - before.process_s) / millions
        passed_s = (self.at_s - before.at_s) / millions
        return {
            "steps": steps | {OTHER: python_s - sum(steps.values()), CLIENT: process_s - python_s},
            "process_s": process_s,
            "kafka_s": (self.kafka_s - before.kafka_s) / millions,
            "passed_s": passed_s,
            "main_thread_busy": (self.main_s - before.main_s) / millions / passed_s,
        }


def run_measured(out: Path, records: int, kafka_pid: int, command: list[str]) -> None:
    """Run the joiner in this process, and write its figures to ``out`` once it has read enough of the input."""
    from joiner.cli.main import main as joiner  # noqa: PLC0415 - only the measured process needs it
    from joiner.runtime.runners.process_tasks import ProcessTasks  # noqa: PLC0415 - as above

    stopwatch = Stopwatch()
    time_steps(stopwatch)
    turn, began, done = ProcessTasks.turn, list[tuple[Moment, int]](), Counter[int]()

    def turn_and_look(tasks: ProcessTasks) -> None:
        turn(tasks)
        for number, task in tasks.tasks.items():
            done[number] = sum(task.unit.offsets.values())
        joined = done.total()
        if not began and joined > BEGIN * records:
            began.append((Moment(stopwatch, kafka_pid), joined))
        elif began and joined > END * records and not out.exists():
            before, at = began[0]
            figures = Moment(stopwatch, kafka_pid).since(before, joined - at)
            out.with_suffix(".part").write_text(json.dumps(figures))
            out.with_suffix(".part").rename(out)

    setattr(ProcessTasks, "turn", turn_and_look)  # noqa: B010 - mypy rejects a plain assignment
    joiner(command)


def measure_joiner(application: Application, out: Path, records: int, kafka_pid: int) -> dict[str, Any]:
    """Run a joiner until it has processed the input. Return its figures."""
    given = [str(out), str(records), str(kafka_pid), *application.command()[3:]]
    process = subprocess.Popen([sys.executable, "-m", "bench.kafka.profile", "--joiner", *given])  # noqa: S603 - this program
    try:
        application.wait_until_through([process])
    finally:
        process.terminate()
        process.wait()
    figures: dict[str, Any] = json.loads(out.read_text())
    return figures


def measure_pass_through(
    kafka: KafkaSettings, command: list[str], out: str, records: int, kafka_pid: int
) -> dict[str, Any]:
    """Run the pass-through on the whole input. Return its figures."""
    make_topic(kafka, out, PARTITIONS)
    before, kafka_s, began_s = _children_s(), processes()[kafka_pid].cpu_s, time.monotonic()
    given = [kafka.bootstrap_servers, _DATA, out, str(PARTITIONS), str(BATCH), str(records)]
    subprocess.run([*command, *given], check=True, timeout=_WAIT_S)  # noqa: S603 - built by this program
    millions = records / 1e6
    return {
        "process_s": (_children_s() - before) / millions,
        "kafka_s": (processes()[kafka_pid].cpu_s - kafka_s) / millions,
        "passed_s": (time.monotonic() - began_s) / millions,
    }


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rows_of(found: dict[str, list[dict[str, Any]]]) -> list[tuple[str, str]]:
    """Return the rows of the report: the medians of all runs, in CPU seconds for a million records."""

    def median(contender: str, figure: str) -> str:
        return f"{statistics.median(run[figure] for run in found[contender]):.2f}"

    runs = found["joiner"]
    steps = {step: statistics.median(run["steps"][step] for run in runs) for step in runs[0]["steps"]}
    rows = [(f"joiner: {step}", f"{steps[step]:.2f}") for step in sorted(steps, key=steps.__getitem__, reverse=True)]
    rows.append(("joiner, in all", median("joiner", "process_s")))
    rows.append(("Kafka, while the joiner runs", median("joiner", "kafka_s")))
    if _IN_C in found:
        rows.append((_IN_C, median(_IN_C, "process_s")))
        rows.append((f"Kafka, while the {_IN_C} runs", median(_IN_C, "kafka_s")))
    return rows


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=4_000_000, help="records in the input topic (default 4,000,000)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each program (default 5)")
    parser.add_argument(
        "--report", type=Path, default=Path(".lsb/bench_profile"), help="path of the .json and .md files"
    )
    parser.add_argument("--joiner", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.joiner:
        out, records, kafka_pid, *command = options.joiner
        run_measured(Path(out), int(records), int(kafka_pid), command)
        return 0
    found: dict[str, list[dict[str, Any]]] = {}
    with own_stack() as (stack, folder):
        kafka, kafka_pid = KafkaSettings(bootstrap_servers=stack.kafka.address), stack.kafka.pid or 0
        programs, _ = build(folder)
        make_topic(kafka, _DATA, PARTITIONS)
        produce(kafka, _DATA, options.records)
        # The first run of each program warms up the broker and is discarded.
        for run in range(options.runs + 1):
            given = options.records, kafka_pid
            application = Application(kafka, folder, f"profile-{run}", PARTITIONS, data=_DATA)
            made = {"joiner": measure_joiner(application, folder / f"{run}.json", *given)}
            if _IN_C in programs:
                copy = kafka, programs[_IN_C], f"copy-{run}"
                made[_IN_C] = measure_pass_through(*copy, *given)
            for name, figures in made.items():
                print(f"run {run}, {name}: {figures['process_s']:.2f} CPU s for a million records", flush=True)
                if run:
                    found.setdefault(name, []).append(figures)
    lines = table(["medians", "CPU s for a million records"], rows_of(found))
    ran = about() | {"records": options.records}
    write(options.report, "Where the joiner's CPU time goes", ran, found, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
