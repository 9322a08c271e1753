"""Runs the engine over a case, split into batches in several ways, and compares its output with the oracle.

The engine is used only through its public interface, `joiner.LocalStreamBuffer`; a test may pass a substitute. After
each step:

- the pairs emitted so far must be exactly those that the oracle derives from the input read so far, each emitted once;
- the late records must be the same as the oracle's;
- no pair may contain a record that was released in an earlier step;
- ``len`` must be the number of records that are neither late nor released.

In a long run, the output is compared with the oracle only after some of the steps. In some runs, the buffer is replaced
between steps by one restored from its snapshot.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from joiner.check.model import expected, oracle
from joiner.check.model.oracle import Rec, Watermark

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from joiner.check.model.cases import Case


Entry = Rec | Watermark
Plan = list[tuple[int, int]]

_CHECKS_MAX: Final = 40
"""The maximum number of steps per run to compare with the nested loops, whose cost is quadratic."""

_LARGE_CHECKS_MAX: Final = 3
"""The same maximum for a case too large for the nested loops."""

_ORACLE_RECORDS_MAX: Final = 400
"""The largest case, in entries per side, that uses the nested loops. Larger ones use `joiner.check.model.expected`."""

_DIFFERENCES_SHOWN: Final = 5


class BufferClass(Protocol):
    """The part of the `joiner.LocalStreamBuffer` interface that this module uses."""

    def __call__(self, *, tolerance_ns: int | None, lateness_ns: tuple[int, int]) -> Any:
        """Create an empty buffer."""
        ...

    def restore(self, data: bytes) -> Any:
        """Create a buffer from a snapshot."""
        ...


@dataclass
class Outcome:
    """The result of a case: how many records it has, and the differences found.

    ``certain``: the number of certain pairs at the end of the input. ``after_end``: the number once both streams have
    ended.
    """

    name: str
    records: int
    certain: int = 0
    after_end: int = 0
    differences: list[str] = field(default_factory=list)


@dataclass
class _Seen:
    """The output of one run of the engine so far."""

    pairs: set[tuple[int, int]] = field(default_factory=set)
    late: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))
    released: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))


def load_buffer() -> BufferClass:
    """Return the engine under test. Raises ImportError if it is not installed."""
    from joiner import LocalStreamBuffer  # noqa: PLC0415 - `verify` works without the engine

    return LocalStreamBuffer


def run_case(case: Case, buffer_class: BufferClass, seed: int) -> Outcome:
    """Run ``case`` once for each way of splitting it into batches, until a run differs from the oracle.

    A pair count other than the one worked out by hand is a difference too.
    """
    outcome = Outcome(case.name, sum(isinstance(e, Rec) for e in (*case.left, *case.right)))
    outcome.certain, outcome.after_end = (len(answer(case, closed=closed).pairs) for closed in (False, True))
    if case.pairs is not None and (outcome.certain, outcome.after_end) != case.pairs:
        outcome.differences.append(
            f"the oracle has {outcome.certain} pairs, {outcome.after_end} after the end; "
            f"calculated by hand: {case.pairs[0]} and {case.pairs[1]}"
        )
    for how, plan, restoring in _plans(case, random.Random(seed)):  # noqa: S311 - a seeded plan, no secret
        found = _run(case, plan, buffer_class, restoring=restoring)
        if found:
            outcome.differences += [f"{how}: {difference}" for difference in found[:_DIFFERENCES_SHOWN]]
            break
    return outcome


def answer(case: Case, stops: tuple[int, int] | None = None, *, closed: bool = False) -> expected.Answer:
    """Return the output required after reading the first ``stops`` entries of each side (None: all entries)."""
    left_stop, right_stop = stops or (len(case.left), len(case.right))
    left, right = case.left[:left_stop], case.right[:right_stop]
    options = {"tolerance_ns": case.tolerance_ns, "lateness_ns": case.lateness_ns, "closed": closed}
    if max(len(left), len(right)) > _ORACLE_RECORDS_MAX:
        return expected.join(left, right, **options)  # type: ignore[arg-type] # one dict of several types
    slow = oracle.join(left, right, **options)  # type: ignore[arg-type] # one dict of several types
    return expected.Answer(slow.pairs, {r.seq for r in slow.left.late}, {r.seq for r in slow.right.late})


def _plans(case: Case, rng: random.Random) -> Iterator[tuple[str, Plan, bool]]:
    """Yield plans for feeding a case to the engine.

    A plan consists of a name, how much of each side has been read after each step, and whether to restore between
    steps.
    """
    sizes = len(case.left), len(case.right)
    yield "all at once", [sizes], False
    yield "left first, then right", [(sizes[0], 0), sizes], True
    yield "right first, then left", [(0, sizes[1]), sizes], True
    if sum(sizes) <= _ORACLE_RECORDS_MAX:
        yield "one by one in time order", _by_time(case), True
    yield "random batches", _random_plan(sizes, rng), True
    yield "random batches without restore", _random_plan(sizes, rng), False


def _by_time(case: Case) -> Plan:
    done = [0, 0]
    plan: Plan = []
    while done != [len(case.left), len(case.right)]:
        heads = [
            side[at].ts if at < len(side) else None for side, at in zip((case.left, case.right), done, strict=True)
        ]
        left, right = heads
        side = 0 if right is None or (left is not None and left <= right) else 1
        done[side] += 1
        plan.append((done[0], done[1]))
    return plan or [(0, 0)]


def _random_plan(sizes: tuple[int, int], rng: random.Random) -> Plan:
    batch_max = rng.choice((1, 3, 10)) * max(sum(sizes) // 100, 1)
    done = (0, 0)
    plan: Plan = []
    while done != sizes:
        done = (
            min(done[0] + rng.randint(0, batch_max), sizes[0]),
            min(done[1] + rng.randint(0, batch_max), sizes[1]),
        )
        plan.append(done)
    return plan or [(0, 0)]


def _run(case: Case, plan: Plan, buffer_class: BufferClass, *, restoring: bool) -> list[str]:
    buffer = buffer_class(tolerance_ns=case.tolerance_ns, lateness_ns=case.lateness_ns)
    checks_max = _CHECKS_MAX if max(plan[-1]) <= _ORACLE_RECORDS_MAX else _LARGE_CHECKS_MAX
    seen, done, stride = _Seen(), (0, 0), len(plan) // checks_max + 1
    for number, stops in enumerate(plan, start=1):
        step = _push(buffer, case.left[done[0] : stops[0]], case.right[done[1] : stops[1]])
        done, where = stops, f"after {stops[0]} left and {stops[1]} right entries"
        differences = _record(step, seen)
        if number % stride == 0 or stops == plan[-1]:
            differences += _compare(case, stops, seen, len(buffer), closed=False)
        if differences:
            return [f"{where}: {difference}" for difference in differences]
        if restoring:
            buffer = buffer_class.restore(buffer.snapshot())
    differences = _record(buffer.close(), seen)
    differences += _compare(case, done, seen, None, closed=True)
    return [f"after the end: {difference}" for difference in differences]


def _push(buffer: Any, left: Sequence[Entry], right: Sequence[Entry]) -> Any:
    return buffer.push(
        left=_columns(left, Rec),
        right=_columns(right, Rec),
        left_watermarks=_columns(left, Watermark),
        right_watermarks=_columns(right, Watermark),
    )


def _columns(entries: Sequence[Entry], kind: type[Rec | Watermark]) -> tuple[np.ndarray, ...]:
    chosen = [(entry.key, entry.ts, entry.seq) for entry in entries if isinstance(entry, kind)]
    return tuple(np.array(chosen, dtype=np.int64).reshape(-1, 3).T.copy())


def _record(step: Any, seen: _Seen) -> list[str]:
    """Add a step's output to ``seen``. Return the errors found in the step itself."""
    differences = []
    for pair in zip(step.left_seq.tolist(), step.right_seq.tolist(), strict=True):
        if pair in seen.pairs:
            differences.append(f"the pair {pair} was emitted twice")
        if pair[0] in seen.released[0] or pair[1] in seen.released[1]:
            differences.append(f"the pair {pair} has a record that was already released")
        seen.pairs.add(pair)
    late = step.left_late_seq.tolist(), step.right_late_seq.tolist()
    released = step.left_released_seq.tolist(), step.right_released_seq.tolist()
    for what, lists, known in (("late", late, seen.late), ("released", released, seen.released)):
        for side, seqs, before in zip(("left", "right"), lists, known, strict=True):
            differences += [f"{side} record {seq} was {what} twice" for seq in seqs if seq in before]
            before.update(seqs)
    return differences


def _compare(case: Case, stops: tuple[int, int], seen: _Seen, held: int | None, *, closed: bool) -> list[str]:
    correct = answer(case, stops, closed=closed)
    differences = [f"the pair {pair} is missing" for pair in sorted(correct.pairs - seen.pairs)]
    differences += [f"the pair {pair} is unexpected" for pair in sorted(seen.pairs - correct.pairs)]
    late = zip(("left", "right"), seen.late, (correct.left_late, correct.right_late), strict=True)
    for side, found, wanted in late:
        differences += [f"{side} record {seq} should be late" for seq in sorted(wanted - found)]
        differences += [f"{side} record {seq} should not be late" for seq in sorted(found - wanted)]
    pushed = [
        {e.seq for e in entries[:stop] if isinstance(e, Rec)}
        for entries, stop in zip((case.left, case.right), stops, strict=True)
    ]
    sides = zip(pushed, seen.late, seen.released, strict=True)
    kept = sum(len(of_side - late - released) for of_side, late, released in sides)
    if held is not None and held != kept:
        differences.append(f"the buffer holds {held} records, but {kept} were neither late nor released")
    return differences
