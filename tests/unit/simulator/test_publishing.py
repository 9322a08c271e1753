"""The connection to a scripted broker whose responses arrive at inconvenient times.

tests/integration/test_simulator.py uses a real broker.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pytest

from simulator.mqtt.publishing import BrokerUnavailableError, Publisher
from simulator.settings import LinkSettings

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, DISCONNECT = 1, 2, 3, 4, 5, 6, 7, 14
DEADLINE_TURNS = 400
"""Each turn takes at most 50 ms."""


@dataclass
class Packet:
    """One MQTT packet as received."""

    kind: int
    flags: int
    body: bytes

    @property
    def message_id(self) -> bytes:
        """The two bytes of the packet identifier, as sent."""
        return self.body[16:18] if self.kind == PUBLISH else self.body[:2]

    @property
    def payload(self) -> bytes:
        """The payload, after the length-prefixed topic ``machine/states``, the packet id and the empty properties."""
        return self.body[19:]


@dataclass
class Line:
    """The broker's side of one connection."""

    sock: socket.socket
    seen: list[Packet] = field(default_factory=list)

    def read(self) -> Packet | None:
        """Read the next packet. Return None once the client has disconnected."""
        first = self._exactly(1)
        if not first:
            return None
        length, shift = 0, 0
        while True:
            byte = self._exactly(1)[0]
            length |= (byte & 127) << shift
            shift += 7
            if not byte & 128:
                break
        packet = Packet(first[0] >> 4, first[0] & 15, self._exactly(length))
        self.seen.append(packet)
        return packet

    def send(self, kind: int, body: bytes, flags: int = 0) -> None:
        """Send a packet."""
        self.sock.sendall(bytes([kind << 4 | flags, len(body)]) + body)

    def greet(self, *, session: bool = False, reason: int = 0, properties: bytes = b"") -> None:
        """Answer the CONNECT packet."""
        packet = self.read()
        assert packet is not None
        assert packet.kind == CONNECT
        self.send(CONNACK, bytes([session, reason, len(properties)]) + properties)

    def serve(self) -> None:
        """Answer all packets until the client disconnects."""
        while (packet := self.read()) is not None and packet.kind != DISCONNECT:
            if packet.kind == PUBLISH and packet.flags >> 1 & 3:
                self.send(PUBREC if packet.flags >> 1 & 2 else PUBACK, packet.message_id)
            elif packet.kind == PUBREL:
                self.send(PUBCOMP, packet.message_id)

    def published(self) -> list[bytes]:
        """Return the payloads received on this connection."""
        return [packet.payload for packet in self.seen if packet.kind == PUBLISH]

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.sock.recv(count - len(data))
            if not more:
                return data
            data += more
        return data


Script = Callable[[Line], None]


@contextmanager
def broker(*scripts: Script) -> Iterator[tuple[int, list[Line]]]:
    """Run a broker that plays one script per connection, then closes it. Yield its port and its connections."""
    lines: list[Line] = []
    server = socket.create_server(("127.0.0.1", 0))

    def play() -> None:
        for script in scripts:
            with suppress(OSError):
                sock, _ = server.accept()
                sock.settimeout(20)
                with sock:
                    lines.append(Line(sock))
                    script(lines[-1])

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1], lines
    finally:
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(20)
        assert not thread.is_alive()


def publisher_to(port: int, qos: int, notices: list[str] | None = None, in_flight_max: int = 100) -> Publisher:
    link = LinkSettings("127.0.0.1", port, "test", "machine/states", qos, "5", in_flight_max)
    return Publisher(link, (notices if notices is not None else []).append)


def turn_until(publisher: Publisher, reached: Callable[[], bool]) -> None:
    for _ in range(DEADLINE_TURNS):
        if reached():
            return
        publisher.turn(0.05)
    pytest.fail("not reached in time")


def served(line: Line) -> None:
    line.greet()
    line.serve()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_message_is_acknowledged_and_the_end_is_regular(qos: int) -> None:
    with broker(served) as (port, lines):
        publisher = publisher_to(port, qos)
        publisher.connect(30)
        for n in range(10):
            assert publisher.send(b"%d" % n)
        turn_until(publisher, lambda: not publisher.unacknowledged)
        publisher.close()
    assert publisher.tally.acknowledged == publisher.tally.sent == 10
    assert lines[0].seen[-1].kind == DISCONNECT
    if qos:
        assert lines[0].published() == [b"%d" % n for n in range(10)]


@pytest.mark.parametrize("qos", [1, 2])
def test_the_window_is_never_exceeded(qos: int) -> None:
    def silent(line: Line) -> None:
        line.greet()
        while (packet := line.read()) is not None and packet.kind != DISCONNECT:
            pass

    with broker(silent) as (port, lines):
        publisher = publisher_to(port, qos, in_flight_max=7)
        publisher.connect(30)
        while publisher.room:
            publisher.send(b"x")
        for _ in range(5):
            publisher.turn(0.01)
            assert publisher.room == 0
        assert publisher.unacknowledged == 7
        publisher.close()
    assert len(lines[0].published()) == 7


