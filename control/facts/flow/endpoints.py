"""What is upstream and downstream of an application, according to its settings file. The service observes neither.

Contains only what every user may see: addresses and names, but no user names, passwords or tokens.
"""

from __future__ import annotations

from typing import Final

import msgspec

from broker.kafka.replicas import merged_topic

INFLUXDB: Final = "InfluxDB"
POSTGRESQL: Final = "PostgreSQL"
DELTA: Final = "Delta Lake"
STDOUT: Final = "standard output"


class Source(msgspec.Struct, frozen=True):
    """The MQTT broker and the connector that reads from it.

    ``broker``: host and port. ``topic``: the topic filter of the events. ``client``: the connector's client id.
    """

    broker: str
    topic: str
    client: str


class Sink(msgspec.Struct, frozen=True):
    """The database connector and the database that it writes to.

    ``group``: its consumer group. ``url``: the database's address, without a path. ``database``: organisation and
    bucket of InfluxDB, or a database of PostgreSQL. ``measurement``: a measurement or a table. ``kind``: one of
    `INFLUXDB`, `POSTGRESQL`, `DELTA`, which has only a path as its database, and `STDOUT`, which has none of these.
    ``is_merged``: whether it reads the merged results of replicas.
    """

    group: str
    url: str = ""
    database: str = ""
    measurement: str = ""
    kind: str = INFLUXDB
    is_merged: bool = False

    def results_topic(self, topic: str) -> str:
        """Return the topic that it reads. ``topic``: the results of replica 0."""
        return merged_topic(topic) if self.is_merged else topic


class Endpoints(msgspec.Struct, frozen=True):
    """The endpoints that the settings file names. Each is None if the file has no section for it."""

    source: Source | None = None
    sink: Sink | None = None

    @property
    def has_merged(self) -> bool:
        """Whether the database connector reads the merged results of replicas."""
        return self.sink is not None and self.sink.is_merged


def place_of(sink: Sink) -> str:
    """Describe where results go, as the connector does in the metadata of its offsets."""
    if sink.kind == STDOUT:
        return "standard output"
    if sink.kind == DELTA:
        return f"table at {sink.database}"
    if sink.kind == POSTGRESQL:
        return f"table {sink.measurement} in {sink.database}"
    return f"{sink.measurement} in {sink.database}"


def target_of(sink: Sink) -> str:
    """Return the prefix of the metadata that the connector commits with its offsets for this database."""
    # The form of points or rows follows.
    return f"db_connector: {place_of(sink)}{'' if sink.kind == STDOUT else ', '}"
