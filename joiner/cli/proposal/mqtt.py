"""Listens to MQTT topics, and proposes how the connector reads them if they are SenML or Sparkplug B.

The messages are read as the connector reads them, so that joins of its records can be proposed. Listening takes no
message away from anybody and publishes nothing, so no node of Sparkplug B is asked for its births.
"""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import combinations
from typing import Any, Final, NamedTuple

from paho.mqtt.client import Client, MQTTMessage, MQTTv311, error_string
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import MQTTException

from broker.commandline import describe_missing
from broker.partitioner import partition_of
from broker.settings import EventSettings, MqttSettings, TopicSettings, topic_filter
from broker.wire.records import Record, Unreadable, encode
from connector.formats.contents import Context
from connector.formats.events import Parser
from connector.formats.messages import MessageParser
from connector.templates import (
    SPARKPLUG,
    SenmlSettings,
    SparkplugSettings,
    TemplateSettings,
    covers,
    is_shared,
    overlap,
    pattern_of,
)
from joiner.cli.proposal.formats import is_senml
from joiner.cli.proposal.samples import Question, Sample, Source, Table, UnusableSource
from joiner.mapping.documents import decode_document
from joiner.runtime.clock import Clock

HEARD_BYTES_MAX: Final = 32 * 1024 * 1024
"""The maximum size of the messages that are looked at."""

RECORDS_MAX: Final = 100_000
"""The maximum number of records that are looked at. A message can have many."""

TOPICS_MAX: Final = 20
"""The maximum number of single topics that get a template of their own, because a filter matches other messages too."""

_TEMPLATES_MAX: Final = 100
"""How many the connector can have."""

ANSWER_S: Final = 10.0
"""How long the broker may take to accept the connection and to grant the subscriptions."""

_CONNECT_S: Final = 5.0
_POLL_S: Final = 0.05
_SHOWN: Final = 3
_SHOWN_LENGTH_MAX: Final = 100

_NOT_IN_A_TOPIC: Final = frozenset("+#\0")
"""Only a broker that does not keep to the protocol sends messages on topics with these."""

_ASKED_FOR: Final = "; the connector asks for it"
"""The end of a reason that is not true of this command."""

_MALFORMED: Final = (MQTTException, ValueError, LookupError, struct.error)
"""The exceptions that paho raises on malformed packets."""


class Heard(NamedTuple):
    """A message. ``is_retained``: whether the broker had stored it."""

    topic: str
    payload: bytes
    is_retained: bool = False


class Templates(NamedTuple):
    """How the connector reads MQTT messages. ``source``: its records, as they would be in Kafka."""

    source: Source
    tables: Sequence[Table]
    notes: Sequence[str]


def check_filter(text: str) -> str:
    """Return an MQTT topic filter. Raises ValueError if ``text`` is none, or if the connector cannot use it."""
    topic_filter(text)
    if is_shared(text) or set("{}") & set(text):
        raise ValueError("must not be a shared subscription, nor contain { or }")
    return text


class Limits(NamedTuple):
    """How long to listen: for ``seconds``, but only until ``messages`` have arrived."""

    messages: int
    seconds: float


def listen(
    mqtt: MqttSettings, filters: Sequence[str], limits: Limits, clock: Clock, begun: Callable[[], None]
) -> list[Heard]:
    """Return the messages that arrive on topics that match ``filters``.

    ``begun`` is called once the broker has granted the subscriptions. From then on, the time is limited by ``limits``.

    Raises `UnusableSource` if there are none, if the broker does not accept the connection or a subscription within
    `ANSWER_S`, or if the connector could not read them because of ``mqtt.topic``.
    """
    if is_shared(mqtt.topic):
        message = (
            f"mqtt.topic is the shared subscription {mqtt.topic}, beside which the connector reads no other topics: "
            "set it to a topic filter without $share or $queue"
        )
        raise UnusableSource(message)
    address = f"MQTT at {mqtt.host}:{mqtt.port}"
    listener = _Listener(filters, limits.messages)
    client = _client(mqtt, listener)
    try:
        client.connect(mqtt.host, mqtt.port)
    except (OSError, ValueError) as error:
        message = f"{address} cannot be reached: {error}; check the section [mqtt] of the settings"
        raise UnusableSource(message) from error
    lost = _hear(client, listener, limits.seconds, clock, begun)
    if listener.refusal or (lost and not listener.heard):
        message = f"{address}: {listener.refusal or lost}; check the section [mqtt] of the settings"
        raise UnusableSource(message)
    if not listener.heard:
        message = (
            f"{address}: no message has arrived on {', '.join(filters)} within {limits.seconds:g} s: check the topics, "
            "or listen for longer (--listen SECONDS)"
        )
        raise UnusableSource(message)
    return listener.heard[: limits.messages]


