"""Runs many histories in worker processes and tallies their outcomes."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from tests.simulation.history import play
from tests.simulation.outcome import Outcome

_CHUNK = 50


@dataclass
class Tally:
    """The totals of many outcomes. ``texts``: the differences, with their timelines."""

    seeds: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    different: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    took_s: float = 0.0

    def add(self, other: Tally) -> None:
        """Add the tally of other seeds."""
        self.seeds += other.seeds
        self.counts.update(other.counts)
        self.different += other.different
        self.texts += other.texts
        self.took_s += other.took_s

    def note(self, outcome: Outcome) -> None:
        """Add the outcome of a history."""
        self.seeds += 1
        self.counts.update(outcome.counts)
        if outcome.difference:
            self.different.append(outcome.seed)
            self.texts.append(outcome.text())


def play_all(seeds: Sequence[int], jobs: int = 1) -> Tally:
    """Run the histories of the seeds in ``jobs`` worker processes."""
    began_s = time.monotonic()
    total = Tally()
    chunks = [seeds[at : at + _CHUNK] for at in range(0, len(seeds), _CHUNK)]
    if jobs == 1:
        for chunk in chunks:
            total.add(_play_some(chunk))
    else:
        with ProcessPoolExecutor(jobs, initializer=keep_to_one_core) as pool:
            for tally in pool.map(_play_some, chunks):
                total.add(tally)
    total.took_s = time.monotonic() - began_s
    return total


def _play_some(seeds: Iterable[int]) -> Tally:
    tally = Tally()
    for seed in seeds:
        tally.note(play(seed))
    return tally


def keep_to_one_core() -> None:
    """Pin this process to one core: only one thread runs at a time, and switching threads is faster on one core."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})
