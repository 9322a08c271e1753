"""What a runner tells of itself, the same for every kind of runner; docs/metrics.md says what each figure means.

Counted is what was committed, when it was: what is rolled back and done again counts once. What a unit is like is read
from the checkpoint of its last commit when somebody asks, so that nothing is spent on it before.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.metrics import DURATIONS_S, Distribution
from joiner.runtime.model import WATERMARK_COUNT
from joiner.runtime.task.function_failures import of_join

if TYPE_CHECKING:
    from broker.metrics import Readings, TelemetryServer
    from joiner.runtime.clock import Clock
    from joiner.runtime.model import Checkpoint, JoinSummary
    from joiner.runtime.ownership.eligibility import Claimant
    from joiner.runtime.settings import JoinerSettings
    from joiner.runtime.task.effects import Outgoing

_SIZES: Final = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
_RECOVERIES_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_LATENCIES_S: Final = (*DURATIONS_S, 120.0, 300.0, 600.0, 1800.0, 3600.0)
"""A pair may wait for the next record of a machine that pauses."""

_OUTPUTS: Final = {"out": "pairs", "late": "late", "rejected": "rejected", "unmatched": "unmatched"}
"""The counted outputs, by the setting of their topic."""

_COUNTED: Final = {
    "records": "Records, watermarks and whatever else was read from the input topics.",
    "pairs": "Results that were written.",
    "late": "Late records that were written to the late topic.",
    "rejected": "Dead letters that were written.",
    "unmatched": "Records without a partner that were written to the unmatched topic.",
    "duplicates": "Records that were dropped, as the same was held already.",
    "watermarks": "Watermarks that were read.",
}

_BOUNDS: Final = (("min", "hindmost"), ("max", "foremost"))
"""Values of the label `bound` (over the keys of a side), and of `thing`, its name until the next release."""

_FAILURES: Final = "Pairs whose joining function failed; each is a dead letter."


class UnitStatus(NamedTuple):
    """The figures of a running unit."""

    checkpoint: Checkpoint
    """The last committed one."""
    held_bytes: Mapping[str, tuple[int, int]]
    """By join: of the left and the right side."""
    paused: Collection[str]
    lag: int
    """Offsets of its input after the last commit."""
    snapshot_age_s: float


class JoinerMetrics:
    """The figures of a runner. `committed`, `snapshot_written`, `claimed` and `fenced` may be called by any thread."""

    def __init__(
        self,
        settings: JoinerSettings,
        claimant: Claimant,
        telemetry: TelemetryServer,
        statuses: Callable[[], Mapping[int, UnitStatus]],
        failed: Callable[[], Collection[int]],
        clock: Clock,
    ) -> None:
        """``statuses``: the running units; ``failed``: those that cannot continue. Any thread calls both."""
        self._settings, self._clock = settings, clock
        self._claimant = claimant
        self._unit_statuses = statuses
        self._is_on = telemetry.is_on
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[tuple[str, ...]]] = {what: Counter() for what in _COUNTED}
        self._totals: dict[int, Mapping[str, int]] = {}
        self._snapshot_bytes: dict[int, int] = {}
        self._claims = self._fencings = 0
        counter, gauge, unit = telemetry.readings.counter, telemetry.readings.gauge, ("unit",)
        for what, meaning in _COUNTED.items():
            # Copied, for others add to it meanwhile.
            formerly = "lsb_joiner_marks" if what == "watermarks" else None
            counter(f"lsb_joiner_{what}", meaning, self._counts[what].copy, unit, formerly=formerly)
        self._failures: Counter[tuple[str, ...]] = Counter()
        counter("lsb_joiner_function_failures", _FAILURES, self._failures.copy, ("unit", "join"))
        counter("lsb_joiner_claims", "Units that were claimed and taken here.", lambda: self._claims)
        counter("lsb_joiner_fencings", "Times that a unit was found claimed by another.", lambda: self._fencings)
        gauge(
            "lsb_joiner_failed_units",
            "Units that cannot go on here.",
            lambda: len(failed()),
            formerly="lsb_joiner_units_stuck",
        )
        gauge(
            "lsb_joiner_unit_owner",
            "1 for each unit that is served here.",
            self._owners,
            ("unit", "owner", "site", "placement"),
        )
        gauge("lsb_joiner_lag_records", "Offsets of the input that are not committed.", self._by_unit("lag"), unit)
        gauge(
            "lsb_joiner_snapshot_age_seconds",
            "Since the last snapshot, where anything has changed since.",
            self._by_unit("snapshot_age_s"),
            unit,
        )
        gauge(
            "lsb_joiner_snapshot_bytes",
            "Size of the last snapshot that was written here.",
            self._snapshots,
            unit,
        )
        gauge("lsb_joiner_topic_paused", "1 while a topic waits for others.", self._paused, ("unit", "topic"))
        self._expose_joins(telemetry.readings)
        add = partial(Distribution, telemetry.registry)
        self._transaction_s = add(
            "lsb_joiner_transaction_duration_seconds", "From the begin of a transaction to its commit.", DURATIONS_S
        )
        self._transaction_size = add(
            "lsb_joiner_transaction_messages", "Results, late records, dead letters of a transaction.", _SIZES
        )
        self._recovery_s = add(
            "lsb_joiner_recovery_duration_seconds", "From the claim of a unit until it was served.", _RECOVERIES_S
        )
        self._latency_s = add(
            "lsb_joiner_output_latency_seconds",
            "From when the later record of a pair was appended by Kafka to the commit of its result.",
            _LATENCIES_S,
        )

    def _expose_joins(self, readings: Readings) -> None:
        """Add what the joins of the units hold, and how far their sides are."""
        gauge, side = readings.gauge, ("unit", "join", "side")
        gauge("lsb_joiner_buffer_used_ratio", "Of the room for what a join holds.", self._used, ("unit", "join"))
        gauge("lsb_joiner_held_records", "Records that may still get a neighbour.", self._held_records, side)
        gauge("lsb_joiner_held_bytes", "Memory that they take, about.", self._held_bytes, side)
        gauge(
            "lsb_joiner_frontier_timestamp_seconds",
            "Event time below which no record of the key furthest in time is accepted any more.",
            lambda: {place: highest_ns / 1e9 for place, (_, highest_ns), _ in self._frontiers()},
            side,
        )
        gauge(
            "lsb_joiner_frontier_lag_seconds",
            "How far a frontier is behind the newest event time of its join and unit.",
            self._frontier_lags,
            (*side, "bound", "thing"),
        )

    def committed(
        self, messages: Outgoing, appended_ms: Mapping[int, int], checkpoint: Checkpoint, took_s: float
    ) -> None:
        """Count a committed transaction. ``appended_ms``: pairs by the append time of their later record."""
        if self._is_on:
            self._transaction_s.observe(took_s)
            self._count(messages, appended_ms, checkpoint)

    def snapshot_written(self, unit: int, size: int) -> None:
        """Note the size of a snapshot, in bytes."""
        self._snapshot_bytes[unit] = size

    def claimed(self, checkpoint: Checkpoint, took_s: float) -> None:
        """Note that a unit is served from now on, starting at ``checkpoint``."""
        if self._is_on:
            self._totals[checkpoint.unit] = checkpoint.counts
            self._recovery_s.observe(took_s)
            with self._lock:
                self._claims += 1

    def fenced(self) -> None:
        """Count a unit that was found claimed by another runner."""
        with self._lock:
            self._fencings += 1

    def _count(self, messages: Outgoing, appended_ms: Mapping[int, int], checkpoint: Checkpoint) -> None:
        # A unit has one commit at a time, so no other thread changes its entries.
        unit, before = (str(checkpoint.unit),), self._totals.get(checkpoint.unit, {})
        for what, name in (("records", "records"), ("duplicates", "duplicates"), ("watermarks", WATERMARK_COUNT)):
            self._counts[what][unit] += checkpoint.counts.get(name, 0) - before.get(name, 0)
        for name, count in checkpoint.counts.items():
            if (join := of_join(name)) is not None:
                self._failures[str(checkpoint.unit), join] += count - before.get(name, 0)
        self._totals[checkpoint.unit] = checkpoint.counts
        for setting, what in _OUTPUTS.items():
            self._counts[what][unit] += len(messages.get(getattr(self._settings.topics, setting), ((), ()))[1])
        self._transaction_size.observe(sum(len(values) for _, values in messages.values()))
        if appended_ms:
            now_s = self._clock.wall_s()
            # The clock of Kafka may be ahead of ours.
            waited_s = [max(0.0, now_s - at_ms / 1e3) for at_ms in appended_ms]
            self._latency_s.observe(waited_s, list(appended_ms.values()))

    # Read when metrics are requested

    def _by_unit(self, what: str) -> Callable[[], dict[tuple[str, ...], float]]:
        return lambda: {(str(unit),): getattr(status, what) for unit, status in self._unit_statuses().items()}

    def _snapshots(self) -> dict[tuple[str, ...], float]:
        return {
            (str(unit),): size for unit in self._unit_statuses() if (size := self._snapshot_bytes.get(unit)) is not None
        }

    def _owners(self) -> dict[tuple[str, ...], float]:
        # The label `site` is the name of `site` until the next release.
        runner = self._claimant.instance, self._claimant.site, self._claimant.site
        return {(str(unit), *runner): 1.0 for unit in self._unit_statuses()}

    def _paused(self) -> dict[tuple[str, ...], float]:
        topics = self._settings.input_topics
        return {
            (str(unit), topic): float(topic in status.paused)
            for unit, status in self._unit_statuses().items()
            for topic in topics
        }

    def _joins(self) -> Iterator[tuple[str, str, JoinSummary, tuple[int, int]]]:
        """The joins of the units: unit, name, what it holds in records, and in bytes by side."""
        for unit, status in self._unit_statuses().items():
            for name, join in list(status.checkpoint.joins.items()):
                yield str(unit), name, join, status.held_bytes.get(name, (0, 0))

    def _held_records(self) -> dict[tuple[str, ...], float]:
        return {
            (unit, name, side): held
            for unit, name, join, _ in self._joins()
            for side, held in (("left", join.held_left), ("right", join.held_right))
        }

    def _held_bytes(self) -> dict[tuple[str, ...], float]:
        return {
            (unit, name, side): size
            for unit, name, _, sizes in self._joins()
            for side, size in zip(("left", "right"), sizes, strict=True)
        }

    def _used(self) -> dict[tuple[str, ...], float]:
        limits = self._settings.application
        return {
            (unit, name): max(
                (join.held_left + join.held_right) / limits.buffer_records_max, sum(sizes) / limits.buffer_bytes_max
            )
            for unit, name, join, sizes in self._joins()
        }

    def _frontiers(self) -> Iterator[tuple[tuple[str, ...], tuple[int, int], int]]:
        """Of each side from which anything has come: where it is, its lowest and highest frontier, and the newest event
        time of its join, all in ns.
        """
        lateness_ns = {join.name: join.lateness for join in self._settings.join}
        for unit, name, join, _ in self._joins():
            sides = {"left": join.frontier_left, "right": join.frontier_right}
            known: dict[str, Any] = {side: span for side, span in sides.items() if span is not None}
            late_ns = dict(zip(sides, lateness_ns.get(name, (0, 0)), strict=True))
            newest_ns = max((span[1] + late_ns[side] for side, span in known.items()), default=0)
            yield from (((unit, name, side), span, newest_ns) for side, span in known.items())

    def _frontier_lags(self) -> dict[tuple[str, ...], float]:
        return {
            (*place, *bound): (newest_ns - at_ns) / 1e9
            for place, span, newest_ns in self._frontiers()
            for bound, at_ns in zip(_BOUNDS, span, strict=True)
        }
