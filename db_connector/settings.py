"""The database connector's settings: its own section, and the sections that it shares with other services."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

from pydantic import AfterValidator, Field, SecretStr

from broker.kafka.replicas import merged_topic
from broker.settings import (
    PORT_MAX,
    CertificateFile,
    Duration,
    EventSettings,
    InfluxdbSettings,
    KafkaSettings,
    MetricsSettings,
    SecretFile,
    Section,
    ServiceSettings,
    TopicSettings,
    duration_between,
    plain_name,
    read_secret,
)
from broker.times import parse_duration

SinkName = Literal["influxdb", "postgresql", "delta", "stdout"]
SINKS: Final[tuple[str, ...]] = get_args(SinkName)


_PATH_LENGTH_MAX: Final = 1_000
"""The path is committed with each offset, for which Kafka allows 4 kB."""


class PostgresqlSettings(Section):
    """``[postgresql]``: the connection to PostgreSQL, and the table for the results."""

    host: str = Field(default="127.0.0.1", pattern=r"^[^\s,/@?#'\\]+$")
    port: int = Field(default=5432, ge=1, le=PORT_MAX)
    database: str = Field(default="lsb", min_length=1, max_length=63)
    username: str = Field(default="lsb", min_length=1, max_length=63)
    password: SecretStr | None = None
    password_file: SecretFile = None
    tls_ca_file: CertificateFile = None
    """Trusted certificates. If set, the server's certificate and its host name are verified."""

    table: str = Field(default="public.joined", pattern=r"^[a-z_][a-z0-9_]{0,62}\.[a-z_][a-z0-9_]{0,62}$")
    """``schema.table``: lower-case letters, digits and ``_``, at most 63 characters each. Without a schema, the table
    would depend on the search path of the user."""

    def secret(self) -> str | None:
        """Return the password, or None if none is set. A password file takes precedence over ``password``."""
        if self.password_file is not None:
            return read_secret(self.password_file)
        return self.password.get_secret_value() if self.password else None


def _table_path(path: str) -> str:
    if "://" not in path:
        return str(Path(path).absolute())
    if re.search(r"[@?#\s]", path):
        raise ValueError(
            "must be a plain URI, without a user, a password or parameters, which belong in the environment"
        )
    return path


class DeltaSettings(Section):
    """``[delta]``: the Delta Lake table for the results."""

    path: Annotated[str, AfterValidator(_table_path)] = Field(
        default="joined.delta", min_length=1, max_length=_PATH_LENGTH_MAX, validate_default=True
    )
    """A folder, or a URI of an object store. Its credentials come from the environment, as the library documents."""


class ConnectorSettings(Section):
    """``[db_connector]``: where results go, and how they are written."""

    sink: SinkName = "influxdb"
    """Where results go: InfluxDB (``[influxdb]``), PostgreSQL (``[postgresql]``), a Delta Lake table (``[delta]``), or
    standard output."""

    group: Annotated[str, plain_name(200)] = "db_connector"
    """Kafka consumer group. Its offsets record what the database has acknowledged. Processes in the same group share
    the partitions; a new group writes all results again. Defaults to the service's name, which makes it easy to find in
    Kafka's tools."""

    instance: Annotated[str, plain_name(200, may_be_empty=True)] = ""
    """Name of this process in the group (``group.instance.id``), unique in the group. A named process that is killed
    and restarted gets its partitions back immediately. Default: none; a new process must then wait until the killed
    process's session times out. A process that stops cleanly releases its partitions immediately."""

    merged: bool = False
    """Whether to read what ``joiner merge`` writes, each result of the application's replicas once, instead of the
    results of replica 0."""

    session_timeout: Annotated[Duration, duration_between("6s", "30min")] = parse_duration("10s")
    """How long Kafka waits for a heartbeat before it reassigns a process's partitions, 6 s to 30 min (Kafka's own
    bounds). If a named process is down for longer, other processes take over its partitions until it is back."""

    measurement: str = Field(default="joined", pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,99}$")
    """InfluxDB: the measurement of all points, at most 100 letters, digits and ``_.-``, the first a letter or digit.
    Such a name never needs escaping in queries."""

    batch_records: int = Field(default=5_000, ge=1, le=100_000)
    """Maximum number of results in one write. InfluxDB recommends about 5,000 points. Larger batches gain little, and
    make replays and the search for a rejected point slower."""

    linger: Annotated[Duration, duration_between("1ms", "15s")] = parse_duration("50ms")
    """How long a record may wait for more records to share its write, 1 ms to 15 s. At low rates, a longer wait saves
    requests but adds latency. At high rates, batches fill up before the wait is over."""

    gzip: bool = False
    """InfluxDB: whether to compress requests, to about an eighth of their size. A point then costs 7 us of CPU time
    instead of 0.3 us, so compression only pays off on links slower than about 100 Mbit/s."""

    request_timeout: Annotated[Duration, duration_between("100ms", "5min")] = parse_duration("10s")
    """Timeout for one request, 100 ms to 5 min. A request that times out counts as failed and is retried. InfluxDB
    itself aborts a write after 10 s."""

    backoff_min: Annotated[Duration, duration_between("10ms", "1min")] = parse_duration("200ms")
    """Wait before the first retry of a failed write, 10 ms to 1 min. The wait doubles with each further failure, up to
    ``backoff_max``."""

    backoff_max: Annotated[Duration, duration_between("10ms", "10min")] = parse_duration("10s")
    """Longest wait between two attempts, 10 ms to 10 min, unless the database requests a longer one. After an outage,
    it may take this long before results are written again."""


class DbConnectorSettings(ServiceSettings):
    """All settings of the database connector."""

    kafka: KafkaSettings = KafkaSettings()
    influxdb: InfluxdbSettings = InfluxdbSettings()
    postgresql: PostgresqlSettings = PostgresqlSettings()
    delta: DeltaSettings = DeltaSettings()
    topics: TopicSettings = TopicSettings.model_validate({})
    events: EventSettings = EventSettings.model_validate({})
    metrics: MetricsSettings = MetricsSettings.model_validate({})
    db_connector: ConnectorSettings = ConnectorSettings()

    @property
    def results_topic(self) -> str:
        """The topic to read."""
        return merged_topic(self.topics.out) if self.db_connector.merged else self.topics.out
