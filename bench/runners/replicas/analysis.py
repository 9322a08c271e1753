"""Compares the latencies around faults with those in quiet periods, and computes what each setup costs.

All quantiles are taken by rank from counts of whole milliseconds, so that resampling faults is a product of matrices.
The intervals are those of the bootstrap: faults are drawn with replacement, each with its quiet period, and the middle
95 % of the ratios are reported. A result that is missing from a window counts as slower than all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from bench.runners.replicas.faults import BEFORE_MS, KINDS, WINDOW_MS, Fault
from bench.runners.replicas.raw import Observed, Output

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

SHARES: Final = (50.0, 99.0, 99.9)
"""The percentiles."""

ALL: Final = "all"
"""Stands for all kinds of faults."""

NEVER_MS: Final = 60_000
"""The latency of results that are missing, or at least as late as this."""

FIRST_MS, LAST_MS, STEP_MS = -1_000, 6_000, 100
"""The range of times around a fault for which latencies are drawn, and the length of a step."""

_RESAMPLES: Final = 1_000
_AT_ONCE: Final = 50
_SEED: Final = 7
_MIDDLE: Final = (2.5, 97.5)
_EXACT: Final = 1e-9
"""Less than this is a rounding error of a rank."""


class View(NamedTuple):
    """What a reader sees: of each result, the copy that was appended first to any of these outputs of a part."""

    part: str
    outputs: tuple[str, ...]


ALONE, STANDBY, REPLICAS = "alone", "standby", "replicas"
MERGED, READER = "merged topic", "merging reader"
VIEWS: Final = {
    ALONE: View(ALONE, ("replica 0",)),
    STANDBY: View(STANDBY, ("replica 0",)),
    MERGED: View(REPLICAS, ("merged",)),
    READER: View(REPLICAS, ("replica 0", "replica 1")),
}
SINGLE: Final = {f"only replica {number}": View(REPLICAS, (f"replica {number}",)) for number in (0, 1)}
"""A reader that reads one of two replicas. It is compared with the others in quiet periods alone."""


def seen(view: View, observed: Observed) -> Output:
    """Return the results that a reader sees, in the order of their due times."""
    outputs = [observed.outputs[name] for name in view.outputs]
    due_ns = np.concatenate([one.due_ns for one in outputs])
    appended_ms = np.concatenate([one.appended_ms for one in outputs])
    order = np.lexsort((appended_ms, due_ns))
    once, first = np.unique(due_ns[order], return_index=True)
    return Output(once, appended_ms[order][first])


def counts(output: Output, begins_ms: Sequence[int], rate: int) -> Ints:
    """Return how many results of each window have which latency in ms (int64, shape (windows, `NEVER_MS` + 1)).

    A window holds the records that are due within `WINDOW_MS` from its beginning, in ms since the epoch. ``output`` is
    in the order of the due times. ``rate``: how many records are due per second.
    """
    found = np.zeros((len(begins_ms), NEVER_MS + 1), dtype=np.int64)
    for number, begin_ms in enumerate(begins_ms):
        part = _between(output, begin_ms, begin_ms + WINDOW_MS)
        # Both clocks are those of this machine, but the broker's is rounded down.
        took_ms = np.clip(part.appended_ms - part.due_ns // 1_000_000, 1, NEVER_MS)
        found[number] = np.bincount(took_ms, minlength=NEVER_MS + 1)
        # A window has one record less if one is due just before it, and another just after it.
        found[number, NEVER_MS] += max(0, rate * WINDOW_MS // 1000 - 1 - len(took_ms))
    return found


def quantiles(counts: Ints | Floats, values_ms: Ints) -> Ints:
    """Return the percentiles `SHARES` of each row, in ms (int64, shape (rows, 3)).

    ``counts``: how often each of the values occurs (shape (rows, values)). The values are in ascending order.
    """
    total = counts.cumsum(axis=1)
    ranks = [np.ceil(share * total[:, -1:] / 100 - _EXACT) for share in SHARES]
    places = np.column_stack([(total < rank).sum(axis=1) for rank in ranks])
    found: Ints = values_ms[np.minimum(places, len(values_ms) - 1)]
    return found


class Compared(NamedTuple):
    """Percentiles in ms of two sets of results, and the ratio of the first to the second with its interval.

    None stands for a percentile that falls on a missing result, and for what is computed from it.
    """

    ms: list[int | None]
    of_ms: list[int | None]
    ratio: list[float | None]
    interval: list[list[float] | None]


def compare(these: Ints, those: Ints) -> Compared:
    """Compare windows with others, of which each belongs to one of them. Both are what `counts` returns."""
    used = np.flatnonzero(these.sum(axis=0) + those.sum(axis=0))
    these, those = these[:, used], those[:, used]
    ms, of_ms = (quantiles(one.sum(axis=0, keepdims=True), used)[0] for one in (these, those))
    chance = np.random.default_rng(_SEED)
    drawn = chance.multinomial(len(these), np.full(len(these), 1 / len(these)), size=_RESAMPLES).astype(np.float64)
    # In parts, to save memory: there may be tens of thousands of values.
    parts = np.array_split(drawn, _RESAMPLES // _AT_ONCE)
    many, of_many = (np.concatenate([quantiles(part @ one, used) for part in parts]) for one in (these, those))
    bounds = np.percentile(many / of_many, _MIDDLE, axis=0)
    # An interval whose resamples include missing results has no meaning as a ratio.
    is_known = (ms < NEVER_MS) & (of_ms < NEVER_MS)
    is_sure = np.maximum(many, of_many).max(axis=0) < NEVER_MS
    return Compared(
        _known(ms),
        _known(of_ms),
        [float(one / other) if known else None for one, other, known in zip(ms, of_ms, is_known, strict=True)],
        [bounds[:, number].tolist() if is_sure[number] else None for number in range(len(SHARES))],
    )


def around_faults(observed: Mapping[str, Observed]) -> list[dict[str, Any]]:
    """Return a row per view and kind of fault: the latencies around faults, compared with those in quiet periods.

    ``observed``: by part. ``slowest_ms``: the latency of the slowest result of each fault, None if one is missing.
    """
    rows: list[dict[str, Any]] = []
    for name, view in VIEWS.items():
        if view.part not in observed:
            continue
        events, output = faults_of(observed[view.part]), seen(view, observed[view.part])
        for kind in (ALL, *KINDS):
            chosen = [event for event in events if kind in (ALL, event.kind)]
            if not chosen:
                continue
            near = counts(output, [event.at_ms - BEFORE_MS for event in chosen], rate_of(observed[view.part]))
            quiet = counts(output, [event.quiet_ms for event in chosen], rate_of(observed[view.part]))
            compared = compare(near, quiet)
            slowest = NEVER_MS - (near[:, ::-1] > 0).argmax(axis=1)
            row: dict[str, Any] = {"view": name, "kind": kind, "faults": len(chosen), "fault_ms": compared.ms}
            row |= {"quiet_ms": compared.of_ms, "ratio": compared.ratio, "interval": compared.interval}
            rows.append(row | {"slowest_ms": _known(slowest)})
    return rows


def in_quiet(observed: Mapping[str, Observed]) -> list[dict[str, Any]]:
    """Return a row per view: the latencies in quiet periods and, with replicas, compared with those of replica 0."""
    rows: list[dict[str, Any]] = []
    single, _ = SINGLE
    for name, view in {**VIEWS, **SINGLE}.items():
        part = observed.get(view.part)
        if part is None or not (events := faults_of(part)):
            continue
        begins_ms = [event.quiet_ms for event in events]
        quiet = counts(seen(view, part), begins_ms, rate_of(part))
        of_one = counts(seen(SINGLE[single], part), begins_ms, rate_of(part)) if view.part == REPLICAS else quiet
        compared = compare(quiet, of_one)
        row: dict[str, Any] = {"view": name, "periods": len(events), "ms": compared.ms}
        if view.part == REPLICAS and name != single:
            row |= {"ratio": compared.ratio, "interval": compared.interval}
        rows.append(row)
    return rows


def over_time(observed: Mapping[str, Observed]) -> dict[str, dict[str, list[tuple[int, list[int]]]]]:
    """Return percentiles of the latency in ms by view, kind of fault and time since the fault.

    The time is when the later record of a result was due, in ms, in steps of `STEP_MS`. All faults of a kind are
    combined.
    """
    found: dict[str, dict[str, list[tuple[int, list[int]]]]] = {}
    for name, view in VIEWS.items():
        if view.part not in observed:
            continue
        output = seen(view, observed[view.part])
        for kind in KINDS:
            chosen = [event for event in faults_of(observed[view.part]) if event.kind == kind]
            if chosen:
                found.setdefault(name, {})[kind] = _by_step(output, [event.at_ms for event in chosen])
    return found


def _by_step(output: Output, at_ms: Sequence[int]) -> list[tuple[int, list[int]]]:
    step, took_ms = list[Any](), list[Any]()
    for event_ms in at_ms:
        part = _between(output, event_ms + FIRST_MS, event_ms + LAST_MS)
        due_ms = part.due_ns // 1_000_000
        step.append((due_ms - event_ms) // STEP_MS)
        took_ms.append(np.maximum(part.appended_ms - due_ms, 1))
    steps, took = np.concatenate(step), np.concatenate(took_ms)
    return [
        (int(one) * STEP_MS, np.percentile(took[steps == one], SHARES, method="inverted_cdf").tolist())
        for one in np.unique(steps)
    ]


def of_costs(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per setup and rate, with the values of all turns per million records.

    ``joiner_s``, ``merger_s`` and ``kafka_s`` are CPU seconds, ``written`` and ``kafkas_own`` bytes: in the topics of
    the application, without its input, and in Kafka's own. ``of_alone``: the ratios of the medians to those of one
    process without a standby, of the CPU time of all processes of the joiner and of ``written``.
    """
    found: list[dict[str, Any]] = []
    for setup, rate in dict.fromkeys((row["setup"], row["rate"]) for row in rows):
        runs = [row for row in rows if (row["setup"], row["rate"]) == (setup, rate)]
        one: dict[str, Any] = {"setup": setup, "rate": rate, "records": [run["records"] for run in runs]}
        for name in ("joiner_s", "merger_s", "kafka_s"):
            one[name] = [1e6 * run[name] / run["records"] for run in runs]
        for name, is_own in (("written", False), ("kafkas_own", True)):
            sizes = [_bytes(run["bytes"], is_own=is_own) for run in runs]
            one[name] = [1e6 * size / run["records"] for size, run in zip(sizes, runs, strict=True)]
        found.append(one)
    alone = {one["rate"]: one for one in found if one["setup"] == ALONE}
    for one in found:
        if one["rate"] in alone:
            base = alone[one["rate"]]
            one["of_alone"] = [of(one) / of(base) for of in (joiner_s, lambda row: median(row["written"]))]
    return found


def joiner_s(row: Mapping[str, Any]) -> float:
    """Return the CPU seconds of all of the joiner's processes per million records: the median of the turns."""
    return median(map(sum, zip(row["joiner_s"], row["merger_s"], strict=True)))


def _bytes(by_topic: Mapping[str, int], *, is_own: bool) -> int:
    return sum(size for topic, size in by_topic.items() if topic != "data" and topic.startswith("__") is is_own)


def faults_of(observed: Observed) -> list[Fault]:
    """Return the faults of a part."""
    return [Fault(**one) for one in observed.facts["faults"]]


def rate_of(observed: Observed) -> int:
    """Return how many records a second were due in a part."""
    return int(observed.facts["rate"])


def _between(output: Output, first_ms: int, last_ms: int) -> Output:
    """Return the results whose later records were due from the first time up to but not including the last one."""
    part = slice(*np.searchsorted(output.due_ns, np.array([first_ms, last_ms]) * 1_000_000).tolist())
    return Output(output.due_ns[part], output.appended_ms[part])


def _known(ms: Ints) -> list[int | None]:
    return [int(one) if one < NEVER_MS else None for one in ms]
