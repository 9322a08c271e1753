"""What the connector to the database tells of itself; docs/metrics.md says what each figure means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from broker.metrics import DURATIONS_S, Distribution, TelemetryServer

if TYPE_CHECKING:
    from db_connector.progress import Progress
    from db_connector.writer import WriterThread


class WriteTimes(Distribution):
    """How long batches take to be written."""

    def __init__(self, telemetry: TelemetryServer) -> None:
        meaning = "From the begin of a batch's write until the database had acknowledged or refused each point."
        super().__init__(telemetry.registry, "lsb_db_connector_write_duration_seconds", meaning, DURATIONS_S)


def register_metrics(
    telemetry: TelemetryServer, progress: Progress, thread: WriterThread[Any], lags: Callable[[], Mapping[int, int]]
) -> None:
    """Let ``telemetry`` read the service's figures where they are kept; ``lags``: records by partition."""
    counter, gauge = telemetry.readings.counter, telemetry.readings.gauge
    counter("lsb_db_connector_results", "Results that were read, again too.", lambda: progress.results)
    counter("lsb_db_connector_points", "Points that the database has acknowledged.", lambda: progress.points)
    counter("lsb_db_connector_rejected", "Results that became dead letters.", lambda: progress.dead_letters)
    counter("lsb_db_connector_failed_writes", "Requests without an answer of use.", lambda: thread.writer.failures)
    gauge("lsb_db_connector_batches_in_flight", "Batches handed to the writer.", lambda: thread.in_flight)
    gauge("lsb_db_connector_database_up", "0 while the database takes nothing.", lambda: not thread.writer.is_away)
    gauge(
        "lsb_db_connector_lag_records",
        "Offsets of the results that the database has not acknowledged.",
        lambda: {(str(partition),): lag for partition, lag in lags().items()},
        ("partition",),
    )
