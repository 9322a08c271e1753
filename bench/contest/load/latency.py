"""Measures the latency of results at increasing rates, up to saturation, after the contender has warmed up.

The latency of a result is the time from when its later record was *due* until the committed result reaches a consumer
(see `bench.contest.load.sender`). A result that is missing at the end of the step counts as slower than all others.
Sender, contender and consumer are processes on one machine and share its clock. The first third of each step is
discarded. The CPU time used by the contender, Kafka and the measuring programs is recorded too.

A contender is saturated at the first rate that it cannot keep up with. Higher rates are not measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from bench.contest.job import Contender, Job
from bench.contest.load.receiver import Arrived, Receiver
from bench.contest.load.sender import Schedule
from bench.contest.running.arena import Arena, FailedError, at_work, commands_of, last_words, settings_of, tidy
from bench.contest.running.outputs import pairs_of
from bench.harness.processes import Machine, Tree, machine_cpu, others_cores, processes

if TYPE_CHECKING:
    from numpy.typing import NDArray

QUANTILES: Final = (50.0, 99.0, 99.9)
WIDTH_MS: Final = 8
"""The narrowest window that finds all neighbours: the sender's records alternate as in the alternating workload."""
_WARM_UP_S: Final = 8.0
_WARM_UPS_MAX: Final = 8
_WARM: Final = 0.95
"""A contender is warm once its p50 is more than this share of the p50 in the previous part of the warm-up."""
_START_S: Final = 90.0
_GROWTH: Final = 0.2
"""A contender keeps up if its latency grows by less than this, in seconds per second."""
_DRAIN_S: Final = 3.0
_SENDER_BEHIND_MS: Final = 100.0
"""If the sender is further behind its schedule than this at the end of a step, the sender is the bottleneck rather than
the contender."""


class Load:
    """A contender under load, and the process that sends records to it."""

    def __init__(
        self, arena: Arena, contender: Contender, job: Job, tree: Tree, sender: subprocess.Popen[bytes]
    ) -> None:
        self.contender, self.job, self.tree = contender, job, tree
        self._arena, self._sender = arena, sender
        self.schedule = Schedule(0.0, 0)

    def set_rate(self, rate: int) -> dict[str, float]:
        """Set the sender's rate. Return its report on the previous rate: how many records it sent, and how late."""
        if self._sender.stdin is None or self._sender.stdout is None or self._sender.poll() is not None:
            return {}
        self._sender.stdin.write(f"{rate}\n".encode())
        self._sender.stdin.flush()
        report: dict[str, float] = json.loads(self._sender.stdout.readline()) if self.schedule.rate else {}
        if rate:
            began_ns = json.loads(self._sender.stdout.readline())["began_ns"]
            self.schedule = Schedule(rate, began_ns)
        return report

    def cpu_s(self) -> tuple[float, float, float]:
        """Return the CPU seconds that the contender, Kafka and the measuring programs have used so far."""
        sender = processes().get(self._sender.pid)
        return self.tree.look(), self._arena.kafka_cpu_s(), time.process_time() + (sender.cpu_s if sender else 0.0)


@contextmanager
def under_load(arena: Arena, contender: Contender, rate: int) -> Iterator[tuple[Load, Receiver]]:
    """Start a contender, send records to it at ``rate``, and wait until results arrive and it has warmed up."""
    data = f"late-{time.time_ns():x}"
    topic = arena.make_data(data, contender.topics)
    job = replace(arena.job(contender, topic, 1_000_000_000), width_ms=WIDTH_MS)
    command = [sys.executable, "-m", "bench.contest.load.sender", job.kafka.bootstrap_servers, topic]
    with (
        tidy(arena, replace(job, name=data)),
        tidy(arena, job),
        at_work(commands_of(contender, job), job) as tree,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sender,  # noqa: S603 - this package
        closing(Receiver(job)) as receiver,
    ):
        load = Load(arena, contender, job, tree, sender)
        try:
            load.set_rate(rate)
            deadline_s = time.monotonic() + _START_S
            while not receiver.receive(0.2):
                if time.monotonic() > deadline_s or all(root.poll() is not None for root in tree.roots):
                    raise FailedError(f"no result; {last_words(job)}")
            warm_up(receiver.receive)
            yield load, receiver
        finally:
            load.set_rate(0)


