"""Runs a contender on a workload, with or without a kill in the middle."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.contest.job import Contender, Job, Limits
from bench.contest.running.arena import Arena, FailedError, at_work, commands_of, last_words, settings_of, tidy
from bench.contest.running.judging import judge, processed_of
from bench.contest.running.outputs import Results, count_results, read_results
from bench.contest.running.watch import Watch
from bench.contest.states import printed, summarise, time_of_position
from bench.contest.workload.expected import Expected, Window, compare
from joiner.runtime.kafka.clients import make_consumer

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """A workload for a contender to join, the width of its window, and the number of cores to use (0: all cores)."""

    contender: Contender
    workload: str
    records: int
    limits: Limits
    width_ms: int = 0
    cores: int = 0


def throughput(arena: Arena, task: Task) -> dict[str, Any]:
    """Run a contender once and return all figures. Raises `FailedError` or `NotHereError`."""
    expected, job, window = _prepare(arena, task)
    with tidy(arena, job):
        limits = replace(task.limits, budget_s=task.limits.budget_s * task.contender.patience)
        # Do this before the watch starts, because its clock would count the contender's installation as startup.
        commands = commands_of(task.contender, job)
        watch = Watch(arena, job, limits, _end_of(expected, window))
        with at_work(commands, job) as tree:
            watch.until_ended(tree)
            ended_s = time.time()
        results = read_results(job)
        judged = judge(results, expected, watch, ended_s, window, in_batches=task.contender.in_batches)
        state = state_of(task.contender, job, watch, results, expected) | {"kafka_bytes": arena.log_bytes(job)}
        return {"settings": settings_of(task.contender, job)} | judged | state


def recovery(arena: Arena, task: Task) -> dict[str, Any]:
    """Kill a contender's processes after a third of the results, restart them, and time the first new result."""
    expected, job, window = _prepare(arena, task)
    with tidy(arena, job):
        commands = commands_of(task.contender, job)
        watch = Watch(arena, job, task.limits, _end_of(expected, window))
        with at_work(commands, job) as tree:
            watch.until_ended(tree, results=len(expected.pairs) // 3)
            tree.kill()
        with closing(make_consumer(arena.kafka, "bench")) as consumer:
            already = count_results(consumer, job)
        killed_s = time.time()
        watch = Watch(arena, job, task.limits, _end_of(expected, window))
        with at_work(commands, job) as tree:
            watch.until_ended(tree, already=already)
            ended_s = time.time()
        results = read_results(job)
        codes = results.left * task.records + results.right
        is_new = (results.at_s > killed_s) & ~np.isin(codes, codes[results.at_s <= killed_s])
        if not is_new.any():
            raise FailedError(f"no new result after the restart; {last_words(job)}")
        processed = processed_of(results, expected, watch, ended_s, window)
        comparison = asdict(compare(expected, results.left, results.right, processed, window))
        ended = {"is_through": processed is None, "is_quiet": watch.is_quiet}
        return comparison | {"recovery_s": float(results.at_s[is_new][0]) - killed_s} | ended


def _prepare(arena: Arena, task: Task) -> tuple[Expected, Job, Window]:
    """Write the workload if it is missing. Return the expected results, a new job, and the contender's window."""
    contender = task.contender
    expected, topic = (
        arena.expected(task.workload, task.records),
        arena.data(task.workload, task.records, contender.topics),
    )
    job = arena.job(contender, topic, task.records, partitions=expected.workload.partitions)
    registry = arena.registry() if expected.workload.is_avro else ""
    job = replace(job.of(expected.workload), width_ms=task.width_ms, cores=task.cores, registry=registry)
    return expected, job, contender.window(job.width_ms, job.lateness_ms)


def _end_of(expected: Expected, window: Window) -> Callable[[Ints, Ints], bool]:
    return lambda left, right: expected.shows_end(left, right, window)


def state_of(contender: Contender, job: Job, watch: Watch, results: Results, expected: Expected) -> dict[str, Any]:
    """Return the size of a contender's state at the input positions at which all contenders are compared."""
    # If the folder is empty throughout, the engine keeps its state elsewhere.
    on_disk = watch.on_disk if any(one.bytes for one in watch.on_disk) else []
    states = [*on_disk, *printed(job.folder.glob("*.out"))]
    if stored := contender.states(job):
        # Its folder holds no state.
        states = stored
    if not results.is_joined:
        return {}
    time_of = time_of_position(expected.position(results.left, results.right), results.at_s)
    return {"state": summarise(states, len(expected.workload), time_of, expected.needed_rows)}
