"""Does listening to MQTT end at its limits, whatever the broker does, and with an error that says where it looked?"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import pytest

from broker.settings import MqttSettings
from joiner.cli.proposal import mqtt
from joiner.cli.proposal.mqtt import Heard, Limits, _hear, _Listener, listen
from joiner.cli.proposal.samples import UnusableSource
from joiner.runtime.clock import SystemClock
from tests.manual_clock import ManualClock

ACCEPTED: Final = b"\x20\x02\0\0"
NOT_AUTHORISED: Final = b"\x20\x02\0\x05"
REFUSED: Final = 0x80
LONG_S: Final = 60.0
"""Longer than any of these tests takes, unless a limit does not work."""


def published(topic: str, payload: bytes, *, is_retained: bool = False) -> bytes:
    """Return the packet of a message that the broker delivers at QoS 0."""
    content = len(topic).to_bytes(2, "big") + topic.encode() + payload
    return bytes([0x31 if is_retained else 0x30, len(content)]) + content


@contextmanager
def broker(
    answer: bytes, grant: int | None = 0, then: bytes = b"", *, hangs_up: bool = False
) -> Iterator[MqttSettings]:
    """Serve one client, with one subscription, whose code is ``grant``. If this is None, it is never answered."""

    def serve() -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            connection.recv(1024)
            connection.sendall(answer)
            subscribe = connection.recv(1024)
            if grant is not None:
                connection.sendall(b"\x90\x03" + subscribe[2:4] + bytes([grant]) + then)
            while not hangs_up and connection.recv(1024):
                pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield MqttSettings(port=server.getsockname()[1])
        finally:
            thread.join()


def heard(settings: MqttSettings, count: int = 2, seconds: float = LONG_S) -> tuple[list[Heard], int]:
    """Return what is heard, and how often it was told that listening has begun."""
    begun: list[None] = []
    return listen(settings, ["a/#"], Limits(count, seconds), SystemClock(), lambda: begun.append(None)), len(begun)


def test_messages_are_heard_up_to_the_number_that_is_wanted() -> None:
    packets = published("a/1", b"x", is_retained=True) + published("a/2", b"y") + published("a/3", b"z")
    with broker(ACCEPTED, then=packets) as settings:
        assert heard(settings) == ([Heard("a/1", b"x", is_retained=True), Heard("a/2", b"y")], 1)


def test_listening_ends_after_the_time_that_is_wanted() -> None:
    with broker(ACCEPTED, then=published("a/1", b"x")) as settings:
        assert heard(settings, seconds=0.5) == ([Heard("a/1", b"x")], 1)


def test_without_a_message_the_error_says_where_and_for_how_long() -> None:
    with (
        broker(ACCEPTED) as settings,
        pytest.raises(
            UnusableSource, match=rf"at 127\.0\.0\.1:{settings.port}: no message .* on a/# within 0\.3 s.*--l"
        ),
    ):
        heard(settings, seconds=0.3)


def test_a_refused_connection_is_told() -> None:
    with broker(NOT_AUTHORISED) as settings, pytest.raises(UnusableSource, match=r"refuses the connection: Not auth"):
        heard(settings)


def test_a_refused_subscription_is_told() -> None:
    with broker(ACCEPTED, REFUSED) as settings, pytest.raises(UnusableSource, match="refuses the subscription: "):
        heard(settings)


def test_what_was_heard_before_the_connection_was_lost_is_used() -> None:
    with broker(ACCEPTED, then=published("a/1", b"x"), hangs_up=True) as settings:
        assert heard(settings)[0] == [Heard("a/1", b"x")]
    with broker(ACCEPTED, hangs_up=True) as settings, pytest.raises(UnusableSource, match="the connection was lost"):
        heard(settings)


@pytest.mark.parametrize(
    "garbage", [b"HTTP/1.1 400 Bad Request\r\n", b"\x20\x02", b"\x20\x01\0", b"\xff" * 50, b"\0" * 9]
)
def test_what_is_not_mqtt_is_told_without_a_stack_trace(garbage: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt, "ANSWER_S", 1.0)
    with broker(garbage) as settings, pytest.raises(UnusableSource, match=r"MQTT at 127\.0\.0\.1:\d+: "):
        heard(settings)


def test_a_broker_that_never_answers_is_told_long_before_listening_would_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer listening would not help, nor would other topics."""
    monkeypatch.setattr(mqtt, "ANSWER_S", 0.3)
    with (
        broker(b"") as settings,
        pytest.raises(UnusableSource, match=r"the broker has not accepted the connection within 0\.3 s; check the sec"),
    ):
        heard(settings)


def test_a_broker_that_never_grants_the_subscription_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt, "ANSWER_S", 0.3)
    with (
        broker(ACCEPTED, grant=None) as settings,
        pytest.raises(UnusableSource, match=r"the broker has not granted the subscription within 0\.3 s"),
    ):
        heard(settings)


def test_listening_lasts_as_long_as_wanted_however_long_the_broker_took_to_answer() -> None:
    """The time that a slow broker takes is not part of the time in which messages can arrive."""
    clock = ManualClock()

    class Slow:
        """Takes all the time that it may before it grants the subscription."""

        def __init__(self, listener: Any) -> None:
            self.listener, self.turns = listener, 0

        def loop(self, _timeout: float) -> int:
            self.turns += 1
            clock.sleep(mqtt.ANSWER_S / 2 if self.turns == 1 else 0.5)
            if self.turns == 1:
                self.listener.granted(None, None, 1, [], None)
            return 0

        def disconnect(self) -> None: ...

    listener = _Listener(["a/#"], 2)
    slow: Any = Slow(listener)
    assert _hear(slow, listener, 3.0, clock, lambda: None) == ""
    assert slow.turns == 1 + 6


def test_a_shared_subscription_in_the_settings_is_refused_before_anything_is_heard() -> None:
    """The connector would not start with any of the proposed templates."""
    with pytest.raises(UnusableSource, match=r"mqtt\.topic is the shared subscription \$share/g/a, .* without \$share"):
        heard(MqttSettings(topic="$share/g/a", port=9))


@pytest.mark.parametrize("topic", ["a/#", "a/+/b", "a\0b", "a+"])
def test_a_topic_that_cannot_be_one_is_passed_over(topic: str) -> None:
    """No template could be written for it."""
    with broker(ACCEPTED, then=published(topic, b"[]") + published("a/1", b"x")) as settings:
        assert heard(settings, 1) == ([Heard("a/1", b"x")], 1)


def test_a_topic_that_is_not_utf_8_is_passed_over() -> None:
    broken = b"\x30\x04\0\x02a\xff"
    with broker(ACCEPTED, then=broken + published("a/1", b"x")) as settings:
        assert heard(settings, 1) == ([Heard("a/1", b"x")], 1)
