"""Buckets: many keys in one group, so that Python processes all of them at once.

A group of Spark costs milliseconds, whatever its size, and grouping by key would make each key a group. So keys are
hashed into buckets. All rows of a key are in one bucket; a bucket is one group and has one state. Between the JVM and
the operator, each bucket is one packed table instead of single rows: Arrow on both ends represents every type exactly.

All functions run in Python workers, except `group_keys`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from joiner.spark import rows as arrow
from joiner.spark.reordering import Rules, join_whole

PACKED: Final = "bucket int, side tinyint, packed binary"
"""Input of the operator: a table of one bucket and side."""

_PACKED_ROWS_MAX: Final = 200_000
"""Rows that a worker collects before it packs them: tens of megabytes, and few small tables."""

_JOINED_ROWS_MAX: Final = 50_000
"""Rows of a result in one packed table: a few megabytes, which suits Spark's batches."""


def group_keys(buckets: int) -> list[int]:
    """For each bucket its group value, such that with as many partitions as buckets each partition gets one bucket.

    Spark puts a group into the partition ``pmod(hash(value), partitions)``. With the bucket's number as the value, a
    third of the partitions would be empty.
    """
    found: dict[int, int] = {}
    value = 0
    while len(found) < buckets:
        found.setdefault(_hash(value) % buckets, value)
        value += 1
    return [found[bucket] for bucket in range(buckets)]


def _hash(value: int) -> int:
    """Spark's ``hash`` of an integer: MurmurHash3 (32 bit) of its four bytes with seed 42, signed."""
    word = 0xFFFFFFFF
    mixed = value * 0xCC9E2D51 & word
    mixed = (mixed << 15 | mixed >> 17) & word
    mixed = 42 ^ mixed * 0x1B873593 & word
    mixed = (mixed << 13 | mixed >> 19) & word
    mixed = (mixed * 5 + 0xE6546B64 & word) ^ 4
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & word
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & word
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed >> 31 else mixed


def packer(rules: Rules, at: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow``: packs rows of side ``at`` (0 left, 1 right), with their bucket in the first column."""
    side = rules.sides[at]

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in _in_large_parts(batches):
            yield _packed(table.column(0).to_numpy(), arrow.as_declared(table.remove_column(0), side), at)

    return pack


def _in_large_parts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    pending: list[pa.RecordBatch] = []
    for batch in batches:
        pending.append(batch)
        if sum(one.num_rows for one in pending) >= _PACKED_ROWS_MAX:
            yield pa.Table.from_batches(pending)
            pending = []
    if pending:
        yield pa.Table.from_batches(pending)


def _packed(bucket: np.ndarray, table: pa.Table, at: int) -> pa.RecordBatch:
    order = np.argsort(bucket, kind="stable")
    table = table.take(order).combine_chunks()
    buckets, starts = np.unique(bucket[order], return_index=True)
    lengths = np.diff(np.append(starts, len(bucket)))
    parts = [
        arrow.to_bytes(table.slice(start, length))
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]
    columns = [
        pa.array(buckets, pa.int32()),
        pa.array(np.full(len(parts), at), pa.int8()),
        pa.array(parts, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["bucket", "side", "packed"])


def in_packed_parts(table: pa.Table) -> Iterator[bytes]:
    """A result as packed tables of bounded length; none for an empty result."""
    for start in range(0, table.num_rows, _JOINED_ROWS_MAX):
        yield arrow.to_bytes(table.slice(start, _JOINED_ROWS_MAX))


def unpacker(names: list[str]) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow``: unpacks the tables in the first column, and names their columns."""

    def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for packed in batch.column(0):
                if packed.is_valid:
                    yield from arrow.from_bytes(packed.as_buffer()).rename_columns(names).to_batches()

    return unpack


def whole_joiner(rules: Rules, names: list[str]) -> Callable[[pa.Table, pa.Table], pa.Table]:
    """For a cogrouped ``applyInArrow``: joins both tables of a bucket, which have its value in the first column."""

    def join_bucket(left: pa.Table, right: pa.Table) -> pa.Table:
        return join_whole(rules, left.remove_column(0), right.remove_column(0)).rename_columns(names)

    return join_bucket
