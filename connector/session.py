"""The connection to the MQTT broker: paho-mqtt with a persistent session, QoS 1 and manual acknowledgements.

paho implements the protocol. This module drives it without a background thread, so the service stays a single loop
without locks. It never reconnects on its own: a lost connection raises `SessionLostError`, and the service decides when
to retry. A failure that a retry cannot fix, such as a wrong password, raises `SessionRefusedError`.

The protocol version is MQTT 3.1.1. Every broker supports it, and it provides the persistent sessions and QoS 1 that
the delivery guarantee needs. With it, paho needs only about half as much CPU time to read and acknowledge a message as
with MQTT 5 (36 us instead of 69 us).
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import ssl
import struct
import time
from typing import Any, Final, NamedTuple, NoReturn

from paho.mqtt.client import Client, MQTTErrorCode, MQTTMessage, MQTTv311, error_string
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import MQTTException
from paho.mqtt.reasoncodes import ReasonCode

from broker.settings import MqttSettings
from connector.formats.events import UNREADABLE_TOPIC, shown
from connector.settings import ConnectorSettings, subscriptions

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 2.5
"""Timeout for connecting, including the wait for CONNACK. A shutdown, which must finish within five seconds, may have
to wait this long."""

_TURN_MESSAGES_MAX: Final = 500
"""Maximum number of messages to read per iteration of the service's loop: enough to amortise its fixed cost, but few
enough for a steady flow of acknowledgements."""

_TURN_BYTES_MAX: Final = 256 * 1024
"""An iteration stops reading once the payloads total this many bytes: processing them takes time, and keep-alives are
sent only between iterations."""

_HELD_TURNS_MAX: Final = 20
"""The messages of how many iterations to hold back until the subscriptions are granted. Some brokers (mosquitto without
a limit on messages in flight) send all that they have queued before their answer, which may not fit in memory."""

_FILTERS_MAX: Final = 8
"""Maximum number of topic filters in a packet. AWS IoT Core refuses a SUBSCRIBE with more."""

_ANSWER_TIMEOUT_S: Final = 10.0
"""How long the broker may send no message while its answer to a SUBSCRIBE is outstanding."""

DISCONNECT_S: Final = 1.0
_READ_BYTES: Final = 65_536
_POLL_S: Final = 0.05

_PERMANENT: Final = {
    "Client identifier not valid": "the client identifier is not valid (connector.client_id)",
    "Bad user name or password": "bad user name or password (mqtt.username, mqtt.password)",
    "Not authorized": "not authorised (mqtt.username, mqtt.password)",
    "Granted QoS 0": "the broker grants only QoS 0, at which messages could be lost",
}
"""Refusals that a retry cannot fix. Maps paho's name for each (MQTT 3.1.1, sections 3.2.2.3 and 3.9.3) to the reason
and the settings to check. After any other refusal, the service reconnects."""

_MALFORMED: Final = (MQTTException, ValueError, LookupError, struct.error)
"""The exceptions that paho raises on malformed packets."""


class SessionLostError(Exception):
    """Raised if the MQTT broker cannot be reached, the connection is lost, or a refusal is temporary: retry later."""


class SessionRefusedError(Exception):
    """Raised if the MQTT broker refuses this client or its subscription; a retry cannot help."""


class Message(NamedTuple):
    """A message received from the MQTT broker. ``packet_id`` is 0 if the message was sent at QoS 0.

    ``is_retained``: whether the broker had stored it, and sends it because of a new subscription.
    """

    topic: str
    payload: bytes
    packet_id: int
    is_retained: bool = False


def _turn_length(messages: list[Message]) -> int:
    """Return how many of the messages to process in one iteration."""
    size_bytes = 0
    for count, message in enumerate(messages, 1):
        size_bytes += len(message.payload)
        if count == _TURN_MESSAGES_MAX or size_bytes >= _TURN_BYTES_MAX:
            return count
    return len(messages)


def _may_be_held(messages: list[Message]) -> bool:
    """Return whether so few messages may be held back."""
    return (
        len(messages) < _HELD_TURNS_MAX * _TURN_MESSAGES_MAX
        and sum(len(message.payload) for message in messages) < _HELD_TURNS_MAX * _TURN_BYTES_MAX
    )


def _packets_of(filters: list[str]) -> list[list[str]]:
    return [filters[first : first + _FILTERS_MAX] for first in range(0, len(filters), _FILTERS_MAX)]


def _disconnect(client: Client, connection: Any, deadline_s: float) -> None:
    # paho closes its socket right after sending DISCONNECT. If the socket has unread data, closing it resets the
    # connection, and the last acknowledgements are lost. Therefore, duplicate the socket, and read from the duplicate
    # until the broker closes the connection.
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as kept:
        client.disconnect()
        while client.want_write() and time.monotonic() < deadline_s:
            select.select([], [kept], [], _POLL_S)
            client.loop_write()
        while (left_s := deadline_s - time.monotonic()) > 0:
            readable, _, _ = select.select([kept], [], [], left_s)
            if readable and not kept.recv(_READ_BYTES):
                break


def _publish(client: Client, topic: str, payload: bytes) -> MQTTErrorCode | None:
    """Publish a message at QoS 0. Return None if its topic, which may have names from other clients, is not allowed."""
    try:
        return client.publish(topic, payload, qos=0).rc
    except ValueError as error:
        logger.warning("cannot publish to the MQTT topic %s: %s", shown(topic), error)
        return None


class MqttSession:
    """The connector's session with the MQTT broker.

    A new instance is disconnected. Call `connect` first, and again each time the connection is lost.
    """

    def __init__(self, mqtt: MqttSettings, connector: ConnectorSettings) -> None:
        self._mqtt = mqtt
        self._connector = connector
        self._filters, self._covered = subscriptions(mqtt.topic, connector.topic)
        self._client: Client | None = None
        self._arrived: list[Message] = []
        self._connack: tuple[bool, ReasonCode] | None = None
        self._refusal: tuple[str, ReasonCode] | None = None
        self._ungranted: dict[int | None, list[str]] = {}
        self._is_granted = False
        self._answer_due_s = 0.0
        self._was_connected = self._is_resumed = False

    @property
    def address(self) -> str:
        """The address of the broker, for log and error messages."""
        return f"{self._mqtt.host}:{self._mqtt.port}"

    @property
    def is_connected(self) -> bool:
        """Whether a connection is open, even if the broker has not accepted it yet."""
        return self._client is not None

    @property
    def is_accepted(self) -> bool:
        """Whether the broker has accepted the connection and granted all subscriptions."""
        return self._client is not None and self._is_granted

    def connect(self) -> None:
        """Connect, resume the session if the broker has it, and subscribe. Blocks for up to `CONNECT_TIMEOUT_S`.

        Raises `SessionLostError` or `SessionRefusedError`. If the broker refuses a subscription, a later `receive`
        raises the error; if it does not answer, a later `wait` does.
        """
        self._arrived.clear()
        self._ungranted.clear()
        self._is_granted = False
        self._refusal = None
        self._connack = None
        deadline_s = time.monotonic() + CONNECT_TIMEOUT_S
        client = self._client = self._make_client()
        try:
            client.connect(self._mqtt.host, self._mqtt.port, self._connector.keep_alive // 10**9)
        except (OSError, ValueError) as error:
            self._lose(str(error))
        self._is_resumed, _ = self._await_connack(client, deadline_s)
        if self._was_connected and not self._is_resumed:
            logger.warning("the MQTT broker has lost the session: messages may have been lost with it")
        self._was_connected = True
        for filters in _packets_of(self._filters):
            _, packet_id = client.subscribe([(one, 1) for one in filters])
            self._ungranted[packet_id] = filters
        self._answer_due_s = time.monotonic() + _ANSWER_TIMEOUT_S

    def wait(self, timeout_s: float, *, reading: bool) -> bool:
        """Wait up to ``timeout_s`` until packets can be received or sent; return whether to call `receive`.

        This is also true if the connection has been lost; `receive` then raises the error. If ``reading`` is
        false, does not wait for incoming packets. Raises `SessionLostError` if the broker does not answer the
        subscription.
        """
        connection: Any = self._client.socket() if self._client is not None else None
        if self._client is None or connection is None:
            return self._client is not None
        has_arrived = bool(self._arrived) and not self._is_holding_back()
        if reading and (has_arrived or (isinstance(connection, ssl.SSLSocket) and connection.pending())):
            return True
        readers = [connection] if reading else []
        writers = [connection] if self._client.want_write() else []
        readable, writable, _ = select.select(readers, writers, [], timeout_s)
        is_quiet = reading and not readable and not writable
        if is_quiet and self._ungranted and time.monotonic() >= self._answer_due_s:
            self._lose("the broker did not answer the subscription")
        return bool(readable)

    def receive(self) -> list[Message]:
        """Return the messages that have arrived, in order. Raises `SessionLostError` or `SessionRefusedError`.

        Messages are held back until the broker has granted all subscriptions, because after a refusal it would deliver
        them again.
        """
        if not self._arrived or self._is_holding_back():
            self._read_turn()
        count = 0 if self._is_holding_back() else _turn_length(self._arrived)
        messages, self._arrived = self._arrived[:count], self._arrived[count:]
        return messages

    def acknowledge(self, packet_ids: list[int]) -> None:
        """Acknowledge the messages with these packet ids. Raises `SessionLostError`."""
        if self._client is not None:
            for packet_id in packet_ids:
                self._client.ack(packet_id, 1)
            self._write(self._client)

    def publish(self, topic: str, payload: bytes) -> bool:
        """Publish at QoS 0. Return False if not connected or if the topic is invalid. Raises `SessionLostError`."""
        code = _publish(self._client, topic, payload) if self._client is not None else None
        if self._client is None or code is None:
            return False
        self._check(code)
        self._write(self._client)
        return True

    def maintain(self, *, reading: bool) -> None:
        """Send pending packets. If ``reading``, also send keep-alives and detect a broker that has gone silent.

        Keep-alives are sent only while reading, because otherwise their replies would go unread. The broker closes a
        connection on which it has received nothing for one and a half keep-alive intervals. Raises `SessionLostError`.
        """
        if self._client is not None and reading:
            self._check(self._client.loop_misc())
        if self._client is not None:
            self._write(self._client)

    def close(self, wait_s: float = DISCONNECT_S) -> None:
        """Disconnect and keep the session; the broker will redeliver unacknowledged messages. Never raises.

        ``wait_s``: how long the broker may take to read the last acknowledgements.
        """
        client, self._client = self._client, None
        connection = client.socket() if client is not None else None
        if client is not None and connection is not None:
            _disconnect(client, connection, time.monotonic() + wait_s)

    def _is_holding_back(self) -> bool:
        return not self._is_granted and _may_be_held(self._arrived)

    def _read_turn(self) -> None:
        client, first, size_bytes = self._client, len(self._arrived), 0
        while client is not None and len(self._arrived) - first < _TURN_MESSAGES_MAX and size_bytes < _TURN_BYTES_MAX:
            before = len(self._arrived)
            self._read(client)
            if len(self._arrived) == before:
                break
            size_bytes += sum(len(message.payload) for message in self._arrived[before:])
        if len(self._arrived) > first:
            self._answer_due_s = time.monotonic() + _ANSWER_TIMEOUT_S

    def _await_connack(self, client: Client, deadline_s: float) -> tuple[bool, ReasonCode]:
        while True:
            # Check the deadline before the last read: an answer may have arrived while this process got no CPU time.
            is_last = time.monotonic() >= deadline_s
            if self.wait(_POLL_S, reading=True):
                self._read(client)
            self._write(client)
            if self._connack is not None:
                return self._connack
            if is_last:
                return self._lose("the broker did not answer in time")

    def _make_client(self) -> Client:
        client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=self._connector.client_id,
            protocol=MQTTv311,
            clean_session=False,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.connect_timeout = CONNECT_TIMEOUT_S
        if self._mqtt.username is not None:
            client.username_pw_set(self._mqtt.username, self._mqtt.secret())
        if self._mqtt.tls_ca_file is not None:
            client.tls_set(ca_certs=str(self._mqtt.tls_ca_file))
        client.on_connect = self._on_connect
        client.on_message = self._on_message
        client.on_subscribe = self._on_subscribe
        # With this hook set, paho queues packets instead of writing them inside its callbacks.
        client.on_socket_register_write = lambda _client, _userdata, _socket: None
        return client

    def _read(self, client: Client) -> None:
        try:
            self._check(client.loop_read())
        except _MALFORMED as error:
            self._lose(f"the broker sent a malformed packet: {error}")
        if self._refusal is not None:
            self._give_up(*self._refusal)

    def _write(self, client: Client) -> None:
        if client.want_write():
            self._check(client.loop_write())

    def _check(self, code: MQTTErrorCode) -> None:
        if self._refusal is not None:
            self._give_up(*self._refusal)
        if self._connack is not None and self._connack[1].is_failure:
            self._give_up("the connection", self._connack[1])
        if code in {MQTTErrorCode.MQTT_ERR_SUCCESS, MQTTErrorCode.MQTT_ERR_AGAIN}:
            return
        if self._connack is None:
            self._lose(f"the connection ended before the broker answered: {error_string(code)}")
        # Some brokers (mosquitto 2.0) let a new client take over the session without notifying the old one.
        name = self._connector.client_id
        self._lose(f"{error_string(code)} (if this repeats: is another connector using the client id {name!r}?)")

    def _on_connect(self, _client: Client, _data: object, flags: Any, reason: ReasonCode, _properties: object) -> None:
        self._connack = (flags.session_present, reason)

    def _on_message(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = UNREADABLE_TOPIC
        packet_id = message.mid if message.qos else 0
        self._arrived.append(Message(topic, bytes(message.payload), packet_id, message.retain))

    def _on_subscribe(
        self, client: Client, _data: object, packet_id: int, reasons: list[ReasonCode], _properties: object
    ) -> None:
        filters = self._ungranted.pop(packet_id)  # KeyError: a malformed packet, like ValueError below
        for one, reason in zip(filters, reasons, strict=True):
            if reason.getName() != "Granted QoS 1":
                self._refusal = (f"the subscription to {one!r} at QoS 1", reason)
                return
        if self._ungranted:
            return
        # Only now is every message received that is published from now on.
        self._is_granted = True
        for filters in _packets_of(self._covered):
            client.unsubscribe(filters)
        state = "resumed" if self._is_resumed else "new"
        logger.info(
            "connected to MQTT at %s with a %s session, topic %s", self.address, state, ", ".join(self._filters)
        )

    def _give_up(self, what: str, reason: ReasonCode) -> NoReturn:
        self._drop()
        remedy = _PERMANENT.get(reason.getName())
        if remedy is None:
            message = f"the broker refused {what}: {reason.getName()}"
            raise SessionLostError(message)
        message = f"the MQTT broker at {self.address} refuses {what}: {remedy}"
        raise SessionRefusedError(message)

    def _lose(self, why: str) -> NoReturn:
        self._drop()
        raise SessionLostError(why)

    def _drop(self) -> None:
        client, self._client = self._client, None
        connection = client.socket() if client is not None else None
        if connection is not None:
            connection.close()
