"""The settings of the database connector: the shared sections it reads, and its own."""

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
    """``[db_connector]``: how results become points, and how eagerly."""

    group: Annotated[str, plain_name(200)] = "db_connector"
    """Kafka consumer group, whose offsets tell what the database has acknowledged. Instances of one group
    share the partitions; another group writes everything again. Default: the service's name, which tools
    show."""

    instance: Annotated[str, plain_name(200, may_be_empty=True)] = ""
    """Name of this process in the group, its own for each (``group.instance.id``): one that was killed and
    comes back under its name takes its partitions up at once. Default: none, and a new process waits for the
    ``session_timeout`` of a killed one; a process that ends properly hands its partitions over at once."""

    session_timeout: Annotated[Duration, duration_between("6s", "30min")] = parse_duration("10s")
    """After how long without a sign of life Kafka gives a process's partitions to others, 6 s to 30 min
    (Kafka's own bounds). A named process that is down longer loses them until it is back."""

    measurement: str = Field(default="joined", pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,99}$")
    """The measurement of all points: letters, digits, ``_.-`` only, so that no query must quote twice."""

    batch_records: int = Field(default=5_000, ge=1, le=100_000)
    """Most records in one write. The database asks for about 5,000 points; larger ones gain little and make
    the search for a refused point and a replay longer."""

    linger: Annotated[Duration, duration_between("1ms", "1s")] = parse_duration("50ms")
    """How long a record may wait for others to share its write, 1 ms to 1 s. A larger one spares the
    database requests at low rates, at high rates a batch is full before; it adds to the latency as it is."""

    gzip: bool = False
    """Compress what is sent, to an eighth. Costs 7 us a point against 0.3 us of sending it as it is: only
    for a link slower than about 100 Mbit/s."""

    request_timeout: Annotated[Duration, duration_between("100ms", "5min")] = parse_duration("10s")
    """How long one request may take, 100 ms to 5 min, before it counts as failed and is sent again.
    InfluxDB gives a write up itself after 10 s."""

    backoff_min: Annotated[Duration, duration_between("10ms", "1min")] = parse_duration("200ms")
    """First wait after a failed write, 10 ms to 1 min; doubled by each further failure."""

    backoff_max: Annotated[Duration, duration_between("10ms", "10min")] = parse_duration("10s")
    """Longest wait between two attempts, 10 ms to 10 min (the database may ask for a longer one): how long
    after the database's return the points still may be missing."""


class DbConnectorSettings(ServiceSettings):
    """All that the database connector reads from ``lsb.toml``."""

    kafka: KafkaSettings = KafkaSettings()
    influxdb: InfluxdbSettings = InfluxdbSettings()
    topics: TopicSettings = TopicSettings.model_validate({})
    events: EventSettings = EventSettings.model_validate({})
    metrics: MetricsSettings = MetricsSettings.model_validate({})
    db_connector: ConnectorSettings = ConnectorSettings()
