"""Finds the parser that the messages of a topic need, and passes them to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from connector.formats.births import Births
from connector.formats.contents import Context, FormatParser, Found, Levels
from connector.formats.events import UNREADABLE_TOPIC, Parser
from connector.formats.numbers import NumberParser
from connector.formats.raw import RawParser
from connector.formats.senml import SenmlParser
from connector.templates import (
    NumberSettings,
    RawSettings,
    SenmlSettings,
    SparkplugSettings,
    TemplateSettings,
    pattern_of,
)

if TYPE_CHECKING:
    from connector.formats.sparkplug import Command, SparkplugParser


class MessageParser:
    """Parses the messages of all topics: by the first template that matches the topic, else as an event.

    ``elapsed`` returns the time in seconds from any origin.
    """

    def __init__(
        self,
        templates: Sequence[TemplateSettings],
        events: Parser,
        context: Context,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._events = events
        self._sparkplug: list[SparkplugParser] = []
        self._births = Births()
        self._templates = [(pattern_of(one.topic), self._parser_of(one, context, elapsed)) for one in templates]

    def parse(self, topic: str, payload: bytes, *, is_retained: bool) -> Found:
        """Return the contents of a message. Never raises."""
        if topic != UNREADABLE_TOPIC:
            for pattern, parser in self._templates:
                if (match := pattern.fullmatch(topic)) is not None:
                    return parser.parse(Levels(topic, match.groupdict()), payload, is_retained=is_retained)
        return Found((self._events.parse(payload),))

    @property
    def gaps(self) -> int:
        """How many gaps there were in the sequences of nodes of Sparkplug B."""
        return sum(one.gaps for one in self._sparkplug)

    @property
    def rebirths(self) -> int:
        """How often nodes of Sparkplug B were asked for their births."""
        return sum(one.rebirths for one in self._sparkplug)

    def take_commands(self) -> list[Command]:
        """Return the commands to publish since the last call."""
        return [command for one in self._sparkplug for command in one.take_commands()]

    def take_warnings(self) -> list[str]:
        """Return the warnings to log since the last call."""
        return [warning for one in self._sparkplug for warning in one.take_warnings()]

    def _parser_of(self, template: TemplateSettings, context: Context, elapsed: Callable[[], float]) -> FormatParser:
        match template:
            case NumberSettings():
                return NumberParser(template, context)
            case SenmlSettings():
                return SenmlParser(template, context)
            case RawSettings():
                return RawParser(template, context)
            case SparkplugSettings():
                from connector.formats.sparkplug import SparkplugParser  # noqa: PLC0415 - protobuf is an extra

                parser = SparkplugParser(template, context, elapsed, self._births)
                self._sparkplug.append(parser)
                return parser
