"""An MQTT connection based on paho: connects, reconnects, and starts a new session if the broker has lost the old one.

Everything runs in the caller's thread, in `turn`. paho's own network thread is not used for three reasons: the two
threads would compete for the interpreter, new messages could be sent between the messages that are resent after a
reconnection, and paho's send queue is unbounded.

The list of unacknowledged messages is kept in `publishing`.
"""

from __future__ import annotations

import select
import time
from functools import partial
from typing import TYPE_CHECKING

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from paho.mqtt.client import SocketLike

    from simulator.settings import LinkSettings

KEEPALIVE_S = 20
"""MQTT keep-alive interval. If the broker hangs without closing the connection, the simulator notices within
twice the interval."""
SESSION_EXPIRY_S = 3600
"""How long the broker keeps the session of a simulator that lost its connection. A clean disconnect ends it at once."""
SOCKET_TIMEOUT_S = 3.0
"""Timeout for opening a connection. Opening blocks the process, which must stop within 5 s of a signal."""
CONNACK_TIMEOUT_NS = 5_000_000_000
"""How long to wait for the broker's CONNACK before reconnecting."""
RETRY_MIN_NS = 100_000_000
RETRY_MAX_NS = 2_000_000_000
PAYLOAD_BYTES_MAX = 268_435_455 - 65_600
"""Maximum payload size in bytes: the largest packet that MQTT allows, minus space for the topic and the properties."""
MISC_EVERY_NS = 500_000_000
"""Interval between keep-alive checks."""
DISCONNECT_TIMEOUT_NS = 500_000_000
NOTICE_EVERY_NS = 5_000_000_000
HEADER_BYTES = 16
"""Maximum size of a PUBLISH packet in bytes, not counting the topic and the payload."""


class _SessionForgottenError(Exception):
    """Raised if the broker accepts the connection but no longer has the session."""


class _ForeignSessionError(Exception):
    """Raised if the broker still has an earlier process's session, whose message ids would collide with ours."""