def warm_up(receive: Callable[[float], Sequence[Arrived]]) -> None:
    """Receive results until the p50 of their latency stops falling, or the limit is reached.

    A JVM compiles a method only once it has run for many records, which takes a while at a low rate.
    """
    before_ms = np.inf
    for _ in range(_WARM_UPS_MAX):
        times_ns = arrivals(receive(_WARM_UP_S))
        p50_ms = float(np.median(times_ns[:, 0] - times_ns[:, 1])) / 1e6 if len(times_ns) else np.inf
        if np.isinf(p50_ms) or p50_ms > _WARM * before_ms:
            break
        before_ms = p50_ms


def climb(arena: Arena, contender: Contender, rates: Sequence[int], seconds: float) -> list[dict[str, Any]]:
    """Measure one rate after another, up to the first that the contender cannot keep up with. Return all figures."""
    steps: list[dict[str, Any]] = []
    with under_load(arena, contender, rates[0]) as (load, receiver):
        for rate in rates:
            steps.append(_step(load, receiver, rate, seconds) | {"settings": settings_of(contender, load.job)})
            if not steps[-1]["keeps_up"]:
                break
    return steps


def steady_load(arena: Arena, contender: Contender, rate: int, seconds: float) -> dict[str, Any]:
    """Measure one rate for a long time. Return the figures for the worst minute, and a summary of each minute."""
    parts: list[dict[str, Any]] = []
    with under_load(arena, contender, rate) as (load, receiver):
        for _ in range(max(1, round(seconds / _PART_S))):
            load.tree.memory_max = 0
            step = _step(load, receiver, rate, min(seconds, _PART_S))
            parts.append(step | {"memory_bytes": load.tree.memory_max})
        settings = settings_of(contender, load.job)
    names = ("ms", "memory_bytes", "keeps_up", "contender_cores", "kafka_cores", "foreign_share")
    worst = max(parts, key=lambda part: tuple(np.inf if value is None else value for value in part["ms"] or (np.inf,)))
    shown = [{name: part[name] for name in names} for part in parts]
    whole = {"keeps_up": all(part["keeps_up"] for part in parts), "results": sum(part["results"] for part in parts)}
    return worst | whole | {"parts": shown, "steady_s": seconds, "settings": settings}


_PART_S: Final = 60.0


def drain_s(waits_ms: int, rate: int) -> float:
    """Return how many seconds to wait for results after a step has ended.

    Event times are 1 ms apart, so ``waits_ms`` of event time is also the number of records to wait for.
    """
    return _DRAIN_S + waits_ms / rate


class Counted(NamedTuple):
    """The measured part of a step: when it begins and ends (in ns), and how many results it should produce."""

    first_ns: int
    last_ns: int
    wanted: int


