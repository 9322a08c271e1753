"""The connection to the MQTT broker: a persistent session at QoS 1, acknowledged by hand.

One connection at a time, never blocking once it stands; `protocol` knows the bytes, this module the socket.
It does not reconnect by itself: a lost connection is a `SessionLostError`, and the service decides when to
try again. What would fail the same way for ever (wrong password, another connector of the same name) is a
`SessionRefusedError`.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
import time
from typing import Final, NoReturn

from broker.settings import MqttSettings
from connector import protocol
from connector.settings import ConnectorSettings

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 2.5
"""From the first packet to CONNACK. Stopping waits for it, and has five seconds in all."""

_BLOCK_BYTES: Final = 128 * 1024
"""Some 500 events: enough to spread the costs of a turn, little enough that acknowledgements flow steadily.
"""

_TLS_BLOCKS_MAX: Final = 8
"""A TLS connection gives at most 16 kB at a time."""

_GOODBYE_S: Final = 0.5
_SUBSCRIBE_ID: Final = 1

_TOO_NEW: Final = frozenset({0x01, 0x84})
"""The answers of a broker that does not speak MQTT 5."""

_WHY_REFUSED: Final = {
    0x01: "the broker speaks neither MQTT 5 nor 3.1.1",
    0x02: "the client identifier is not valid (connector.client_id)",
    0x04: "bad user name or password (mqtt.username, mqtt.password)",
    0x05: "not authorised",
    0x81: "a malformed packet",
    0x82: "a protocol error",
    0x84: "the broker speaks neither MQTT 5 nor 3.1.1",
    0x85: "the client identifier is not valid (connector.client_id)",
    0x86: "bad user name or password (mqtt.username, mqtt.password)",
    0x87: "not authorised",
    0x8A: "banned",
    0x8C: "bad authentication method",
    0x8E: "another client has taken over the session: each connector needs a connector.client_id of its own",
    0x8F: "the topic filter is not valid (mqtt.topic)",
    0x90: "the topic name is not valid",
    0x9E: "shared subscriptions are not supported (mqtt.topic)",
    0xA2: "wildcard subscriptions are not supported (mqtt.topic)",
}
"""Reasons that do not pass with time (MQTT 5, 2.4; MQTT 3.1.1, 3.2.2.3); with any other the connection is
tried again.
"""


class SessionLostError(Exception):
    """The connection could not be made or broke; trying again may help."""


class SessionRefusedError(Exception):
    """The broker will not have this client; trying again cannot help."""


class MqttSession:
    """The session of this connector at the broker. Made unconnected; `connect` may be called again after each
    loss.
    """

    def __init__(self, mqtt: MqttSettings, connector: ConnectorSettings) -> None:
        self._mqtt = mqtt
        self._client_id = connector.client_id
        self._packet_bytes_max = connector.packet_bytes_max
        self._keep_alive_s = connector.keep_alive // 10**9
        self._connect_packets = {
            version: protocol.connect_packet(
                client_id=connector.client_id,
                keep_alive_s=self._keep_alive_s,
                session_expiry_s=connector.session_expiry // 10**9,
                receive_max=connector.in_flight_max,
                packet_bytes_max=connector.packet_bytes_max,
                username=mqtt.username,
                password=mqtt.secret(),
                version=version,
            )
            for version in (protocol.VERSION_5, protocol.VERSION_3)
        }
        self._version = protocol.VERSION_5
        self._tls = ssl.create_default_context(cafile=str(mqtt.tls_ca_file)) if mqtt.tls_ca_file else None
        self._socket: socket.socket | None = None
        self._reader = protocol.PacketReader(connector.packet_bytes_max)
        self._outgoing = bytearray()
        self._arrived: list[protocol.Packet] = []
        self._sent_s = self._heard_s = 0.0
        self._was_connected = False

    @property
    def address(self) -> str:
        """Where the broker is, for messages to a user."""
        return f"{self._mqtt.host}:{self._mqtt.port}"

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._socket is not None

    def connect(self) -> None:
        """Connect, take up the session, subscribe. Blocks for up to `CONNECT_TIMEOUT_S`.

        Raises `SessionLostError` or `SessionRefusedError`.
        """
        self._reader = protocol.PacketReader(self._packet_bytes_max, self._version)
        self._outgoing.clear()
        self._arrived.clear()
        deadline_s = time.monotonic() + CONNECT_TIMEOUT_S
        try:
            plain = socket.create_connection((self._mqtt.host, self._mqtt.port), timeout=CONNECT_TIMEOUT_S)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = plain
            if self._tls is not None:
                self._socket = self._tls.wrap_socket(plain, server_hostname=self._mqtt.host)
            self._socket.sendall(self._connect_packets[self._version])
            greeting = self._await_greeting(self._socket, deadline_s)
            self._socket.setblocking(False)  # noqa: FBT003 - the name says what is set
        except (OSError, protocol.ProtocolError) as error:
            self._lose(str(error))
        self._note_greeting(greeting)
        self._send(protocol.subscribe_packet(self._mqtt.topic, _SUBSCRIBE_ID, self._version))

    def wait(self, timeout_s: float, *, reading: bool) -> bool:
        """Wait until there is something to do; whether there is something to `receive`."""
        connection = self._socket
        if connection is None:
            return False
        if reading and (self._arrived or (isinstance(connection, ssl.SSLSocket) and connection.pending())):
            return True
        readers = [connection] if reading else []
        readable, _, _ = select.select(readers, [connection] if self._outgoing else [], [], timeout_s)
        return bool(readable)

    def receive(self) -> list[protocol.Message]:
        """The messages that have arrived, in order. Raises `SessionLostError` or `SessionRefusedError`."""
        arrived, self._arrived = self._arrived, []
        for _ in range(_TLS_BLOCKS_MAX):
            block = self._read_block()
            if not block:
                break
            arrived += self._cut(block)
            if self._tls is None:
                break
        messages = []
        for packet in arrived:
            if type(packet) is protocol.Message:
                messages.append(packet)
            else:
                self._handle(packet)
        return messages

    def acknowledge(self, packet_ids: list[int]) -> None:
        """Tell the broker that these messages are safe. Raises `SessionLostError`."""
        self._send(protocol.acknowledgement_packets(packet_ids))

    def tend(self, now_s: float, *, reading: bool) -> None:
        """Send what is waiting and a sign of life where one is due; notice a broker that has gone silent.

        Raises `SessionLostError`. A connection that is not read is not judged by its silence.
        """
        if not self.is_connected:
            return
        if not reading:
            self._heard_s = now_s
        if now_s - self._heard_s > 1.5 * self._keep_alive_s:
            self._lose(f"nothing was heard for {now_s - self._heard_s:.0f} s")
        if now_s - self._sent_s > 0.5 * self._keep_alive_s:
            self._outgoing += protocol.PINGREQ_PACKET
        if self._outgoing:
            self._send(b"")

    def close(self) -> None:
        """Say goodbye and leave the session standing: what is not acknowledged comes again. Never raises."""
        if self._socket is None:
            return
        connection, self._socket = self._socket, None
        try:
            connection.settimeout(_GOODBYE_S)
            connection.sendall(bytes(self._outgoing) + protocol.DISCONNECT_PACKET)
            connection.shutdown(socket.SHUT_WR)
            # Closing with unread data would reset the connection and take the last acknowledgements with it.
            deadline_s = time.monotonic() + _GOODBYE_S
            while time.monotonic() < deadline_s and connection.recv(_BLOCK_BYTES):
                pass
        except OSError as error:
            logger.debug("the goodbye to the MQTT broker failed: %s", error)
        finally:
            connection.close()

    def _await_greeting(self, connection: socket.socket, deadline_s: float) -> protocol.Connected:
        while (left_s := deadline_s - time.monotonic()) > 0:
            connection.settimeout(left_s)
            block = connection.recv(_BLOCK_BYTES)
            if not block:
                raise ConnectionError("the broker closed the connection before it answered")
            packets = self._reader.feed(block)
            if packets:
                greeting, *self._arrived = packets
                if not isinstance(greeting, protocol.Connected):
                    raise protocol.ProtocolError("the first packet is not CONNACK")
                return greeting
        raise TimeoutError("the broker did not answer in time")

    def _note_greeting(self, greeting: protocol.Connected) -> None:
        if greeting.reason_code in _TOO_NEW and self._version == protocol.VERSION_5:
            self._version = protocol.VERSION_3
            logger.warning("the MQTT broker speaks no MQTT 5: its own limits and session expiry apply")
            self._lose("trying MQTT 3.1.1")
        if greeting.reason_code:
            self._give_up("the connection", greeting.reason_code, greeting.properties.get(protocol.REASON_STRING))
        keep_alive = greeting.properties.get(protocol.KEEP_ALIVE)
        if keep_alive is not None:
            self._keep_alive_s = max(1, int.from_bytes(keep_alive))
        expiry = greeting.properties.get(protocol.SESSION_EXPIRY)
        if expiry is not None:
            logger.warning("the MQTT broker keeps the session for %d s only", int.from_bytes(expiry))
        if self._was_connected and not greeting.session_present:
            logger.warning("the MQTT broker has lost the session: messages may have been lost with it")
        self._sent_s = self._heard_s = time.monotonic()
        self._was_connected = True
        kept = "taken up" if greeting.session_present else "new"
        logger.info("connected to MQTT at %s, session %s, topic %s", self.address, kept, self._mqtt.topic)

    def _read_block(self) -> bytes:
        if self._socket is None:
            return b""
        try:
            block = self._socket.recv(_BLOCK_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return b""
        except OSError as error:
            self._lose(str(error))
        if not block:
            # Some brokers (mosquitto 2.0) take a session over to its new client without a word to the old one.
            self._lose(f"the broker closed it (if again and again: is there another {self._client_id!r}?)")
        self._heard_s = time.monotonic()
        return block

    def _cut(self, block: bytes) -> list[protocol.Packet]:
        try:
            return self._reader.feed(block)
        except protocol.ProtocolError as error:
            self._lose(str(error))

    def _handle(self, packet: protocol.Packet) -> None:
        if isinstance(packet, protocol.Subscribed):
            if packet.reason_code >= protocol.FAILURE_MIN:
                self._give_up(f"the subscription to {self._mqtt.topic!r}", packet.reason_code, None)
            if packet.reason_code != 1:
                self._drop()
                message = f"the MQTT broker grants {self._mqtt.topic!r} no QoS 1, so messages could be lost"
                raise SessionRefusedError(message)
        elif isinstance(packet, protocol.Disconnected):
            self._give_up("the connection", packet.reason_code, None)

    def _send(self, data: bytes) -> None:
        self._outgoing += data
        if self._socket is None or not self._outgoing:
            return
        try:
            count = self._socket.send(self._outgoing)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            self._lose(str(error))
        del self._outgoing[:count]
        self._sent_s = time.monotonic()

    def _give_up(self, what: str, reason_code: int, text: bytes | None) -> NoReturn:
        words = _WHY_REFUSED.get(reason_code)
        detail = f" ({text.decode(errors='replace')})" if text else ""
        self._drop()
        if words is None:
            message = f"the broker ended {what}, reason 0x{reason_code:02x}{detail}"
            raise SessionLostError(message)
        message = f"the MQTT broker at {self.address} refuses {what}: {words}{detail}"
        raise SessionRefusedError(message)

    def _lose(self, why: str) -> NoReturn:
        self._drop()
        raise SessionLostError(why)

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
