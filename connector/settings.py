"""The connector's settings: its own section, and the shared sections that it uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

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


class Settings(ServiceSettings):
    """All settings of the connector."""

    kafka: KafkaSettings = KafkaSettings.model_validate({})
    mqtt: MqttSettings = MqttSettings.model_validate({})
    topics: TopicSettings = TopicSettings.model_validate({})
    events: EventSettings = EventSettings.model_validate({})
    metrics: MetricsSettings = MetricsSettings.model_validate({})
    connector: ConnectorSettings = ConnectorSettings.model_validate({})

    def needs_arrow(self) -> str | None:
        """See `ServiceSettings.needs_arrow`."""
        return "topics.data_format" if self.topics.has_rows else None
