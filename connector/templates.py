"""The templates in the settings: which MQTT topics have which format, and the names in their records.

A template is an MQTT topic filter in which ``{name}``, as an entire level, matches any level, like ``+``. The texts of
names, such as ``thing``, use these names and those that the format itself provides.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from broker.settings import Section, TopicName, topic_filter

SPARKPLUG: Final = "spBv1.0"
"""The first level of all topics of Sparkplug B."""

_SPARKPLUG_KINDS: Final = ("NBIRTH/+", "NDATA/+", "NDEATH/+", "DBIRTH/+/+", "DDATA/+/+", "DDEATH/+/+")

_NAME: Final = re.compile(r"\{([a-zA-Z][a-zA-Z0-9_]{0,31})\}")

_SHARED: Final = {"$share", "$queue"}
"""The first level of the filter of a shared subscription; ``$queue`` is EMQX's."""


def _topic_template(text: str) -> str:
    topic_filter(text)
    names = []
    for level in text.split("/"):
        if (name := _NAME.fullmatch(level)) is not None:
            names.append(name[1])
        elif set("{}") & set(level):
            raise ValueError(
                "each {name} must be an entire level of the topic, and a name must be 1 to 32 letters, digits or '_', "
                "the first a letter"
            )
    if len(names) > len(set(names)):
        raise ValueError("no {name} may occur more than once")
    if is_shared(text):
        raise ValueError("must not be a shared subscription")
    return text


def _name_template(text: str) -> str:
    names = _NAME.findall(text)
    if set("{}") & set(_NAME.sub("", text)) or len(names) > len(set(names)):
        raise ValueError("must consist of text and names of the topic, such as {thing}, each at most once")
    return text


TopicTemplate = Annotated[str, AfterValidator(_topic_template)]
"""An MQTT topic filter in which ``{name}``, as an entire level, matches any level, like ``+``."""

NameTemplate = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_name_template)]
"""The text of a name, in which each ``{name}`` stands for a level of the MQTT topic. It is so short that a record is
not much larger than the topic that it comes from."""


class _Template(Section):
    """What the templates of all formats have in common."""

    provided: ClassVar[tuple[str, ...]] = ()
    """The names that come from the message instead of the topic."""

    names: ClassVar[tuple[str, ...]] = ("thing", "quantity")
    """The settings whose texts contain names."""

    format: str
    """The format of the messages."""

    topic: TopicTemplate
    """Their topics."""

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        levels = self.topic.split("/")
        for name in self.provided:
            if f"{{{name}}}" in levels:
                message = f"topic is {self.topic!r}, but {{{name}}} comes from the message: use another name"
                raise ValueError(message)
        also = "".join(f", nor {{{name}}}" for name in self.provided)
        for setting in self.names:
            text: str = getattr(self, setting)
            for name in _NAME.findall(text):
                if name not in self.provided and f"{{{name}}}" not in levels:
                    message = f"{setting} is {text!r}, but {{{name}}} is not a level of the topic {self.topic!r}{also}"
                    raise ValueError(message)
        return self

    @property
    def filter(self) -> str:
        """The MQTT topic filter, with ``+`` in place of each name."""
        return "/".join("+" if level.startswith("{") else level for level in self.topic.split("/"))


class NumberSettings(_Template):
    """``format = "number"``: each message is a plain number."""

    format: Literal["number"]

    thing: NameTemplate = "{thing}"
    """The thing; each ``{name}`` stands for that level of the topic."""

    quantity: NameTemplate = "{quantity}"
    """The quantity, as for ``thing``."""


class SenmlSettings(_Template):
    """``format = "senml"``: each message is a SenML pack in JSON (RFC 8428)."""

    provided: ClassVar[tuple[str, ...]] = ("bn", "n", "name")

    format: Literal["senml"]

    thing: NameTemplate = "{bn}"
    """The thing: text with levels of the topic, the name ``{name}`` of the measurement, its part ``{bn}`` up to the
    last ``:`` or ``/``, and the rest ``{n}``."""

    quantity: NameTemplate = "{n}"
    """The quantity, as for ``thing``."""