class Connection:
    """The simulator's connection to its broker.

    `turn` calls ``on_acknowledged(mid, reason)`` for each message that the broker has acknowledged or refused, and
    ``on_reconnected`` when the connection is restored. ``notice`` is called with each line to show to the user.
    """

    def __init__(
        self,
        link: LinkSettings,
        *,
        on_acknowledged: Callable[[int, ReasonCode], None],
        on_reconnected: Callable[[], None],
        notice: Callable[[str], None],
        clock_ns: Callable[[], int],
    ) -> None:
        self._link = link
        self._on_acknowledged = on_acknowledged
        self._on_reconnected = on_reconnected
        self._notice = notice
        self._clock_ns = clock_ns
        self.connected = False
        """Whether a connection is open and the broker has accepted it."""
        self.window = link.in_flight_max
        """Maximum number of unacknowledged messages: `link.in_flight_max` or the broker's limit, whichever is lower."""
        self.payload_bytes_max = PAYLOAD_BYTES_MAX
        self.problem = ""
        """Why there is no connection."""
        self._had_session = False
        self._was_accepted = False
        self._is_dropped = False
        self._noticed_ns = 0
        self._retry_at_ns = 0
        self._retry_after_ns = RETRY_MIN_NS
        self._connack_until_ns = 0
        self._misc_ns = 0
        self._client = self._make_client()

    def open(self) -> None:
        """Open the connection and send CONNECT to start a session. The CONNACK is received in a later `turn`.

        If the connection cannot be opened, a later `turn` tries again.
        """
        host, port = self._link.host, self._link.port
        if self._link.version == "5":
            # A clean start is never requested, not even for the first connection: mosquitto 2.0.11 does not persist
            # sessions that began with one, so they would be lost when it restarts.
            properties = _session_properties(PacketTypes.CONNECT, SESSION_EXPIRY_S)
            connect = partial(self._client.connect, host, port, KEEPALIVE_S, clean_start=False, properties=properties)
        else:
            connect = partial(self._client.connect, host, port, KEEPALIVE_S)
        self._attempt(connect)

    def publish(self, payload: bytes) -> int:
        """Queue a message and return its packet id."""
        info = self._client.publish(self._link.topic, payload, self._link.qos)
        if info.rc not in {MQTTErrorCode.MQTT_ERR_SUCCESS, MQTTErrorCode.MQTT_ERR_NO_CONN}:
            msg = f"paho refused a message inside the window: {info.rc!r}"
            raise RuntimeError(msg)
        return info.mid

    def turn(self, timeout_s: float, unacknowledged: int) -> bool:
        """Read and write once, waiting for at most ``timeout_s``. Reconnect when a retry is due.

        ``unacknowledged``: the number of unacknowledged messages, to show to the user. Return whether a new session was
        started; if so, all unacknowledged messages must be sent again.
        """
        now_ns = self._clock_ns()
        sock = self._client.socket()
        if sock is None or self._is_dropped:
            return self._reconnect_or_wait(now_ns, timeout_s, unacknowledged)
        if not self.connected and now_ns >= self._connack_until_ns:
            self.problem = f"no answer to CONNECT within {CONNACK_TIMEOUT_NS // 10**9} s"
            self._drop()
            return False
        is_new = False
        try:
            self._read_and_write(sock, timeout_s)
            self._keep_alive(now_ns)
        except _SessionForgottenError:
            self._begin_session()
            is_new = True
        except _ForeignSessionError:
            self._disconnect()
            self._begin_session()
            is_new = True
        if self._client.socket() is None:
            self._schedule_retry()
        return is_new

    def close(self) -> None:
        """Disconnect cleanly, which ends the session."""
        if self.connected:
            self._disconnect()
        self.connected = False

    def _read_and_write(self, sock: SocketLike, timeout_s: float) -> None:
        if self._client.want_write():
            self._client.loop_write()
            if self._client.socket() is None:
                return
        writers = [sock] if self._client.want_write() else []
        # select() does not report data that TLS has already read and decrypted.
        decrypted = bool(getattr(sock, "pending", int)())
        readable, _, _ = select.select([sock], writers, [], 0.0 if decrypted else timeout_s)
        if readable or decrypted:
            self._client.loop_read()
        if self._client.socket() is not None and self._client.want_write():
            self._client.loop_write()

    def _keep_alive(self, now_ns: int) -> None:
        if now_ns - self._misc_ns >= MISC_EVERY_NS:
            self._misc_ns = now_ns
            self._client.loop_misc()

    def _disconnect(self) -> None:
        v5 = self._link.version == "5"
        self._client.disconnect(properties=_session_properties(PacketTypes.DISCONNECT, 0) if v5 else None)
        until_ns = self._clock_ns() + DISCONNECT_TIMEOUT_NS
        while self._client.socket() is not None and self._clock_ns() < until_ns:
            self._client.loop_write()
            self._client.loop_read()

    def _make_client(self) -> Client:
        link = self._link
        client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=link.client_id,
            clean_session=True if link.version == "3.1.1" else None,
            protocol=MQTTProtocolVersion.MQTTv5 if link.version == "5" else MQTTProtocolVersion.MQTTv311,
        )
        client.connect_timeout = SOCKET_TIMEOUT_S
        # 0 disables paho's own limit. To enforce it, paho would search all its messages at each acknowledgement.
        # `publishing` limits the number instead.
        client.max_inflight_messages_set(0)
        if link.username is not None:
            client.username_pw_set(link.username, link.password)
        if link.ca_file is not None:
            client.tls_set(ca_certs=str(link.ca_file))
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        # With this hook set, paho only queues packets instead of sending each one immediately; `turn` sends them.
        client.on_socket_register_write = lambda *_: None
        return client

    def _attempt(self, connect: Callable[[], object]) -> None:
        self._connack_until_ns = self._clock_ns() + CONNACK_TIMEOUT_NS
        self._is_dropped = False
        try:
            connect()
        except (OSError, ValueError) as error:
            self.problem = f"{type(error).__name__}: {error}"
            self._schedule_retry()

    def _reconnect_or_wait(self, now_ns: int, timeout_s: float, unacknowledged: int) -> bool:
        if self._had_session and now_ns - self._noticed_ns >= NOTICE_EVERY_NS:
            self._noticed_ns = now_ns
            self._notice(f"no connection ({self.problem}), {unacknowledged} unacknowledged; retrying")
        if now_ns < self._retry_at_ns:
            time.sleep(min(timeout_s, (self._retry_at_ns - now_ns) / 1e9))
            return False
        if self._link.qos == 0 and self._had_session:
            self._begin_session()
            return True
        self._attempt(self._client.reconnect)
        return False

    def _begin_session(self) -> None:
        """Start a new session with a new paho client, because the old client's state belongs to the lost session."""
        self._drop()
        self._client = self._make_client()
        self._had_session = False
        self.open()

    def _drop(self) -> None:
        """Close the socket without sending DISCONNECT. paho has no method for this; it notices when it reconnects."""
        sock = self._client.socket()
        if sock is not None:
            sock.close()
        self.connected, self._is_dropped = False, True
        self._schedule_retry()

    def _schedule_retry(self) -> None:
        self._retry_at_ns = self._clock_ns() + self._retry_after_ns
        self._retry_after_ns = min(RETRY_MAX_NS, 2 * self._retry_after_ns)

    # ---- paho callbacks

    def _on_connect(
        self,
        _client: Client,
        _data: object,
        flags: ConnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        if reason.is_failure:
            self.problem = f"refused: {reason}"
            return
        if self._had_session and not flags.session_present:
            raise _SessionForgottenError
        was_accepted, self._was_accepted = self._was_accepted, True
        if not was_accepted and flags.session_present:
            raise _ForeignSessionError
        self._apply_limits(properties)
        if self.problem:
            self._on_reconnected()
        self.connected = self._had_session = True
        self.problem = ""
        self._retry_after_ns = RETRY_MIN_NS

    def _apply_limits(self, properties: Properties | None) -> None:
        self.window = self._link.in_flight_max
        if self._link.qos:
            self.window = min(self.window, getattr(properties, "ReceiveMaximum", self.window))
        packet_bytes_max = getattr(properties, "MaximumPacketSize", None)
        if packet_bytes_max is not None:
            room = packet_bytes_max - len(self._link.topic.encode()) - HEADER_BYTES
            self.payload_bytes_max = min(PAYLOAD_BYTES_MAX, room)

    def _on_disconnect(
        self,
        _client: Client,
        _data: object,
        _flags: DisconnectFlags,
        reason: ReasonCode,
        _properties: Properties | None,
    ) -> None:
        if self.connected:
            self.problem = str(reason)
        self.connected = False

    def _on_publish(
        self, _client: Client, _data: object, mid: int, reason: ReasonCode, _properties: Properties | None
    ) -> None:
        self._on_acknowledged(mid, reason)


def _session_properties(packet_type: int, expiry_s: int) -> Properties:
    properties = Properties(packet_type)  # type: ignore[no-untyped-call] # paho does not annotate this one
    properties.SessionExpiryInterval = expiry_s
    return properties
