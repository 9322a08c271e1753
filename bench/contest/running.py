"""Runs a contender on a workload: starts it, observes it from outside, stops it, and checks its output.

By the broker's clock, the steady part of a run begins after a fifth of its results and ends with the last one. This
excludes start-up by the same rule for all contenders.

A run ends when its output has been quiet and its processes idle for a while, or at a limit. Whether it is complete
depends on what the output contains, not on how much. It is complete if the output has every neighbour or every pair in
the window, or if it went quiet and has the last neighbours that can be found, so it must have read all of its input.
Otherwise it was cut off, and only the part that it processed is judged.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from confluent_kafka import Consumer, KafkaException, TopicPartition

from bench.contest.contenders import ROOT, Contender, Job
from bench.contest.watching import Sample, Tree, folder_bytes, processes
from bench.contest.workload.expected import NO_WINDOW, Expected, Window, compare, expect
from bench.contest.workload.inputs import make, produce, produce_sides
from bench.harness.pipeline import PARTITIONS, make_topic
from broker.settings import KafkaSettings
from broker.stack import LocalStack
from joiner.runtime.kafka.clients import EOF_CODE, make_admin, make_consumer, make_reader, raise_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

STEADY_FROM: Final = 0.2
"""Share of the results after which the steady part begins."""
_PAUSE_S: Final = 0.2
_ENOUGH: Final = 0.15
_LOOK_S: Final = 0.25
_STATE_EVERY: Final = 8
"""How many samples to take between two measurements of the state size."""
_BUSY: Final = 0.4
"""A contender that uses fewer cores than this is idle."""
_DONE_S: Final = 1.5
"""How long a run with the expected number of results must be quiet and idle before it ends."""


@dataclass(frozen=True)
class Limits:
    """The limits of a run, and how long it must be quiet before it ends."""

    budget_s: float = 45.0
    start_s: float = 60.0
    quiet_s: float = 6.0
    results_max: int = 6_000_000


class FailedError(Exception):
    """A contender has exited or has written nothing. The message has the details."""


@dataclass
class Arena:
    """A Kafka broker, a folder, and the workloads that have been written so far."""

    stack: LocalStack
    folder: Path
    _known: dict[tuple[str, int], Expected] = field(default_factory=dict)
    _written: dict[tuple[str, int, int], str] = field(default_factory=dict)

    @property
    def kafka(self) -> KafkaSettings:
        """The Kafka settings."""
        return KafkaSettings(bootstrap_servers=self.stack.kafka.address)

    def expected(self, name: str, records: int) -> Expected:
        """Return the expected results for a workload."""
        if (name, records) not in self._known:
            self._known[name, records] = expect(make(name, records))
        return self._known[name, records]

    def data(self, name: str, records: int, topics: int) -> str:
        """Return the topic with a workload, or two separated by a comma, one per side. Write it if it is missing."""
        if (name, records, topics) not in self._written:
            topic, workload = f"data-{len(self._written)}", self.expected(name, records).workload
            self._written[name, records, topics] = self.make_data(topic, topics)
            if topics == 1:
                produce(self.kafka, topic, workload)
            else:
                produce_sides(self.kafka, (f"{topic}-left", f"{topic}-right"), workload)
        return self._written[name, records, topics]

    def make_data(self, topic: str, topics: int) -> str:
        """Create one topic, or one per side with event times as Kafka timestamps."""
        if topics == 1:
            make_topic(self.kafka, topic, PARTITIONS)
            return topic
        sides = [f"{topic}-left", f"{topic}-right"]
        for side in sides:
            # The events are years old, so retention by event time would delete them right away.
            make_topic(self.kafka, side, PARTITIONS, message_timestamp_type="CreateTime", retention_ms="-1")
        return ",".join(sides)

    def job(self, contender: Contender, topic: str, records: int, width_ms: int = 0) -> Job:
        """Return a new job, and create its result topic."""
        name = f"{contender.slug}-{uuid.uuid4().hex[:6]}"
        job = Job(self.kafka, self.folder / name, name, topic, records, width_ms=width_ms)
        make_topic(self.kafka, job.out, PARTITIONS)
        return job

    def kafka_cpu_s(self) -> float:
        """Return the CPU seconds that the broker has used so far."""
        return processes()[self.stack.kafka.pid or 0].cpu_s

    def log_bytes(self, job: Job) -> int:
        """Return the size on disk of a run's topics, in bytes."""
        return folder_bytes(self.stack.kafka.data, f"{job.name}*/*.log")


