"""No data is lost or duplicated when the database connector or its servers fail. Tested on real servers.

`test_db_connector` covers normal operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.damaged_log import DamagedLog
from tests.integration.db_connector_pipeline import (
    PARTITIONS,
    Pipeline,
    ask_influx,
    db_connector_pipeline,
    pairs_of,
    values_of,
)
from tests.integration.services import DEADLINE_S, SHORT_MOMENT_S, wait_until
from tests.long import rest_long
from tests.unit.db_connector.test_contract import joined

if TYPE_CHECKING:
    from broker.stack import LocalStack
    from tests.integration.conftest import InfluxdbAccess


@pytest.fixture
def pipeline(kafka: str, influxdb: InfluxdbAccess, tmp_path: Path) -> Iterator[Pipeline]:
    yield from db_connector_pipeline(kafka, influxdb, tmp_path)


@pytest.mark.parametrize("seed", rest_long(11, 12))
def test_kills_at_any_moment_lose_and_duplicate_nothing(pipeline: Pipeline, seed: int) -> None:
    pairs = pairs_of(12_000, seed)
    conflicting = [number for number in range(12_000) if number % 3_001 == 1]
    for number in conflicting:
        pairs[number] = (joined("a\nb", identity=f"bad:{number}"), 0)
    pipeline.write_with_kills(values_of(pairs), seed)
    kept = [pair for number, pair in enumerate(pairs) if number not in conflicting]
    assert pipeline.points() == pipeline.points_for(kept)
    assert {dead_letter.id for dead_letter in pipeline.dead_letters()} == {f"bad:{number}" for number in conflicting}


def test_nothing_is_missing_after_an_outage_of_the_database(pipeline: Pipeline) -> None:
    pairs = pairs_of(6_000, seed=7)
    pipeline.write_with_an_outage(pairs, lambda: len(pipeline.points()) > 0, "InfluxDB")
    assert pipeline.points() == pipeline.points_for(pairs)


def test_an_unavailable_database_is_reported_at_the_start_and_waiting_results_are_lag(pipeline: Pipeline) -> None:
    pipeline.door.shut()
    process = pipeline.start()
    address = f"http://127.0.0.1:{pipeline.door.port}"
    pipeline.wait_until_logged(
        "InfluxDB has not accepted results for 0 s; they are kept in Kafka; next attempt in 0.2 s: "
        f"no answer from {address}"
    )
    assert "is influxdb.url right?" in pipeline.log()
    pairs = pairs_of(4_000, seed=24)
    pipeline.produce(values_of(pairs))
    # The lag includes a transaction marker in each of the 5 partitions.
    pipeline.wait_until_logged(f"0 results written, 0/s, 0 dead letters, lag {4_000 + PARTITIONS} records")
    pipeline.door.open()
    pipeline.wait_until_drained()
    pipeline.stop(process)
    assert "accepts results again" in pipeline.log()
    assert pipeline.points() == pipeline.points_for(pairs)


def test_nothing_is_missing_after_the_database_was_killed(pipeline: Pipeline, stack: LocalStack) -> None:
    pairs = pairs_of(6_000, seed=14)
    pipeline.produce(values_of(pairs[:3_000]))
    process = pipeline.start(batch_records="50", linger="5ms")
    pipeline.wait_for_journal(more_bytes=100)
    stack.influxdb.kill()
    try:
        pipeline.produce(values_of(pairs[3_000:]))
        pipeline.wait_until_logged("has not accepted results")
    finally:
        stack.up([stack.influxdb])
    pipeline.wait_until_drained()
    pipeline.stop(process)
    assert pipeline.points() == pipeline.points_for(pairs)


def test_a_missing_database_is_waited_for_and_causes_no_dead_letters(pipeline: Pipeline) -> None:
    pairs = pairs_of(100, seed=8)
    pipeline.produce(values_of(pairs))
    ask_influx(pipeline.influx_url, "DROP DATABASE lsb_later")
    pipeline.database = "lsb_later"
    process = pipeline.start()
    pipeline.wait_until_logged("create the database")
    ask_influx(pipeline.influx_url, "CREATE DATABASE lsb_later")
    pipeline.wait_until_drained()
    pipeline.stop(process)
    assert pipeline.points() == pipeline.points_for(pairs)
    assert pipeline.dead_letters() == []
    ask_influx(pipeline.influx_url, "DROP DATABASE lsb_later")


def test_sigterm_ends_within_five_seconds_while_the_database_is_unavailable(pipeline: Pipeline) -> None:
    pairs = pairs_of(3_000, seed=9)
    pipeline.produce(values_of(pairs))
    pipeline.door.shut()
    process = pipeline.start()
    pipeline.wait_until_logged("has not accepted results")
    pipeline.stop(process, moment_s=SHORT_MOMENT_S)
    pipeline.door.open()
    pipeline.start()
    pipeline.wait_until_drained()
    assert pipeline.points() == pipeline.points_for(pairs)


def test_several_connectors_share_the_partitions(pipeline: Pipeline) -> None:
    pairs = pairs_of(9_000, seed=10)
    first = pipeline.start(batch_records="50")
    pipeline.produce(values_of(pairs[:3_000]))
    second = pipeline.start(batch_records="50")
    pipeline.produce(values_of(pairs[3_000:6_000]))
    pipeline.wait_until_logged("move to another member")
    pipeline.produce(values_of(pairs[6_000:]))
    pipeline.stop(first)
    pipeline.wait_until_drained()
    pipeline.stop(second)
    assert pipeline.points() == pipeline.points_for(pairs)
    assert pipeline.dead_letters() == []


def test_a_committed_offset_that_left_the_log_is_an_error_with_the_way_out(pipeline: Pipeline) -> None:
    pairs = pairs_of(200, seed=13)
    pipeline.produce(values_of(pairs[:100]))
    process = pipeline.start()
    pipeline.wait_until_drained()
    pipeline.stop(process)
    pipeline.produce(values_of(pairs[100:]))
    admin = AdminClient({"bootstrap.servers": pipeline.bootstrap})
    for future in admin.delete_records([TopicPartition(pipeline.out, 0, 30)]).values():
        future.result(30)
    process = pipeline.start()
    assert process.wait(DEADLINE_S) == 1
    assert f"--delete-offsets --group {pipeline.name} --topic {pipeline.out}" in pipeline.log()
    pipeline.processes.remove(process)
    wait_until(lambda: is_deleted(admin, pipeline.name), "the group is deleted")
    process = pipeline.start()
    pipeline.wait_until_drained()
    pipeline.stop(process)
    # All but the nine that were deleted before they were read: a transaction marker follows the first 20.
    assert len(pipeline.points()) == len(pairs) - 9


def is_deleted(admin: AdminClient, group: str) -> bool:
    """Delete a group. It is refused while the group still lists a member that has left."""
    try:
        admin.delete_consumer_groups([group])[group].result()
    except KafkaException as error:
        # An earlier attempt may have succeeded after its timeout.
        return bool(error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND)
    return True


def test_results_that_come_damaged_are_not_left_out_and_are_written_once_they_can_be_read(
    pipeline: Pipeline, stack: LocalStack
) -> None:
    pairs = pairs_of(300, 14)
    values = values_of(pairs)
    for part in range(3):
        pipeline.produce(values[part * 100 : (part + 1) * 100])
    partition, text = values[150][0], pairs[150][0].id.encode()
    damaged = DamagedLog(stack, pipeline.out, partition, b'"id":"%s"' % text)
    process = pipeline.start()
    pipeline.wait_until_logged(f"{pipeline.out} partition {partition} cannot be read at offset")
    damaged.mend()
    pipeline.wait_until_drained()
    pipeline.stop(process)
    assert pipeline.points() == pipeline.points_for(pairs)
    assert not pipeline.dead_letters()
