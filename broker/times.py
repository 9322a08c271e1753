"""Converts event times between their wire formats and exact int64 nanoseconds since the epoch (UTC).

Event times are parsed and formatted only in this module. It does not use floats, which are too imprecise: a current
timestamp in milliseconds already takes 41 of a double's 53 bits, and the mean of two times may end in half a unit. The
unit of plain numbers is configured, never guessed from their magnitude.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Final

UNIT_NS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
"""The units that can be configured for times given as plain numbers, with their lengths in nanoseconds."""

TIME_MIN_NS: Final = -9_214_560_000_000_000_000
"""The earliest accepted time, 1678-01-01T00:00:00Z. int64 nanoseconds reach a few months further back."""

TIME_MAX_NS: Final = 9_214_646_399_999_999_999
"""The latest accepted time, the last nanosecond of 2261. int64 nanoseconds reach a few months further."""

_DURATION_NS: Final = {**UNIT_NS, "min": 60 * 10**9, "h": 3_600 * 10**9, "d": 86_400 * 10**9}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|ms|s|min|h|d)", re.ASCII)
_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d+))?)?(?:([Zz])|([+-])(\d\d):?(\d\d))?",
    re.ASCII,
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
TIME_LENGTH_MAX: Final = 40
"""The maximum length of a time in characters, whether a number or ISO-8601. An ISO-8601 time with nanoseconds and an
offset has 35 characters, so every acceptable time fits. Decimal becomes slow only at much greater lengths. The limit is
needed because an event's time is copied as text into each of its records, and from there into every result."""


def parse_time(value: int | str | bytes, time_unit: str) -> int:
    """Convert a time to nanoseconds since the epoch.

    ``value`` is an integer in ``time_unit`` (a key of `UNIT_NS`), the bytes of a JSON number in ``time_unit`` (decimals
    are converted exactly), or an ISO-8601 string with an offset. Raises ValueError with the reason if it is
    none of these, is longer than `TIME_LENGTH_MAX`, is finer than a nanosecond, or is outside the years 1678-2261.
    """
    if isinstance(value, int):
        time_ns = value * UNIT_NS[time_unit]
    elif isinstance(value, bytes):
        time_ns = _from_number_text(value, UNIT_NS[time_unit])
    else:
        time_ns = _from_iso(value)
    if not TIME_MIN_NS <= time_ns <= TIME_MAX_NS:
        message = f"time {_shown(value)} is outside the years 1678-2261"
        raise ValueError(message)
    return time_ns


def _shown(value: int | str | bytes) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= TIME_LENGTH_MAX else text[:TIME_LENGTH_MAX] + "..."


def _exact_ratio(text: bytes, otherwise: str) -> tuple[int, int]:
    """Convert a JSON number to an exact fraction (numerator, denominator).

    Raises ValueError if ``text`` is too long or is not a number; in the latter case, the message is "time … is "
    followed by ``otherwise``. Also raises ValueError if the exponent is too large or too small for a time, before
    expanding the number to what could be a huge integer.
    """
    if len(text) > TIME_LENGTH_MAX:
        message = f"time {_shown(text)} has {len(text)} characters, more than {TIME_LENGTH_MAX}"
        raise ValueError(message)
    try:
        number = Decimal(text.decode("ascii"))
    except (InvalidOperation, UnicodeDecodeError) as error:
        message = f"time {_shown(text)} is {otherwise}"
        raise ValueError(message) from error
    if not number.is_finite():
        message = f"time {_shown(text)} is {otherwise}"
        raise ValueError(message)
    if number and abs(number.adjusted()) > TIME_LENGTH_MAX:
        fault = "outside the years 1678-2261" if number.adjusted() > 0 else "finer than a nanosecond"
        message = f"time {_shown(text)} is {fault}"
        raise ValueError(message)
    return number.as_integer_ratio() if number else (0, 1)


def _from_number_text(text: bytes, unit_ns: int) -> int:
    numerator, denominator = _exact_ratio(text, "neither a number nor an ISO-8601 string")
    time_ns, rest = divmod(numerator * unit_ns, denominator)
    if rest:
        message = f"time {_shown(text)} is finer than a nanosecond"
        raise ValueError(message)
    return time_ns