@contextmanager
def at_work(contender: Contender, job: Job) -> Iterator[Tree]:
    """Run the contender's processes for the duration of the block. Their output is in ``job.folder``."""
    job.folder.mkdir(parents=True, exist_ok=True)
    commands = contender.commands(job)
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    running = []
    for number, command in enumerate(commands):
        with (job.folder / f"{number}.out").open("ab") as out, (job.folder / f"{number}.err").open("ab") as err:
            running.append(
                subprocess.Popen(command, stdout=out, stderr=err, env=environment, cwd=ROOT, start_new_session=True)  # noqa: S603 - a contender
            )
    tree = Tree(running)
    try:
        yield tree
    finally:
        tree.end()


@contextmanager
def tidy(arena: Arena, job: Job) -> Iterator[None]:
    """Remove the topics and the folder of a run on exit."""
    try:
        yield
    finally:
        admin = make_admin(arena.kafka)
        left = [topic for topic in admin.list_topics(timeout=10).topics if topic.startswith(job.name)]
        for gone in admin.delete_topics(left).values() if left else ():
            gone.exception()
        shutil.rmtree(job.folder, ignore_errors=True)


def settings_of(contender: Contender, job: Job) -> list[str]:
    """Return the commands, without the parts that depend on the machine or the run."""
    shown = []
    for command in contender.commands(job):
        words = ["python", *command[1:]]
        for path, name in ((job.folder, "FOLDER"), (ROOT, "."), (job.kafka.bootstrap_servers, "BOOTSTRAP")):
            words = [word.replace(str(path), name) for word in words]
        shown.append(" ".join(word.replace(job.name, "NAME") for word in words if not word.startswith("/")))
    return shown


def throughput(arena: Arena, contender: Contender, workload: str, records: int, limits: Limits, **given: Any) -> Any:
    """Run once and return all figures. ``width_ms`` is that of the window. Raises `FailedError` or `NotHereError`."""
    expected, topic = arena.expected(workload, records), arena.data(workload, records, contender.topics)
    job = arena.job(contender, topic, records, **given).of(expected.workload)
    with tidy(arena, job):
        longer = replace(limits, budget_s=limits.budget_s * contender.patience)
        window = contender.window(job.width_ms)
        held = window.count(expected.workload) if contender.gives_window else None
        watch = Watch(arena, contender, job, longer, len(expected.pairs) if held is None else held)
        with at_work(contender, job) as tree:
            watch.until_ended(tree)
            ended_s = time.time()
        results = read_results(arena.kafka, job.out)
        state = _state_of(job, watch) | contender.held(job)
        state["kafka_bytes"] = arena.log_bytes(job)
        judged = judge(results, expected, watch, ended_s, window, held)
        return {"settings": settings_of(contender, job)} | judged | state


