"""Finds the parser that the messages of a topic need, and passes them to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from connector.formats.births import Births, Command
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


class MessageParser:
    """Parses the messages of all topics: by the first template that matches the topic, else as an event.

    ``elapsed`` returns the time in seconds from any origin. ``rebirths`` counts the commands that were published: how
    often nodes of Sparkplug B were asked for their births.
    """

    def __init__(
        self,
        templates: Sequence[TemplateSettings],
        events: Parser,
        context: Context,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rebirths = 0
        self._events = events
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
        return self._births.gaps

    def take_commands(self) -> list[Command]:
        """Return the commands to publish since the last call."""
        commands, self._births.commands = self._births.commands, []
        return commands

    def take_warnings(self) -> list[str]:
        """Return the warnings to log since the last call."""
        warnings, self._births.warnings = self._births.warnings, []
        return warnings

    def lose_connection(self) -> None:
        """Note that messages may be missing, and commands lost, because the connection was lost."""
        self._births.lose_connection()

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

                return SparkplugParser(template, context, elapsed, self._births)
