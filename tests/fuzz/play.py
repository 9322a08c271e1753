"""Runs cases, each identified by seed and number, within limits on time and memory."""

from __future__ import annotations

import random
import resource
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.fuzz.mutation import Mutator
from tests.fuzz.targets import TARGETS, Target

CPU_S: Final = 2.0
"""The CPU time limit of a case: a hundred times the time that the largest valid input needs."""

MEMORY_BYTES: Final = 1 << 30
"""How much the memory of a worker may grow."""

_BLOCK: Final = 2_000
_SHOWN_BYTES: Final = 2_000


class TooLong(Exception):
    """A case took more CPU time than `CPU_S`."""


@dataclass
class Tally:
    """The outcomes of several cases. ``outcomes``: counts by target and outcome. ``findings``: one per failed case."""

    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    longest_s: float = 0.0
    took_s: float = 0.0

    def add(self, other: Tally) -> None:
        """Add the outcomes of other cases."""
        self.cases += other.cases
        self.outcomes.update(other.outcomes)
        self.findings += other.findings
        self.longest_s = max(self.longest_s, other.longest_s)


def play_all(seed: int, numbers: range, jobs: int = 1, targets: Sequence[Target] = TARGETS) -> Iterator[Tally]:
    """Run the cases of a seed in ``jobs`` processes. Yield the tally of each block, in order."""
    blocks = [numbers[at : at + _BLOCK] for at in range(0, len(numbers), _BLOCK)]
    if jobs == 1:
        yield from (play(seed, block, targets) for block in blocks)
        return
    with ProcessPoolExecutor(jobs, initializer=_limit_memory) as pool:
        yield from pool.map(_play_block, [(seed, block) for block in blocks])


def play(seed: int, numbers: range, targets: Sequence[Target] = TARGETS) -> Tally:
    """Run some cases of a seed in this process."""
    tally, began_s = Tally(), time.monotonic()
    for number in numbers:
        # A string seed gives the same numbers in every process and Python release.
        mutator = Mutator(random.Random(f"{seed} {number}"))
        target = targets[number % len(targets)]
        case = target.make(mutator)
        case_began_s = time.process_time()
        try:
            with _limited_time():
                outcome = target.run(case)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            shown = repr(case)[:_SHOWN_BYTES]
            where = "".join(traceback.format_exception(error, limit=-6))
            tally.findings.append(f"--seed {seed} --case {number} ({target.name}): {shown}\n{where}")
            outcome = "FINDING"
        tally.longest_s = max(tally.longest_s, time.process_time() - case_began_s)
        tally.outcomes[f"{target.name}: {outcome}"] += 1
        tally.cases += 1
    tally.took_s = time.monotonic() - began_s
    return tally


def _play_block(given: tuple[int, range]) -> Tally:
    return play(*given)


def _limit_memory() -> None:
    # Memory that the first cases allocate (compiled loops, decoders) does not count.
    play(0, range(2 * len(TARGETS)))
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_BYTES, resource.RLIM_INFINITY))


@contextmanager
def _limited_time() -> Iterator[None]:
    def stop(*_given: object) -> None:
        raise TooLong(f"it took more than {CPU_S} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
