"""Results in a Delta Lake table, from real Kafka, although the connector is killed at any moment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker.wire.records import AlignedRow, encode
from tests.integration.db_connector_pipeline import Pipeline, db_connector_pipeline, pairs_of, values_of
from tests.long import rest_long
from tests.unit.db_connector.sink_contract import Identity, expected
from tests.unit.db_connector.test_delta import stored_in

if TYPE_CHECKING:
    from tests.integration.conftest import InfluxdbAccess


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "joined"


@pytest.fixture
def pipeline(kafka: str, influxdb: InfluxdbAccess, tmp_path: Path, table: Path) -> Iterator[Pipeline]:
    for pipeline in db_connector_pipeline(kafka, influxdb, tmp_path):
        pipeline.environment = {"LSB_DB_CONNECTOR__SINK": "delta", "LSB_DELTA__PATH": str(table)}
        yield pipeline


@pytest.mark.parametrize("seed", rest_long(21, 22))
def test_kills_at_any_moment_lose_and_duplicate_nothing(pipeline: Pipeline, table: Path, seed: int) -> None:
    pairs = pairs_of(12_000, seed)
    pipeline.write_with_kills(values_of(pairs), seed)
    assert stored_in(table) == dict(expected(pair, twice_ns) for pair, twice_ns in pairs)


def test_a_new_group_reads_everything_again_and_stores_nothing_twice(pipeline: Pipeline, table: Path) -> None:
    pairs = pairs_of(2_000, seed=1)
    row = AlignedRow("R 1", "spindle", 7, 9.0, "spindle:0:301", {"speed": None, "a.b-c": 2.5}, "1")
    pipeline.produce(values_of(pairs))
    pipeline.produce(values_of(pairs_of(100, seed=2)[50:]), abort=True)
    pipeline.produce([(0, encode(row)), (1, b"no result")])
    first = pipeline.start(linger="2s")
    pipeline.wait_until_drained()
    pipeline.stop(first)
    identity = Identity("spindle", "R 1", "spindle", 7_000_000, half=False, tie="1")
    wanted = {**dict(expected(pair, at) for pair, at in pairs), identity: {"result": 9.0, "a.b-c": 2.5}}
    assert stored_in(table) == wanted
    again = pipeline.start(group=f"{pipeline.name}-again")
    pipeline.wait_until_drained(f"{pipeline.name}-again")
    pipeline.stop(again)
    assert stored_in(table) == wanted
    assert len(pipeline.dead_letters()) == 2
