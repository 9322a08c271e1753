"""One lasting MQTT connection that loses nothing: window, acknowledgement, reconnection.

The owner calls `send` while there is `room` and `turn` to let the network move; all happens in the caller's
thread. paho's own network thread is not used: the two threads would fight for the interpreter, a message
could slip between the resent ones of a reconnection, and its sending queue has no bound.

What is unacknowledged is kept here as well as in paho:

1. Connection lost, the broker still knows the session: paho goes on where it was. At QoS 2 exactly once.
2. The broker has forgotten the session, or QoS 0, or MQTT 3.1.1 (no session that ends by itself): a new
   client sends again whatever is unacknowledged. The receiver may see some twice; nothing is lost. paho alone
   would complete with the broker an exchange of which that knows nothing, and the message would be gone.

At QoS 0 "acknowledged" means handed to the operating system: the protocol offers no more, and what was in the
socket when the connection broke is lost. At QoS 2 paho does not report a broker's refusal of a single message
(no right to publish on the topic): it counts as acknowledged.
"""

from __future__ import annotations

import select
import time
from collections import deque
from dataclasses import dataclass
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
"""A broker that hangs without closing the connection is noticed after at most twice this time."""
SESSION_EXPIRY_S = 3600
"""How long the broker keeps the session while the simulator is away; it is dropped at a regular end."""
SOCKET_TIMEOUT_S = 3.0
"""For opening a connection, which blocks: below the 5 s within which the simulator ends when told to."""
GREETING_TIMEOUT_NS = 5_000_000_000
"""A broker that accepts the connection but does not answer CONNECT for this long is tried anew."""
RETRY_MIN_NS = 100_000_000
RETRY_MAX_NS = 2_000_000_000
PAYLOAD_BYTES_MAX = 268_435_455 - 65_600
"""MQTT's largest packet without the room its header may need (topic and properties)."""
MISC_EVERY_NS = 500_000_000
"""Keep-alive is looked after this often."""
FAREWELL_NS = 500_000_000
"""For getting DISCONNECT out."""
NOTICE_EVERY_NS = 5_000_000_000
HEADER_BYTES = 16
"""What a PUBLISH packet holds besides topic and payload, at most."""


class BrokerUnavailableError(Exception):
    """The broker cannot be reached, or refuses the connection; the text says why and what to check."""


class _SessionForgottenError(Exception):
    """The broker answered CONNECT without the session that was expected."""


class _ForeignSessionError(Exception):
    """The broker knows a session of an earlier process: its message ids would swallow some of this one's."""


@dataclass(slots=True)
class Tally:
    """What became of the messages.

    `refused`: the broker answered with an error, or the message is larger than it takes. `resent`: sent again
    because the broker had forgotten the session.
    """

    sent: int = 0
    acknowledged: int = 0
    refused: int = 0
    resent: int = 0
    reconnections: int = 0


