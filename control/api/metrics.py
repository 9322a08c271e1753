"""The service's metrics in Prometheus format."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from broker.metrics import Readings
from control.facts.overview import Overview

if TYPE_CHECKING:
    from collections.abc import Callable

    from control.facts.watcher import Watcher


class Metrics:
    """What the service knows about its applications, in numbers."""

    def __init__(self, watchers: Mapping[str, Watcher]) -> None:
        self._watchers = watchers
        self.registry = CollectorRegistry()
        readings = Readings(self.registry)
        readings.gauge(
            "lsb_control_read_timestamp_seconds",
            "When Kafka last answered a query about an application, in seconds since the epoch; 0: never.",
            lambda: self._of_each(lambda overview: (overview.read_ms or 0) / 1e3),
            ("application",),
        )
        readings.gauge(
            "lsb_control_units_running",
            "The number of units whose owner is running.",
            lambda: self._of_each(lambda overview: overview.running),
            ("application",),
        )
        readings.gauge(
            "lsb_control_lag_records",
            "The number of records up to the last stable offsets that an application has not consumed.",
            lambda: self._of_each(lambda overview: nan if overview.lag is None else overview.lag),
            ("application",),
        )

    def exposition(self) -> tuple[bytes, str]:
        """Return the metrics and their media type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def _of_each(self, value: Callable[[Overview], float]) -> Mapping[tuple[str, ...], float]:
        return {(name,): float(value(Overview.of(watcher))) for name, watcher in self._watchers.items()}
