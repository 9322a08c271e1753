"""Parses columns of JSON numbers. For most numbers, this does not create a Python object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
from numba import types

from broker.times import TIME_MAX_NS, TIME_MIN_NS, UNIT_NS
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
"""Every decimal number with at most this many digits is the shortest text that identifies its closest double."""

_DECIMALS_MAX: Final = 18
_POWERS: Final = np.array([10.0**power for power in range(_DECIMALS_MAX + 1)])
"""Powers of ten. Doubles represent powers of ten exactly up to 10^22."""

_ENCODED_WITHOUT_EXPONENT_MIN: Final = 1e-3
"""Doubles from this value up to, but not including, 10^15 are encoded without an exponent."""

_UNREAD, _ENCODED, _INTEGER, _REWRITTEN = range(4)
"""The classes that `_read_numbers` assigns to numbers. A number in the first class was not parsed and needs a full
parser. In the other classes, the number's double is encoded as the same text, as the same text followed by ``.0`` (the
number is an integer), or as a different text."""

_numbers = msgspec.json.Decoder(list[float])


class Numbers(NamedTuple):
    """n numbers: their values, and each value encoded as JSON, which may differ from the JSON that was read."""

    value: Floats
    encoded: StringColumn


def read_numbers(texts: StringColumn) -> Numbers | None:
    """Parse strings as JSON numbers. Return None if any string is not a JSON number, or is too large for a double."""
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
    """Parse each number. Store its value in ``values`` and its class, such as `_INTEGER`, in ``found``."""
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
        # Doubles represent the mantissa and the power of ten exactly, so their quotient is the double closest to the
        # number.
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


def to_ns(times: Ints, time_unit: str) -> Ints | None:
    """Convert times in a unit, at least one, to ns. Return None if any of them is out of range."""
    unit_ns = UNIT_NS[time_unit]
    if times.min() < -(-TIME_MIN_NS // unit_ns) or times.max() > TIME_MAX_NS // unit_ns:
        return None
    return times * unit_ns
