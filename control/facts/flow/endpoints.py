"""What is before and behind an application according to its settings file. The service sees neither of them.

Only what may be shown to every user: addresses and names, no user names, passwords or tokens.
"""

from __future__ import annotations

import msgspec


class Source(msgspec.Struct, frozen=True):
    """The MQTT broker and the connector that reads from it.

    ``broker``: host and port. ``topic``: the topic filter of the events. ``client``: the connector's client id.
    """

    broker: str
    topic: str
    client: str


class Sink(msgspec.Struct, frozen=True):
    """The database connector and the database that it writes to.

    ``group``: its consumer group. ``url``: of the database, without a path. ``database``: organisation and bucket.
    """

    group: str
    url: str
    database: str
    measurement: str


class Endpoints(msgspec.Struct, frozen=True):
    """What the settings file names. None: it has no section about that."""

    source: Source | None = None
    sink: Sink | None = None


def target_of(sink: Sink) -> str:
    """Return how the metadata of an offset begins that the connector has committed for this database."""
    return f"db_connector: {sink.measurement} in {sink.database}, "
