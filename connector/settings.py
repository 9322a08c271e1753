"""The connector's settings: its own section, and the shared sections that it uses. `templates` has the formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, takewhile
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

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
)
from broker.times import parse_duration
from connector.templates import SPARKPLUG, RawSettings, SparkplugSettings, TemplateSettings, covers, is_shared, overlap


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

    topic: Annotated[list[TemplateSettings], Field(max_length=100)] = Field(default_factory=list)
    """The topics whose messages are not events, at most 100 templates. The first one that matches is used."""


def subscriptions(topic: str, templates: Sequence[TemplateSettings]) -> tuple[list[str], list[str]]:
    """Return the filters to subscribe to, and those to unsubscribe from because another filter covers them.

    A broker may deliver a message once for each matching subscription. Since no two of the filters to subscribe to
    overlap (`Settings` refuses all other overlaps), each message is delivered once. A session may still have
    subscriptions to the covered filters, from before the wider filter was added.
    """
    filters = list(dict.fromkeys([topic, *(one.filter for one in templates)]))
    covered = [one for one in filters if any(other != one and covers(other, one) for other in filters)]
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
        templates = self.connector.topic
        if templates and is_shared(self.mqtt.topic):
            raise ValueError(
                "connector.topic cannot be used while mqtt.topic is a shared subscription, because each of several "
                "connectors would receive every message: set mqtt.topic to a topic filter without $share or $queue"
            )
        named = [(f"connector.topic.{place}.topic", one.filter) for place, one in enumerate(templates)]
        for (before, earlier), (name, later) in combinations(named, 2):
            if covers(earlier, later):
                message = (
                    f"{name} never applies, because {before} matches the same topics: move it before that, or remove it"
                )
                raise ValueError(message)
        names = {one: name for name, one in reversed([("mqtt.topic", self.mqtt.topic), *named])}
        subscribed, _ = subscriptions(self.mqtt.topic, templates)
        for one, other in combinations(subscribed, 2):
            if overlap(one, other):
                message = (
                    f"{names[one]} and {names[other]} overlap, so the MQTT broker could deliver a message twice: "
                    "change them so that no topic matches both, or so that one of them matches all topics of the other"
                )
                raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _births_are_read(self) -> Self:
        templates = self.connector.topic
        for place, one in enumerate(templates):
            for births in one.births if isinstance(one, SparkplugSettings) else []:
                matching = [other for other in templates if overlap(other.filter, births)]
                read = list(takewhile(lambda other: isinstance(other, SparkplugSettings), matching))
                if not any(covers(other.filter, births) for other in read):
                    message = (
                        f"connector.topic.{place}.topic is {one.topic!r}, but no template with format = 'sparkplug' "
                        f"matches all births that its messages need: {births}; the usual topic is {SPARKPLUG}/#"
                    )
                    raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _raw_messages_have_topics_of_their_own(self) -> Self:
        own = {name: getattr(self.topics, name) for name in ("data", "out", "late", "rejected", "unmatched")}
        for place, one in enumerate(self.connector.topic):
            if isinstance(one, RawSettings) and one.kafka_topic in own.values():
                (name, *_) = [name for name, topic in own.items() if topic == one.kafka_topic]
                message = f"connector.topic.{place}.kafka_topic must be another topic than topics.{name}"
                raise ValueError(message)
        return self

    def needs_extras(self) -> dict[str, str]:
        """See `ServiceSettings.needs_extras`."""
        return {"arrow": "topics.data_format"} if self.topics.has_rows else {}
