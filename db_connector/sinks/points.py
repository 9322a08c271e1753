r"""Converts a pair or an aligned row to a line of line protocol, or raises an error if none can represent it.

This module is pure. The client library's ``Point`` is not used, because it is ten times slower and can map two
different names to the same text: it writes a newline as the two characters ``\n``.

The rules for tags follow InfluxDB's parser. They were verified against a server with every name of up to five
characters from the set ``a \ , = " space``. A backslash escapes only a following comma, equals sign or space, and is
itself never escaped, so a tag cannot end with a backslash. Every other name without a newline is read back unchanged,
except for names that would make the server's scanner end the key too early (`_why_unrepresentable`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from broker.wire.records import join_of
from db_connector.sinks.sink import UnrepresentableError, columns_of, time_of, values_of

if TYPE_CHECKING:
    from db_connector.sinks.sink import Result

FORM: Final = 2
"""Version of the point format (tags and fields). When it changes, all points are written again (`kafka.target`)."""

LINE_BYTES_MAX: Final = 256 * 1024
"""Maximum length of a line in bytes. InfluxDB accepts keys of 64 kB and bodies of 25 MB; a typical line has 150
bytes."""

_CACHED_LENGTH_MAX: Final = 256
"""Maximum length of a name whose escaped form is cached: the longest name that the connector accepts."""

_TAG_ESCAPES: Final = str.maketrans({",": "\\,", "=": "\\=", " ": "\\ "})

# If a space follows an odd number of backslashes, the server's line scanner assumes that the tags end there, starts to
# count quotes, and may merge the line with the next one.
_ODD_BACKSLASHES_BEFORE_SPACE: Final = re.compile(r"(?<!\\)(?:\\\\)*\\ ")

_OTHER_FIELDS: Final = frozenset({"result", "time"})
"""Names that a column cannot have, because they denote the driver's value and the point's time."""

_KEY_END: Final = "#!~#"
"""The unescaped separator that InfluxDB's storage engine writes between the tags and the field name in a key."""


def point_line(pair: Result, measurement: str, time_unit: str) -> bytes:
    """Return the line for ``pair``, without a trailing newline.

    The line is ``measurement[,half=1],join=…,quantity=…,thing=…[,tie=…] result=… time``. If the join keeps both values,
    ``left=…,right=…`` replace ``result``. A row also has a field for each column with a value. All fields are numeric,
    because a string field would break every aggregating query. Tags are sorted by name, as in the database.
    ``phenomenonTime`` is in ``time_unit``, a key of `UNIT_NS`. The timestamp in the line is in nanoseconds, rounded
    down. Raises `UnrepresentableError`.
    """
    time_ns, half = time_of(pair, time_unit)
    line = (
        f"{measurement}{',half=1' if half else ''},join={tag_text(join_of(pair.id), 'join')}"
        f",quantity={tag_text(pair.quantity, 'quantity')}"
        f",thing={tag_text(pair.thing, 'thing')}{',tie=' + _tag_text(pair.tie, 'tie') if pair.tie else ''}"
        f" {_fields(pair)} {time_ns}"
    )
    encoded = line.encode()
    if len(encoded) > LINE_BYTES_MAX:
        message = f"the point has {len(encoded)} bytes of line protocol, more than {LINE_BYTES_MAX}"
        raise UnrepresentableError(message)
    return encoded


def tag_text(value: str, name: str) -> str:
    """Escape ``value`` for use as the value of the tag ``name``. Raises `UnrepresentableError`."""
    return _cached_tag_text(value, name) if len(value) <= _CACHED_LENGTH_MAX else _tag_text(value, name)


def _tag_text(value: str, name: str) -> str:
    reason = _why_unrepresentable(value)
    if reason:
        message = f"{name} {reason}, which an InfluxDB tag cannot hold: {value[:80]!r}"
        raise UnrepresentableError(message)
    return value.translate(_TAG_ESCAPES)


_cached_tag_text = lru_cache(maxsize=65_536)(_tag_text)
"""Cached, because names repeat."""


def _why_unrepresentable(value: str) -> str:
    if not value:
        return "is empty"
    if "\n" in value:
        return "has a newline"
    if value.endswith("\\"):
        return "ends with a backslash"
    if _ODD_BACKSLASHES_BEFORE_SPACE.search(value):
        return "has an odd number of backslashes before a space"
    # Also reject names that end with all but the last character of the separator: the storage engine appends the
    # separator, and would then find it too early.
    if (value + _KEY_END).find(_KEY_END) < len(value):
        return f"contains {_KEY_END} or ends with {_KEY_END[:-1]}"
    return ""


def _fields(pair: Result) -> str:
    # The shortest text that parses back to the same double. It always contains a point or an exponent.
    fields = [f"{name}={value!r}" for name, value in values_of(pair).items()]
    columns = columns_of(pair) or {}
    if wrong := _OTHER_FIELDS & columns.keys():
        message = f"a column is named {min(wrong)!r}, which has a different meaning in a point"
        raise UnrepresentableError(message)
    # A field's key is escaped like a tag's value. Missing values are omitted.
    fields += [f"{tag_text(name, 'column')}={value!r}" for name, value in columns.items() if value is not None]
    return ",".join(fields)
