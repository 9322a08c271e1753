"""Plans which measurements to make, how large they are, how often to repeat them, and in which order."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from bench.contest import engine
from bench.contest.contenders import (
    AVRO_CONTENDERS,
    CEILINGS,
    CONTENDERS,
    CORE,
    HEADLINE,
    OURS,
    PASS_THROUGH,
    ROW_CONTENDERS,
    SPARK_BEST,
    SPARK_DEFAULT,
    SPARK_TUNED,
)
from bench.contest.job import Contender, Limits
from bench.contest.kept import Measurement
from bench.contest.workload.inputs import AVRO, ROWS, SEED, WORKLOADS, of_curve

KINDS: Final = (
    *("throughput", "latency", "workloads", "widths", "recovery", "curves", "steady"),
    *("rows", "avro", "trials"),
)
"""The kinds of measurements. ``trials`` searches for the best settings of each peer; it is run only on request
(``--only trials``), when a peer has changed."""
SHARES: Final = (0.99,)
"""Shares of the neighbours that a window must be wide enough to find. The window widths for every workload except the
alternating one are derived from them."""
FLINK: Final = "Flink interval join"
IN_EVERY_TURN: Final = {"rows": (ROWS, ROW_CONTENDERS), "avro": (AVRO, AVRO_CONTENDERS)}
"""The kinds of measurements that are repeated for all contenders, not only for those named in a headline, with their
workload and contenders. In each turn, the joiner also runs on the alternating workload in JSON, for comparison."""
KEYS: Final = ("alternating", "1,000 keys", "100,000 keys")
ON_CURVES: Final = (OURS[0].name, SPARK_BEST.name, FLINK)


@dataclass(frozen=True)
class Sizes:
    """The size of a benchmark run: how many records, turns and rates it covers.

    ``turns`` is how often each kind of measurement is made for the contenders named in a headline; all others are
    measured once, except for the kinds in `IN_EVERY_TURN`. The alternating workload is large enough to fill several
    batches of every contender, including the Spark stage, which has the largest batches. ``curves`` lists the values at
    which each curve is measured. ``steady`` is the rate of the steady load in records/s and its duration in s.
    """

    records: int = 3_200_000
    workload_records: int = 1_000_000
    width_records: int = 300_000
    curve_records: int = 1_000_000
    row_records: int = 2_000_000
    avro_records: int = 2_000_000
    warm_up_records: int = 1_000_000
    turns: dict[str, int] = field(default_factory=lambda: {"throughput": 5, "latency": 5, "rows": 3, "avro": 5})
    limits: Limits = field(default_factory=Limits)
    short_limits: Limits = field(default_factory=lambda: Limits(budget_s=30.0, quiet_s=12.0))
    widths_ms: tuple[int, ...] = (10, 100, 1_000, 10_000)
    rates: tuple[int, ...] = (
        *(1_000, 2_000, 5_000, 10_000, 20_000, 50_000),
        *(100_000, 150_000, 200_000, 300_000, 400_000, 600_000),
    )
    latency_s: float = 9.0
    workloads: tuple[str, ...] = tuple(name for name in WORKLOADS if name not in {"alternating", "varying gaps"})
    shares: tuple[float, ...] = SHARES
    curves: dict[str, tuple[int, ...]] = field(
        default_factory=lambda: {
            "keys": (10, 1_000, 100_000, 1_000_000, 10_000_000),
            "partitions": (1, 4, 16, 64),
            "bytes of a record": (105, 1_000, 10_000),
            "ms of disorder": (0, 100, 1_000, 10_000),
            "cores": tuple(_powers_of_two(os.cpu_count() or 1)),
        }
    )
    steady: tuple[int, float] = (50_000, 600.0)
    kinds: tuple[str, ...] = KINDS[:-1]
    contenders: tuple[str, ...] = (*CONTENDERS, engine.NAME)
    seed: int = SEED
    """The seed for the order in which the contenders run."""

    def of(self, kind: str) -> tuple[int, Limits]:
        """Return the number of records and the time limits for a kind of measurement."""
        if kind in IN_EVERY_TURN:
            return (self.row_records if kind == "rows" else self.avro_records), self.limits
        short = {"workloads": self.workload_records, "widths": self.width_records, "curves": self.curve_records}
        return (short[kind], self.short_limits) if kind in short else (self.records, self.limits)

    def recorded(self) -> dict[str, Any]:
        """Return the sizes and both seeds as stored in the result files, where ``seed`` is the seed for the data."""
        return asdict(self) | {"seed": SEED, "order_seed": self.seed}


def _powers_of_two(largest: int) -> Iterator[int]:
    cores = 1
    while cores <= largest:
        yield cores
        cores *= 2


FULL: Final = Sizes()
QUICK: Final = Sizes(
    records=1_000_000,
    workload_records=100_000,
    width_records=60_000,
    curve_records=100_000,
    row_records=200_000,
    avro_records=200_000,
    warm_up_records=100_000,
    turns={},
    limits=Limits(budget_s=20.0, quiet_s=4.0),
    short_limits=Limits(budget_s=8.0, quiet_s=4.0),
    widths_ms=(30, 1_000),
    rates=(1_000, 5_000, 50_000),
    latency_s=6.0,
    workloads=("recorded", "like Nexmark Q20"),
    curves={"keys": (10, 10_000), "bytes of a record": (105, 1_000)},
    steady=(5_000, 20.0),
    kinds=("throughput", "latency", "workloads", "widths", "curves"),
    contenders=(*CORE, PASS_THROUGH.name, *(one.name for one in CEILINGS), FLINK, engine.NAME),
)


def plan(sizes: Sizes, kinds: tuple[str, ...], chosen: tuple[str, ...]) -> Iterator[Measurement]:
    """Yield all measurements, turn by turn, so that a slowdown of the machine affects all contenders alike.

    Within a turn, the contenders run in a random order for each workload, so that none of them always runs first or
    always follows the same contender. The order depends only on the seed, so a resumed run continues the same plan.
    """
    for turn in range(1, max((1, *sizes.turns.values())) + 1):
        for kind in kinds:
            of_kind = [
                one
                for one in _of_kind(kind, turn, sizes)
                if _contender_of(one.contender) in chosen
                and (turn == 1 or turn <= sizes.turns.get(kind, 1))
                and (turn == 1 or kind in IN_EVERY_TURN or _is_in_headline(one))
            ]
            groups: dict[tuple[str, int], list[Measurement]] = {}
            for one in of_kind:
                # What the others are compared with has a workload of its own.
                workload = "" if kind in IN_EVERY_TURN else one.workload
                groups.setdefault((workload, one.width_ms), []).append(one)
            for (workload, width_ms), group in groups.items():
                draw = random.Random(f"{sizes.seed} {turn} {kind} {workload} {width_ms}")  # noqa: S311 - only an order
                yield from draw.sample(group, len(group))


def _is_in_headline(one: Measurement) -> bool:
    return _contender_of(one.contender) in HEADLINE


def _contender_of(name: str) -> str:
    """Return the name of the contender to which a variant belongs, or ``name`` if it is not a variant."""
    return BASES.get(name, name)


def _of_kind(kind: str, turn: int, sizes: Sizes) -> Iterable[Measurement]:
    if kind == "throughput":
        return (_finding(kind, name, "alternating", turn, 1.0) for name in (*CONTENDERS, engine.NAME))
    if kind == "latency":
        return (Measurement(kind, name, "alternating", turn) for name in _for_latency())
    if kind == "steady":
        return (Measurement(kind, name, "alternating", turn) for name in (OURS[0].name, SPARK_BEST.name, _LATE_FLINK))
    if kind in {"recovery", "trials"}:
        names = CORE if kind == "recovery" else tuple(trials())
        return (_finding(kind, name, "alternating", turn, 1.0) for name in names)
    if kind in IN_EVERY_TURN:
        workload, names = IN_EVERY_TURN[kind]
        every = [_finding(kind, name, workload, turn, 1.0) for name in names]
        return [*every, Measurement(kind, OURS[0].name, "alternating", turn)]
    return {"workloads": _of_workloads, "widths": _of_widths, "curves": _of_curves}[kind](turn, sizes)


def _of_workloads(turn: int, sizes: Sizes) -> Iterator[Measurement]:
    for workload in sizes.workloads:
        for name in (*CORE, FLINK, *([PASS_THROUGH.name] if workload in KEYS else []), engine.NAME):
            for share in sizes.shares if _has_window(name) else (0.0,):
                yield _finding("workloads", name, workload, turn, share)


def _of_widths(turn: int, sizes: Sizes) -> Iterator[Measurement]:
    yield Measurement("widths", OURS[0].name, "varying gaps", turn)
    for width_ms in sizes.widths_ms:
        for name in (SPARK_BEST.name, "Spark tumbling window", FLINK):
            yield Measurement("widths", name, "varying gaps", turn, width_ms=width_ms)
    for name in (SPARK_BEST.name, FLINK):
        yield _finding("widths", name, "varying gaps", turn, SHARES[0])


def _of_curves(turn: int, sizes: Sizes) -> Iterator[Measurement]:
    for curve, places in sizes.curves.items():
        for at in places:
            for name in (*ON_CURVES, *([OURS[1].name] if curve == "cores" else [])):
                share = 1.0 if _has_window(name) else 0.0
                yield Measurement("curves", name, of_curve(curve, at), turn, share=share, curve=curve, at=at)


def _finding(kind: str, name: str, workload: str, turn: int, share: float) -> Measurement:
    """Return a measurement. A window, if used, is the narrowest that finds ``share`` of the neighbours."""
    return Measurement(kind, name, workload, turn, share=share if _has_window(name) else 0.0)


def _has_window(name: str) -> bool:
    return name != engine.NAME and contender(name).has_window


_ONLY_THROUGHPUT: Final = {
    *(one.name for one in (*OURS[1:2], *OURS[3:], SPARK_DEFAULT, SPARK_TUNED)),
    "Spark range join, nearest kept",
}


def _for_latency() -> Iterator[str]:
    for name, one in CONTENDERS.items():
        if name not in _ONLY_THROUGHPUT:
            yield from (variant.name for variant in one.for_latency or (one,))


def trials() -> dict[str, Contender]:
    """Return all variants by name. A variant is a contender with alternative settings."""
    return {variant.name: variant for one in CONTENDERS.values() for variant in one.variants}


BASES: Final = {variant.name: one.name for one in CONTENDERS.values() for variant in (*one.variants, *one.for_latency)}
"""The contender to which each variant belongs."""
_LATE: Final = {variant.name: variant for one in CONTENDERS.values() for variant in one.for_latency}
_LATE_FLINK: Final = f"{FLINK}, checkpoint 200 ms"


def contender(name: str) -> Contender:
    """Return the contender or variant with this name."""
    return (CONTENDERS | trials() | _LATE)[name]
