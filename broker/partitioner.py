"""The partitioner of all producers of the pipeline: murmur2 of the key, as in Kafka's Java client.

librdkafka's default differs. Producers with different partitioners would write the two sides of a join to different
partitions, and no pair would be found. So all producers set ``partitioner`` to `PARTITIONER`; this module computes the
same partition numbers, so that a consumer can check them.

Source of the algorithm: MurmurHash2 (public domain), with the seed and the sign mask of
``org.apache.kafka.common.utils.Utils.murmur2`` and ``BuiltInPartitioner.partitionForKey``.
"""

from __future__ import annotations

from typing import Final

PARTITIONER: Final = "murmur2_random"
"""librdkafka's name for this partitioner. It distributes records without a key at random."""

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
    """Return the partition of the records of ``key``, 0 <= p < ``partitions``."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
