"""The session against a scripted broker: a failure is a lost connection if a retry may help, otherwise a refusal."""

# ruff: noqa: SLF001 - messages are injected

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from paho.mqtt.client import MQTTErrorCode, MQTTMessage

from broker.settings import MqttSettings
from connector.session import Message, MqttSession, SessionLostError, SessionRefusedError
from connector.settings import ConnectorSettings

ACCEPTED = b"\x20\x02\x01\x00"
SUBSCRIBED = b"\x90\x03\x00\x01\x01"
MESSAGE = b"\x32\x08\x00\x01t\x00\x07abc"
PINGREQ_PACKET = b"\xc0\x00"
DISCONNECT_PACKET = b"\xe0\x00"
WAIT_S = 10.0


@dataclass
class ScriptedBroker:
    """Answers each connection with the next entry of its script, and keeps the bytes received."""

    script: list[bytes]
    sessions: list[MqttSession] = field(default_factory=list)
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    received: list[bytes] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def serve(self) -> None:
        """Serve one connection per entry of the script, each until the client disconnects."""
        for answer in self.script:
            connection, _ = self.listener.accept()
            with connection:
                seen = connection.recv(4096)
                connection.sendall(answer)
                while block := connection.recv(4096):
                    seen += block
                self.received.append(seen)
        self.ended.set()


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    found = ScriptedBroker([])
    yield found
    for session in found.sessions:
        session.close()
    found.listener.close()


def session_to(
    broker: ScriptedBroker, *script: bytes, keep_alive: str = "30s", numbers: Sequence[str] = ()
) -> MqttSession:
    broker.script = list(script)
    threading.Thread(target=broker.serve, daemon=True).start()
    session = MqttSession(
        MqttSettings(port=broker.listener.getsockname()[1]),
        ConnectorSettings.model_validate(
            {"keep_alive": keep_alive, "topic": [{"format": "number", "topic": one} for one in numbers]}
        ),
    )
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
    assert receive_all(session, 2) == [Message("t", b"abc", 7)] * 2


def test_all_topics_are_subscribed_to_and_a_retained_message_is_marked(broker: ScriptedBroker) -> None:
    both = SUBSCRIBED.replace(b"\x03\x00\x01\x01", b"\x04\x00\x01\x01\x01")
    retained = b"\x33" + MESSAGE[1:]
    session = session_to(broker, ACCEPTED + both + retained + MESSAGE, numbers=["plant/{thing}/{quantity}"])
    session.connect()
    assert receive_all(session, 2) == [Message("t", b"abc", 7, is_retained=True), Message("t", b"abc", 7)]
    session.close()
    assert broker.ended.wait(WAIT_S)
    assert b"\x00\x0emachine/states\x01\x00\x09plant/+/+\x01" in broker.received[0]


def test_a_refusal_names_the_subscription_that_is_refused(broker: ScriptedBroker) -> None:
    second = SUBSCRIBED.replace(b"\x03\x00\x01\x01", b"\x04\x00\x01\x01\x00")
    with pytest.raises(SessionRefusedError, match=r"subscription to 'plant/\+/\+' at QoS 1"):
        connect_and_read(session_to(broker, ACCEPTED + second, numbers=["plant/{thing}/{quantity}"]))


def test_an_answer_for_another_number_of_subscriptions_is_a_loss(broker: ScriptedBroker) -> None:
    with pytest.raises(SessionLostError, match="malformed"):
        connect_and_read(session_to(broker, ACCEPTED + SUBSCRIBED, numbers=["plant/{thing}/{quantity}"]))


@pytest.mark.parametrize(("size", "count"), [(100, 500), (100 * 1024, 3), (2**20, 1)])
def test_a_turn_ends_at_a_number_of_messages_or_of_bytes_so_that_signs_of_life_are_sent(size: int, count: int) -> None:
    session = MqttSession(MqttSettings(), ConnectorSettings())

    def read_one() -> MQTTErrorCode:
        message = MQTTMessage(topic=b"t")
        message.payload = b"x" * size
        session._on_message(client, None, message)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    client: Any = SimpleNamespace(loop_read=read_one)
    session._client = client
    session._is_granted = True
    assert len(session.receive()) == count