class Watch:
    """Observes a run."""

    def __init__(self, arena: Arena, contender: Contender, job: Job, limits: Limits, wanted: int) -> None:
        self.began_s = time.time()
        self.samples: list[Sample] = []
        self.is_quiet = False
        """Whether the run ended because no more results arrived, not because of a limit."""
        self.memory_max = 0
        self.state_bytes_max = 0
        self._arena = arena
        self._contender = contender
        self._job = job
        self._limits = limits
        self._wanted = wanted

    def until_ended(self, tree: Tree, results: int | None = None, already: int = 0) -> None:
        """Wait until no more results arrive, a limit is reached, or there are ``results`` results.

        ``already`` is the number of results from an earlier run. Reaching the expected number only shortens the wait:
        the results may be the wrong ones, and a contender is also quiet while it works on a batch.
        """
        limits, count, changed_s, first_s, longest_s = self._limits, 0, time.time(), 0.0, 0.0
        wanted = self._wanted - already
        with closing(make_consumer(self._arena.kafka, "bench")) as consumer:
            while True:
                self._look(tree)
                now_s, before = time.time(), count
                count = count_results(consumer, self._job.out) - already
                has_ended = all(root.poll() is not None for root in tree.roots)
                if count != before:
                    longest_s = max(longest_s, now_s - changed_s) if before else 0.0
                    changed_s, first_s = now_s, first_s or now_s
                if results is not None and count >= results:
                    return
                quiet_s = now_s - changed_s
                wait_s = _DONE_S if count >= wanted else max(limits.quiet_s, 1.5 * longest_s)
                if count and quiet_s > wait_s and not self._is_busy(wait_s):
                    self.is_quiet = True
                    return
                if has_ended and quiet_s > _DONE_S:
                    if any(root.returncode for root in tree.roots):
                        raise FailedError(last_words(self._job))
                    self.is_quiet = True
                    return
                if not count and now_s - self.began_s > limits.start_s:
                    raise FailedError(f"no result within {limits.start_s:.0f} s; {last_words(self._job)}")
                if count > limits.results_max or (first_s and now_s - first_s > limits.budget_s):
                    return
                time.sleep(_LOOK_S)

    def _look(self, tree: Tree) -> None:
        self.samples.append(Sample(time.time(), tree.look(), self._arena.kafka_cpu_s()))
        self.memory_max = max(self.memory_max, tree.memory_max)
        if len(self.samples) % _STATE_EVERY == 0:
            self.state_bytes_max = max(self.state_bytes_max, folder_bytes(self._job.state))

    def _is_busy(self, seconds: float) -> bool:
        last = self.samples[-1]
        before = next((one for one in reversed(self.samples) if one.at_s < last.at_s - seconds), self.samples[0])
        return last.cpu_s - before.cpu_s > _BUSY * (last.at_s - before.at_s)

    def between(self, first_s: float, last_s: float) -> tuple[float, float]:
        """Return the CPU seconds that the contender and Kafka used between two points in time."""
        at = [one.at_s for one in self.samples]
        own, kafka = ([getattr(one, name) for one in self.samples] for name in ("cpu_s", "kafka_cpu_s"))
        of_own, of_kafka = (np.diff(np.interp([first_s, last_s], at, column))[0] for column in (own, kafka))
        return float(of_own), float(of_kafka)


def last_words(job: Job) -> str:
    """Return the last lines of the contender's standard error."""
    lines = [
        line for path in sorted(job.folder.glob("*.err")) for line in path.read_text(errors="replace").splitlines()
    ]
    lines = [line.strip() for line in lines if line.strip()]
    return " / ".join(line.replace(str(job.folder), "FOLDER")[:200] for line in lines[-2:]) or "no error output"


def _state_of(job: Job, watch: Watch) -> dict[str, float]:
    """Return the size of the state folder, and the state size that the contender itself reports."""
    found: dict[str, float] = {"state_bytes": watch.state_bytes_max} if watch.state_bytes_max else {}
    for path in job.folder.glob("*.out"):
        for line in path.read_text(errors="replace").splitlines():
            if line.startswith("{"):
                try:
                    values = msgspec.json.decode(line)
                except msgspec.DecodeError:
                    continue  # output of another program
                for name in ("state_rows", "state_bytes"):
                    if name in values:
                        key = name if name == "state_rows" else "state_memory_bytes"
                        found[key] = max(found.get(key, 0), values[name])
    return found


@dataclass(frozen=True)
class Results:
    """The results in an output topic, in append order: the joined rows and the append times in s."""

    left: Ints
    right: Ints
    at_s: NDArray[np.float64]
    withdrawn: int = 0

    def first(self, until_s: float) -> Results:
        """Return the results appended up to ``until_s``."""
        return self.first_ones(int(np.searchsorted(self.at_s, until_s, side="right")))

    def first_ones(self, count: int) -> Results:
        """Return the first ``count`` results."""
        return Results(self.left[:count], self.right[:count], self.at_s[:count])


class _Side(msgspec.Struct):
    id: str


