"""Joining functions as users might write them, including faulty ones."""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from joiner.functions import AlignedColumns, Columns

NO_FUNCTION = 3


def fails_at_13(left: Columns, right: Columns) -> NDArray[np.float64]:
    """Raise if a left value is 13."""
    if (left.result == 13).any():
        message = "unlucky"
        raise RuntimeError(message)
    return left.result + right.result


def wrong_shape(left: Columns, _right: Columns) -> NDArray[np.float64]:
    """Return three columns instead of one or two."""
    return np.zeros((len(left.result), 3))


def a_scalar(_left: Columns, _right: Columns) -> float:
    """Return one number for all pairs."""
    return 1.0


def words(left: Columns, _right: Columns) -> list[str]:
    """Return strings, which numpy would convert to numbers."""
    return ["1.5"] * len(left.result)


def complex_numbers(left: Columns, right: Columns) -> NDArray[np.complex128]:
    """Return complex numbers, whose imaginary part numpy would drop."""
    return left.result + 1j * right.result


def dates(left: Columns, _right: Columns) -> NDArray[np.datetime64]:
    """Return times instead of values."""
    return left.time_ns.astype("datetime64[ns]")


def leaves_the_process(_left: Columns, _right: Columns) -> NDArray[np.float64]:
    """Exit the process, as a script would."""
    sys.exit(0)


def interrupts(_left: Columns, _right: Columns) -> NDArray[np.float64]:
    """Raise the exception that Ctrl-C causes."""
    raise KeyboardInterrupt


def spoils_and_fails_at_13(left: Columns, right: Columns) -> NDArray[np.float64]:
    """Change the columns in place, and raise if a left value was 13."""
    left.result[:] *= 10
    right.result[:] = right.result * left.result
    left.time_ns[:] = 0
    if (left.result == 130).any():
        message = "unlucky"
        raise RuntimeError(message)
    return right.result


def quotient(left: Columns, right: Columns) -> NDArray[np.float64]:
    """Return the quotient: NaN for 0/0, infinite for x/0."""
    return left.result / right.result


def two(left: Columns, right: Columns) -> NDArray[np.float64]:
    """Return two values per pair. The second is not finite if the right value is 0."""
    return np.column_stack([left.result, 1 / right.result])


def seconds_apart(left: Columns, right: Columns) -> NDArray[np.float64]:
    """Return the distance in time, using times and things."""
    assert list(left.thing) == list(right.thing)
    return (right.time_ns - left.time_ns) / 1e9


def raises(_left: Columns, _right: Columns) -> NDArray[np.float64]:
    """Raise for every pair."""
    message = "no such machine"
    raise ValueError(message)


def of_row(rows: AlignedColumns) -> NDArray[np.float64]:
    """Return the sum of a row's values, which is NaN if one is missing, and raise if a row's first value is 13."""
    columns = list(rows.values.values())
    if (columns[0] == 13).any():
        message = "unlucky"
        raise RuntimeError(message)
    found: NDArray[np.float64] = np.sum(columns, axis=0)
    return found


def of_row_and_driver(rows: AlignedColumns) -> NDArray[np.float64]:
    """Return the driver's value plus the number of missing values, and spoil all columns."""
    assert rows.driver is not None
    found: NDArray[np.float64] = rows.driver + np.sum([np.isnan(values) for values in rows.values.values()], axis=0)
    for column in (*rows.values.values(), rows.driver):
        column[:] = -1
    rows.time_ns[:] = 0
    return found


def seconds_of_row(rows: AlignedColumns) -> NDArray[np.float64]:
    """Return the time of each row in s, and the length of its thing."""
    assert rows.driver is None
    found: NDArray[np.float64] = rows.time_ns / 1e9 + np.array([len(thing) for thing in rows.thing])
    return found


def two_of_row(rows: AlignedColumns) -> NDArray[np.float64]:
    """Return two values for each row."""
    return np.zeros((len(rows.time_ns), 2))