class SparkplugSettings(_Template):
    """``format = "sparkplug"``: the messages are those of Sparkplug B."""

    provided: ClassVar[tuple[str, ...]] = ("group", "node", "device", "metric")

    format: Literal["sparkplug"]

    topic: TopicTemplate = f"{SPARKPLUG}/#"
    """The topics of the messages, which must be in the namespace ``spBv1.0``."""

    thing: NameTemplate = "{group}/{node}/{device}"
    """The thing. For the metrics of a node itself, ``/{device}`` is left out."""

    quantity: NameTemplate = "{metric}"
    """The quantity, as for ``thing``."""

    rebirth: bool = True
    """Whether to ask a node for its births if they are not known, or if messages are missing."""

    @model_validator(mode="after")
    def _matches_messages_of_nodes(self) -> Self:
        if self.topic.split("/", 1)[0] != SPARKPLUG:
            message = f"topic is {self.topic!r}, but the topics of Sparkplug B begin with {SPARKPLUG}/"
            raise ValueError(message)
        if not any(overlap(self.filter, f"{SPARKPLUG}/+/{kind}") for kind in _SPARKPLUG_KINDS):
            message = f"topic is {self.topic!r}, which matches no messages of nodes or devices, such as {SPARKPLUG}/#"
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _device_can_be_left_out(self) -> Self:
        for setting in self.names:
            text: str = getattr(self, setting)
            if "{device}" in text and "{device}" not in text.split("/")[1:]:
                message = (
                    f"{setting} is {text!r}, but {{device}} must have a / before it, and a / or nothing behind it: for "
                    "the metrics of a node itself, /{device} is left out"
                )
                raise ValueError(message)
        return self

    @property
    def births(self) -> list[str]:
        """Filters of the births that the template's messages refer to, and of those that must precede these births."""
        levels = self.filter.removesuffix("/#").split("/")
        group, _, node, device = [*levels[1:], "+", "+", "+", "+"][:4]
        needed = [f"{SPARKPLUG}/{group}/NBIRTH/{node}"]
        if overlap(self.filter, f"{SPARKPLUG}/+/DDATA/+/+"):
            needed.append(f"{SPARKPLUG}/{group}/DBIRTH/{node}/{device}")
        return needed


class RawSettings(_Template):
    """``format = "raw"``: the messages are forwarded unchanged to a topic of their own, for a ``[[stream]]``."""

    names: ClassVar[tuple[str, ...]] = ("key",)

    format: Literal["raw"]

    kafka_topic: TopicName
    """The Kafka topic."""

    key: NameTemplate
    """The key of the messages in Kafka: text with levels of the MQTT topic."""


def _format_of(given: Any) -> str:
    found = given.get("format") if isinstance(given, dict) else getattr(given, "format", None)
    return found if isinstance(found, str) else ""


TemplateSettings = Annotated[
    Annotated[NumberSettings, Tag("number")]
    | Annotated[SenmlSettings, Tag("senml")]
    | Annotated[SparkplugSettings, Tag("sparkplug")]
    | Annotated[RawSettings, Tag("raw")],
    Discriminator(
        _format_of,
        custom_error_type="format",
        custom_error_message="must be a table with format = 'number', 'senml', 'sparkplug' or 'raw'",
    ),
]
"""A ``[[connector.topic]]``: MQTT topics, and the format of their messages."""


def pattern_of(template: str) -> re.Pattern[str]:
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


def is_shared(text: str) -> bool:
    """Return whether a subscription to a topic filter is shared: the broker divides its messages among the clients."""
    return text.split("/", 1)[0] in _SHARED


def _are_apart(one: list[str], other: list[str]) -> bool:
    """Return whether one filter begins with a wildcard, and so does not match the broker's own topics of the other."""
    return any(left[0] in {"+", "#"} and right[0].startswith("$") for left, right in ((one, other), (other, one)))


def overlap(one: str, other: str) -> bool:
    """Return whether some topic matches both filters, which are not shared."""
    left, right = one.split("/"), other.split("/")
    if _are_apart(left, right):
        return False
    for a, b in zip_longest(left, right):
        if "#" in {a, b}:
            return True
        if a is None or b is None or (a != b and "+" not in {a, b}):
            return False
    return True


def covers(wide: str, narrow: str) -> bool:
    """Return whether a subscription to ``wide`` delivers all that one to ``narrow`` does. Neither is shared."""
    left, right = wide.split("/"), narrow.split("/")
    if _are_apart(left, right):
        return False
    for a, b in zip_longest(left, right):
        if a == "#":
            return True
        if a is None or b is None or (a != b and (a != "+" or b == "#")):
            return False
    return True