class _Pair(msgspec.Struct):
    """A pair from the joiner or a peer, or a record from the pass-through. A ``diff`` of -1 retracts a pair."""

    id: str = ""
    left: _Side | str | None = None
    right: _Side | str | None = None
    diff: int = 1


_decode = msgspec.json.Decoder(list[_Pair]).decode


def pairs_of(values: list[bytes]) -> list[tuple[int, int, int]]:
    """Return the two record ids and the sign of each result. For a passed-through record, both ids are its own."""

    def number(side: _Side | str | None, one: _Pair) -> int:
        return int(side.id if isinstance(side, _Side) else side or one.id)

    every = _decode(b"[" + b",".join(values) + b"]")
    return [(number(one.left, one), number(one.right, one), one.diff) for one in every]


def read_results(kafka: KafkaSettings, topic: str) -> Results:
    """Return all committed results."""
    rows, at_ms, ended = [np.zeros((0, 3), np.int64)], [np.zeros(0, np.int64)], 0
    with closing(make_reader(kafka, "bench", queued_max_messages_kbytes=64 * 1024)) as consumer:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        deadline_s = time.monotonic() + 120
        while ended < PARTITIONS:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{topic} could not be read")
            messages = []
            for message in consumer.consume(20_000, 0.1):
                error = message.error()
                if error is not None and error.code() == EOF_CODE:
                    ended += 1
                    continue
                raise_for(message)
                messages.append(message)
            if messages:
                rows.append(np.array(pairs_of([message.value() or b"" for message in messages]), dtype=np.int64))
                at_ms.append(np.array([message.timestamp()[1] for message in messages], dtype=np.int64))
    pairs, at = np.concatenate(rows), np.concatenate(at_ms) / 1000
    order = np.argsort(at, kind="stable")
    return _without_withdrawn(pairs[order], at[order])


def _without_withdrawn(pairs: Ints, at_s: NDArray[np.float64]) -> Results:
    """Remove retracted pairs, the earliest first if equal pairs occur more than once."""
    gone, times = np.unique(pairs[pairs[:, 2] < 0, :2], axis=0, return_counts=True)
    left = dict(zip(map(tuple, gone.tolist()), times.tolist(), strict=True))
    kept = pairs[:, 2] > 0
    for row in np.flatnonzero(kept) if left else ():
        pair = (int(pairs[row, 0]), int(pairs[row, 1]))
        if left.get(pair):
            left[pair] -= 1
            kept[row] = False
    return Results(pairs[kept, 0], pairs[kept, 1], at_s[kept], withdrawn=len(pairs) - int((pairs[:, 2] > 0).sum()))


def count_results(consumer: Consumer, topic: str) -> int:
    """Return the sum of a topic's end offsets. With transactions it slightly exceeds the number of results."""
    try:
        ends = [
            consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10) for number in range(PARTITIONS)
        ]
    except KafkaException:
        return 0  # the topic is being created
    return sum(high for _, high in ends)


def judge(
    results: Results,
    expected: Expected,
    watch: Watch,
    ended_s: float,
    window: Window = NO_WINDOW,
    held: int | None = None,
) -> dict[str, Any]:
    """Return rates, costs, and the comparison with the expected results. ``held`` counts the pairs in the window."""
    everything = results
    if not len(results.at_s):
        raise FailedError("no result")
    is_joined = not np.array_equal(results.left, results.right)
    settled = settled_of(everything, expected, watch, ended_s, window, held)
    if settled is not None:
        results = results.first_ones(settled)
    comparison = compare(expected, everything.left, everything.right, settled, window)
    found: dict[str, Any] = (
        asdict(comparison) if is_joined else {"rows": len(results.at_s), "results": len(results.at_s)}
    )
    found |= expected.facts | {
        "is_through": settled is None,
        "is_quiet": watch.is_quiet,
        "withdrawn": everything.withdrawn,
        "start_s": float(everything.at_s[0]) - watch.began_s,
    }
    found |= {} if held is None else {"held": held}
    rate = steady(results.at_s)
    if rate is not None:
        share, first_s, last_s = rate
        rows = share * found["rows"]
        if settled is not None:
            # Some results for the processed part may have been written after the cut.
            came = compare(expected, results.left, results.right, settled, window).found / max(1, comparison.found)
            rows *= came or 1.0
        own_s, kafka_s = watch.between(first_s, last_s)
        found |= {
            "records_per_s": rows / (last_s - first_s),
            "results_per_s": share * len(results.at_s) / (last_s - first_s),
            "steady_s": last_s - first_s,
            "cpu_s_per_million": own_s / rows * 1e6,
            "kafka_cpu_s_per_million": kafka_s / rows * 1e6,
        }
    return found | {"memory_bytes": watch.memory_max, "complete": comparison.complete if is_joined else None}


