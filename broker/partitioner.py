"""The partitioner used by every producer in the pipeline: murmur2 of the key, as in Kafka's Java client.

librdkafka uses a different partitioner by default. If two producers used different partitioners, records with the same
key would end up in different partitions, and the joiner would not find their pairs. All producers therefore set
``partitioner`` to `PARTITIONER`. The functions in this module compute the same partition numbers, so that a consumer
can check them.

Source of the algorithm: MurmurHash2 (public domain), with the seed and the sign mask of
``org.apache.kafka.common.utils.Utils.murmur2`` and ``BuiltInPartitioner.partitionForKey``.
"""

from __future__ import annotations

from typing import Final

PARTITIONER: Final = "murmur2_random"
"""librdkafka's name for this partitioner. It assigns records without a key to random partitions."""

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_SHIFT: Final = 24
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the unsigned 32-bit MurmurHash2 of ``data`` with Kafka's seed."""
    length = len(data)
    state = _SEED ^ length
    whole = length - length % 4
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> _SHIFT) * _MULTIPLIER & _MASK
        state = state * _MULTIPLIER & _MASK ^ word
    if whole < length:
        state = (state ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    state = (state ^ state >> 13) * _MULTIPLIER & _MASK
    return state ^ state >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """Return the number of the partition that records with ``key`` belong to, from 0 to ``partitions`` - 1."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
