"""Observes a run until it ends: at the end of its input, when it goes quiet, or at a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Final

import numpy as np

from bench.contest.running.arena import Arena, FailedError, last_words
from bench.contest.running.outputs import count_results, read_tail
from bench.contest.states import State
from bench.harness.processes import Machine, Sample, Tree, folder_bytes, machine_cpu, others_cores
from joiner.runtime.kafka.clients import make_consumer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bench.contest.job import Job, Limits

    Ints = NDArray[np.int64]

_LOOK_S: Final = 0.25
_STATE_EVERY: Final = 2
"""How many samples of the CPU time are taken per measurement of the state on disk."""
_BUSY: Final = 0.4
"""A contender that uses fewer cores than this is idle."""
_DONE_S: Final = 1.5
"""How long a run must be quiet and idle before its last results are read, to see whether it has reached the end."""


class Watch:
    """Observes a run. ``shows_end`` returns whether given left and right rows show that the whole input was read."""

    def __init__(self, arena: Arena, job: Job, limits: Limits, shows_end: Callable[[Ints, Ints], bool]) -> None:
        self.began_s = time.time()
        self.samples: list[Sample] = []
        self.is_quiet = False
        """Whether the run ended because no more results arrived, not because of a limit."""
        self.memory_max = 0
        self.on_disk: list[State] = []
        """The size of the state folder, sampled throughout the run."""
        self._arena = arena
        self._job = job
        self._limits = limits
        self._shows_end = shows_end

    def until_ended(self, tree: Tree, results: int | None = None, already: int = 0) -> None:
        """Wait until the whole input is read, no more results arrive, a limit is reached, or ``results`` results exist.

        ``already`` is the number of results from an earlier run, which are not counted. A run is not ended merely
        because it has as many results as expected, since some may be wrong, nor because it is quiet for a moment, since
        a contender is also quiet while it works on a batch.
        """
        progress = _Progress()
        with closing(make_consumer(self._arena.kafka, "bench")) as consumer:
            while True:
                self._look(tree)
                # Check this first: a contender may write its only transaction after the count, and exit.
                has_exited = all(root.poll() is not None for root in tree.roots)
                progress.update(count_results(consumer, self._job) - already)
                if results is not None and progress.count >= results:
                    return
                if self._is_over(progress, tree, has_exited=has_exited):
                    return
                time.sleep(_LOOK_S)

    def _is_over(self, progress: _Progress, tree: Tree, *, has_exited: bool) -> bool:
        quiet_s = time.time() - progress.changed_s
        self.is_quiet = bool(progress.count) and self._is_at_end_or_stuck(progress, quiet_s)
        if not self.is_quiet and quiet_s > _DONE_S and has_exited:
            if any(root.returncode for root in tree.roots) or not progress.count:
                raise FailedError(last_words(self._job))
            self.is_quiet = True
        if not progress.count and time.time() - self.began_s > self._limits.start_s:
            raise FailedError(f"no result within {self._limits.start_s:.0f} s; {last_words(self._job)}")
        is_late = progress.first_s > 0 and time.time() - progress.first_s > self._limits.budget_s
        return self.is_quiet or is_late

    def _is_at_end_or_stuck(self, progress: _Progress, quiet_s: float) -> bool:
        """Return whether the last results show that the input has been read to its end, or the run has come to a halt.

        An engine that is never idle, because it keeps checkpointing or aligning its sources, is given more time.
        """
        wait_s = max(self._limits.quiet_s, 1.5 * progress.longest_s)
        if quiet_s <= _DONE_S or (quiet_s <= wait_s and self._is_busy(_DONE_S)):
            return False
        if progress.looked_at != progress.count:
            progress.looked_at = progress.count
            progress.is_at_end = self._shows_end(*read_tail(self._job))
        return progress.is_at_end or (quiet_s > wait_s and not self._is_busy(wait_s))

    def _look(self, tree: Tree) -> None:
        used_s = (tree.look(), self._arena.kafka_cpu_s(), time.process_time())
        self.samples.append(Sample(time.time(), *used_s, machine_cpu()))
        self.memory_max = max(self.memory_max, tree.memory_max)
        if len(self.samples) % _STATE_EVERY == 0:
            self.on_disk.append(State(time.time(), bytes=folder_bytes(self._job.state)))

    def _is_busy(self, seconds: float) -> bool:
        last = self.samples[-1]
        before = next((one for one in reversed(self.samples) if one.at_s < last.at_s - seconds), self.samples[0])
        return last.cpu_s - before.cpu_s > _BUSY * (last.at_s - before.at_s)

    def between(self, first_s: float, last_s: float) -> tuple[float, float]:
        """Return the CPU seconds that the contender and Kafka used between two points in time."""
        found = self._grown(first_s, last_s, [[one.cpu_s, one.kafka_cpu_s] for one in self.samples])
        return found[0], found[1]

    def others_between(self, first_s: float, last_s: float) -> dict[str, float]:
        """Return what other programs and the host took between two points in time; see `others_cores`."""
        known = [[one.cpu_s + one.kafka_cpu_s + one.measuring_cpu_s, *one.machine] for one in self.samples]
        known_s, *machine = self._grown(first_s, last_s, known)
        return others_cores(Machine(*machine), known_s, last_s - first_s)

    def _grown(self, first_s: float, last_s: float, rows: list[list[float]]) -> list[float]:
        """Return by how much each column grew between two points in time. There is one row per sample."""
        at = [one.at_s for one in self.samples]
        return [float(np.diff(np.interp([first_s, last_s], at, column))[0]) for column in zip(*rows, strict=True)]


class _Progress:
    """How many results have been written, and when their number last changed."""

    def __init__(self) -> None:
        self.count = 0
        self.changed_s = time.time()
        self.first_s = 0.0
        self.longest_s = 0.0
        """The longest pause between two results so far."""
        self.looked_at = -1
        """The number of results when the last of them were read to check whether the run had reached its end."""
        self.is_at_end = False
        """Whether they showed the end of the input."""

    def update(self, count: int) -> None:
        """Record a new count."""
        if count != self.count:
            now_s = time.time()
            self.longest_s = max(self.longest_s, now_s - self.changed_s) if self.count else 0.0
            self.changed_s, self.first_s, self.count = now_s, self.first_s or now_s, count
