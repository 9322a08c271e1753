"""Parses durations such as ``"10 seconds"`` or ``"1.5h"``.

Accepts the common formats of `pandas.Timedelta`, but does not need pandas.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

_NS: Final = {
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), 1),
    **dict.fromkeys(("us", "µs", "microsecond", "microseconds"), 10**3),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 10**6),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 10**9),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60 * 10**9),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600 * 10**9),
    **dict.fromkeys(("d", "day", "days"), 86_400 * 10**9),
}
_PART: Final = re.compile(r"\s*(\d{1,19}(?:\.\d{1,18})?)\s*([a-zµ]{1,12})\s*")
_LENGTH_MAX: Final = 100


def duration_ns(text: str) -> int:
    """Convert a duration such as ``"1.5h"`` to ns, rounding down. Raises ValueError if ``text`` cannot be parsed."""
    if len(text) > _LENGTH_MAX:
        raise ValueError(f"a duration must not be longer than {_LENGTH_MAX} characters")
    found, at = Decimal(0), 0
    while match := _PART.match(text.lower(), at):
        if match[2] not in _NS:
            raise ValueError(f"unknown unit {match[2]!r}; supported units are ns, us, ms, s, min, h, d")
        found += Decimal(match[1]) * _NS[match[2]]
        at = match.end()
    if at != len(text) or not at:
        raise ValueError("a duration must consist of numbers followed by units, such as '10 seconds' or '250ms'")
    return int(found)
