"""The connector's metrics: its counters, and how long events take to reach Kafka.

docs/metrics.md describes each metric.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.metrics import DURATIONS_S, Distribution, TelemetryServer

if TYPE_CHECKING:
    from connector.acknowledgement import Ledger
    from connector.formats.messages import MessageParser
    from connector.progress import Progress
    from connector.session import MqttSession


def register_metrics(
    telemetry: TelemetryServer, progress: Progress, ledger: Ledger, session: MqttSession, messages: MessageParser
) -> None:
    """Register the metrics that read the connector's counters."""
    counter, gauge = telemetry.readings.counter, telemetry.readings.gauge
    counter("lsb_connector_events", "Events received from MQTT, including redelivered ones.", lambda: progress.messages)
    counter("lsb_connector_records", "Records sent to Kafka.", lambda: progress.records)
    counter("lsb_connector_rejected", "Quantities and events that became dead letters.", lambda: progress.rejected)
    counter(
        "lsb_connector_skipped",
        "Messages and values that were skipped, by reason.",
        lambda: {(reason,): count for reason, count in progress.skipped.items()},
        ["reason"],
    )
    counter("lsb_connector_sequence_gaps", "Gaps in the sequences of Sparkplug nodes.", lambda: messages.gaps)
    counter("lsb_connector_rebirths", "Requests to Sparkplug nodes for their births.", lambda: messages.rebirths)
    counter(
        "lsb_connector_watermarks",
        "Watermarks sent for silent quantities.",
        lambda: progress.watermarks,
        formerly="lsb_connector_marks",
    )
    counter(
        "lsb_connector_mqtt_losses",
        "Connections to MQTT that were lost or could not be established.",
        lambda: progress.losses,
    )
    gauge(
        "lsb_connector_mqtt_connected",
        "1 while there is a connection to MQTT with all subscriptions granted, else 0.",
        lambda: session.is_accepted,
    )
    gauge("lsb_connector_unacknowledged_events", "Events not yet acknowledged to MQTT.", lambda: len(ledger))
    gauge(
        "lsb_connector_unacknowledged_bytes",
        "Memory used by the records of unacknowledged events.",
        lambda: ledger.size_bytes,
    )
    telemetry.why_unready = lambda: _why_unready(session)


def _why_unready(session: MqttSession) -> str:
    if session.is_accepted:
        return ""
    if session.is_connected:
        return f"the MQTT broker at {session.address} has not granted the subscriptions yet"
    return f"there is no connection to MQTT at {session.address}"


class PublishTimes:
    """Measures the time from an event's arrival until Kafka has its records and those of all earlier events.

    Events leave the ledger in order of arrival, and events that are read together share an arrival time. One time per
    block of events is therefore enough. A watermark is treated as an event that arrives when the watermark is sent.
    """

    def __init__(self, telemetry: TelemetryServer, clock: Callable[[], float] = time.monotonic) -> None:
        meaning = "Time from an event's arrival until Kafka had its records and those of all earlier events."
        self._seconds = Distribution(telemetry.registry, "lsb_connector_publish_duration_seconds", meaning, DURATIONS_S)
        self._clock = clock
        self._is_on = telemetry.is_on
        self._begun: deque[tuple[int, float]] = deque()

    def began(self, count: int) -> None:
        """Record that ``count`` events have just arrived."""
        if self._is_on and count:
            self._begun.append((count, self._clock()))

    def ended(self, count: int) -> None:
        """Record the durations of the oldest ``count`` events, whose records are now all in Kafka."""
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
