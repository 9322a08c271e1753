"""Maps keys to integers, for kinds of tables whose library does not provide this operation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Array = NDArray[Any]

_WIDEST_BYTES: Final = 8
"""The size in bytes of numpy's widest integer types."""


def numbered_rows(columns: Iterable[Array]) -> Ints:
    """Return one number per row, shape (n,). Equal rows have the same number. ``columns``: arrays of shape (n,)."""
    codes: Ints = np.zeros(0, dtype=np.int64)
    for column in columns:
        of_one = numbered(column)
        codes = numbered(codes * (of_one.max(initial=0) + 1) + of_one) if len(codes) else of_one
    return codes


def numbered(values: Array) -> Ints:
    """Number values from 0, shape (n,). Equal values get the same number."""
    found = dense(values)
    return np.unique(values, return_inverse=True)[1].astype(np.int64) if found is None else found


def dense(values: Array) -> Ints | None:
    """Number values like `numbered`, but without sorting.

    Return None if there are no values, or if they are not integers in a small range.
    """
    if values.dtype.kind not in "iu" or not len(values):
        return None
    low, high = int(values.min()), int(values.max())
    if high - low >= 2 * len(values):
        return None
    # In a narrow signed type, subtracting the minimum could overflow.
    wide = values if values.dtype.kind == "u" else values.astype(np.int64, copy=False)
    return (wide - low if low else wide).astype(np.int64, copy=False)


def of_one_type(left: Any, right: Any) -> list[Any]:
    """Convert two columns to Python integers if one is signed and the other uint64; otherwise return them unchanged.

    numpy and pandas would convert such columns to float64, in which different integers can become equal.
    """
    types = {column.dtype.kind: column.dtype for column in (left, right)}
    if types.keys() == {"i", "u"} and types["u"].itemsize == _WIDEST_BYTES:
        return [left.astype(object), right.astype(object)]
    return [left, right]