def _from_iso(text: str) -> int:
    if len(text) > TIME_LENGTH_MAX:
        message = f"time {_shown(text)!r} has {len(text)} characters, more than {TIME_LENGTH_MAX}"
        raise ValueError(message)
    match = _ISO.fullmatch(text)
    if match is None:
        message = f"time {_shown(text)!r} is not an ISO-8601 time such as 2019-04-01T05:26:20.468+02:00"
        raise ValueError(message)
    year, month, day, hour, minute, second, fraction, zulu, sign, off_hour, off_minute = match.groups()
    if zulu is None and sign is None:
        message = f"time {text!r} has no offset from UTC; add Z or an offset such as +02:00"
        raise ValueError(message)
    if fraction is not None and len(fraction.rstrip("0")) > len("123456789"):
        message = f"time {_shown(text)!r} is finer than a nanosecond"
        raise ValueError(message)
    try:
        moment = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second or 0), tzinfo=UTC)
    except ValueError as error:
        message = f"time {text!r} does not exist: {error}"
        raise ValueError(message) from error
    offset_s = (int(off_hour or 0) * 60 + int(off_minute or 0)) * 60 * (-1 if sign == "-" else 1)
    since_epoch = moment - _EPOCH
    whole_s = since_epoch.days * 86_400 + since_epoch.seconds - offset_s
    return whole_s * 10**9 + int((fraction or "0").rstrip("0").ljust(9, "0")[:9])


def with_offset(text: str, offset: str) -> str:
    """Append ``offset`` (such as ``Z`` or ``+02:00``) to an ISO-8601 time without one. Other text is not changed."""
    match = _ISO.fullmatch(text)
    return text + offset if match is not None and match[8] is None and match[9] is None else text


def iso_text(time_ns: int) -> str:
    """Format a time within the accepted range as ISO-8601 text in UTC, with as many decimal places as needed."""
    whole_s, rest_ns = divmod(time_ns, 10**9)
    text = (_EPOCH + timedelta(seconds=whole_s)).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{rest_ns:09}".rstrip("0") + "Z" if rest_ns else f"{text}Z"


def mean_text(left_ns: int, right_ns: int, time_unit: str) -> str:
    """Return the exact mean of two times, which may end in half a nanosecond, as a JSON number in ``time_unit``."""
    total = left_ns + right_ns
    sign, total = ("-", -total) if total < 0 else ("", total)
    whole, rest = divmod(total, 2 * UNIT_NS[time_unit])
    if not rest:
        return f"{sign}{whole}"
    # rest / (2 * unit) equals 5 * rest / (10 * unit). The denominator, in nanoseconds, is a power of ten, so the
    # fraction has at most as many decimal places as that power has zeros.
    decimals = len(str(UNIT_NS[time_unit]))
    return f"{sign}{whole}.{str(rest * 5).zfill(decimals).rstrip('0')}"


def point_time(text: bytes | str, time_unit: str) -> tuple[int, bool]:
    """Convert the text of a mean time (see `mean_text`) to nanoseconds.

    Return the time rounded down to whole nanoseconds, and whether half a nanosecond was cut off. Raises ValueError if
    ``text`` is not a mean time.
    """
    raw = text.encode() if isinstance(text, str) else text
    numerator, denominator = _exact_ratio(raw, "not a number")
    twice_ns, rest = divmod(2 * numerator * UNIT_NS[time_unit], denominator)
    if rest:
        message = f"time {_shown(raw)} is finer than half a nanosecond"
        raise ValueError(message)
    return twice_ns // 2, bool(twice_ns % 2)


def parse_duration(value: object) -> int:
    """Convert a duration such as ``250ms``, ``2s``, ``1.5 min`` or ``1d`` to nanoseconds. ``0`` needs no unit.

    Raises ValueError for anything else, including other numbers without a unit, because the unit would be a guess.
    """
    if type(value) in {int, float, str} and value in {0, "0"}:
        return 0
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        message = f"expected a duration with a unit (ns, us, ms, s, min, h, d) such as '250ms', got {value!r}"
        raise ValueError(message)
    numerator, denominator = Decimal(match[1]).as_integer_ratio()
    duration_ns, rest = divmod(numerator * _DURATION_NS[match[2]], denominator)
    if rest:
        message = f"the duration {value!r} is finer than a nanosecond"
        raise ValueError(message)
    if duration_ns > TIME_MAX_NS:
        message = f"the duration {value!r} is too long: times must be in the years 1678-2261"
        raise ValueError(message)
    return duration_ns


def microsecond_of(time_ns: int) -> datetime:
    """Return a time in UTC, rounded down to a microsecond."""
    return _EPOCH + timedelta(microseconds=time_ns // UNIT_NS["us"])
