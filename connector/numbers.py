"""Parses the payloads of MQTT topics whose messages are plain numbers, such as ``21.5`` on ``plant/oven7/temperature``.

This module is pure: the caller passes in the clock. A template (`connector.settings.NumberSettings`) says which topics
carry numbers, and how the names of the thing and the quantity follow from the levels of a topic.

Nothing is dropped silently: a payload becomes a record or a refusal, except that retained messages are skipped. The
MQTT broker sends these on every subscription, long after the number was measured, and they do not say when that was.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Final

from broker.times import UNIT_NS
from broker.wire.records import JSON_NUMBER, Record
from connector.events import UNREADABLE_TOPIC, Parsed, Refusal, UnusableError, measured, number_in, short, shown
from connector.settings import NumberSettings

NUMBER_BYTES_MAX: Final = 400
"""The maximum length of a payload in bytes. Any float64 with 17 significant digits, which identify it, is shorter, even
without an exponent. Only the exact decimal expansion of a float64 can be longer (over 1,000 digits); it is refused."""

SKIPPED: Final = Parsed("", 0, [], [])
"""The result for a retained message."""


class NumberParser:
    """Parses the payloads of all topics that match a template.

    ``clock`` returns the time in nanoseconds since the epoch. Times of records are in ``time_unit`` (a key of
    `broker.times.UNIT_NS`). Ids begin with ``run``, which must be different for each parser.
    """

    def __init__(self, templates: Sequence[NumberSettings], time_unit: str, clock: Callable[[], int], run: str) -> None:
        self._templates = [(_pattern(one.topic), one) for one in templates]
        self._unit_ns = UNIT_NS[time_unit]
        self._clock = clock
        self._run = run
        self._count = 0

    def parse(self, topic: str, payload: bytes, *, is_retained: bool) -> Parsed | None:
        """Return the record or the refusal of a payload, or None if the topic matches no template. Never raises.

        The time of the record is the current time. The first template that matches is used.
        """
        if topic == UNREADABLE_TOPIC:
            return None
        for pattern, template in self._templates:
            if (levels := pattern.fullmatch(topic)) is not None:
                return SKIPPED if is_retained else self._record(template, levels, payload)
        return None

    def _record(self, template: NumberSettings, match: re.Match[str], payload: bytes) -> Parsed:
        levels = match.groupdict()
        try:
            thing = measured(template.thing.format_map(levels), "the thing in the MQTT topic")
            quantity = measured(template.quantity.format_map(levels), "the quantity in the MQTT topic")
            value = _value(payload)
        except UnusableError as error:
            # Many devices may send the same text, such as NaN. No topic contains a NUL character.
            digest = hashlib.sha256(match.string.encode() + b"\0" + payload).hexdigest()
            return Parsed("", 0, [], [Refusal(payload, short(str(error)), f"mqtt:{digest[:32]}")])
        time = self._clock() // self._unit_ns
        self._count += 1
        record = Record(thing, quantity, time, value, f"{self._run}-{self._count}")
        return Parsed(thing, time * self._unit_ns, [record], [])


def _pattern(template: str) -> re.Pattern[str]:
    """Return the pattern of the topics that match a template. It has a group for each name."""
    levels = template.split("/")
    parts = [
        f"(?P<{one[1:-1]}>[^/]*)" if one[:1] == "{" else "[^/]*" if one == "+" else re.escape(one) for one in levels
    ]
    if levels[-1] == "#":
        # It also matches no level at all: a/# matches a.
        parts[-1] = ".*"
        text = "/".join(parts[:-1]) + "(?:/.*)?" if parts[:-1] else ".*"
    else:
        text = "/".join(parts)
    # MQTT 3.1.1, section 4.7.2: a wildcard at the beginning does not match the broker's own topics.
    hidden = r"(?!\$)" if levels[0] == "#" or levels[0][:1] in {"+", "{"} else ""
    return re.compile(hidden + text, re.DOTALL)


def _value(payload: bytes) -> float:
    """Return the number in a payload. Raises `UnusableError`."""
    if len(payload) > NUMBER_BYTES_MAX:
        message = f"the payload is {len(payload)} bytes long, more than the {NUMBER_BYTES_MAX} of a plain number"
        raise UnusableError(message)
    text = payload.strip(b" \t\r\n")
    if not text:
        raise UnusableError(
            "the payload is empty; the messages of this MQTT topic must be plain numbers (connector.number)"
        )
    if not text.isascii() or not JSON_NUMBER.fullmatch(text.decode("ascii")):
        message = (
            f"the payload is not a number as in JSON: {shown(text)}; the messages of this MQTT topic must be plain "
            "numbers (connector.number)"
        )
        raise UnusableError(message)
    return number_in(text, "the number")
