"""The connection to the MQTT broker: paho-mqtt with a persistent session at QoS 1, acknowledged by hand.

paho speaks the protocol; this module drives it without a thread of its own, so that the service stays one loop and
nothing is locked. It does not reconnect by itself: a lost connection is a `SessionLostError`, and the service
decides when to try again. What would fail the same way for ever (a wrong password, say) is a `SessionRefusedError`.

The version is MQTT 3.1.1: every broker speaks it, it has the persistent session and QoS 1 that the guarantee needs,
and paho reads and acknowledges a message in half the time that its MQTT 5 takes (36 against 69 us of CPU).
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
from connector.settings import ConnectorSettings

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 2.5
"""From the first packet to CONNACK. Stopping waits for it, and has five seconds in all."""

_MESSAGES_A_TURN: Final = 500
"""Enough to spread the costs of a turn, little enough that acknowledgements flow steadily."""

_BYTES_A_TURN: Final = 256 * 1024
"""Of payloads, however few messages they are: what becomes of them takes time, and signs of life go in between."""

_GOODBYE_S: Final = 1.0
_READ_BYTES: Final = 65_536
_LOOK_S: Final = 0.05

_FOR_EVER: Final = {
    "Client identifier not valid": "the client identifier is not valid (connector.client_id)",
    "Bad user name or password": "bad user name or password (mqtt.username, mqtt.password)",
    "Not authorized": "not authorised (mqtt.username, mqtt.password)",
    "Granted QoS 0": "it grants QoS 0 only, so messages could be lost",
}
"""paho's names of the answers that do not pass with time (MQTT 3.1.1, 3.2.2.3 and 3.9.3), in words that say what to
change; with any other the connection is tried again."""

_MALFORMED: Final = (MQTTException, ValueError, IndexError, struct.error)
"""What paho raises on bytes that are no MQTT packet."""


class SessionLostError(Exception):
    """The connection could not be made or broke; trying again may help."""


class SessionRefusedError(Exception):
    """The broker will not have this client; trying again cannot help."""


class Message(NamedTuple):
    """A message that arrived. ``packet_id`` is 0 at QoS 0."""

    topic: str
    payload: bytes
    packet_id: int


class MqttSession:
    """The session of this connector at the broker.

    Made unconnected; `connect` may be called again after each loss.
    """

    def __init__(self, mqtt: MqttSettings, connector: ConnectorSettings) -> None:
        self._mqtt = mqtt
        self._connector = connector
        self._client: Client | None = None
        self._arrived: list[Message] = []
        self._greeting: tuple[bool, ReasonCode] | None = None
        self._refusal: tuple[str, ReasonCode] | None = None
        self._was_connected = False

    @property
    def address(self) -> str:
        """Where the broker is, for messages to a user."""
        return f"{self._mqtt.host}:{self._mqtt.port}"

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._client is not None

    @property
    def is_welcome(self) -> bool:
        """Whether the broker has also said so."""
        return self._client is not None and self._greeting is not None and not self._greeting[1].is_failure

    def connect(self) -> None:
        """Connect, take up the session, subscribe. Blocks for up to `CONNECT_TIMEOUT_S`.

        Raises `SessionLostError` or `SessionRefusedError`.
        """
        self._arrived.clear()
        self._refusal = None
        self._greeting = None
        deadline_s = time.monotonic() + CONNECT_TIMEOUT_S
        client = self._client = self._make_client()
        try:
            client.connect(self._mqtt.host, self._mqtt.port, self._connector.keep_alive // 10**9)
        except (OSError, ValueError) as error:
            self._lose(str(error))
        session_present, _ = self._await_greeting(client, deadline_s)
        self._note_greeting(session_present=session_present)
        client.subscribe(self._mqtt.topic, 1)

    def wait(self, timeout_s: float, *, reading: bool) -> bool:
        """Wait until there is something to do; whether there is something to `receive`."""
        connection: Any = self._client.socket() if self._client is not None else None
        if self._client is None or connection is None:
            return self._client is not None
        if reading and (self._arrived or (isinstance(connection, ssl.SSLSocket) and connection.pending())):
            return True
        readers = [connection] if reading else []
        writers = [connection] if self._client.want_write() else []
        readable, _, _ = select.select(readers, writers, [], timeout_s)
        return bool(readable)

    def receive(self) -> list[Message]:
        """The messages that have arrived, in order. Raises `SessionLostError` or `SessionRefusedError`."""
        client = self._client
        size_bytes = sum(len(message.payload) for message in self._arrived)
        while client is not None and len(self._arrived) < _MESSAGES_A_TURN and size_bytes < _BYTES_A_TURN:
            before = len(self._arrived)
            self._read(client)
            if len(self._arrived) == before:
                break
            size_bytes += sum(len(message.payload) for message in self._arrived[before:])
        messages, self._arrived = self._arrived, []
        return messages

    def acknowledge(self, packet_ids: list[int]) -> None:
        """Tell the broker that these messages are safe. Raises `SessionLostError`."""
        client = self._client
        if client is None:
            return
        for packet_id in packet_ids:
            client.ack(packet_id, 1)
        self._write(client)

    def tend(self, *, reading: bool) -> None:
        """Send what is waiting and a sign of life where one is due; notice a broker that has gone silent.

        A connection that is not read is not judged by its silence; the broker ends it after one and a half times
        the keep-alive. Raises `SessionLostError`.
        """
        if self._client is not None and reading:
            self._check(self._client.loop_misc())
        if self._client is not None:
            self._write(self._client)

    def close(self) -> None:
        """Say goodbye and leave the session standing: what is not acknowledged comes again. Never raises."""
        client, self._client = self._client, None
        connection = client.socket() if client is not None else None
        if client is None or connection is None:
            return
        deadline_s = time.monotonic() + _GOODBYE_S
        # paho closes its socket right behind its goodbye. Where data is unread, that resets the connection and takes
        # the last acknowledgements with it; so the connection is kept and emptied until the broker closes it.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as kept:
            client.disconnect()
            while client.want_write() and time.monotonic() < deadline_s:
                select.select([], [kept], [], _LOOK_S)
                client.loop_write()
            while (left_s := deadline_s - time.monotonic()) > 0:
                readable, _, _ = select.select([kept], [], [], left_s)
                if readable and not kept.recv(_READ_BYTES):
                    break

    def _await_greeting(self, client: Client, deadline_s: float) -> tuple[bool, ReasonCode]:
        while time.monotonic() < deadline_s:
            if self.wait(_LOOK_S, reading=True):
                self._read(client)
            self._write(client)
            if self._greeting is not None:
                return self._greeting
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
        # With it paho queues what is to be written instead of writing from wherever it is.
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
        if self._greeting is not None and self._greeting[1].is_failure:
            self._give_up("the connection", self._greeting[1])
        if code in {MQTTErrorCode.MQTT_ERR_SUCCESS, MQTTErrorCode.MQTT_ERR_AGAIN}:
            return
        if self._greeting is None:
            self._lose(f"the connection ended before the broker answered: {error_string(code)}")
        # Some brokers (mosquitto 2.0) take a session over to its new client without a word to the old one.
        name = self._connector.client_id
        self._lose(f"{error_string(code)} (if again and again: is there another {name!r}?)")

    def _note_greeting(self, *, session_present: bool) -> None:
        if self._was_connected and not session_present:
            logger.warning("the MQTT broker has lost the session: messages may have been lost with it")
        self._was_connected = True
        kept = "taken up" if session_present else "new"
        logger.info("connected to MQTT at %s, session %s, topic %s", self.address, kept, self._mqtt.topic)

    def _on_connect(self, _client: Client, _data: object, flags: Any, reason: ReasonCode, _properties: object) -> None:
        self._greeting = (flags.session_present, reason)

    def _on_message(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = "(not UTF-8)"
        self._arrived.append(Message(topic, bytes(message.payload), message.mid if message.qos else 0))

    def _on_subscribe(
        self, _client: Client, _data: object, _mid: int, reasons: list[ReasonCode], _properties: object
    ) -> None:
        if reasons[0].getName() != "Granted QoS 1":
            self._refusal = (f"the subscription to {self._mqtt.topic!r} at QoS 1", reasons[0])

    def _give_up(self, what: str, reason: ReasonCode) -> NoReturn:
        self._drop()
        words = _FOR_EVER.get(reason.getName())
        if words is None:
            message = f"the broker ended {what}: {reason.getName()}"
            raise SessionLostError(message)
        message = f"the MQTT broker at {self.address} refuses {what}: {words}"
        raise SessionRefusedError(message)

    def _lose(self, why: str) -> NoReturn:
        self._drop()
        raise SessionLostError(why)

    def _drop(self) -> None:
        client, self._client = self._client, None
        connection = client.socket() if client is not None else None
        if connection is not None:
            connection.close()