class Publisher:
    """Publishes payloads in order, with at most `link.in_flight_max` unacknowledged.

    `notice` takes lines for the user; `clock_ns` is a monotonic clock.
    """

    def __init__(
        self,
        link: LinkSettings,
        notice: Callable[[str], None] = lambda _: None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._link = link
        self._notice = notice
        self._clock_ns = clock_ns
        self._in_flight: dict[int, bytes] = {}
        self._again: deque[bytes] = deque()
        self._limit = link.in_flight_max
        self._payload_bytes_max = PAYLOAD_BYTES_MAX
        self._connected = False
        self._was_connected = False
        self._greeted = False
        self._dropped = False
        self._told_ns = 0
        self._problem = ""
        self._retry_ns = 0
        self._retry_after_ns = RETRY_MIN_NS
        self._greeting_until_ns = 0
        self._misc_ns = 0
        self.tally = Tally()
        self._client = self._new_client()

    @property
    def connected(self) -> bool:
        """The broker has accepted the connection and it stands."""
        return self._connected

    @property
    def window(self) -> int:
        """How many may be unacknowledged: the setting or what the broker allows, whichever is less."""
        return self._limit

    @property
    def unacknowledged(self) -> int:
        """Messages that were sent, or are to be sent again, without an acknowledgement."""
        return len(self._in_flight) + len(self._again)

    @property
    def room(self) -> int:
        """How many may be sent now; 0 without a connection."""
        if not self._connected or self._again:
            return 0
        return self._limit - len(self._in_flight)

    def connect(self, timeout_s: float, stopped: Callable[[], bool] = lambda: False) -> None:
        """Connect for the first time, trying again for `timeout_s`; returns early when `stopped`.

        Raises BrokerUnavailableError at once if the broker answers with a refusal, else after the time.
        """
        until_ns = self._clock_ns() + int(timeout_s * 1e9)
        self._open(first=True)
        while not self._connected and not stopped():
            self.turn(0.05)
            if self._problem.startswith("refused"):
                raise self._unavailable()
            if self._clock_ns() >= until_ns:
                break
        if not self._connected and not stopped():
            raise self._unavailable()

    def send(self, payload: bytes) -> bool:
        """Hand one message over; only with `room`. False if it is larger than the broker takes (not sent)."""
        if len(payload) > self._payload_bytes_max:
            self.tally.refused += 1
            return False
        self.tally.sent += 1
        self._publish(payload)
        return True

    def turn(self, timeout_s: float) -> None:
        """Let the network move once, waiting at most `timeout_s` for it; reconnects when it is time."""
        now_ns = self._clock_ns()
        sock = self._client.socket()
        if sock is None or self._dropped:
            self._reconnect_or_wait(now_ns, timeout_s)
            return
        if not self._connected and now_ns >= self._greeting_until_ns:
            self._problem = f"no answer to CONNECT within {GREETING_TIMEOUT_NS // 10**9} s"
            self._drop()
            return
        try:
            self._move(sock, timeout_s)
            self._misc(now_ns)
        except _SessionForgottenError:
            self._start_anew()
        except _ForeignSessionError:
            self._say_goodbye()
            self._start_anew()
        if self._client.socket() is None:
            self._schedule_retry()
        while self._again and self._connected and len(self._in_flight) < self._limit:
            self._publish(self._again.popleft())

    def close(self) -> None:
        """Say good-bye, so that the broker drops the session. What is unacknowledged is given up."""
        if self._connected:
            self._say_goodbye()
        self._connected = False

    def _publish(self, payload: bytes) -> None:
        info = self._client.publish(self._link.topic, payload, self._link.qos)
        if info.rc not in {MQTTErrorCode.MQTT_ERR_SUCCESS, MQTTErrorCode.MQTT_ERR_NO_CONN}:
            msg = f"paho refused a message inside the window: {info.rc!r}"
            raise RuntimeError(msg)
        self._in_flight[info.mid] = payload

    def _move(self, sock: SocketLike, timeout_s: float) -> None:
        if self._client.want_write():
            self._client.loop_write()
            if self._client.socket() is None:
                return
        writers = [sock] if self._client.want_write() else []
        # What TLS has decrypted already is not seen by select.
        decrypted = bool(getattr(sock, "pending", int)())
        readable, _, _ = select.select([sock], writers, [], 0.0 if decrypted else timeout_s)
        if readable or decrypted:
            self._client.loop_read()
        if self._client.socket() is not None and self._client.want_write():
            self._client.loop_write()

    def _misc(self, now_ns: int) -> None:
        if now_ns - self._misc_ns >= MISC_EVERY_NS:
            self._misc_ns = now_ns
            self._client.loop_misc()

    # ---- connecting and leaving

    def _say_goodbye(self) -> None:
        v5 = self._link.version == "5"
        self._client.disconnect(properties=_session_properties(PacketTypes.DISCONNECT, 0) if v5 else None)
        until_ns = self._clock_ns() + FAREWELL_NS
        while self._client.socket() is not None and self._clock_ns() < until_ns:
            self._client.loop_write()
            self._client.loop_read()

    def _new_client(self) -> Client:
        link = self._link
        client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=link.client_id,
            clean_session=True if link.version == "3.1.1" else None,
            protocol=MQTTProtocolVersion.MQTTv5 if link.version == "5" else MQTTProtocolVersion.MQTTv311,
        )
        client.connect_timeout = SOCKET_TIMEOUT_S
        # 0 = no bound in paho, which would otherwise search the whole window at every acknowledgement. The
        # bound is kept here.
        client.max_inflight_messages_set(0)
        if link.username is not None:
            client.username_pw_set(link.username, link.password)
        if link.ca_file is not None:
            client.tls_set(ca_certs=str(link.ca_file))
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        # With this hook set, paho queues packets instead of writing each at once, so that `turn` writes them.
        client.on_socket_register_write = lambda *_: None
        return client

    def _open(self, *, first: bool) -> None:
        """Open the connection and send CONNECT; the answer comes in a later turn."""
        self._greeting_until_ns = self._clock_ns() + GREETING_TIMEOUT_NS
        self._dropped = False
        try:
            if not first:
                self._client.reconnect()
                return
            host, port = self._link.host, self._link.port
            if self._link.version == "5":
                # Not a clean start, even the first time: mosquitto 2.0.11 does not write sessions that began
                # with one to its disk, and forgets them when it restarts.
                properties = _session_properties(PacketTypes.CONNECT, SESSION_EXPIRY_S)
                self._client.connect(host, port, KEEPALIVE_S, clean_start=False, properties=properties)
            else:
                self._client.connect(host, port, KEEPALIVE_S)
        except (OSError, ValueError) as error:
            self._problem = f"{type(error).__name__}: {error}"
            self._schedule_retry()

    def _reconnect_or_wait(self, now_ns: int, timeout_s: float) -> None:
        if self._was_connected and now_ns - self._told_ns >= NOTICE_EVERY_NS:
            self._told_ns = now_ns
            waiting = self.unacknowledged
            self._notice(f"no connection ({self._problem}), {waiting} unacknowledged; trying again")
        if now_ns < self._retry_ns:
            time.sleep(min(timeout_s, (self._retry_ns - now_ns) / 1e9))
            return
        if self._link.qos == 0 and self._was_connected:
            self._start_anew()
            return
        self._open(first=False)

    def _start_anew(self) -> None:
        """A new client and session; what is unacknowledged comes first, in its order."""
        self._drop()
        self._client = self._new_client()
        self._again.extendleft(reversed(self._in_flight.values()))
        self.tally.resent += len(self._in_flight)
        if self._in_flight and self._link.qos:
            self._notice(
                f"the broker has forgotten the session: {len(self._in_flight)} messages are sent again, "
                "some may arrive twice"
            )
        self._in_flight.clear()
        self._was_connected = False
        self._open(first=True)

    def _drop(self) -> None:
        """Close the connection without a word; paho has no call for that and notices when it reconnects."""
        sock = self._client.socket()
        if sock is not None:
            sock.close()
        self._connected, self._dropped = False, True
        self._schedule_retry()

    def _schedule_retry(self) -> None:
        self._retry_ns = self._clock_ns() + self._retry_after_ns
        self._retry_after_ns = min(RETRY_MAX_NS, 2 * self._retry_after_ns)

    def _unavailable(self) -> BrokerUnavailableError:
        link = self._link
        return BrokerUnavailableError(
            f"no MQTT connection to {link.host}:{link.port} ({self._problem or 'no answer'}). Is the broker "
            "running there? BROKER_HOST and BROKER_PORT (or --host, --port) name it; the login is in "
            "MQTT_USERNAME and MQTT_PASSWORD"
        )

    # ---- paho's callbacks

    def _on_connect(
        self,
        _client: Client,
        _data: object,
        flags: ConnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        if reason.is_failure:
            self._problem = f"refused: {reason}"
            return
        if self._was_connected and not flags.session_present:
            raise _SessionForgottenError
        if not self._greeted and flags.session_present:
            self._greeted = True
            raise _ForeignSessionError
        self._greeted = True
        self._limit = self._link.in_flight_max
        if self._link.qos:
            self._limit = min(self._limit, getattr(properties, "ReceiveMaximum", self._limit))
        largest = getattr(properties, "MaximumPacketSize", None)
        if largest is not None:
            room = largest - len(self._link.topic.encode()) - HEADER_BYTES
            self._payload_bytes_max = min(PAYLOAD_BYTES_MAX, room)
        if self._problem and self.tally.sent:
            self.tally.reconnections += 1
            self._notice("connected again")
        self._connected = self._was_connected = True
        self._problem = ""
        self._retry_after_ns = RETRY_MIN_NS

    def _on_disconnect(
        self,
        _client: Client,
        _data: object,
        _flags: DisconnectFlags,
        reason: ReasonCode,
        _properties: Properties | None,
    ) -> None:
        if self._connected:
            self._problem = str(reason)
        self._connected = False

    def _on_publish(
        self, _client: Client, _data: object, mid: int, reason: ReasonCode, _properties: Properties | None
    ) -> None:
        self._in_flight.pop(mid, None)
        if reason.is_failure:
            self.tally.refused += 1
            if self.tally.refused == 1:
                self._notice(f"the broker refuses messages: {reason}")
        else:
            self.tally.acknowledged += 1


def _session_properties(packet_type: int, expiry_s: int) -> Properties:
    properties = Properties(packet_type)  # type: ignore[no-untyped-call] # paho leaves this one without types
    properties.SessionExpiryInterval = expiry_s
    return properties
