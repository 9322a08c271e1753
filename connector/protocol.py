"""The packets of MQTT 5 and 3.1.1 that a subscriber at QoS 1 sends and receives, to and from bytes.

Pure: no socket, no clock, no state but the unfinished packet. It is the part of MQTT that this service needs
and not a client: it publishes nothing, knows no QoS 2, and reads no property of a message.

Why not paho-mqtt: at 10,000 messages a second its reading alone (three system calls, a property table and
several locks a message) takes more than one core; this reader takes whole blocks and needs a few microseconds
a message.

Source of the layout: OASIS MQTT Version 5.0, the section numbers beside the functions. MQTT 3.1.1 is the same
without properties; some brokers speak nothing newer.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

CONNACK: Final = 2
PUBLISH: Final = 3
SUBACK: Final = 9
PINGRESP: Final = 13
DISCONNECT: Final = 14

PINGREQ_PACKET: Final = b"\xc0\x00"
DISCONNECT_PACKET: Final = b"\xe0\x00"
"""A normal end; the session lives on for the expiry that CONNECT named."""

FAILURE_MIN: Final = 0x80
"""Reason codes from here on mean that something was refused (2.4)."""

_PROPERTY_SIZES: Final = {
    0x01: 1, 0x02: 4, 0x11: 4, 0x13: 2, 0x17: 1, 0x19: 1, 0x21: 2, 0x22: 2, 0x23: 2, 0x24: 1, 0x25: 1,
    0x27: 4, 0x28: 1, 0x29: 1, 0x2A: 1,
}  # fmt: skip
"""Bytes of the properties with a fixed size (2.2.2.2)."""

_STRING_PROPERTIES: Final = frozenset({0x03, 0x08, 0x09, 0x12, 0x15, 0x16, 0x1A, 0x1C, 0x1F})
_PAIR_PROPERTY: Final = 0x26
_VARINT_PROPERTY: Final = 0x0B

SESSION_EXPIRY: Final = 0x11
KEEP_ALIVE: Final = 0x13
REASON_STRING: Final = 0x1F
_RECEIVE_MAX: Final = 0x21
_PACKET_BYTES_MAX: Final = 0x27

_REMAINING_BYTES_MAX: Final = 4


VERSION_5: Final = 5
VERSION_3: Final = 4
"""The protocol levels of MQTT 5 and 3.1.1 (3.1.2.2)."""


class ProtocolError(Exception):
    """Bytes that are no MQTT 5, or a packet that a broker may not send here."""


class Message(NamedTuple):
    """A PUBLISH packet. ``packet_id`` is 0 at QoS 0."""

    topic: bytes
    payload: bytes
    packet_id: int


class Connected(NamedTuple):
    """A CONNACK packet; ``properties`` as raw bytes by identifier."""

    session_present: bool
    reason_code: int
    properties: dict[int, bytes]


class Subscribed(NamedTuple):
    """A SUBACK packet for one filter: the granted QoS, or a failure."""

    reason_code: int


class Disconnected(NamedTuple):
    """The broker's DISCONNECT packet: why it ends the connection."""

    reason_code: int


class Pong(NamedTuple):
    """A PINGRESP packet."""


Packet = Message | Connected | Subscribed | Disconnected | Pong


class PacketReader:
    """Cuts a stream of bytes into packets, wherever the blocks were cut.

    A packet of more than ``packet_bytes_max`` bytes is a ProtocolError: CONNECT has told the broker not to
    send it.
    """

    def __init__(self, packet_bytes_max: int, version: int = VERSION_5) -> None:
        self._bytes_max = packet_bytes_max
        self._has_properties = version == VERSION_5
        self._rest = bytearray()

    def feed(self, block: bytes) -> list[Packet]:
        """The packets that ``block`` completes. Raises `ProtocolError`."""
        if self._rest:
            self._rest += block
            if not self._has_whole_packet():
                return []
            block = bytes(self._rest)
            self._rest.clear()
        packets: list[Packet] = []
        at, end = 0, len(block)
        while at < end:
            bounds = self._bounds(block, at)
            if bounds is None or bounds[1] > end:
                break
            start, stop = bounds
            packets.append(_decode(block[at], block, start, stop, has_properties=self._has_properties))
            at = stop
        if at < end:
            self._rest += block[at:]
        return packets

    def _has_whole_packet(self) -> bool:
        # A large packet comes in many blocks: only its first bytes are looked at until it is complete.
        bounds = self._bounds(self._rest, 0)
        return bounds is not None and bounds[1] <= len(self._rest)

    def _bounds(self, data: bytes | bytearray, at: int) -> tuple[int, int] | None:
        """Where the content of the packet at ``at`` starts and stops; None if its length is not yet here
        (2.1.4).
        """
        length, shift = 0, 0
        for position in range(at + 1, min(at + 1 + _REMAINING_BYTES_MAX, len(data))):
            byte = data[position]
            length |= (byte & 127) << shift
            if byte < 128:  # noqa: PLR2004 - the continuation bit
                start = position + 1
                if start + length - at > self._bytes_max:
                    message = f"a packet of {length} bytes is larger than was agreed ({self._bytes_max})"
                    raise ProtocolError(message)
                return start, start + length
            shift += 7
        if len(data) - at > _REMAINING_BYTES_MAX:
            raise ProtocolError("the length of a packet does not end")
        return None


