"""Reads columns of JSON numbers. In the usual case it creates no Python object for a number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
from numba import types

from broker.wire.columns import StringColumn, glue
from broker.wire.compiled import BYTES, BYTES_OUT, INTS, compiled
from broker.wire.records import encode_lines

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

_ZERO, _NINE, _MINUS, _POINT = b"09-."

_DIGITS_MAX: Final = 15
"""Every decimal number of at most this many digits is the shortest text of the double closest to it."""

_DECIMALS_MAX: Final = 18
_POWERS: Final = np.array([10.0**power for power in range(_DECIMALS_MAX + 1)])
"""Doubles hold these powers of ten exactly, up to the 22nd."""

_ENCODED_WITHOUT_EXPONENT_MIN: Final = 1e-3
"""Doubles at least this large, and below 10^15, are encoded without an exponent."""

_UNREAD, _ENCODED, _INTEGER, _REWRITTEN = range(4)
"""What `_read_numbers` has found: a number that needs a complete parser; one whose text is also the JSON of its double;
an integer, whose double is encoded with ``.0`` after it; and one that is encoded differently."""

_numbers = msgspec.json.Decoder(list[float])


class Numbers(NamedTuple):
    """Columns of n numbers: their values, and the JSON of each value, which may differ from the JSON that was read."""

    value: Floats
    encoded: StringColumn


def read_numbers(texts: StringColumn) -> Numbers | None:
    """Parse JSON numbers as doubles. Return None if any of the strings is not a JSON number in the range of doubles."""
    values, found = np.empty(len(texts), dtype=np.float64), np.empty(len(texts), dtype=np.uint8)
    _read_numbers(texts.data, texts.start, texts.end, values, found)
    unread = (found == _UNREAD).nonzero()[0]
    if len(unread):
        try:
            values[unread] = _numbers.decode(b"[" + glue(b",", texts.take(unread)).joined()[1:] + b"]")
        except (msgspec.DecodeError, ValueError):
            return None
    if len(unread) or (found == _REWRITTEN).any():
        return Numbers(values, StringColumn.of_lines(encode_lines(values.tolist())))
    is_integer = found == _INTEGER
    if not is_integer.any():
        return Numbers(values, texts)
    return Numbers(values, glue(texts, StringColumn.repeated(b".0", len(texts)).where(is_integer)))


@compiled(types.void, BYTES, INTS, INTS, types.Array(types.float64, 1, "C"), BYTES_OUT)
def _read_numbers(data: Bytes, start: Ints, end: Ints, values: Floats, found: Bytes) -> None:
    """Store the value of each number and, in ``found``, which kind of number it is."""
    for row in range(len(start)):
        at, stop = start[row], end[row]
        negative = at < stop and data[at] == _MINUS
        if negative:
            at += 1
        begin, point, mantissa, digits = at, -1, 0, 0
        while at < stop:
            byte = data[at]
            if _ZERO <= byte <= _NINE:
                mantissa = mantissa * 10 + (byte - _ZERO)
                digits += mantissa > 0
                if digits > _DIGITS_MAX:
                    break
            elif byte == _POINT and point < 0:
                point = at
            else:
                break
            at += 1
        whole = (stop if point < 0 else point) - begin
        decimals = 0 if point < 0 else stop - point - 1
        has_leading_zero = whole > 1 and data[begin] == _ZERO
        if (
            at < stop
            or whole < 1
            or has_leading_zero
            or decimals > _DECIMALS_MAX
            or (decimals == 0 and point >= 0)
            or (mantissa == 0 and negative)
        ):
            found[row] = _UNREAD
            continue
        # Both are exact, so the quotient is the double closest to the number.
        value = mantissa / _POWERS[decimals]
        values[row] = -value if negative else value
        if point < 0:
            found[row] = _INTEGER
        elif (decimals == 1 or data[stop - 1] != _ZERO) and (
            value >= _ENCODED_WITHOUT_EXPONENT_MIN or (value == 0 and decimals == 1)
        ):
            found[row] = _ENCODED
        else:
            found[row] = _REWRITTEN
