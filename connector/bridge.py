"""The service: receives events from MQTT, sends their records to Kafka, and acknowledges confirmed events.

The service is a single loop in a single thread, so it needs no locks and works in a fixed order: read a block of
messages, parse them, queue their records, process Kafka's confirmations, and acknowledge messages. A message is
acknowledged once its records and dead letters, and those of all earlier messages, are in Kafka.

Failures:

    Kafka unavailable  confirmations stop and the ledger fills up; the service stops reading, and the MQTT broker
                       queues events
    MQTT unavailable   records in flight still go to Kafka; the service reconnects once all are confirmed, so that
                       redelivered messages do not add to those in flight
    service killed     the broker redelivers unacknowledged messages: events may be duplicated, but none is lost
    record rejected    if Kafka rejects a record, the service stops; it has acknowledged only confirmed events
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from typing import Final

from broker.metrics import TelemetryServer
from broker.times import UNIT_NS
from broker.wire.records import Watermark, encode
from connector.formats.contents import RETAINED, Context, Found
from connector.formats.events import shown
from connector.formats.messages import MessageParser
from connector.forwarding import Forwarder
from connector.metrics import PublishTimes, register_metrics
from connector.progress import Progress
from connector.session import DISCONNECT_S, Message, MqttSession, SessionLostError
from connector.settings import Settings
from connector.watermarks import SCOPES_MAX, SilenceWatch

logger = logging.getLogger(__name__)

STOP_WITHIN_S: Final = 3.5
"""How long shutdown waits for records in flight to reach Kafka; shutdown takes at most five seconds in all."""

_IDLE_WAIT_S: Final = 0.1
_UNCONFIRMED_WAIT_S: Final = 0.002
"""How long to wait for MQTT messages while Kafka has yet to confirm some records. Confirmations are processed only
after this wait, so it adds to their latency."""

_BACK_OFF_S: Final = (0.2, 5.0)
_WATERMARK_CHECKS: Final = 4
"""How many times to check for silent quantities during each ``idle_after``."""


class Bridge:
    """Forwards messages from MQTT to Kafka until ``is_stopping`` returns true.

    ``clock`` returns the time in nanoseconds since the epoch. It gives a time to messages that have none, and tells
    which event times are too far in the future to advance a watermark.
    """

    def __init__(
        self, settings: Settings, is_stopping: Callable[[], bool], clock: Callable[[], int] = time.time_ns
    ) -> None:
        own = settings.connector
        self._is_stopping = is_stopping
        self._forwarder = Forwarder(settings)
        self._ledger = self._forwarder.ledger
        # The random part distinguishes the ids of this run from those of all other runs.
        context = Context(settings.events.time_unit, settings.events.event_bytes_max, clock, secrets.token_hex(8))
        self._messages = MessageParser(own.topic, self._forwarder.parser, context)
        self._session = MqttSession(settings.mqtt, own)
        self._watermarks = _WatermarkWriter(settings, clock) if own.idle_after is not None else None
        self._progress = Progress()
        self._telemetry = TelemetryServer(settings.metrics)
        self._publish_times = PublishTimes(self._telemetry)
        register_metrics(self._telemetry, self._progress, self._ledger, self._session, self._messages)
        self._back_off_s = _BACK_OFF_S[0]
        self._retry_s = 0.0

    def run(self) -> None:
        """Run the service until it is stopped.

        Raises `broker.kafka.topics.TopicError`, `broker.kafka.producer.DeliveryError`,
        `connector.session.SessionRefusedError`, SettingsError if the metrics cannot be served or a secret cannot be
        read, and KafkaException for any other Kafka error that waiting cannot fix.
        """
        with self._telemetry:
            self._run()

    def _run(self) -> None:
        if not self._forwarder.wait_for_topics(self._is_over, logger):
            return
        try:
            while not self._is_over():
                if self._session.is_connected:
                    self._guarded_turn()
                else:
                    self._wait_for_mqtt()
                self._progress.report_when_due(len(self._ledger))
            self._finish()
        finally:
            self._session.close()
            self._forwarder.close()
            self._progress.report(len(self._ledger), "stopped")

    def _is_over(self) -> bool:
        """Record that the loop is alive, for health checks, and return whether to stop. Called on every iteration."""
        self._telemetry.heartbeat()
        return self._is_stopping()

    def _release(self) -> list[int]:
        """Remove confirmed messages from the ledger; return the packet ids to acknowledge to MQTT."""
        before = len(self._ledger)
        packet_ids = self._ledger.release()
        self._publish_times.ended(before - len(self._ledger))
        return packet_ids

    def _wait_for_mqtt(self) -> None:
        """Poll Kafka, and connect to MQTT if nothing is in flight and the back-off has elapsed."""
        self._forwarder.poll(_IDLE_WAIT_S)
        self._release()
        if len(self._ledger) or time.monotonic() < self._retry_s:
            return
        try:
            self._session.connect()
        except SessionLostError as error:
            self._handle_loss(error)

    def _guarded_turn(self) -> None:
        try:
            self._turn()
        except SessionLostError as error:
            self._handle_loss(error)

    def _handle_loss(self, error: SessionLostError) -> None:
        self._ledger.detach()
        self._messages.lose_connection()
        self._progress.losses += 1
        logger.warning(
            "no MQTT connection to %s: %s; next attempt in %.1f s, but not before Kafka has all records in flight",
            self._session.address,
            error,
            self._back_off_s,
        )
        self._retry_s = time.monotonic() + self._back_off_s
        self._back_off_s = min(2 * self._back_off_s, _BACK_OFF_S[1])

    def _turn(self) -> None:
        started_s = time.monotonic()
        reading = not self._ledger.is_full and not (self._watermarks and self._watermarks.is_holding)
        if reading:
            wait_s = _UNCONFIRMED_WAIT_S if len(self._ledger) else _IDLE_WAIT_S
            if self._session.wait(wait_s, reading=True):
                self._accept(self._session.receive())
                self._send_commands()
            self._forwarder.poll(0)
        else:
            self._forwarder.poll(_IDLE_WAIT_S)
        packet_ids = self._release()
        if packet_ids:
            self._session.acknowledge(packet_ids)
        now_s = time.monotonic()
        self._session.maintain(reading=reading)
        if self._watermarks:
            self._write_watermarks(self._watermarks, int((now_s - started_s) * 1e9) if reading else 0)

    def _accept(self, messages: list[Message]) -> None:
        if messages and self._session.is_accepted:
            self._back_off_s = _BACK_OFF_S[0]
        self._publish_times.began(len(messages))
        found = self._forwarder.forward(
            (one.topic, one.packet_id, self._messages.parse(one.topic, one.payload, is_retained=one.is_retained))
            for one in messages
        )
        if self._watermarks:
            for parsed in (parsed for one in found for parsed in one.parts):
                for record in parsed.records:
                    self._watermarks.observe(parsed.thing, record.quantity, parsed.time_ns)
        self._count(messages, found)

    def _count(self, messages: list[Message], found: list[Found]) -> None:
        parts = [parsed for one in found for parsed in one.parts]
        records = sum(len(one.records) for one in parts) + sum(len(one.copies) for one in found)
        self._progress.count(len(messages), records, sum(len(one.refusals) for one in parts))
        for message, one in zip(messages, found, strict=True):
            if one.skipped.get(RETAINED) and not self._progress.skipped[RETAINED]:
                logger.warning(
                    "skipped the retained message of the topic %s, or values in it, because nobody knows whether they "
                    "still hold; further ones are skipped without a log line, but counted",
                    shown(message.topic),
                )
            self._progress.skipped.update(one.skipped)

    def _send_commands(self) -> None:
        """Log what the parsers have to report, and publish their commands."""
        for warning in self._messages.take_warnings():
            logger.warning("%s", warning)
        for command in self._messages.take_commands():
            self._messages.rebirths += self._session.publish(command.topic, command.payload)

    def _write_watermarks(self, watermarks: _WatermarkWriter, listening_ns: int) -> None:
        due = watermarks.collect(listening_ns, is_confirmed=not len(self._ledger))
        if due:
            self._progress.watermarks += len(due)
            self._publish_times.began(len(due))
            self._forwarder.send(due)

    def _finish(self) -> None:
        """Wait up to `STOP_WITHIN_S` for the messages in flight to reach Kafka, acknowledge them, and disconnect."""
        deadline_s = time.monotonic() + STOP_WITHIN_S
        try:
            while len(self._ledger) and time.monotonic() < deadline_s:
                # A flush sends records immediately instead of lingering to fill a batch.
                self._forwarder.flush(_IDLE_WAIT_S)
                packet_ids = self._release()
                if self._session.is_connected:
                    self._session.acknowledge(packet_ids)
        except SessionLostError as error:
            logger.warning("the MQTT connection was lost while stopping: %s", error)
        if len(self._ledger):
            logger.warning(
                "stopping with %d messages unacknowledged; the broker will redeliver those sent at QoS 1 or 2",
                len(self._ledger),
            )
        # A broker that does not read the last acknowledgements in time redelivers their messages.
        self._session.close(deadline_s + DISCONNECT_S - time.monotonic())


class _WatermarkWriter:
    """Builds the keys and values of watermarks for silent quantities. See `connector.watermarks` for the rule.

    ``is_holding`` is true while due watermarks are held back because records are in flight. The service then stops
    reading until Kafka has confirmed all records.
    """

    def __init__(self, settings: Settings, clock: Callable[[], int]) -> None:
        own = settings.connector
        self._clock = clock
        idle_after_ns = own.idle_after or 0
        self._unit_ns = UNIT_NS[settings.events.time_unit]
        self._watch = SilenceWatch(
            idle_after_ns=idle_after_ns, max_future_skew_ns=own.max_future_skew, unit_ns=self._unit_ns
        )
        self._check_every_ns = idle_after_ns // _WATERMARK_CHECKS
        self._listened_ns = 0
        self._next_check_ns = self._check_every_ns
        self._was_full = False
        self.is_holding = False

    def observe(self, thing: str, quantity: str, time_ns: int) -> None:
        """Register the arrival of a quantity's record with the event time ``time_ns``."""
        self._watch.observe(thing, quantity, time_ns, now_ns=self._listened_ns, wall_ns=self._clock())

    def collect(self, listening_ns: int, *, is_confirmed: bool) -> list[tuple[bytes, bytes]]:
        """Return the key and value of each watermark that is due after another ``listening_ns`` spent reading.

        ``is_confirmed``: whether Kafka has confirmed all records. If not, due watermarks are held back. The result is
        also empty until the next check is due (`_WATERMARK_CHECKS`).
        """
        self._listened_ns += listening_ns
        if self._listened_ns < self._next_check_ns and not self.is_holding:
            return []
        due = self._watch.due(self._listened_ns)
        self.is_holding = bool(due) and not is_confirmed
        if self.is_holding:
            return []
        self._next_check_ns = self._listened_ns + self._check_every_ns
        if self._watch.is_full and not self._was_full:
            logger.warning(
                "the limit of %d watched quantities has been reached: new things and quantities get no watermarks",
                SCOPES_MAX,
            )
            self._was_full = True
        for watermark in due:
            self._watch.written(watermark)
        return [
            (
                watermark.thing.encode(),
                encode(Watermark(watermark.time_ns // self._unit_ns, watermark.quantity, watermark.thing)),
            )
            for watermark in due
        ]
