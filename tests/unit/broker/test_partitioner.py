"""Keys are assigned to the same partitions as in Kafka's Java client."""

from __future__ import annotations

import pytest

from broker.partitioner import murmur2, partition_of


def signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # From the tests of org.apache.kafka.common.utils.Utils.murmur2.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_the_java_client(key: bytes, expected: int) -> None:
    assert signed(murmur2(key)) == expected


@pytest.mark.parametrize("partitions", [1, 2, 5, 1000])
def test_a_partition_is_always_in_range(partitions: int) -> None:
    found = {partition_of(f"key {n}".encode(), partitions) for n in range(200)}
    assert found <= set(range(partitions))
    assert len(found) > partitions // 10


def test_the_sign_is_masked_before_the_remainder_as_java_does() -> None:
    assert partition_of(b"foobar", 5) == (-790332482 & 0x7FFFFFFF) % 5
