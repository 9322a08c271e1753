"""The service: takes events from MQTT, sends their records to Kafka, acknowledges what Kafka has.

One thread and one loop, so nothing is locked and the order is plain: read a block of messages, parse them,
queue their records, hear Kafka's confirmations, acknowledge. A message is acknowledged when all of its
records and dead letters are in Kafka, and after all messages before it.

What happens when something fails:

    Kafka away        confirmations stop, the ledger fills, nothing more is taken; MQTT keeps the rest
    MQTT away         what was taken goes on to Kafka; a new connection is made when all of it is there, so
                      that what the broker sends again never piles up on what is still under way
    killed            the broker sends again what was not acknowledged: doubled perhaps, never lost
    a record refused  the service ends; nothing that Kafka has not confirmed was acknowledged
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from broker.kafka.client_log import client_logger
from broker.kafka.producer import LastingProducer, Outgoing
from broker.kafka.topics import data_topic_specs, wait_for_topics
from broker.metrics import TelemetryServer
from broker.times import UNIT_NS
from broker.wire.records import Watermark, encode
from connector.acknowledgement import NO_PACKET, Ledger, Ticket
from connector.events import Parser, dead_letter
from connector.metrics import PublishTimes, register_metrics
from connector.progress import Progress
from connector.session import Message, MqttSession, SessionLostError
from connector.settings import Settings
from connector.watermarks import SilenceWatch

logger = logging.getLogger(__name__)
_KAFKA_LOG = client_logger("connector.librdkafka")

STOP_WITHIN_S: Final = 3.5
"""For what was taken to reach Kafka at a stop; the service promises five seconds in all."""

_IDLE_WAIT_S: Final = 0.1
_OWED_WAIT_S: Final = 0.002
"""The wait for MQTT while Kafka owes confirmations, which nothing but a look can find: adds this to the
latency.
"""

RECORD_OVERHEAD_BYTES: Final = 1024
"""What a record takes in memory beside its key and value until Kafka has confirmed it: 910 bytes, measured."""

_BACK_OFF_S: Final = (0.2, 5.0)
_WATERMARK_LOOKS: Final = 4
"""Looks for silent quantities within one ``idle_after``."""


class Bridge:
    """The way from MQTT to Kafka under ``settings``, until ``is_stopping`` says so."""

    def __init__(self, settings: Settings, is_stopping: Callable[[], bool]) -> None:
        own = settings.connector
        self._settings = settings
        self._is_stopping = is_stopping
        self._parser = Parser(settings.events.time_unit, settings.events.event_bytes_max)
        self._ledger = Ledger(messages_max=own.in_flight_max, bytes_max=own.in_flight_bytes_max)
        self._session = MqttSession(settings.mqtt, own)
        self._producer = LastingProducer[Ticket](
            settings.kafka,
            _KAFKA_LOG,
            self._ledger.confirm,
            linger_ms=own.linger / 1e6,
            compression_type=own.compression,
            batch_size=1024 * 1024,
        )
        self._watermarks = _WatermarkWriter(settings) if own.idle_after is not None else None
        self._progress = Progress()
        self._telemetry = TelemetryServer(settings.metrics)
        self._publish_times = PublishTimes(self._telemetry)
        register_metrics(self._telemetry, self._progress, self._ledger, self._session)
        self._back_off_s = _BACK_OFF_S[0]
        self._retry_s = 0.0

    def run(self) -> None:
        """Serve until told to stop.

        Raises `broker.kafka.topics.TopicError`, `broker.kafka.producer.DeliveryError`,
        `connector.session.SessionRefusedError`, SettingsError where metrics cannot be told, and KafkaException where
        Kafka refuses for good.
        """
        with self._telemetry:
            self._run()

    def _run(self) -> None:
        settings = self._settings
        specs = data_topic_specs(settings.topics)
        if wait_for_topics(settings.kafka, specs, self._is_over, logger, _KAFKA_LOG) is None:
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
            self._producer.close()
            self._progress.report(len(self._ledger), "stopped")

    def _is_over(self) -> bool:
        """Asked whenever the loop turns."""
        self._telemetry.heartbeat()
        return self._is_stopping()

    def _release(self) -> list[int]:
        """The messages of which Kafka has everything now: the packet ids to acknowledge."""
        before = len(self._ledger)
        packet_ids = self._ledger.release()
        self._publish_times.ended(before - len(self._ledger))
        return packet_ids

    def _wait_for_mqtt(self) -> None:
        """Connect once everything taken before is in Kafka and the back-off has passed."""
        self._producer.poll(_IDLE_WAIT_S)
        self._release()
        if len(self._ledger) or time.monotonic() < self._retry_s:
            return
        try:
            self._session.connect()
        except SessionLostError as error:
            self._note_loss(error)

    def _guarded_turn(self) -> None:
        try:
            self._turn()
        except SessionLostError as error:
            self._note_loss(error)

    def _note_loss(self, error: SessionLostError) -> None:
        self._ledger.detach()
        self._progress.losses += 1
        logger.warning(
            "no MQTT connection to %s: %s; next try in %.1f s", self._session.address, error, self._back_off_s
        )
        self._retry_s = time.monotonic() + self._back_off_s
        self._back_off_s = min(2 * self._back_off_s, _BACK_OFF_S[1])

    def _turn(self) -> None:
        started_s = time.monotonic()
        reading = not self._ledger.is_full and not (self._watermarks and self._watermarks.is_holding)
        if reading:
            wait_s = _OWED_WAIT_S if len(self._ledger) else _IDLE_WAIT_S
            if self._session.wait(wait_s, reading=True):
                self._take(self._session.receive())
            self._producer.poll(0)
        else:
            self._producer.poll(_IDLE_WAIT_S)
        packet_ids = self._release()
        if packet_ids:
            self._session.acknowledge(packet_ids)
        now_s = time.monotonic()
        self._session.tend(reading=reading)
        if self._watermarks:
            self._write_watermarks(self._watermarks, int((now_s - started_s) * 1e9) if reading else 0)

    def _take(self, messages: list[Message]) -> None:
        if messages:
            self._back_off_s = _BACK_OFF_S[0]
        data: list[Outgoing[Ticket]] = []
        dead: list[Outgoing[Ticket]] = []
        ledger, parse = self._ledger, self._parser.parse
        for topic, payload, packet_id in messages:
            parsed = parse(payload)
            key = parsed.thing.encode()
            records = [encode(record) for record in parsed.records]
            dead_letters = [encode(dead_letter(refusal, topic)) for refusal in parsed.refusals]
            count = len(records) + len(dead_letters)
            size_bytes = (
                sum(map(len, records)) + sum(map(len, dead_letters)) + count * (len(key) + RECORD_OVERHEAD_BYTES)
            )
            ticket = ledger.take(packet_id, size_bytes, count)
            data += [Outgoing(key, value, ticket) for value in records]
            dead += [Outgoing(None, value, ticket) for value in dead_letters]
            if self._watermarks:
                for record in parsed.records:
                    self._watermarks.observe(parsed.thing, record.quantity, parsed.time_ns)
        self._progress.count(len(messages), len(data), len(dead))
        self._publish_times.began(len(messages))
        self._producer.send(self._settings.topics.data, data)
        self._producer.send(self._settings.topics.rejected, dead)

    def _write_watermarks(self, watermarks: _WatermarkWriter, listened_ns: int) -> None:
        due = watermarks.look(listened_ns, is_settled=not len(self._ledger))
        records = [
            Outgoing(key, value, self._ledger.take(NO_PACKET, len(key) + len(value) + RECORD_OVERHEAD_BYTES, 1))
            for key, value in due
        ]
        if records:
            self._progress.watermarks += len(records)
            self._publish_times.began(len(records))
            self._producer.send(self._settings.topics.data, records)

    def _finish(self) -> None:
        """Take nothing more; let what was taken reach Kafka and acknowledge it, for a bounded time."""
        deadline_s = time.monotonic() + STOP_WITHIN_S
        try:
            while len(self._ledger) and time.monotonic() < deadline_s:
                # Without waiting for records to share a batch.
                self._producer.flush(_IDLE_WAIT_S)
                packet_ids = self._release()
                if self._session.is_connected:
                    self._session.acknowledge(packet_ids)
        except SessionLostError as error:
            logger.warning("the MQTT connection broke while stopping: %s", error)
        if len(self._ledger):
            logger.warning("stopping with %d messages unacknowledged: they come again", len(self._ledger))


class _WatermarkWriter:
    """Watermarks for silent quantities, as keys and values of records. See `connector.watermarks` for the rule.

    While a watermark is due and records are under way it holds: nothing more is taken until Kafka has confirmed
    all.
    """

    def __init__(self, settings: Settings) -> None:
        own = settings.connector
        idle_after_ns = own.idle_after or 0
        self._unit_ns = UNIT_NS[settings.events.time_unit]
        self._watch = SilenceWatch(
            idle_after_ns=idle_after_ns, max_future_skew_ns=own.max_future_skew, unit_ns=self._unit_ns
        )
        self._look_every_ns = idle_after_ns // _WATERMARK_LOOKS
        self._listened_ns = 0
        self._next_look_ns = self._look_every_ns
        self._was_full = False
        self.is_holding = False

    def observe(self, thing: str, quantity: str, time_ns: int) -> None:
        """A record came."""
        self._watch.observe(thing, quantity, time_ns, now_ns=self._listened_ns, wall_ns=time.time_ns())

    def look(self, listened_ns: int, *, is_settled: bool) -> list[tuple[bytes, bytes]]:
        """The watermarks to write now, after another ``listened_ns`` of listening."""
        self._listened_ns += listened_ns
        if self._listened_ns < self._next_look_ns and not self.is_holding:
            return []
        due = self._watch.due(self._listened_ns)
        self.is_holding = bool(due) and not is_settled
        if self.is_holding:
            return []
        self._next_look_ns = self._listened_ns + self._look_every_ns
        if self._watch.is_full and not self._was_full:
            logger.warning("too many things and quantities: new ones get no watermarks")
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
