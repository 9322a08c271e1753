"""Defines the database connector's metrics, which docs/metrics.md describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from broker.metrics import DURATIONS_S, Distribution, TelemetryServer

if TYPE_CHECKING:
    from db_connector.progress import Progress
    from db_connector.writer import WriterThread


class WriteTimes(Distribution):
    """The histogram of how long batch writes take."""

    def __init__(self, telemetry: TelemetryServer) -> None:
        meaning = "Time from the start of a batch's write until the database had acknowledged or refused each point."
        super().__init__(telemetry.registry, "lsb_db_connector_write_duration_seconds", meaning, DURATIONS_S)


def register_metrics(
    telemetry: TelemetryServer,
    progress: Progress,
    thread: WriterThread[Any],
    lags: Callable[[], Mapping[int, int]],
    firsts: Callable[[], Mapping[int, int]],
) -> None:
    """Register the metrics, which read the service's counters.

    ``lags`` returns each partition's lag in offsets. ``firsts``: see `ResultReader.firsts`.
    """
    counter, gauge = telemetry.readings.counter, telemetry.readings.gauge
    counter("lsb_db_connector_results", "Results read, including those read again.", lambda: progress.results)
    counter("lsb_db_connector_points", "Points, rows or lines acknowledged by the sink.", lambda: progress.points)
    counter("lsb_db_connector_rejected", "Results that became dead letters.", lambda: progress.dead_letters)
    counter(
        "lsb_db_connector_merged",
        "Merged messages read, by the replica that was first, including those read again.",
        lambda: {(str(replica),): count for replica, count in firsts().items()},
        ("replica",),
    )
    counter(
        "lsb_db_connector_failed_writes",
        "Requests to the database that failed or got no valid answer; each is retried.",
        lambda: thread.writer.failures,
    )
    gauge("lsb_db_connector_batches_in_flight", "Batches passed to the writer.", lambda: thread.in_flight)
    gauge(
        "lsb_db_connector_database_up",
        "0 while the database accepts no results, else 1.",
        lambda: not thread.writer.is_unavailable,
    )
    gauge(
        "lsb_db_connector_lag_records",
        "Offsets in the result topic that the database has not acknowledged.",
        lambda: {(str(partition),): lag for partition, lag in lags().items()},
        ("partition",),
    )
