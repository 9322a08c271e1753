"""Plans the measurements with their order and sizes, and stores their results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench.contest import engine
from bench.contest.contenders import (
    CONTENDERS,
    CORE,
    OURS,
    PASS_THROUGH,
    SPARK_BEST,
    SPARK_DEFAULT,
    SPARK_TUNED,
    Contender,
)
from bench.contest.running import Limits
from bench.contest.workload.inputs import SEED, WORKLOADS
from bench.harness.report import json_text

KINDS: Final = ("throughput", "latency", "workloads", "widths", "recovery", "trials")
"""Kinds of measurements. ``trials`` looks for a peer's best settings; rerun it (``--only trials``) when a peer
changes."""
SHARES: Final = (0.99,)
"""Shares of the neighbours that a window must contain. They determine the widths on all but the alternating
workload."""
FLINK: Final = "Flink interval join"
KEYS: Final = ("alternating", "1,000 keys", "100,000 keys")


@dataclass(frozen=True)
class Sizes:
    """The sizes of a run. ``turns`` is by kind and defaults to one.

    The alternating workload is large enough to fill several batches even of the Spark stage, which has the largest.
    """

    records: int = 3_200_000
    workload_records: int = 1_000_000
    width_records: int = 300_000
    turns: dict[str, int] = field(default_factory=lambda: {"throughput": 2})
    limits: Limits = field(default_factory=lambda: Limits(budget_s=25.0))
    short_limits: Limits = field(default_factory=lambda: Limits(budget_s=12.0, quiet_s=12.0))
    widths_ms: tuple[int, ...] = (10, 100, 1_000, 10_000)
    rates: tuple[int, ...] = (1_000, 5_000, 20_000)
    latency_s: float = 9.0
    workloads: tuple[str, ...] = tuple(name for name in WORKLOADS if name not in {"alternating", "varying gaps"})
    shares: tuple[float, ...] = SHARES
    kinds: tuple[str, ...] = KINDS[:-1]
    contenders: tuple[str, ...] = (*CONTENDERS, engine.NAME)

    def of(self, kind: str) -> tuple[int, Limits]:
        """Return the number of records and the limits for a kind."""
        records = {"workloads": self.workload_records, "widths": self.width_records}.get(kind)
        return (self.records, self.limits) if records is None else (records, self.short_limits)


FULL: Final = Sizes()
QUICK: Final = Sizes(
    records=1_000_000,
    workload_records=100_000,
    width_records=60_000,
    turns={},
    limits=Limits(budget_s=10.0, quiet_s=4.0),
    short_limits=Limits(budget_s=8.0, quiet_s=4.0, results_max=1_000_000),
    widths_ms=(30, 1_000),
    rates=(5_000,),
    latency_s=6.0,
    workloads=("recorded",),
    kinds=KINDS[:4],
    contenders=(*CORE, PASS_THROUGH.name, FLINK, engine.NAME),
)


@dataclass(frozen=True)
class Measurement:
    """One run. ``width_ms`` is 0 for no window, or if the narrowest that finds ``share`` of the neighbours is used."""

    kind: str
    contender: str
    workload: str
    turn: int
    width_ms: int = 0
    share: float = 0.0

    def __str__(self) -> str:
        width = f", {self.width_ms} ms" if self.width_ms else f", for {self.share:.0%}" if self.share else ""
        return f"{self.kind} {self.turn}: {self.contender} on {self.workload}{width}"


def plan(sizes: Sizes, kinds: tuple[str, ...], chosen: tuple[str, ...]) -> Iterator[Measurement]:
    """Yield all measurements, turn by turn, so that a machine that slows down affects all contenders."""
    for turn in range(1, max((1, *sizes.turns.values())) + 1):
        for kind in kinds:
            if turn <= sizes.turns.get(kind, 1):
                for one in _of_kind(kind, turn, sizes):
                    if one.contender.partition(": ")[0] in chosen:
                        yield one


def _of_kind(kind: str, turn: int, sizes: Sizes) -> Iterator[Measurement]:
    if kind == "throughput":
        yield from (_finding(kind, name, "alternating", turn, 1.0) for name in (*CONTENDERS, engine.NAME))
    elif kind == "workloads":
        yield from _of_workloads(turn, sizes)
    elif kind == "widths":
        yield from _of_widths(turn, sizes)
    elif kind == "latency":
        for name in ("plain process", "Spark stage", *(name for name in CONTENDERS if name not in _ONLY_THROUGHPUT)):
            yield Measurement(kind, name, "alternating", turn)
    else:
        for name in CORE if kind == "recovery" else trials():
            yield _finding(kind, name, "alternating", turn, 1.0)


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


def _finding(kind: str, name: str, workload: str, turn: int, share: float) -> Measurement:
    """Return a measurement with the narrowest window that finds ``share``, if the contender has a window."""
    return Measurement(kind, name, workload, turn, share=share if _has_window(name) else 0.0)


def _has_window(name: str) -> bool:
    return name != engine.NAME and (CONTENDERS | trials())[name].has_window


_ONLY_THROUGHPUT: Final = {*(one.name for one in (*OURS, SPARK_DEFAULT, SPARK_TUNED)), "Spark range join, nearest kept"}


def trials() -> dict[str, Contender]:
    """Return a contender for each of the peers' alternative settings, by name."""
    return {variant.name: variant for one in CONTENDERS.values() for variant in one.variants}


class Kept:
    """The result files, one per kind. Each measurement is saved immediately."""

    def __init__(self, folder: Path, about: dict[str, Any], sizes: Sizes, *, resume: bool) -> None:
        self._folder = folder
        self._head = {"machine": about, "settings": asdict(sizes) | {"seed": SEED}}
        self._resume = resume
        self._begun: set[str] = set()

    def has(self, one: Measurement) -> bool:
        """Return whether a resumed run already has this measurement. Failed ones are retried."""
        kept = read(self._folder, one.kind)["measurements"] if self._resume else []
        return any(_is_of(found, one) and "reason" not in found for found in kept)

    def add(self, one: Measurement, figures: list[dict[str, Any]]) -> None:
        """Append figures. Unless the run is resumed, the first figures of a kind replace those of earlier runs."""
        kept = read(self._folder, one.kind) if self._resume or one.kind in self._begun else {"measurements": []}
        self._begun.add(one.kind)
        before = [found for found in kept["measurements"] if not (_is_of(found, one) and "reason" in found)]
        at = {"date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"}
        kept = self._head | {"measurements": before + [asdict(one) | at | found for found in figures]}
        self._folder.mkdir(parents=True, exist_ok=True)
        draft = self._folder / f".{one.kind}.json"
        draft.write_text(json_text(kept) + "\n")
        draft.replace(self._folder / f"{one.kind}.json")


def read(folder: Path, kind: str) -> dict[str, Any]:
    """Return the content of a result file, without measurements if the file does not exist."""
    path = folder / f"{kind}.json"
    return json.loads(path.read_text()) if path.is_file() else {"measurements": []}


def _is_of(found: dict[str, Any], one: Measurement) -> bool:
    # A computed width appears only in the figures.
    wanted = asdict(one)
    if one.share:
        wanted.pop("width_ms")
    return all(found.get(name) == value for name, value in wanted.items())
