"""Integers of a variable length, as Avro and Protocol Buffers encode them."""

from __future__ import annotations


def varint(value: int, longer: int = 0) -> bytes:
    """Return an unsigned integer of a variable length, with some bytes more than necessary, but at most 10."""
    found, left = bytearray(), value & 2**64 - 1
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    for _ in range(min(longer, 10 - len(found))):
        found[-1] |= 0x80
        found.append(0)
    return bytes(found)


def zigzag(value: int, longer: int = 0) -> bytes:
    """Return a signed integer in zigzag encoding: all those of Avro, and the list of indexes before a Protobuf message.

    ``longer``: see `varint`.
    """
    return varint((value << 1) ^ (value >> 63), longer)
