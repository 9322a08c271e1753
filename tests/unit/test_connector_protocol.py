"""MQTT bytes: whole packets come out however the stream was cut; what is no MQTT is an error."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from connector import protocol
from connector.protocol import Connected, Disconnected, Message, PacketReader, Pong, ProtocolError, Subscribed


def length(value: int) -> bytes:
    out = b""
    while True:
        value, low = divmod(value, 128)
        out += bytes([low | (128 if value else 0)])
        if not value:
            return out


def publish(topic: str, payload: bytes, packet_id: int, properties: bytes | None = b"\x00") -> bytes:
    name = topic.encode()
    content = struct.pack("!H", len(name)) + name
    content += struct.pack("!H", packet_id) if packet_id else b""
    content += (properties or b"") + payload
    return bytes([0x32 if packet_id else 0x30]) + length(len(content)) + content


def paho_properties() -> bytes:
    """What a real client library packs, with every kind of property a message may have."""
    properties: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call] # paho has no types here
    properties.ContentType = "application/json"
    properties.UserProperty = [("a", "1"), ("b", "x" * 200)]
    properties.MessageExpiryInterval = 60
    properties.CorrelationData = b"\x00\x01"
    packed: bytes = properties.pack()
    return packed


MESSAGES = st.lists(
    st.tuples(st.text("abc/", min_size=1, max_size=9), st.binary(max_size=300), st.integers(0, 65535)),
    max_size=8,
)


@given(MESSAGES, st.data())
def test_messages_come_out_whole_however_the_stream_is_cut(
    messages: list[tuple[str, bytes, int]], data: st.DataObject
) -> None:
    stream = b"".join(publish(*message) for message in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    reader = PacketReader(10_000)
    found: list[object] = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[start:stop])
    assert found == [Message(topic.encode(), payload, packet_id) for topic, payload, packet_id in messages]


def test_the_properties_of_a_message_are_passed_over() -> None:
    stream = publish("t", b"payload", 5, paho_properties())
    assert PacketReader(10_000).feed(stream) == [Message(b"t", b"payload", 5)]


def test_a_message_of_mqtt_3_has_no_properties() -> None:
    stream = publish("t", b"\x05payload", 5, None)
    assert PacketReader(10_000, protocol.VERSION_3).feed(stream) == [Message(b"t", b"\x05payload", 5)]


def test_the_greeting_tells_session_reason_and_properties() -> None:
    properties: Any = Properties(PacketTypes.CONNACK)  # type: ignore[no-untyped-call] # paho has no types here
    properties.SessionExpiryInterval = 60
    properties.ServerKeepAlive = 20
    properties.ReasonString = "hello"
    properties.UserProperty = ("a", "b")
    content = b"\x01\x00" + properties.pack()
    (greeting,) = PacketReader(10_000).feed(b"\x20" + length(len(content)) + content)
    assert isinstance(greeting, Connected)
    assert greeting.session_present
    assert greeting.properties[protocol.SESSION_EXPIRY] == b"\x00\x00\x00\x3c"
    assert greeting.properties[protocol.KEEP_ALIVE] == b"\x00\x14"
    assert greeting.properties[protocol.REASON_STRING] == b"hello"


def test_the_short_packets_are_read() -> None:
    stream = b"\x90\x04\x00\x01\x00\x01" + b"\xd0\x00" + b"\xe0\x00" + b"\xe0\x02\x8e\x00"
    assert PacketReader(100).feed(stream) == [Subscribed(1), Pong(), Disconnected(0), Disconnected(0x8E)]


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (b"\x32\xff\xff\xff\xff\x01", "does not end"),
        (b"\x32\xff\xff\x7f", "larger than was agreed"),
        (b"\x34\x05\x00\x01a\x00\x01", "QoS 2"),
        (b"\x32\x02\x00\x01", "ends"),
        (b"\x32\x06\x00\x01a\x00\x01\x7f", "ends within its properties"),
        (b"\x40\x02\x00\x01", "type 4 is not expected"),
        (b"\x00\x00", "type 0 is not expected"),
        (b"\x20\x01\x00", "ends too early"),
        (b"\x20\x05\x00\x00\x02\xee\x00", "ends too early"),
    ],
)
def test_bytes_that_are_no_mqtt_are_an_error(stream: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        PacketReader(1000).feed(stream)


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_arbitrary_bytes_raise_nothing_but_a_protocol_error(blocks: list[bytes]) -> None:
    reader = PacketReader(1000)
    try:
        for block in blocks:
            reader.feed(block)
    except ProtocolError:
        return


def test_acknowledgements_keep_their_order() -> None:
    assert protocol.acknowledgement_packets([1, 65535, 258]) == b"\x40\x02\x00\x01\x40\x02\xff\xff\x40\x02\x01\x02"


def test_connect_asks_for_the_old_session_and_names_its_limits() -> None:
    packet = protocol.connect_packet(
        client_id="c", keep_alive_s=30, session_expiry_s=60, receive_max=5000, packet_bytes_max=70_000,
        username="u", password="p",  # noqa: S106 - a made-up one
    )  # fmt: skip
    assert packet == (
        b"\x10\x21\x00\x04MQTT\x05\xc0\x00\x1e"
        b"\x0d\x11\x00\x00\x00\x3c\x21\x13\x88\x27\x00\x01\x11\x70"
        b"\x00\x01c\x00\x01u\x00\x01p"
    )
    assert not packet[9] & 0x02, "clean start is off"
