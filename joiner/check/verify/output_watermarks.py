"""Checks that each watermark in a unit's results is true: no later result in the partition is older.

A watermark is judged only by the messages after it in the log. The joiner's bounds and state are not used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from broker.times import point_time
from broker.wire.records import Unreadable, decode_data, is_watermark

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from joiner.check.found.evidence import Message
    from joiner.check.found.findings import Findings
    from joiner.runtime.settings import JoinerSettings

WATERMARKS: Final = "output watermarks"


class _FoundResult(msgspec.Struct):
    quantity: str
    thing: str
    phenomenonTime: msgspec.Raw  # noqa: N815 - the wire's own name


_result = msgspec.json.Decoder(_FoundResult)


class _Mark(NamedTuple):
    """A watermark: what it covers (a thing, or None for all), and its time in ns."""

    quantity: str | None
    thing: str | None
    time_ns: int


class _Oldest(NamedTuple):
    """The oldest result of a quantity, or of one thing, in a part of the log: twice its time in ns, and its place."""

    twice_ns: int
    place: str


def without_watermarks(messages: Sequence[Message], settings: JoinerSettings, findings: Findings) -> list[Message]:
    """Count the watermarks among a partition's messages, report those that are not true, and return the rest.

    Watermarks for quantities that the application does not write are not judged.
    """
    time_unit, outputs = settings.events.time_unit, {operator.output for operator in settings.operators}
    marks = {message.offset: mark for message in messages if (mark := _watermark(message, time_unit)) is not None}
    if not marks:
        return list(messages)
    findings.count("watermarks written", len(marks))
    oldest: dict[tuple[str | None, str | None], _Oldest] = {}
    for message in reversed(messages):
        mark = marks.get(message.offset)
        if mark is None:
            for quantity, thing, twice_ns in _times(message, time_unit):
                found = _Oldest(twice_ns, message.place)
                for scope in ((quantity, thing), (quantity, None)):
                    oldest[scope] = min(found, oldest.get(scope, found))
        elif mark.quantity in outputs:
            older = oldest.get((mark.quantity, mark.thing))
            if older is not None and older.twice_ns < 2 * mark.time_ns:
                shown = (message.value or b"").decode()
                text = f"{message.place}: {shown} is not true: the result at {older.place} is older"
                findings.differ("unexpected", WATERMARKS, "", text)
    return [message for message in messages if message.offset not in marks]


def _watermark(message: Message, time_unit: str) -> _Mark | None:
    if not is_watermark(message.value):
        return None
    try:
        found, time_ns = decode_data(message.value, time_unit)
    except Unreadable:
        return None
    return _Mark(found.quantity, found.thing, time_ns)


def _times(message: Message, time_unit: str) -> Iterator[tuple[str, str, int]]:
    """Yield the quantity, the thing and twice the time in ns of each result in a message, if it can be read."""
    value = message.value or b""
    try:
        if value.startswith(b"{"):
            results = [_result.decode(value)]
        else:
            from joiner.check.verify.arrow_results import results_of  # noqa: PLC0415 - pyarrow is an extra

            results = [
                _FoundResult(one.quantity, one.thing, one.phenomenonTime) for one in results_of(value, time_unit)
            ]
        for one in results:
            time_ns, has_half = point_time(bytes(one.phenomenonTime), time_unit)
            yield one.quantity, one.thing, 2 * time_ns + has_half
    except (ImportError, Unreadable, ValueError, msgspec.DecodeError, RecursionError):
        # The comparison reports such messages.
        return