def test_messages_that_come_before_the_subscriptions_are_granted_are_held_back_within_limits() -> None:
    session = MqttSession(MqttSettings(), ConnectorSettings())
    numbers = iter(range(1, 30_000))

    def read_one() -> MQTTErrorCode:
        session._arrived.append(Message("t", b"x", next(numbers)))
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    session._client = cast("Any", SimpleNamespace(loop_read=read_one))
    held = [session.receive() for _ in range(20)]
    assert held[:-1] == [[]] * 19
    given = held[-1] + [message for _ in range(10) for message in session.receive()]
    assert len(session._arrived) < 10_000
    session._is_granted = True
    while session._arrived:
        messages = session.receive()
        assert len(messages) <= 500
        given += messages
    assert [message.packet_id for message in given] == list(range(1, len(given) + 1))


def test_a_refused_subscription_duplicates_no_message_that_came_before(broker: ScriptedBroker) -> None:
    """The broker delivers it again on the next connection."""
    session = session_to(broker, ACCEPTED + MESSAGE * 3 + SUBSCRIBED[:-1] + b"\x80")
    session.connect()
    assert not session.is_accepted
    with pytest.raises(SessionLostError, match="refused the subscription"):
        receive_all(session, 1)


def test_a_connection_counts_once_all_subscriptions_are_granted(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    first, second = b"\x90\x0a\x00\x01" + b"\x01" * 8, b"\x90\x04\x00\x02\x01\x01"
    numbers = [f"plant{n}/{{thing}}/{{quantity}}" for n in range(9)]
    session = session_to(broker, ACCEPTED + first + MESSAGE + second + MESSAGE, numbers=numbers)
    session.connect()
    assert session.wait(WAIT_S, reading=True)
    assert session.receive() == []
    assert (session.is_accepted, "connected to MQTT" in caplog.text) == (False, False)
    assert len(receive_all(session, 2)) == 2
    assert session.is_accepted
    assert caplog.text.count("connected to MQTT") == 1
    session.close()
    assert broker.ended.wait(WAIT_S)
    assert b"plant6/+/+\x01\x82\x1c\x00\x02\x00\x0aplant7/+/+\x01\x00\x0aplant8/+/+\x01" in broker.received[0]


def test_an_answer_to_no_subscription_is_a_loss(broker: ScriptedBroker) -> None:
    with pytest.raises(SessionLostError, match="malformed"):
        connect_and_read(session_to(broker, ACCEPTED + SUBSCRIBED.replace(b"\x00\x01\x01", b"\x00\x09\x01")))


def test_a_broker_that_does_not_answer_the_subscription_is_lost(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connector.session._ANSWER_TIMEOUT_S", 0.2)
    session = session_to(broker, ACCEPTED)
    session.connect()
    with pytest.raises(SessionLostError, match="the broker did not answer the subscription"):
        maintain_until_lost(session)
    assert not session.is_connected


def test_an_answer_that_came_while_the_connector_did_not_read_is_in_time(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connector.session._ANSWER_TIMEOUT_S", -1.0)
    session = session_to(broker, ACCEPTED + SUBSCRIBED + MESSAGE)
    session.connect()
    session.maintain(reading=False)
    assert len(receive_all(session, 1)) == 1
    session.wait(0.01, reading=True)


def test_filters_inside_another_are_unsubscribed_once_the_wider_one_is_granted(broker: ScriptedBroker) -> None:
    """A session that is resumed may have them, and the broker would deliver each of their messages twice."""
    numbers = ["plant/{thing}/{quantity}/x", "plant/{thing}/{quantity}/+"]
    granted = SUBSCRIBED.replace(b"\x03\x00\x01\x01", b"\x04\x00\x01\x01\x01")
    session = session_to(broker, ACCEPTED + granted + MESSAGE, numbers=numbers)
    session.connect()
    receive_all(session, 1)
    session.close()
    assert broker.ended.wait(WAIT_S)
    subscribe = b"\x82\x21\x00\x01\x00\x0emachine/states\x01\x00\x0bplant/+/+/+\x01"
    unsubscribe = b"\xa2\x0f\x00\x02\x00\x0bplant/+/+/x"
    assert broker.received[0].endswith(subscribe + unsubscribe + DISCONNECT_PACKET)


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
        (b"\x20\x02\x00\x02", "connector.client_id"),
        (b"\x20\x02\x00\x04", "bad user name or password"),
        (b"\x20\x02\x00\x05", "not authorised"),
        (ACCEPTED + b"\x90\x03\x00\x01\x00", "grants only QoS 0"),
    ],
)
def test_a_permanent_failure_is_a_refusal_with_the_reason(broker: ScriptedBroker, answer: bytes, reason: str) -> None:
    session = session_to(broker, answer)
    with pytest.raises(SessionRefusedError, match=reason):
        connect_and_read(session)
    assert not session.is_connected


@pytest.mark.parametrize(
    "answer",
    [
        b"\x20\x02\x00\x01",
        b"\x20\x02\x00\x03",
        ACCEPTED + b"\x90\x03\x00\x01\x80",
        b"HTTP/1.1 400",
        b"\x20\xff\xff\xff\xff",
    ],
)
def test_what_may_pass_with_time_is_a_loss(broker: ScriptedBroker, answer: bytes) -> None:
    session = session_to(broker, answer)
    with pytest.raises(SessionLostError):
        connect_and_read(session)
    assert not session.is_connected


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"\x20\x02\x00\x03", "the broker refused the connection: "),
        (ACCEPTED + b"\x90\x03\x00\x01\x80", "the broker refused the subscription to 'machine/states' at QoS 1: "),
    ],
)
def test_a_refusal_that_may_pass_says_what_was_refused(broker: ScriptedBroker, answer: bytes, reason: str) -> None:
    with pytest.raises(SessionLostError, match=reason):
        connect_and_read(session_to(broker, answer))


