"""The connector's settings: its own section, and the shared sections that it uses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations, zip_longest
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from broker.settings import (
    Duration,
    EventSettings,
    KafkaSettings,
    MetricsSettings,
    MqttSettings,
    Section,
    ServiceSettings,
    TopicSettings,
    duration_between,
    topic_filter,
)
from broker.times import parse_duration

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
    if _is_shared(text):
        raise ValueError("must not be a shared subscription")
    return text


def _name_template(text: str) -> str:
    names = _NAME.findall(text)
    if set("{}") & set(_NAME.sub("", text)) or len(names) > len(set(names)):
        raise ValueError("must consist of text and names of the topic, such as {thing}, each at most once")
    return text


NameTemplate = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_name_template)]
"""The text of a name, in which each ``{name}`` stands for a level of the MQTT topic. It is so short that a record is
not much larger than the topic that it comes from."""


class NumberSettings(Section):
    """A ``[[connector.number]]``: MQTT topics whose messages are plain numbers, and the names in their records."""

    topic: Annotated[str, AfterValidator(_topic_template)]
    """An MQTT topic filter in which ``{name}``, as an entire level, matches any level, like ``+``."""

    thing: NameTemplate = "{thing}"
    """The thing; each ``{name}`` stands for that level of the topic."""

    quantity: NameTemplate = "{quantity}"
    """The quantity, as for ``thing``."""

    @model_validator(mode="after")
    def _names_are_levels(self) -> Self:
        levels = self.topic.split("/")
        for setting, text in (("thing", self.thing), ("quantity", self.quantity)):
            for name in _NAME.findall(text):
                if f"{{{name}}}" not in levels:
                    message = f"{setting} is {text!r}, but {{{name}}} is not a level of the topic {self.topic!r}"
                    raise ValueError(message)
        return self

    @property
    def filter(self) -> str:
        """The MQTT topic filter, with ``+`` in place of each name."""
        return "/".join("+" if level.startswith("{") else level for level in self.topic.split("/"))


class ConnectorSettings(Section):
    """``[connector]``: from MQTT to Kafka."""

    renamed: ClassVar[Mapping[str, str | None]] = {"connector.ahead_max": "connector.max_future_skew"}

    client_id: str = Field(default="lsb-connector", pattern=r"^[0-9A-Za-z._-]{1,128}$")
    """The client id, which identifies the MQTT session: 1 to 128 letters, digits, ``.``, ``_`` or ``-``. It must stay
    the same across restarts, because the session keeps the unacknowledged messages. Only one connector may use it at a
    time."""

    keep_alive: Annotated[Duration, duration_between("1s", "65535s")] = parse_duration("30s")
    """Interval between keep-alives on a quiet connection, rounded down to whole seconds: 1 s to 18 h, default 30 s. If
    a connection is dead, the broker notices after one and a half intervals, and the connector after at most two."""

    in_flight_max: int = Field(default=5_000, ge=1, le=65_535)
    """Maximum number of messages in flight (received but not acknowledged): 1 to 65,535, default 5,000. At the limit
    the connector stops reading. The limit also bounds how many messages are redelivered after a crash. It must be at
    least the message rate times the time that Kafka takes to confirm a record (such as 10,000/s * 0.1 s = 1,000)."""

    in_flight_bytes_max: int = Field(default=64 * 1024 * 1024, ge=1024 * 1024, le=4 * 1024**3)
    """Maximum memory for messages in flight, counted as the size of their records plus 1 KiB per record: 1 MiB to 4
    GiB, default 64 MiB. At the limit the connector stops reading."""

    linger: Annotated[Duration, duration_between("0s", "1s")] = parse_duration("10ms")
    """How long a record waits for others to share its Kafka batch: 0 to 1 s, default 10 ms. A longer wait means larger
    batches and higher latency."""

    compression: Literal["none", "lz4", "zstd", "snappy", "gzip"] = "lz4"
    """Compression of Kafka batches, default lz4, which compresses JSON records well and uses little CPU time."""

    idle_after: Annotated[Duration, duration_between("100ms", "366d")] | None = None
    """How long a quantity may be silent, while its thing keeps sending, before the connector writes a watermark for it
    so that joins do not wait: 0.1 s to 366 d, default none (no watermarks). It must exceed the longest normal pause or
    delay of any quantity, because records below a watermark are late. Only one connector may write watermarks for a
    thing."""

    max_future_skew: Duration = parse_duration("1d")
    """Event times that are further ahead of the connector's clock than this do not advance a watermark; default 1 d,
    like the joiner's ``application.max_future_skew``. Otherwise a single record from the year 2200 would make every
    later record late."""

    number: Annotated[list[NumberSettings], Field(max_length=100)] = Field(default_factory=list)
    """The topics whose messages are plain numbers, at most 100 templates. The first one that matches is used."""


def subscriptions(topic: str, numbers: Sequence[NumberSettings]) -> tuple[list[str], list[str]]:
    """Return the filters to subscribe to, and those to unsubscribe from because another filter covers them.

    A broker may deliver a message once for each matching subscription. Since no two of the filters to subscribe to
    overlap (`Settings` refuses all other overlaps), each message is delivered once. A session may still have
    subscriptions to the covered filters, from before the wider filter was added.
    """
    filters = list(dict.fromkeys([topic, *(one.filter for one in numbers)]))
    covered = [one for one in filters if any(other != one and _covers(other, one) for other in filters)]
    return [one for one in filters if one not in covered], covered


class Settings(ServiceSettings):
    """All settings of the connector."""

    kafka: KafkaSettings = KafkaSettings.model_validate({})
    mqtt: MqttSettings = MqttSettings.model_validate({})
    topics: TopicSettings = TopicSettings.model_validate({})
    events: EventSettings = EventSettings.model_validate({})
    metrics: MetricsSettings = MetricsSettings.model_validate({})
    connector: ConnectorSettings = ConnectorSettings.model_validate({})

    @model_validator(mode="after")
    def _each_message_arrives_once(self) -> Self:
        if self.connector.number and _is_shared(self.mqtt.topic):
            raise ValueError(
                "connector.number cannot be used while mqtt.topic is a shared subscription, because each of several "
                "connectors would receive every number: set mqtt.topic to a topic filter without $share or $queue"
            )
        numbers = [(f"connector.number.{place}.topic", one.filter) for place, one in enumerate(self.connector.number)]
        for (before, earlier), (name, later) in combinations(numbers, 2):
            if _covers(earlier, later):
                message = (
                    f"{name} never applies, because {before} matches the same topics: move it before that, or remove it"
                )
                raise ValueError(message)
        names = {one: name for name, one in reversed([("mqtt.topic", self.mqtt.topic), *numbers])}
        subscribed, _ = subscriptions(self.mqtt.topic, self.connector.number)
        for one, other in combinations(subscribed, 2):
            if _overlap(one, other):
                message = (
                    f"{names[one]} and {names[other]} overlap, so the MQTT broker could deliver a message twice: "
                    "change them so that no topic matches both, or so that one of them matches all topics of the other"
                )
                raise ValueError(message)
        return self

    def needs_arrow(self) -> str | None:
        """See `ServiceSettings.needs_arrow`."""
        return "topics.data_format" if self.topics.has_rows else None


def _is_shared(text: str) -> bool:
    """Return whether a subscription to a topic filter is shared: the broker divides its messages among the clients."""
    return text.split("/", 1)[0] in _SHARED


def _are_apart(one: list[str], other: list[str]) -> bool:
    """Return whether one filter begins with a wildcard, and so does not match the broker's own topics of the other."""
    return any(left[0] in {"+", "#"} and right[0].startswith("$") for left, right in ((one, other), (other, one)))


def _overlap(one: str, other: str) -> bool:
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


def _covers(wide: str, narrow: str) -> bool:
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
