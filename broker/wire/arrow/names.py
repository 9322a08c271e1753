"""Limits what the strings of a message take row by row.

A dictionary holds a string once, however many rows and batches of a message refer to it. Whoever reads the rows needs
the string again for each of them: in dead letters, points and ids.
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
    """Adds up the sizes of the strings of one dictionary column in all rows of a message."""

    def __init__(self) -> None:
        self._size = self._bound = 0
        # Those that count in the upper bound, but not in the size yet.
        self._parts: list[tuple[Any, Ints]] = []

    def add(self, dictionary: Any, number: Ints) -> None:
        """Add the rows with these indices into a dictionary (-1 for null).

        Raises `Unreadable` if all rows added so far have more than `EXPANDED_BYTES_MAX` bytes.
        """
        # An upper bound of a string's size: that of all together, which is known, or else that of the largest.
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
            reason = f"the names of its rows have more than {EXPANDED_BYTES_MAX} bytes"
            raise Unreadable(reason)


def bytes_of(texts: Any) -> int:
    """Return the size of a column of strings, without their positions. Much faster than pyarrow's own ``nbytes``."""
    _, _, data = texts.buffers()
    return 0 if data is None else int(data.size)


def _size_of(dictionary: Any, number: Ints) -> int:
    # A null takes the 0 at the end.
    return int(np.append(_lengths(dictionary), 0).take(number).sum())


def _lengths(texts: Any) -> Ints:
    lengths: Ints = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def indices_of(column: Any) -> Ints:
    """Return each row's index into the dictionary of a column, -1 where null."""
    indices = column.indices
    if indices.null_count:
        indices = indices.cast(pa.int64()).fill_null(-1)
    number: Ints = indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return number


def check_names(table: Any) -> None:
    """Raise `Unreadable` if the strings of a dictionary column of a table have more than `EXPANDED_BYTES_MAX` bytes."""
    for column in table.columns:
        if not pa.types.is_dictionary(column.type) or not pa.types.is_string(column.type.value_type):
            continue
        sizes = NameSizes()
        for chunk in column.chunks:
            sizes.add(chunk.dictionary, indices_of(chunk))