def _step(load: Load, receiver: Receiver, rate: int, seconds: float) -> dict[str, Any]:
    """Measure one rate for ``seconds``. Only the records due in the last two thirds of that time count.

    Their results may still arrive shortly afterwards. Sending continues until then, because a result may depend on
    later records.
    """
    load.set_rate(rate)
    listen_s = drain_s(load.contender.waits_ms, rate)
    began_s, used_s, machine = time.monotonic(), load.cpu_s(), machine_cpu()
    first_ns = load.schedule.began_ns + int(seconds / 3 * 1e9)
    last_ns = load.schedule.began_ns + int(seconds * 1e9)
    counted = Counted(first_ns, last_ns, load.schedule.count_between(first_ns, last_ns))
    arrived = receiver.receive(seconds)
    passed_s, spent_s = time.monotonic() - began_s, np.subtract(load.cpu_s(), used_s)
    cores, all_s = spent_s / passed_s, Machine(*np.subtract(machine_cpu(), machine).tolist())
    # Parsed only now, so that parsing does not delay receiving.
    times_ns = arrivals(arrived + receiver.receive(listen_s))
    reported = load.set_rate(rate)
    return (
        judged_step(times_ns, counted, seconds)
        | others_cores(all_s, float(spent_s.sum()), passed_s)
        | {
            "rate": rate,
            "listened_s": seconds + listen_s,
            "contender_cores": float(cores[0]),
            "kafka_cores": float(cores[1]),
            "measuring_cores": float(cores[2]),
            "sender_late_ms": reported.get("late_ms"),
            "is_limited_by_sender": reported.get("behind_ms", 0.0) > _SENDER_BEHIND_MS,
        }
    )


def judged_step(times_ns: NDArray[np.int64], counted: Counted, seconds: float) -> dict[str, Any]:
    """Return the figures of a step.

    ``times_ns`` contains, for each result, when it arrived and when its later record was due (int64, shape (n, 2)). A
    result that was written twice is counted once, at its first arrival. A missing result counts as slower than all
    others.
    """
    is_counted = (times_ns[:, 1] > counted.first_ns) & (times_ns[:, 1] <= counted.last_ns)
    _, once = np.unique(times_ns[is_counted, 1], return_index=True)
    of_step = times_ns[is_counted][once]
    took_ms = (of_step[:, 0] - of_step[:, 1]) / 1e6
    is_second = of_step[:, 1] >= (counted.first_ns + counted.last_ns) / 2
    halves = [took_ms[~is_second], took_ms[is_second]]
    grew_s = np.median(halves[1]) / 1e3 - np.median(halves[0]) / 1e3 if all(map(len, halves)) else np.inf
    missing = max(0, counted.wanted - len(took_ms))
    return {
        "results": len(took_ms),
        "wanted": counted.wanted,
        "missing": missing,
        "ms": quantiles_ms(took_ms, missing),
        "max_ms": float(took_ms.max()) if len(took_ms) and not missing else None,
        "keeps_up": bool(grew_s < _GROWTH * seconds / 3 and missing <= _MISSING * counted.wanted),
    }


_MISSING: Final = 0.01
"""A contender does not keep up if the share of records without a result exceeds this."""


_EXACT: Final = 1e-6
"""Subtracted from a rank before it is rounded up, so that a floating-point error cannot push a whole number up by
one."""


def quantiles_ms(took_ms: NDArray[np.float64], missing: int = 0) -> list[float | None] | None:
    """Return p50, p99 and p99.9 in ms, or None if there are no results.

    The ``missing`` results count as slower than all others. A quantile that falls on one of them is None.
    """
    if not len(took_ms):
        return None
    every = np.concatenate([np.sort(took_ms), np.full(missing, np.inf)])
    # Take the quantile by rank: interpolation is impossible if one of the two neighbouring results is missing.
    ranks = [min(len(every) - 1, int(np.ceil(quantile * len(every) / 100 - _EXACT)) - 1) for quantile in QUANTILES]
    return [float(every[rank]) if np.isfinite(every[rank]) else None for rank in ranks]


def arrivals(arrived: Sequence[Arrived]) -> NDArray[np.int64]:
    """Return, for each result, when it arrived and when its later record was due (int64, in ns, shape (n, 2))."""
    parts = [np.zeros((0, 2), dtype=np.int64)]
    for at_ns, values in arrived:
        pairs = np.array(pairs_of(values.each()), dtype=np.int64)
        # A retracted pair is not a result.
        due_ns = pairs[pairs[:, 2] > 0, :2].max(axis=1)
        parts.append(np.column_stack([np.full(len(due_ns), at_ns), due_ns]))
    return np.concatenate(parts)
