"""The database contract on the real server: does it behave as the connector requires?

The same tests run in tests/unit on the stand-in that the connector's unit tests use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from db_connector.sinks.sink import Sink
from tests.integration.db_connector_pipeline import Points, ask_influx, database_at, database_of, points_of
from tests.unit.db_connector.sink_contract import ReplacingSinkContract, Stored, identity_of
from tests.unit.db_connector.test_contract import DatabaseContract

if TYPE_CHECKING:
    from tests.integration.conftest import InfluxdbAccess


class RealStand:
    """The real server for the contract tests."""

    def __init__(self, influxdb: InfluxdbAccess) -> None:
        self._url, self._name = influxdb.url, database_of(influxdb)
        ask_influx(self._url, f"CREATE RETENTION POLICY short ON {self._name} DURATION 1h REPLICATION 1")
        self.measurement = "joined"
        buckets = (influxdb.bucket, f"{self._name}/short", "missing/autogen")
        self._databases = [database_at(self._url, bucket) for bucket in buckets]
        self.database: Sink = self._databases[0]
        self.short_lived: Sink = self._databases[1]
        self.missing: Sink = self._databases[2]

    @property
    def sink(self) -> Sink:
        return self.database

    def stored(self) -> Stored:
        return {identity_of(point): fields for point, fields in self.points().items()}  # type: ignore[misc] # all numbers

    def points(self) -> Points:
        return points_of(self._url, self._name, self.measurement)

    def close(self) -> None:
        for database in self._databases:
            database.close()


class TestTheRealDatabase(DatabaseContract):
    """Runs the contract on a real InfluxDB."""

    @pytest.fixture
    def stand(self, influxdb: InfluxdbAccess) -> Iterator[RealStand]:
        stand = RealStand(influxdb)
        yield stand
        stand.close()


class TestTheSink(ReplacingSinkContract):
    """Runs the contract of all sinks on a real InfluxDB."""

    @pytest.fixture
    def sink_stand(self, influxdb: InfluxdbAccess) -> Iterator[RealStand]:
        stand = RealStand(influxdb)
        yield stand
        stand.close()
