"""The database connector's settings: its own section, and the sections that it shares with other services."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from broker.settings import (
    Duration,
    EventSettings,
    InfluxdbSettings,
    KafkaSettings,
    MetricsSettings,
    Section,
    ServiceSettings,
    TopicSettings,
    duration_between,
    plain_name,
)
from broker.times import parse_duration


class ConnectorSettings(Section):
    """``[db_connector]``: how results become points."""

    group: Annotated[str, plain_name(200)] = "db_connector"
    """Kafka consumer group. Its offsets record what the database has acknowledged. Processes in the same group share
    the partitions; a new group writes all results again. Defaults to the service's name, which makes it easy to find in
    Kafka's tools."""

    instance: Annotated[str, plain_name(200, may_be_empty=True)] = ""
    """Name of this process in the group (``group.instance.id``), unique in the group. A named process that is killed
    and restarted gets its partitions back immediately. Default: none; a new process must then wait until the killed
    process's session times out. A process that stops cleanly releases its partitions immediately."""

    session_timeout: Annotated[Duration, duration_between("6s", "30min")] = parse_duration("10s")
    """How long Kafka waits for a heartbeat before it reassigns a process's partitions, 6 s to 30 min (Kafka's own
    bounds). If a named process is down for longer, other processes take over its partitions until it is back."""

    measurement: str = Field(default="joined", pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,99}$")
    """The measurement of all points: at most 100 letters, digits and ``_.-``, starting with a letter or digit. Such
    a name never needs escaping in queries."""

    batch_records: int = Field(default=5_000, ge=1, le=100_000)
    """Maximum number of records in one write. InfluxDB recommends about 5,000 points. Larger batches gain little, and
    make replays and the search for a rejected point slower."""

    linger: Annotated[Duration, duration_between("1ms", "1s")] = parse_duration("50ms")
    """How long a record may wait for more records to share its write, 1 ms to 1 s. At low rates, a longer wait saves
    requests but adds latency. At high rates, batches fill up before the wait is over."""

    gzip: bool = False
    """Whether to compress requests, to about an eighth of their size. A point then costs 7 us of CPU time instead of
    0.3 us, so compression only pays off on links slower than about 100 Mbit/s."""

    request_timeout: Annotated[Duration, duration_between("100ms", "5min")] = parse_duration("10s")
    """Timeout for one request, 100 ms to 5 min. A request that times out counts as failed and is retried. InfluxDB
    itself aborts a write after 10 s."""

    backoff_min: Annotated[Duration, duration_between("10ms", "1min")] = parse_duration("200ms")
    """Wait before the first retry of a failed write, 10 ms to 1 min. The wait doubles with each further failure, up to
    ``backoff_max``."""

    backoff_max: Annotated[Duration, duration_between("10ms", "10min")] = parse_duration("10s")
    """Longest wait between two attempts, 10 ms to 10 min, unless the database requests a longer one. After an outage,
    it may take this long before points are written again."""


class DbConnectorSettings(ServiceSettings):
    """All settings of the database connector."""

    kafka: KafkaSettings = KafkaSettings()
    influxdb: InfluxdbSettings = InfluxdbSettings()
    topics: TopicSettings = TopicSettings.model_validate({})
    events: EventSettings = EventSettings.model_validate({})
    metrics: MetricsSettings = MetricsSettings.model_validate({})
    db_connector: ConnectorSettings = ConnectorSettings()
