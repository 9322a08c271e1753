"""Divides keys into buckets, so that each call into Python handles many keys.

A Spark group costs milliseconds, however small it is, so one group per key would be slow. Keys are therefore hashed
into buckets. All rows with the same key go to the same bucket, and each bucket is one Spark group with one state.
Between the JVM and the operator, the rows of a bucket are transferred as serialized Arrow tables ("packed"), because
Arrow represents every type exactly.

`group_keys` runs where the query is built. `in_packed_parts`, and the functions that `packer` and `unpacker` return,
run in Python workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from joiner.spark import rows as arrow
from joiner.spark.rows import Side

PACKED: Final = "bucket int, side int, packed binary"
"""The schema of the operators' input: each row is a packed table of rows from one bucket and one side.

A side is a number: 0 for left and 1 for right or, for aligned rows, 0 for the driver and 1 upwards for the columns'
tables."""

_PACKED_ROWS_MAX: Final = 200_000
"""Number of rows that a worker collects before it packs them: tens of megabytes. A smaller number would produce many
small tables."""

_RESULT_ROWS_MAX: Final = 50_000
"""Maximum number of result rows in one packed table: a few megabytes, about the size of Spark's own batches."""


def group_keys(buckets: int) -> list[int]:
    """Return, for each bucket, the value by which Spark groups its rows.

    Spark assigns a group to the partition ``pmod(hash(value), partitions)``. The values are chosen so that, with as
    many buckets as partitions, each partition gets exactly one bucket. If the bucket numbers themselves were used,
    about a third of the partitions would stay empty.
    """
    found: dict[int, int] = {}
    value = 0
    while len(found) < buckets:
        found.setdefault(_hash(value) % buckets, value)
        value += 1
    return [found[bucket] for bucket in range(buckets)]


def _hash(value: int) -> int:
    """Compute Spark's ``hash`` of an integer: the signed 32-bit MurmurHash3 of its 4 bytes, with seed 42."""
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


def packer(side: Side, at: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for ``mapInArrow`` that packs the rows of ``side``, whose number is ``at``.

    The first column of the input must contain the bucket of each row.
    """

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
        pa.array(np.full(len(parts), at), pa.int32()),
        pa.array(parts, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["bucket", "side", "packed"])


def in_packed_parts(table: pa.Table) -> Iterator[bytes]:
    """Yield a result table as packed tables of limited length. Yields nothing if the result is empty."""
    for start in range(0, table.num_rows, _RESULT_ROWS_MAX):
        yield arrow.to_bytes(table.slice(start, _RESULT_ROWS_MAX))


def unpacker(names: list[str]) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for ``mapInArrow`` that unpacks the tables in the first column and names their columns."""

    def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for packed in batch.column(0):
                if packed.is_valid:
                    yield from arrow.from_bytes(packed.as_buffer()).rename_columns(names).to_batches()

    return unpack