def _decode(head: int, data: bytes, start: int, stop: int, *, has_properties: bool) -> Packet:
    kind = head >> 4
    try:
        if kind == PUBLISH:
            return _message(head, data, start, stop, has_properties=has_properties)
        if kind == CONNACK:
            properties = _properties(data[start + 2 : stop])
            return Connected(bool(data[start] & 1), data[start + 1], properties)
        if kind == SUBACK:
            return Subscribed(data[stop - 1])
        if kind == DISCONNECT:
            return Disconnected(data[start] if stop > start else 0)
    except (IndexError, struct.error, KeyError) as error:
        message = f"a packet of type {kind} ends too early"
        raise ProtocolError(message) from error
    if kind == PINGRESP:
        return Pong()
    message = f"a packet of type {kind} is not expected from a broker"
    raise ProtocolError(message)


def _message(head: int, data: bytes, start: int, stop: int, *, has_properties: bool) -> Message:
    """A PUBLISH packet (3.3): topic, packet id unless QoS 0, properties, payload."""
    at = start + 2 + (data[start] << 8 | data[start + 1])
    topic = data[start + 2 : at]
    packet_id = 0
    qos = head >> 1 & 3
    if qos:
        if qos > 1:
            raise ProtocolError("a message at QoS 2, where QoS 1 was subscribed")
        packet_id = data[at] << 8 | data[at + 1]
        at += 2
    if has_properties:
        length, at = _varint(data, at)
        at += length
    if at > stop:
        raise ProtocolError("a message ends within its properties")
    return Message(topic, data[at:stop], packet_id)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A variable byte integer (1.5.5) and the position behind it."""
    value = 0
    for shift in range(0, 7 * _REMAINING_BYTES_MAX, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:  # noqa: PLR2004 - the continuation bit
            return value, at
    raise ProtocolError("a length does not end")


def _properties(data: bytes) -> dict[int, bytes]:
    """Properties by identifier (2.2.2), their values as they lie there; strings without their length."""
    found: dict[int, bytes] = {}
    if not data:
        return found
    length, at = _varint(data, 0)
    stop = at + length
    while at < stop:
        identifier = data[at]
        at += 1
        if identifier in _STRING_PROPERTIES:
            size = struct.unpack_from("!H", data, at)[0]
            at += 2
        elif identifier == _PAIR_PROPERTY:
            size = 2 + struct.unpack_from("!H", data, at)[0]
            size += 2 + struct.unpack_from("!H", data, at + size)[0]
        elif identifier == _VARINT_PROPERTY:
            size = _varint(data, at)[1] - at
        else:
            size = _PROPERTY_SIZES[identifier]
        found[identifier] = data[at : at + size]
        at += size
    return found


def connect_packet(
    *,
    client_id: str,
    keep_alive_s: int,
    session_expiry_s: int,
    receive_max: int,
    packet_bytes_max: int,
    username: str | None,
    password: str | None,
    version: int = VERSION_5,
) -> bytes:
    """A CONNECT packet (3.1) that continues the session of ``client_id`` where there is one (clean start
    off).
    """
    flags = (0x80 if username is not None else 0) | (0x40 if password is not None else 0)
    content = _text("MQTT") + struct.pack("!BBH", version, flags, keep_alive_s)
    if version == VERSION_5:
        properties = (
            struct.pack("!BI", SESSION_EXPIRY, session_expiry_s)
            + struct.pack("!BH", _RECEIVE_MAX, receive_max)
            + struct.pack("!BI", _PACKET_BYTES_MAX, packet_bytes_max)
        )
        content += _length(len(properties)) + properties
    content += _text(client_id)
    for text in (username, password):
        if text is not None:
            content += _text(text)
    return b"\x10" + _length(len(content)) + content


def subscribe_packet(topic_filter: str, packet_id: int, version: int = VERSION_5) -> bytes:
    """A SUBSCRIBE packet (3.8) at QoS 1; in MQTT 5 retained messages come only with a new subscription."""
    content = struct.pack("!H", packet_id)
    if version == VERSION_5:
        content += b"\x00" + _text(topic_filter) + b"\x11"
    else:
        content += _text(topic_filter) + b"\x01"
    return b"\x82" + _length(len(content)) + content


def acknowledgement_packets(packet_ids: list[int]) -> bytes:
    """A PUBACK packet (3.4) for each of ``packet_ids``, in their order."""
    return b"".join([b"\x40\x02" + packet_id.to_bytes(2) for packet_id in packet_ids])


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("!H", len(data)) + data


def _length(value: int) -> bytes:
    out = bytearray()
    while value > 127:  # noqa: PLR2004 - seven bits a byte
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
