"""Parses the payloads of MQTT topics whose messages are plain numbers, such as ``21.5`` on ``plant/oven7/temperature``.

A template (`connector.templates.NumberSettings`) says how the names of the thing and the quantity follow from the
levels of a topic.

Nothing is dropped silently: a payload becomes a record or a refusal, except that retained messages are skipped. The
MQTT broker sends these on every subscription, long after the number was measured, and they do not say when that was.
"""

from __future__ import annotations

from typing import Final

from broker.wire.records import JSON_NUMBER, Record
from connector.formats.contents import RETAINED, Context, Found, Levels, refused
from connector.formats.events import Parsed, UnusableError, measured, number_in, shown
from connector.templates import NumberSettings

NUMBER_BYTES_MAX: Final = 400
"""The maximum length of a payload in bytes. Any float64 with 17 significant digits, which identify it, is shorter, even
without an exponent. Only the exact decimal expansion of a float64 can be longer (over 1,000 digits); it is refused."""


class NumberParser:
    """Parses plain numbers. The time of a record is the current time."""

    def __init__(self, template: NumberSettings, context: Context) -> None:
        self._template = template
        self._context = context

    def parse(self, levels: Levels, payload: bytes, *, is_retained: bool) -> Found:
        """Return the record or the refusal of a payload. Never raises."""
        if is_retained:
            return Found(skipped={RETAINED: 1})
        try:
            thing = measured(self._template.thing.format_map(levels.named), "the thing in the MQTT topic")
            quantity = measured(self._template.quantity.format_map(levels.named), "the quantity in the MQTT topic")
            value = _value(payload)
        except UnusableError as error:
            return Found((refused(levels.topic, payload, str(error)),))
        time_ns = self._context.now_ns()
        record = Record(thing, quantity, time_ns // self._context.unit_ns, value, self._context.arrival_id())
        return Found((Parsed(thing, time_ns, [record], []),))


def _value(payload: bytes) -> float:
    """Return the number in a payload. Raises `UnusableError`."""
    if len(payload) > NUMBER_BYTES_MAX:
        message = f"the payload is {len(payload)} bytes long, more than the {NUMBER_BYTES_MAX} of a plain number"
        raise UnusableError(message)
    text = payload.strip(b" \t\r\n")
    if not text:
        raise UnusableError(
            "the payload is empty; the messages of this MQTT topic must be plain numbers (connector.topic)"
        )
    if not text.isascii() or not JSON_NUMBER.fullmatch(text.decode("ascii")):
        message = (
            f"the payload is not a number as in JSON: {shown(text)}; the messages of this MQTT topic must be plain "
            "numbers (connector.topic)"
        )
        raise UnusableError(message)
    return number_in(text, "the number")
