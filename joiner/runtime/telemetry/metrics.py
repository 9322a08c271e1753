"""A runner's metrics. docs/metrics.md defines each of them.

The input and output counters increase when a transaction commits, so a batch that is rolled back and rejoined is
counted only once. A unit's gauges are computed when they are read, from the checkpoint of the unit's last commit.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.metrics import DURATIONS_S, Distribution
from joiner.runtime.model import WATERMARK_COUNT
from joiner.runtime.task.function_failures import FAILED, FAILED_ROWS, of_join
from joiner.runtime.telemetry.unit_gauges import UnitGauges, UnitStatus

if TYPE_CHECKING:
    from broker.metrics import TelemetryServer
    from joiner.runtime.clock import Clock
    from joiner.runtime.model import Checkpoint
    from joiner.runtime.ownership.eligibility import Claimant
    from joiner.runtime.settings import JoinerSettings
    from joiner.runtime.task.effects import Outgoing

_SIZES: Final = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
_RECOVERIES_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_LATENCIES_S: Final = (*DURATIONS_S, 120.0, 300.0, 600.0, 1800.0, 3600.0)
"""Histogram buckets up to an hour, because a pair may have to wait for the next record of a machine that has paused."""

_OUTPUTS: Final = {"out": "pairs", "late": "late", "rejected": "rejected", "unmatched": "unmatched"}
"""The counter for each output topic, by the setting that names the topic."""

_TOTALS: Final = {"records": "records", "rows": "rows", "duplicates": "duplicates", "watermarks": WATERMARK_COUNT}
"""The counters that follow a total in the checkpoint, each with the name of that total."""

_COUNTED: Final = {
    "records": "Messages read from the input topics; in a message with many records, each record counts.",
    "pairs": "Join results written.",
    "rows": "Aligned rows written.",
    "late": "Late records written to the late topic.",
    "rejected": "Dead letters written.",
    "unmatched": "Unmatched records written to the unmatched topic.",
    "duplicates": "Records dropped as duplicates of records already held.",
    "watermarks": "Watermarks read.",
    "output_watermarks": "Watermarks written to the result topic.",
}

_FAILURES: Final = "Pairs and aligned rows whose function failed; each is a dead letter."


class JoinerMetrics:
    """The metrics of a runner. Any thread may call `committed`, `snapshot_written`, `claimed` and `fenced`."""

    def __init__(
        self,
        settings: JoinerSettings,
        claimant: Claimant,
        telemetry: TelemetryServer,
        statuses: Callable[[], Mapping[int, UnitStatus]],
        failed: Callable[[], Collection[int]],
        clock: Clock,
    ) -> None:
        """``statuses`` returns the status of each running unit, and ``failed`` the units that cannot continue.

        Both must be thread-safe.
        """
        self._settings, self._clock = settings, clock
        self._is_on = telemetry.is_on
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[tuple[str, ...]]] = {what: Counter() for what in _COUNTED}
        self._totals: dict[int, Mapping[str, int]] = {}
        self._snapshot_bytes: dict[int, int] = {}
        self._claims = self._fencings = 0
        counter = telemetry.readings.counter
        for what, meaning in _COUNTED.items():
            # The metrics read a copy, because other threads may add to the counter at the same time.
            formerly = "lsb_joiner_marks" if what == "watermarks" else None
            counter(f"lsb_joiner_{what}", meaning, self._counts[what].copy, ("unit",), formerly=formerly)
        self._failures: Counter[tuple[str, ...]] = Counter()
        counter("lsb_joiner_function_failures", _FAILURES, self._failures.copy, ("unit", "join"))
        counter("lsb_joiner_claims", "Units claimed and restored here.", lambda: self._claims)
        counter(
            "lsb_joiner_fencings", "Times another runner fenced one of this runner's units.", lambda: self._fencings
        )
        telemetry.readings.gauge(
            "lsb_joiner_failed_units",
            "Units that have failed here and will not be retried.",
            lambda: len(failed()),
            formerly="lsb_joiner_units_stuck",
        )
        UnitGauges(settings, claimant, statuses, self._snapshot_bytes).expose(telemetry.readings)
        add = partial(Distribution, telemetry.registry)
        self._transaction_s = add(
            "lsb_joiner_transaction_duration_seconds",
            "Time from the start of a transaction to its commit.",
            DURATIONS_S,
        )
        self._transaction_size = add(
            "lsb_joiner_transaction_messages",
            "Number of messages in a transaction: results, watermarks, late and unmatched records, and dead letters.",
            _SIZES,
        )
        self._recovery_s = add(
            "lsb_joiner_recovery_duration_seconds",
            "Time from the start of a claim until the unit is restored.",
            _RECOVERIES_S,
        )
        self._latency_s = add(
            "lsb_joiner_output_latency_seconds",
            "Time from when the later record of a pair, or a row's driver record, was appended until the commit.",
            _LATENCIES_S,
        )

    def committed(
        self,
        messages: Outgoing,
        appended_ms: Mapping[int, int],
        watermarks: int,
        checkpoint: Checkpoint,
        took_s: float,
    ) -> None:
        """Count a committed transaction.

        ``appended_ms``: the number of pairs by the append time of the later record, and of rows by that of the driver
        record. ``watermarks``: the number of watermarks among the messages. ``took_s``: the duration of the commit.
        """
        if self._is_on:
            self._transaction_s.observe(took_s)
            self._count(messages, appended_ms, watermarks, checkpoint)

    def snapshot_written(self, unit: int, size: int) -> None:
        """Record the size of a snapshot, in bytes."""
        self._snapshot_bytes[unit] = size

    def claimed(self, checkpoint: Checkpoint, took_s: float) -> None:
        """Count a unit that was claimed at ``checkpoint`` and restored. ``took_s``: how long both took together."""
        if self._is_on:
            self._totals[checkpoint.unit] = checkpoint.counts
            self._recovery_s.observe(took_s)
            with self._lock:
                self._claims += 1

    def fenced(self) -> None:
        """Count a unit that another runner has fenced."""
        with self._lock:
            self._fencings += 1

    def _count(
        self, messages: Outgoing, appended_ms: Mapping[int, int], watermarks: int, checkpoint: Checkpoint
    ) -> None:
        # Each unit has only one commit at a time, so no other thread changes the entries of this unit.
        unit, before = (str(checkpoint.unit),), self._totals.get(checkpoint.unit, {})
        for what, name in _TOTALS.items():
            self._counts[what][unit] += checkpoint.counts.get(name, 0) - before.get(name, 0)
        failed_rows = checkpoint.counts.get(FAILED_ROWS, 0) - before.get(FAILED_ROWS, 0)
        self._counts["rows"][unit] -= failed_rows
        for name, count in checkpoint.counts.items():
            if (join := of_join(name)) is not None:
                self._failures[str(checkpoint.unit), join] += count - before.get(name, 0)
        for setting, what in _OUTPUTS.items():
            count = len(messages.get(getattr(self._settings.topics, setting), ()))
            if what == "pairs" and self._settings.application.results == "arrow":
                # A message holds many results.
                pairs, failed = (checkpoint.counts.get(name, 0) - before.get(name, 0) for name in ("pairs", FAILED))
                count = pairs - failed
            elif what == "pairs":
                count -= checkpoint.counts.get("rows", 0) - before.get("rows", 0) - failed_rows + watermarks
            self._counts[what][unit] += count
        self._counts["output_watermarks"][unit] += watermarks
        self._totals[checkpoint.unit] = checkpoint.counts
        self._transaction_size.observe(sum(map(len, messages.values())))
        if appended_ms:
            now_s = self._clock.wall_s()
            # The broker's clock may be ahead of this machine's.
            waited_s = [max(0.0, now_s - at_ms / 1e3) for at_ms in appended_ms]
            self._latency_s.observe(waited_s, list(appended_ms.values()))
