"""Publishes messages without loss over unreliable connections: limits how many are in flight, and resends them.

The caller calls `send` while there is `room`, and `turn` to drive the network. Everything runs in the caller's thread.

Unacknowledged messages are kept both here and in paho, for two cases:

1. The connection is lost, but the broker still has the session. paho resumes it. At QoS 2, every message is delivered
   exactly once.
2. The broker has lost the session, or no session is kept (at QoS 0, and with MQTT 3.1.1, where it could not expire). A
   new client resends all unacknowledged messages, so the receiver may get some of them twice, but none is lost. paho
   alone would complete an exchange that the broker has no record of, and that message would be lost.

At QoS 0, "acknowledged" only means that the message was passed to the operating system. The protocol offers no more:
data still in the socket is lost if the connection breaks. At QoS 2, paho does not report that the broker has
refused a message (for instance, for lack of permission to publish to the topic), so the message is counted as
acknowledged.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulator.mqtt.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from paho.mqtt.reasoncodes import ReasonCode

    from simulator.settings import LinkSettings


class BrokerUnavailableError(Exception):
    """Raised if the broker cannot be reached or refuses the connection. The message says why, and what to check."""


@dataclass(slots=True)
class Tally:
    """The number of messages for each outcome, and the number of reconnections.

    `refused`: messages that the broker refused with an error, or that are larger than it accepts. `resent`: messages
    that were sent again because the broker no longer had the session.
    """

    sent: int = 0
    acknowledged: int = 0
    refused: int = 0
    resent: int = 0
    reconnections: int = 0


class Publisher:
    """Publishes payloads in order. At most `link.in_flight_max` messages are unacknowledged at any time.

    `notice` is called with each line to show to the user. `clock_ns` returns monotonic time.
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
        self._resend: deque[bytes] = deque()
        self.tally = Tally()
        self._connection = Connection(
            link,
            on_acknowledged=self._acknowledge,
            on_reconnected=self._count_reconnection,
            notice=notice,
            clock_ns=clock_ns,
        )

    @property
    def connected(self) -> bool:
        """Whether a connection is open and the broker has accepted it."""
        return self._connection.connected

    @property
    def window(self) -> int:
        """Maximum number of unacknowledged messages: `link.in_flight_max` or the broker's limit, whichever is lower."""
        return self._connection.window

    @property
    def unacknowledged(self) -> int:
        """Number of messages that have been sent but not acknowledged, including those waiting to be resent."""
        return len(self._in_flight) + len(self._resend)

    @property
    def room(self) -> int:
        """Number of messages that may be sent now; 0 if there is no connection."""
        if not self.connected or self._resend:
            return 0
        return self.window - len(self._in_flight)

    def connect(self, timeout_s: float, stopped: Callable[[], bool] = lambda: False) -> None:
        """Connect for the first time, retrying for up to `timeout_s`. Give up early if `stopped()` becomes true.

        Raises BrokerUnavailableError, either at once if the broker refuses the connection, or after `timeout_s`.
        """
        until_ns = self._clock_ns() + int(timeout_s * 1e9)
        self._connection.open()
        while not self.connected and not stopped():
            self.turn(0.05)
            if self._connection.problem.startswith("refused"):
                raise self._unavailable()
            if self._clock_ns() >= until_ns:
                break
        if not self.connected and not stopped():
            raise self._unavailable()

    def send(self, payload: bytes) -> bool:
        """Send a message. Call this only if `room` is positive.

        Returns False, without sending the message, if it is larger than the broker accepts.
        """
        if len(payload) > self._connection.payload_bytes_max:
            self.tally.refused += 1
            return False
        self.tally.sent += 1
        self._publish(payload)
        return True

    def turn(self, timeout_s: float) -> None:
        """Read and write once, waiting for at most `timeout_s`. Reconnect and resend messages if necessary."""
        if self._connection.turn(timeout_s, self.unacknowledged):
            self._requeue()
        while self._resend and self.connected and len(self._in_flight) < self.window:
            self._publish(self._resend.popleft())

    def close(self) -> None:
        """Disconnect cleanly, so that the broker ends the session. Unacknowledged messages are abandoned."""
        self._connection.close()

    def _publish(self, payload: bytes) -> None:
        self._in_flight[self._connection.publish(payload)] = payload

    def _requeue(self) -> None:
        """Queue all unacknowledged messages for resending, in order and ahead of any new messages."""
        self._resend.extendleft(reversed(self._in_flight.values()))
        self.tally.resent += len(self._in_flight)
        if self._in_flight and self._link.qos:
            self._notice(
                f"the broker no longer has the session: resending {len(self._in_flight)} messages, "
                "some of which may arrive twice"
            )
        self._in_flight.clear()

    def _acknowledge(self, mid: int, reason: ReasonCode) -> None:
        self._in_flight.pop(mid, None)
        if reason.is_failure:
            self.tally.refused += 1
            if self.tally.refused == 1:
                self._notice(f"the broker refuses messages: {reason}")
        else:
            self.tally.acknowledged += 1

    def _count_reconnection(self) -> None:
        if self.tally.sent:
            self.tally.reconnections += 1
            self._notice("reconnected")

    def _unavailable(self) -> BrokerUnavailableError:
        link = self._link
        return BrokerUnavailableError(
            f"cannot connect to the MQTT broker at {link.host}:{link.port} "
            f"({self._connection.problem or 'no answer'}). Is it running? Set its address with BROKER_HOST and "
            "BROKER_PORT (or --host and --port), and the credentials with MQTT_USERNAME and MQTT_PASSWORD"
        )
