"""The session against a scripted broker: what passes with time is a loss, what does not is a refusal."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from broker.settings import MqttSettings
from connector.protocol import DISCONNECT_PACKET, PINGREQ_PACKET, Message
from connector.session import MqttSession, SessionLostError, SessionRefusedError
from connector.settings import ConnectorSettings

ACCEPTED = b"\x20\x03\x01\x00\x00"
SUBSCRIBED = b"\x90\x04\x00\x01\x00\x01"
MESSAGE = b"\x32\x09\x00\x01t\x00\x07\x00abc"
WAIT_S = 10.0


@dataclass
class ScriptedBroker:
    """Answers each connection with the next bytes of its script and keeps what it was sent."""

    script: list[bytes]
    sessions: list[MqttSession] = field(default_factory=list)
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    received: list[bytes] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def serve(self) -> None:
        """Serve one connection for each entry of the script, each until the client leaves."""
        for answer in self.script:
            connection, _ = self.listener.accept()
            with connection:
                heard = connection.recv(4096)
                connection.sendall(answer)
                while block := connection.recv(4096):
                    heard += block
                self.received.append(heard)
        self.ended.set()


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    found = ScriptedBroker([])
    yield found
    for session in found.sessions:
        session.close()
    found.listener.close()


def session_to(broker: ScriptedBroker, *script: bytes) -> MqttSession:
    broker.script = list(script)
    threading.Thread(target=broker.serve, daemon=True).start()
    session = MqttSession(MqttSettings(port=broker.listener.getsockname()[1]), ConnectorSettings())
    broker.sessions.append(session)
    return session


def receive_all(session: MqttSession, count: int) -> list[Message]:
    messages: list[Message] = []
    while len(messages) < count:
        assert session.wait(WAIT_S, reading=True)
        messages += session.receive()
    return messages


def test_a_message_that_comes_with_the_greeting_is_not_lost(broker: ScriptedBroker) -> None:
    session = session_to(broker, ACCEPTED + MESSAGE + SUBSCRIBED + MESSAGE)
    session.connect()
    assert receive_all(session, 2) == [Message(b"t", b"abc", 7)] * 2


def test_acknowledgements_and_the_goodbye_reach_the_broker_in_order(broker: ScriptedBroker) -> None:
    session = session_to(broker, ACCEPTED + SUBSCRIBED + MESSAGE)
    session.connect()
    receive_all(session, 1)
    session.acknowledge([7, 8])
    session.close()
    assert broker.ended.wait(WAIT_S)
    assert broker.received[0].endswith(b"\x40\x02\x00\x07\x40\x02\x00\x08" + DISCONNECT_PACKET)
    assert not session.is_connected


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"\x20\x03\x00\x86\x00", "bad user name or password"),
        (b"\x20\x03\x00\x87\x00", "not authorised"),
        (ACCEPTED + b"\x90\x04\x00\x01\x00\x87", "not authorised"),
        (ACCEPTED + b"\x90\x04\x00\x01\x00\x00", "no QoS 1"),
        (ACCEPTED + b"\xe0\x02\x8e\x00", "connector.client_id of its own"),
    ],
)
def test_what_does_not_pass_with_time_is_a_refusal_that_says_why(
    broker: ScriptedBroker, answer: bytes, reason: str
) -> None:
    session = session_to(broker, answer)
    with pytest.raises(SessionRefusedError, match=reason):
        connect_and_read(session)
    assert not session.is_connected


@pytest.mark.parametrize(
    "answer", [b"\x20\x03\x00\x88\x00", ACCEPTED + b"\xe0\x02\x8b\x00", b"HTTP/1.1 400", b"\x20\xff\xff\xff\xff"]
)
def test_what_may_pass_with_time_is_a_loss(broker: ScriptedBroker, answer: bytes) -> None:
    session = session_to(broker, answer)
    with pytest.raises(SessionLostError):
        connect_and_read(session)
    assert not session.is_connected


def connect_and_read(session: MqttSession) -> None:
    session.connect()
    receive_all(session, 1)


def test_a_broker_without_mqtt_5_is_spoken_to_in_mqtt_3(broker: ScriptedBroker) -> None:
    session = session_to(
        broker, b"\x20\x02\x00\x01", b"\x20\x02\x00\x00\x90\x03\x00\x01\x01" + b"\x32\x08\x00\x01t\x00\x07abc"
    )
    with pytest.raises(SessionLostError, match=r"MQTT 3\.1\.1"):
        session.connect()
    session.connect()
    assert receive_all(session, 1) == [Message(b"t", b"abc", 7)]
    session.close()
    assert broker.ended.wait(WAIT_S)
    assert b"MQTT\x05" in broker.received[0]
    assert b"MQTT\x04" in broker.received[1]


def test_a_broker_that_says_nothing_for_too_long_is_lost(broker: ScriptedBroker) -> None:
    session = session_to(broker, ACCEPTED + SUBSCRIBED)
    session.connect()
    session.tend(10**9, reading=False)
    session.tend(10**9 + 44, reading=True)
    with pytest.raises(SessionLostError, match="nothing was heard for 46 s"):
        session.tend(10**9 + 46, reading=True)
    assert not session.is_connected
    assert broker.ended.wait(WAIT_S)
    assert PINGREQ_PACKET in broker.received[0]


def test_nobody_listening_is_a_loss() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(SessionLostError):
        MqttSession(MqttSettings(port=port), ConnectorSettings()).connect()
