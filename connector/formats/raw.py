"""Forwards the payloads of MQTT topics unchanged, with a key from the levels of the topic.

A `[[stream]]` of the joiner reads them from their Kafka topic. Retained messages are skipped, like retained numbers.
So are empty ones: there is nothing to read, and MQTT uses them to delete retained messages.
"""

from __future__ import annotations

from typing import Final

from connector.formats.contents import EMPTY, RETAINED, Context, Copy, Found, Levels, refused
from connector.formats.events import UnusableError, measured
from connector.templates import RawSettings

COPY_BYTES_MAX: Final = 900_000
"""The maximum size in bytes of a payload to forward, whatever `events.event_bytes_max` is. With its key and its MQTT
topic, it stays below the limit of the Kafka client, which by default is 1,000,000 bytes."""


class RawParser:
    """Says where the messages of a template go."""

    def __init__(self, template: RawSettings, context: Context) -> None:
        self._template = template
        self._context = context

    def parse(self, levels: Levels, payload: bytes, *, is_retained: bool) -> Found:
        """Return the copy to forward, or a refusal. Never raises."""
        if is_retained:
            return Found(skipped={RETAINED: 1})
        if not payload:
            return Found(skipped={EMPTY: 1})
        try:
            key = measured(self._template.key.format_map(levels.named), "the key in the MQTT topic")
            self._context.check_length(payload)
            if len(payload) > COPY_BYTES_MAX:
                message = f"the payload is {len(payload)} bytes long, more than the {COPY_BYTES_MAX} that Kafka accepts"
                raise UnusableError(message)
        except UnusableError as error:
            return Found((refused(levels.topic, payload, str(error)),))
        return Found(copies=[Copy(self._template.kafka_topic, key, payload)])
