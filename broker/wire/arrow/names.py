"""Limits the total size of a message's strings when each row has its own copy.

A dictionary holds each string only once, no matter how many rows and batches of a message refer to it. Code that
processes the rows, however, copies it for each row, into dead letters, points and ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.wire.arrow.limits import EXPANDED_BYTES_MAX
from broker.wire.records import Unreadable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


class NameSizes:
    """Adds up the sizes of the strings in a dictionary column, counting a string once for each row that contains it."""

    def __init__(self) -> None:
        self._size = self._bound = 0
        # The rows added so far whose strings count towards the upper bound, but not yet towards the exact size.
        self._parts: list[tuple[Any, Ints]] = []

    def add(self, dictionary: Any, number: Ints) -> None:
        """Add rows, given as their indices into ``dictionary`` (-1 for a null).

        Raises `Unreadable` if the strings of all rows added so far total more than `EXPANDED_BYTES_MAX` bytes.
        """
        # As an upper bound for the size of each string, use the total size of the dictionary, which is known. If that
        # is too large, use the size of the largest string, which has to be computed.
        most = bytes_of(dictionary)
        if most * len(number) > EXPANDED_BYTES_MAX // 4:
            most = int(_lengths(dictionary).max(initial=0))
        self._bound += most * len(number)
        self._parts.append((dictionary, number))
        if self._bound <= EXPANDED_BYTES_MAX:
            return
        self._size += sum(_size_of(*part) for part in self._parts)
        self._bound, self._parts = self._size, []
        if self._size > EXPANDED_BYTES_MAX:
            reason = f"the names in all rows of the message total more than {EXPANDED_BYTES_MAX} bytes"
            raise Unreadable(reason)


def bytes_of(texts: Any) -> int:
    """Return the size of a column's strings in bytes, without their offsets. Much faster than pyarrow's ``nbytes``."""
    _, _, data = texts.buffers()
    return 0 if data is None else int(data.size)


def _size_of(dictionary: Any, number: Ints) -> int:
    # Nulls (-1) take the 0 at the end.
    return int(np.append(_lengths(dictionary), 0).take(number).sum())


def _lengths(texts: Any) -> Ints:
    lengths: Ints = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def indices_of(column: Any) -> Ints:
    """Return, for each row of a dictionary column, the index of its value in the dictionary, or -1 if it is null."""
    indices = column.indices
    if indices.null_count:
        indices = indices.cast(pa.int64()).fill_null(-1)
    number: Ints = indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return number


def check_names(table: Any) -> None:
    """Check the size of the strings in each dictionary column of a table, counting a string once for each row.

    Raises `Unreadable` if a column's strings total more than `EXPANDED_BYTES_MAX` bytes.
    """
    for column in table.columns:
        if not pa.types.is_dictionary(column.type) or not pa.types.is_string(column.type.value_type):
            continue
        sizes = NameSizes()
        for chunk in column.chunks:
            sizes.add(chunk.dictionary, indices_of(chunk))
