"""A former owner of a transactional id, whose record arrives after a new owner's claim. Uses Kafka's wire protocol.

A client library adds a partition to the transaction before it writes to it. Here the partition was added before the
claim, and only the record arrives late, so it is sent without that request.

The requests are InitProducerId version 1 and Produce version 3, the oldest that Kafka 4 supports, with a record batch
of magic 2: https://kafka.apache.org/protocol and https://kafka.apache.org/documentation/#recordbatch
"""

from __future__ import annotations

import socket
import struct
import time

from confluent_kafka import KafkaError

from tests.integration.services import wait_until

_INIT_PRODUCER_ID = 22, 1
_PRODUCE = 0, 3
_TRANSACTIONAL = 1 << 4
_CRC32C_POLYNOMIAL = 0x82F63B78


class BelatedOwner:
    """Initialises a transactional id at construction, and sends a record at each call of `write`."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._bootstrap = bootstrap
        self._id = transactional_id
        wait_until(self._is_owner, f"{transactional_id} is initialised")

    def write(self, topic: str, key: bytes, value: bytes) -> int:
        """Send a record for partition 0. Return Kafka's error code, which is 0 if the record was accepted."""
        batch = _batch(self._producer, self._epoch, key, value)
        body = _string(self._id) + struct.pack(">hii", -1, 30_000, 1) + _string(topic)
        body += struct.pack(">iii", 1, 0, len(batch)) + batch
        answer = self._ask(_PRODUCE, body)
        # An array of one topic: its name, and an array of one partition: its number and error code.
        _, error = struct.unpack_from(">ih", answer, 4 + 2 + len(topic.encode()) + 4)
        return int(error)

    def _is_owner(self) -> bool:
        body = _string(self._id) + struct.pack(">i", 60_000)
        _, error, self._producer, self._epoch = struct.unpack(">ihqh", self._ask(_INIT_PRODUCER_ID, body))
        # The transaction of the previous owner may be completing.
        assert error in {KafkaError.NO_ERROR, KafkaError.CONCURRENT_TRANSACTIONS}, error
        return bool(error == KafkaError.NO_ERROR)

    def _ask(self, request: tuple[int, int], body: bytes) -> bytes:
        host, _, port = self._bootstrap.rpartition(":")
        message = struct.pack(">hhi", *request, 1) + _string("belated") + body
        with socket.create_connection((host, int(port)), 30) as connection:
            connection.sendall(struct.pack(">i", len(message)) + message)
            with connection.makefile("rb") as stream:
                (length,) = struct.unpack(">i", stream.read(4))
                # The response begins with the correlation id.
                return stream.read(length)[4:]


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _batch(producer: int, epoch: int, key: bytes, value: bytes) -> bytes:
    """Return a transactional record batch with one record."""
    now_ms = int(time.time() * 1000)
    content = b"\x00" + _varint(0) + _varint(0) + _varint(len(key)) + key + _varint(len(value)) + value + _varint(0)
    records = _varint(len(content)) + content
    checked = struct.pack(">hiqqqhii", _TRANSACTIONAL, 0, now_ms, now_ms, producer, epoch, 0, 1) + records
    # Leader epoch (unknown), magic, checksum.
    body = struct.pack(">ibI", -1, 2, _crc32c(checked)) + checked
    return struct.pack(">qi", 0, len(body)) + body


def _varint(number: int) -> bytes:
    """Return a signed number in Kafka's encoding: zigzag, 7 bits per byte."""
    left, written = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        written.append(left & 0x7F | 0x80)
        left >>= 7
    written.append(left)
    return bytes(written)


def _crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (_CRC32C_POLYNOMIAL if value & 1 else 0)
    return value ^ 0xFFFFFFFF
