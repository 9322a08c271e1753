"""What the connector tells of itself: what it counts anyway, and how long events take to be in Kafka.

docs/metrics.md says what each figure means.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.metrics import DURATIONS_S, Distribution, TelemetryServer

if TYPE_CHECKING:
    from connector.acknowledgement import Ledger
    from connector.progress import Progress
    from connector.session import MqttSession


def register_metrics(telemetry: TelemetryServer, progress: Progress, ledger: Ledger, session: MqttSession) -> None:
    """Let ``telemetry`` read the connector's figures where they are kept."""
    counter, gauge = telemetry.readings.counter, telemetry.readings.gauge
    counter("lsb_connector_events", "Events that came from MQTT, redelivered ones too.", lambda: progress.messages)
    counter("lsb_connector_records", "Records that were sent to Kafka.", lambda: progress.records)
    counter("lsb_connector_rejected", "Quantities and events that became dead letters.", lambda: progress.rejected)
    counter(
        "lsb_connector_watermarks",
        "Watermarks that were sent for silent quantities.",
        lambda: progress.watermarks,
        formerly="lsb_connector_marks",
    )
    counter("lsb_connector_mqtt_losses", "Connections to MQTT that broke or failed.", lambda: progress.losses)
    gauge("lsb_connector_mqtt_connected", "1 while there is a connection to MQTT.", lambda: session.is_welcome)
    gauge("lsb_connector_unacknowledged_events", "Events that MQTT is not told of yet.", lambda: len(ledger))
    gauge("lsb_connector_unacknowledged_bytes", "The memory that the records of these take.", lambda: ledger.size_bytes)
    telemetry.why_unready = lambda: "" if session.is_welcome else f"there is no connection to MQTT at {session.address}"


class PublishTimes:
    """How long it takes from an event to Kafka having all of its records.

    Events end in the order in which they began, and those that were taken together began together; so nothing is kept
    for each of them.
    """

    def __init__(self, telemetry: TelemetryServer, clock: Callable[[], float] = time.monotonic) -> None:
        meaning = "From when an event came until Kafka had all of its records."
        self._seconds = Distribution(telemetry.registry, "lsb_connector_publish_duration_seconds", meaning, DURATIONS_S)
        self._clock = clock
        self._is_on = telemetry.is_on
        self._begun: deque[tuple[int, float]] = deque()

    def began(self, count: int) -> None:
        """So many were taken now."""
        if self._is_on and count:
            self._begun.append((count, self._clock()))

    def ended(self, count: int) -> None:
        """The oldest so many are in Kafka."""
        if not self._is_on or not count:
            return
        now_s, took_s, counts = self._clock(), [], []
        while count:
            there, began_s = self._begun.popleft()
            if there > count:
                self._begun.appendleft((there - count, began_s))
            took_s.append(now_s - began_s)
            counts.append(min(there, count))
            count -= counts[-1]
        self._seconds.observe(took_s, counts)