def _client(mqtt: MqttSettings, listener: _Listener) -> Client:
    # The session ends with the connection, unlike that of the connector, so that nothing is kept for it.
    client = Client(CallbackAPIVersion.VERSION2, f"lsb-init-{secrets.token_hex(4)}", protocol=MQTTv311)
    client.connect_timeout = _CONNECT_S
    if mqtt.username is not None:
        client.username_pw_set(mqtt.username, mqtt.secret())
    if mqtt.tls_ca_file is not None:
        client.tls_set(ca_certs=str(mqtt.tls_ca_file))
    client.on_connect, client.on_subscribe, client.on_message = listener.connected, listener.granted, listener.arrived
    return client


def _hear(client: Client, listener: _Listener, seconds: float, clock: Clock, begun: Callable[[], None]) -> str:
    """Listen, and disconnect. Return why it ended before its time although not all has been heard, or nothing."""
    deadline_s, has_begun = clock.monotonic_s() + ANSWER_S, False
    try:
        while not listener.is_done and clock.monotonic_s() < deadline_s:
            if code := client.loop(_POLL_S):
                return f"the connection was lost: {error_string(code)}"
            if listener.is_granted and not has_begun:
                deadline_s, has_begun = clock.monotonic_s() + seconds, True
                begun()
    except _MALFORMED as error:
        return f"the broker sent what is not MQTT: {error}"
    finally:
        with suppress(OSError, *_MALFORMED):
            client.disconnect()
    if has_begun or listener.is_done:
        return ""
    what = "granted the subscription" if listener.is_connected else "accepted the connection"
    return f"the broker has not {what} within {ANSWER_S:g} s"