def test_the_broker_may_allow_less_than_the_window() -> None:
    def strict(line: Line) -> None:
        line.greet(properties=b"\x21\x00\x03")  # Receive Maximum 3
        line.serve()

    with broker(strict) as (port, _):
        publisher = publisher_to(port, 2)
        publisher.connect(30)
        assert publisher.room == publisher.window == 3
        publisher.close()


def test_a_message_larger_than_the_broker_accepts_is_refused_by_the_publisher() -> None:
    def small(line: Line) -> None:
        line.greet(properties=b"\x27\x00\x00\x00\x64")  # Maximum Packet Size 100
        line.serve()

    with broker(small) as (port, lines):
        publisher = publisher_to(port, 1)
        publisher.connect(30)
        assert not publisher.send(b"x" * 100)
        assert publisher.send(b"y")
        turn_until(publisher, lambda: not publisher.unacknowledged)
        publisher.close()
    assert (publisher.tally.refused, publisher.tally.sent) == (1, 1)
    assert lines[0].published() == [b"y"]


def read_publishes(line: Line, count: int) -> None:
    while len(line.published()) < count:
        assert line.read() is not None


def test_a_session_that_is_still_known_is_continued_where_it_was() -> None:
    def first(line: Line) -> None:
        line.greet()
        read_publishes(line, 3)
        line.send(PUBREC, line.seen[1].message_id)
        assert line.read() is not None  # its PUBREL

    def second(line: Line) -> None:
        line.greet(session=True)
        line.serve()

    with broker(first, second) as (port, lines):
        publisher = publisher_to(port, 2)
        publisher.connect(30)
        for payload in (b"a", b"b", b"c"):
            publisher.send(payload)
        turn_until(publisher, lambda: publisher.connected and not publisher.unacknowledged)
        publisher.close()
    # "a" had been received, so only its PUBREL is repeated. The others are sent again with the DUP flag.
    assert lines[1].seen[1].kind == PUBREL
    assert lines[1].published() == [b"b", b"c"]
    assert all(packet.flags & 8 for packet in lines[1].seen if packet.kind == PUBLISH)
    assert publisher.tally.acknowledged == 3
    assert publisher.tally.reconnections == 1
    assert publisher.tally.resent == 0


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_forgetful_broker_has_not_completed_is_sent_again_in_order(qos: int) -> None:
    def first(line: Line) -> None:
        line.greet()
        read_publishes(line, 3)
        if qos == 2:  # received but not yet delivered: the broker loses it with the session
            line.send(PUBREC, line.seen[1].message_id)
            assert line.read() is not None

    notices: list[str] = []
    with broker(first, served, served) as (port, lines):
        publisher = publisher_to(port, qos, notices)
        publisher.connect(30)
        for payload in (b"a", b"b", b"c"):
            publisher.send(payload)
        turn_until(publisher, lambda: publisher.connected and not publisher.unacknowledged)
        publisher.send(b"d")
        turn_until(publisher, lambda: not publisher.unacknowledged)
        publisher.close()
    assert lines[-1].published() == [b"a", b"b", b"c", b"d"]
    assert publisher.tally.acknowledged == publisher.tally.sent == 4
    assert publisher.tally.resent == 3
    assert any("no longer has the session" in notice for notice in notices)


def test_a_session_left_by_an_earlier_process_is_ended_first() -> None:
    def stale(line: Line) -> None:
        line.greet(session=True)
        line.serve()

    with broker(stale, served) as (port, lines):
        publisher = publisher_to(port, 2)
        publisher.connect(30)
        publisher.send(b"a")
        turn_until(publisher, lambda: not publisher.unacknowledged)
        publisher.close()
    assert [packet.kind for packet in lines[0].seen] == [CONNECT, DISCONNECT]
    assert lines[0].seen[1].body.endswith(b"\x11\x00\x00\x00\x00")  # Session Expiry Interval 0
    assert lines[1].published() == [b"a"]


def test_a_refusal_is_reported_at_once_with_its_reason() -> None:
    with (
        broker(lambda line: line.greet(reason=0x87)) as (port, _),
        pytest.raises(BrokerUnavailableError, match=r"Not authorized.*MQTT_USERNAME"),
    ):
        publisher_to(port, 2).connect(3600)


def test_a_single_message_that_the_broker_refuses_is_counted() -> None:
    def refusing(line: Line) -> None:
        line.greet()
        read_publishes(line, 1)
        line.send(PUBACK, line.seen[1].message_id + b"\x97")  # quota exceeded
        line.serve()

    notices: list[str] = []
    with broker(refusing) as (port, _):
        publisher = publisher_to(port, 1, notices)
        publisher.connect(30)
        publisher.send(b"x")
        turn_until(publisher, lambda: not publisher.unacknowledged)
        publisher.close()
    assert (publisher.tally.refused, publisher.tally.acknowledged) == (1, 0)
    assert len(notices) == 1


def test_an_unavailable_broker_is_named_with_the_remedies() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(BrokerUnavailableError, match=f"{port}.*BROKER_HOST"):
        publisher_to(port, 2).connect(0.2)
