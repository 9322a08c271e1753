"""Judges a run by its output: how much of the input it processed, what it found there, how fast, and at what cost.

A run has finished if its results show that it has read its input to the end: in each partition they contain the last
pair that the contender can find, and either no neighbour is missing, or the run has gone quiet. The number of results
proves nothing. A run that has not finished was cut off at its time limit, or went quiet early; it is judged by the
part of the input that it processed, and not compared for completeness.

Rates are measured over the steady part of a run, which begins after a fifth of its results and ends with the last one,
by the broker's clock. This excludes startup by the same rule for all contenders. For a contender that works in
batches, the steady part begins at the end of a batch.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bench.contest.running.arena import FailedError
from bench.contest.workload.expected import NO_WINDOW, Expected, Window, compare

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bench.contest.running.outputs import Results
    from bench.contest.running.watch import Watch

STEADY_FROM: Final = 0.2
"""Share of the results after which the steady part of a run begins."""
_PAUSE_S: Final = 0.2
_ENOUGH: Final = 0.15


def judge(
    results: Results,
    expected: Expected,
    watch: Watch,
    ended_s: float,
    window: Window = NO_WINDOW,
    *,
    in_batches: bool = False,
) -> dict[str, Any]:
    """Return the rates and costs of a run, and the comparison of its results with the expected ones.

    ``in_batches`` says whether the contender works in batches.
    """
    everything = results
    if not len(results.at_s):
        raise FailedError("no result")
    processed = processed_of(everything, expected, watch, ended_s, window)
    if processed is not None:
        results = results.first_ones(processed)
    comparison = compare(expected, everything.left, everything.right, processed, window)
    if everything.is_joined:
        found = asdict(comparison)
    else:
        rows = len(np.unique(everything.left))
        found = {"rows": rows, "reached": rows / len(expected.workload), "results": len(everything.at_s)}
    found |= expected.facts | {
        "is_through": processed is None,
        "is_quiet": watch.is_quiet,
        "withdrawn": everything.withdrawn,
        "start_s": float(everything.at_s[0]) - watch.began_s,
    }
    rate = steady(results.at_s, in_batches=in_batches)
    if rate is not None:
        share, first_s, last_s = rate
        rows = share * found["rows"]
        if processed is not None and everything.is_joined:
            # Some results for the processed part of the input may come after the first ``processed`` ones.
            came = compare(expected, results.left, results.right, processed, window).found / max(1, comparison.found)
            rows *= came or 1.0
        own_s, kafka_s = watch.between(first_s, last_s)
        found |= {
            "records_per_s": rows / (last_s - first_s),
            "results_per_s": share * len(results.at_s) / (last_s - first_s),
            "steady_s": last_s - first_s,
            "steady_share": share,
            "cpu_s_per_million": own_s / rows * 1e6,
            "kafka_cpu_s_per_million": kafka_s / rows * 1e6,
        } | watch.others_between(first_s, last_s)
    return found | {"memory_bytes": watch.memory_max, "complete": comparison.complete if everything.is_joined else None}


def processed_of(
    results: Results, expected: Expected, watch: Watch, ended_s: float, window: Window = NO_WINDOW
) -> int | None:
    """Return the number of leading results by which an unfinished run is judged, or None if the run has finished.

    The batch that was in progress when the run was stopped is incomplete. The results written just before the stop are
    therefore left out: all those written within 1.2 times the longest pause in the run's progress.
    """
    if results.is_joined:
        comparison = compare(expected, results.left, results.right, window=window)
        is_through = comparison.reached == 1 and (not comparison.missing or watch.is_quiet)
    else:
        is_through = watch.is_quiet and len(np.unique(results.left)) == len(expected.workload)
    if is_through:
        return None
    count = len(results.first(ended_s - 1.2 * _longest_pause_s(results)).at_s)
    return count or len(results.at_s)


def steady(at_s: NDArray[np.float64], *, in_batches: bool = False) -> tuple[float, float, float] | None:
    """Return the steady part of a run: its share of the results, its start and its end (in s).

    Return None if all results were written at once. If the contender works in batches, and pauses separate them, the
    steady part begins at the end of a batch, provided that enough results follow. For all others a pause is a stall.
    """
    first, last_s = int(STEADY_FROM * (len(at_s) - 1)), float(at_s[-1])
    pauses = first + np.flatnonzero(np.diff(at_s[first:]) > _PAUSE_S)
    if in_batches and len(pauses) and (at_s > at_s[pauses[0]]).mean() >= _ENOUGH:
        first = int(pauses[0])
    first_s = float(at_s[first])
    share = float((at_s > first_s).mean())
    return (share, first_s, last_s) if last_s > first_s else None


def _longest_pause_s(results: Results) -> float:
    """Return the longest time without progress, in s: with no result containing a row later than all previous rows."""
    reach = np.maximum.accumulate(np.maximum(results.left, results.right))
    at_s = results.at_s[np.flatnonzero(np.diff(reach, prepend=-1))]
    return float(np.diff(at_s).max(initial=0.0))