def templates_of(
    heard: Sequence[Heard], filters: Sequence[str], own_topic: str, now_ns: int, partitions: int
) -> Templates:
    """Return how the connector reads messages, and their records in a topic with ``partitions`` partitions.

    ``own_topic``: the setting ``mqtt.topic``.

    Raises `UnusableSource` if none of them is SenML or Sparkplug B, if the connector would refuse the filters, or if a
    package is missing; and `Question` if they have no values.
    """
    settings = _templates(heard, filters)
    _check_overlaps([own_topic, *(one.topic for one in settings)])
    patterns = [pattern_of(one.topic) for one in settings]
    used = [one for one in heard if any(pattern.fullmatch(one.topic) for pattern in patterns)]
    if not used:
        raise UnusableSource(_unknown(heard))
    tables = [Table("[[connector.topic]]", {"format": one.format, "topic": one.topic}) for one in settings]
    records, reasons = _records(settings, used, now_ns)
    if not records:
        raise Question(_without_records(tables, len(used), reasons))
    notes = []
    if len(used) < len(heard):
        notes.append(f"{len(heard) - len(used)} of {len(heard)} MQTT messages are on topics that no template matches")
    if reasons:
        notes.append(f"{len(reasons)} of {len(used)} MQTT messages could not be used completely: {reasons[0]}")
    samples = [
        Sample(partition_of(one.thing.encode(), partitions), place, now_ns // 10**6, one.thing.encode(), encode(one))
        for place, one in enumerate(records)
    ]
    topic, unit = TopicSettings().data, EventSettings().time_unit
    return Templates(Source(topic, partitions, samples, time_unit=unit), tables, notes)


def mqtt_table(mqtt: MqttSettings) -> list[Table]:
    """Return the settings of the MQTT broker, without those that are the defaults and without the password."""
    given = mqtt.model_dump(mode="json", exclude={"password"}, exclude_defaults=True)
    comments = []
    if mqtt.password is not None and mqtt.password_file is None:
        comments.append("the password is not copied: set password_file, or LSB_MQTT__PASSWORD in the environment")
    return [Table("[mqtt]", given, comments)] if given else []


class _Listener:
    """Subscribes, and collects messages. The client calls its methods."""

    def __init__(self, filters: Sequence[str], count: int) -> None:
        self.heard: list[Heard] = []
        self.refusal = ""
        self.is_connected = False
        self._filters, self._count = filters, count
        self._ungranted = len(filters)
        self._size = 0

    @property
    def is_granted(self) -> bool:
        return self._ungranted <= 0 and not self.refusal

    @property
    def is_done(self) -> bool:
        return bool(self.refusal) or len(self.heard) >= self._count or self._size >= HEARD_BYTES_MAX

    def connected(self, client: Client, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            self.refusal = f"the broker refuses the connection: {reason}"
            return
        self.is_connected = True
        for one in self._filters:
            client.subscribe(one)

    def granted(self, _client: Client, _data: Any, _packet: int, reasons: Any, _properties: Any) -> None:
        refused = next((str(one) for one in reasons if one.is_failure), "")
        self._ungranted -= 1
        if refused:
            self.refusal = f"the broker refuses the subscription: {refused}"

    def arrived(self, _client: Client, _data: Any, message: MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            return
        if not _NOT_IN_A_TOPIC.isdisjoint(topic):
            return
        self._size += len(message.payload) + len(topic)
        self.heard.append(Heard(topic, bytes(message.payload), message.retain))


def _templates(heard: Sequence[Heard], filters: Sequence[str]) -> list[TemplateSettings]:
    """Return the templates of the formats that were recognised. Those of Sparkplug B are narrower, and come first."""
    sparkplug = {one.topic for one in heard if one.topic.startswith(f"{SPARKPLUG}/")}
    others = [one for one in heard if one.topic not in sparkplug]
    found: list[TemplateSettings] = [*_sparkplug_templates(sparkplug, filters)] if sparkplug else []
    packs = {one.topic for one in others if _is_pack(one.payload)}
    wide: list[str] = []
    for one in filters:
        matching = {other.topic for other in others if pattern_of(one).fullmatch(other.topic)}
        if packs & matching == matching != set():
            wide.append(one)
        else:
            wide += [topic for topic in sorted(packs & matching) if not set("{}") & set(topic)][:TOPICS_MAX]
    senml = [SenmlSettings(format="senml", topic=one) for one in _needed(wide)]
    return [*found, *senml][:_TEMPLATES_MAX]


def _sparkplug_templates(topics: Collection[str], filters: Sequence[str]) -> list[SparkplugSettings]:
    """Return a template for each given filter, or one for all topics if the filters are not of Sparkplug B alone.

    A filter must include the births that its other messages need.
    """
    used = [one for one in filters if any(map(pattern_of(one).fullmatch, topics))]
    try:
        found = [SparkplugSettings(format="sparkplug", topic=one) for one in _needed(used)]
    except ValueError:
        return [SparkplugSettings(format="sparkplug")]
    are_complete = all(covers(one.topic, births) for one in found for births in one.births)
    return found if are_complete else [SparkplugSettings(format="sparkplug")]


def _needed(filters: Sequence[str]) -> list[str]:
    """Return the filters without those that another one covers."""
    different = [*dict.fromkeys(filters)]
    return [one for one in different if not any(other != one and covers(other, one) for other in different)]


def _check_overlaps(filters: Sequence[str]) -> None:
    """Raise `UnusableSource` if the connector would refuse filters, because the broker could deliver messages twice."""
    for one, other in combinations(filters, 2):
        if overlap(one, other) and not (covers(one, other) or covers(other, one)):
            message = (
                f"the MQTT filters {one} and {other} overlap, so the connector could get messages twice: change --mqtt "
                "or mqtt.topic, so that no topic matches both filters, or one of them matches all topics of the other"
            )
            raise UnusableSource(message)


def _is_pack(payload: bytes) -> bool:
    try:
        return is_senml(decode_document(payload))
    except Unreadable:
        return False


def _records(
    templates: Sequence[TemplateSettings], heard: Sequence[Heard], now_ns: int
) -> tuple[list[Record], list[str]]:
    """Return the records of messages, and the reason for each message that cannot be used completely."""
    events = EventSettings()
    context = Context(events.time_unit, events.event_bytes_max, lambda: now_ns, "lsb-init")
    try:
        parser = MessageParser(templates, Parser(events.time_unit, events.event_bytes_max), context)
    except ModuleNotFoundError as error:
        raise UnusableSource(describe_missing("google", "sparkplug")) from error
    records: list[Record] = []
    reasons: list[str] = []
    for one in heard:
        found = parser.parse(one.topic, one.payload, is_retained=one.is_retained)
        records += [record for part in found.parts for record in part.records]
        refusals = [refusal.reason for part in found.parts for refusal in part.refusals]
        reasons += [reason.removesuffix(_ASKED_FOR) for reason in refusals[:1]]
        if len(records) >= RECORDS_MAX:
            break
    return records[:RECORDS_MAX], reasons


def _without_records(tables: Sequence[Table], count: int, reasons: Sequence[str]) -> str:
    why = f": {reasons[0]}" if reasons else ""
    lines = [
        line
        for table in tables
        for line in (table.header, *(f"{name} = {json.dumps(value)}" for name, value in table.values.items()))
    ]
    question = (
        f"which quantities are to be joined? The {count} MQTT messages have no values that can be used{why}. Listen "
        "for longer (--listen SECONDS), because nodes of Sparkplug B send the names of their metrics when they start, "
        f"or start the connector with these lines, and run lsb-init {TopicSettings().data}:"
    )
    return "\n".join([question, *lines])


def _unknown(heard: Sequence[Heard]) -> str:
    topics = [*dict.fromkeys(one.topic for one in heard)]
    shown = ", ".join(one[:_SHOWN_LENGTH_MAX] for one in topics[:_SHOWN])
    return (
        f"the messages on {len(topics)} MQTT topics ({shown}) are neither SenML nor Sparkplug B: "
        'forward them to Kafka with a [[connector.topic]] of format = "number" or "raw" (docs/connector.md), and run '
        "lsb-init on the Kafka topic"
    )