def connect_and_read(session: MqttSession) -> None:
    session.connect()
    receive_all(session, 1)


def test_a_broker_that_is_silent_for_too_long_is_lost(broker: ScriptedBroker) -> None:
    session = session_to(broker, ACCEPTED + SUBSCRIBED, keep_alive="1s")
    session.connect()
    with pytest.raises(SessionLostError, match="is another connector using the client id"):
        maintain_until_lost(session)
    assert not session.is_connected
    assert broker.ended.wait(WAIT_S)
    assert PINGREQ_PACKET in broker.received[0]


def maintain_until_lost(session: MqttSession) -> None:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if session.wait(0.05, reading=True):
            session.receive()
        session.maintain(reading=True)


def test_a_broker_that_never_answers_is_a_loss(broker: ScriptedBroker) -> None:
    session = session_to(broker, b"\x20")
    with pytest.raises(SessionLostError, match="did not answer in time"):
        session.connect()


def test_a_closed_port_is_a_loss() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(SessionLostError):
        MqttSession(MqttSettings(port=port), ConnectorSettings()).connect()


def test_an_answer_that_has_come_is_read_although_the_time_is_over(broker: ScriptedBroker) -> None:
    """The process may have had no time to read it before."""
    session = session_to(broker, ACCEPTED)
    client = session._client = session._make_client()
    client.connect("127.0.0.1", broker.listener.getsockname()[1], 30)
    session._write(client)
    connection: Any = client.socket()
    assert select.select([connection], [], [], WAIT_S)[0]
    session_present, code = session._await_connack(client, time.monotonic() - 1.0)
    assert (session_present, code.is_failure) == (True, False)


def test_a_broker_that_is_slow_to_read_the_goodbye_is_given_all_the_time_there_is(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_to(broker, ACCEPTED)
    session.connect()
    now_s, looks = 0.0, list[float]()

    def look(_readers: Any, _writers: Any, _errors: Any, timeout_s: float) -> tuple[list[Any], list[Any], list[Any]]:
        nonlocal now_s
        looks.append(timeout_s)
        now_s += 2.0
        return [], [], []

    monkeypatch.setattr("connector.session.time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr("connector.session.select", SimpleNamespace(select=look))
    session.close(4.5)
    assert looks[-2:] == [2.5, 0.5]


def test_a_topic_to_which_nothing_can_be_published_does_not_end_the_session(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    session = session_to(broker, ACCEPTED + SUBSCRIBED)
    assert not session.publish("a", b"")
    session.connect()
    assert not session.publish("spBv1.0/a+b/NCMD/n", b"")
    assert "cannot publish to the MQTT topic 'spBv1.0/a+b/NCMD/n'" in caplog.text
    assert session.publish("spBv1.0/ab/NCMD/n", b"")
    session.close()
    assert broker.ended.wait(WAIT_S)
    assert b"spBv1.0/ab/NCMD/n" in broker.received[0]