def settled_of(
    results: Results, expected: Expected, watch: Watch, ended_s: float, window: Window, held: int | None
) -> int | None:
    """Return how many of the first results to judge if the run was cut off; None for a complete run.

    The batch in progress when the run was stopped is incomplete, so the results of the last stretch before the stop,
    somewhat longer than the longest pause between two advances, do not count.
    """
    is_joined = not np.array_equal(results.left, results.right)
    if is_joined:
        comparison = compare(expected, results.left, results.right, window=window)
        are_held = window.holds_all(expected.workload, results.left, results.right)
        has_all = comparison.shows_all(held if are_held else None)
        is_through = has_all or (watch.is_quiet and comparison.reached == 1)
    else:
        is_through = watch.is_quiet and len(np.unique(results.left)) == len(expected.workload)
    if is_through:
        return None
    count = len(results.first(ended_s - 1.2 * _longest_pause_s(results)).at_s)
    return count or len(results.at_s)


def steady(at_s: NDArray[np.float64]) -> tuple[float, float, float] | None:
    """Return the steady part: its share of the results, its start and end. None if all results came at once.

    It begins at the end of a batch if a pause separates batches and enough results follow.
    """
    first, last_s = int(STEADY_FROM * (len(at_s) - 1)), float(at_s[-1])
    pauses = first + np.flatnonzero(np.diff(at_s[first:]) > _PAUSE_S)
    if len(pauses) and (at_s > at_s[pauses[0]]).mean() >= _ENOUGH:
        first = int(pauses[0])
    first_s = float(at_s[first])
    share = float((at_s > first_s).mean())
    return (share, first_s, last_s) if last_s > first_s else None


def _longest_pause_s(results: Results) -> float:
    """Return the longest pause between two advances of the furthest joined row."""
    reach = np.maximum.accumulate(np.maximum(results.left, results.right))
    at_s = results.at_s[np.flatnonzero(np.diff(reach, prepend=-1))]
    return float(np.diff(at_s).max(initial=0.0))


def recovery(arena: Arena, contender: Contender, workload: str, records: int, limits: Limits, **given: Any) -> Any:
    """Kill all processes with SIGKILL at a third of the results, restart them, and time the next new result."""
    expected, topic = arena.expected(workload, records), arena.data(workload, records, contender.topics)
    job = arena.job(contender, topic, records, **given).of(expected.workload)
    with tidy(arena, job):
        watch = Watch(arena, contender, job, limits, len(expected.pairs))
        with at_work(contender, job) as tree:
            watch.until_ended(tree, results=len(expected.pairs) // 3)
            tree.kill()
        with closing(make_consumer(arena.kafka, "bench")) as consumer:
            already = count_results(consumer, job.out)
        killed_s = time.time()
        watch = Watch(arena, contender, job, limits, len(expected.pairs))
        with at_work(contender, job) as tree:
            watch.until_ended(tree, already=already)
            ended_s = time.time()
        results = read_results(arena.kafka, job.out)
        codes = results.left * records + results.right
        is_new = (results.at_s > killed_s) & ~np.isin(codes, codes[results.at_s <= killed_s])
        if not is_new.any():
            raise FailedError(f"no new result after the restart; {last_words(job)}")
        window = contender.window(job.width_ms)
        settled = settled_of(results, expected, watch, ended_s, window, held=None)
        comparison = asdict(compare(expected, results.left, results.right, settled, window))
        ended = {"is_through": settled is None, "is_quiet": watch.is_quiet}
        return comparison | {"recovery_s": float(results.at_s[is_new][0]) - killed_s} | ended
