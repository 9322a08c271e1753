"""Operator mistakes with the database connector: offsets, targets, the database itself.

After each mistake, every point is in the database, or a message and dead letters report what is missing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from db_connector.sinks.points import point_line
from tests.integration.db_connector_pipeline import (
    PARTITIONS,
    Pipeline,
    Points,
    ask_influx,
    database_at,
    database_of,
    db_connector_pipeline,
    pairs_of,
    points_of,
    values_of,
)
from tests.integration.services import wait_until
from tests.unit.db_connector.test_contract import joined

if TYPE_CHECKING:
    from tests.integration.conftest import InfluxdbAccess


DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def pipeline(kafka: str, influxdb: InfluxdbAccess, tmp_path: Path) -> Iterator[Pipeline]:
    yield from db_connector_pipeline(kafka, influxdb, tmp_path)


def set_offsets(pipeline: Pipeline, offset: int, metadata: str = "") -> None:
    """Set the offsets of the group, as ``kafka-consumer-groups --reset-offsets`` does."""
    admin = AdminClient({"bootstrap.servers": pipeline.bootstrap})
    wanted = [TopicPartition(pipeline.out, number, offset, metadata) for number in range(PARTITIONS)]

    def is_set() -> bool:
        request = ConsumerGroupTopicPartitions(pipeline.name, wanted)
        answer = admin.alter_consumer_group_offsets([request])[pipeline.name]
        # Rejected while the group still lists the member that has left.
        return all(at.error is None for at in answer.result().topic_partitions or [])

    wait_until(is_set, "the group's offsets can be set")


def write(pipeline: Pipeline, count: int, **settings: str) -> str:
    """Run a connector until it has written ``count`` results and drained the topic. Return its log."""
    lines = pipeline.journal.read_text().count("\n") if pipeline.journal.exists() else 0
    before = pipeline.log() if pipeline.processes else ""
    process = pipeline.start(**settings)
    wait_until(lambda: ": partitions 0 from" in pipeline.log().removeprefix(before), "the connector has its partitions")
    # The group may have been at the end offsets before the start.
    wait_until(lambda: pipeline.journal_records(skip_lines=lines) >= count, f"{count} results are written")
    pipeline.wait_until_drained()
    pipeline.stop(process)
    return pipeline.log().removeprefix(before)


def test_offsets_that_were_set_by_hand_lose_no_point(pipeline: Pipeline) -> None:
    pairs = pairs_of(1_000, seed=20)
    pipeline.produce(values_of(pairs[:500]))
    assert "it is ignored" not in write(pipeline, 500)
    pipeline.produce(values_of(pairs[500:]))
    # Almost the same as --to-latest: all but the last results would be skipped silently.
    set_offsets(pipeline, 190)
    said = write(pipeline, 1_000)
    assert said.count(f"the offset 190 of group {pipeline.name} was set by hand, by another tool") == PARTITIONS
    assert said.count("all results are written again from the beginning of the log") == PARTITIONS
    assert pipeline.points() == pipeline.points_for(pairs)
    assert "it is ignored" not in write(pipeline, 0), "the connector starts from its own offsets"


def test_another_measurement_or_bucket_gets_every_point_under_the_same_group(
    pipeline: Pipeline, new_database: Callable[[], InfluxdbAccess]
) -> None:
    pairs = pairs_of(500, seed=21)
    pipeline.produce(values_of(pairs))
    write(pipeline, 500)
    first = pipeline.points()
    said = write(pipeline, 500, measurement="renamed")
    assert f"was committed by db_connector: {pipeline.name} in -/{pipeline.database}/autogen" in said
    assert "give one of the two a different group" in said
    renamed = points_of(pipeline.influx_url, pipeline.database, "renamed")
    assert {point._replace(measurement=pipeline.name): fields for point, fields in renamed.items()} == first
    pipeline.database = database_of(new_database())
    write(pipeline, 500)
    assert pipeline.points() == first == pipeline.points_for(pairs)


def test_points_of_the_previous_release_are_rewritten_and_dropped_as_documented(pipeline: Pipeline) -> None:
    pairs = pairs_of(300, seed=23)
    pipeline.produce(values_of(pairs))
    # Written and committed as release 0.1.0 did.
    new = [point_line(pair, pipeline.name, "ms").replace(b"join=power,", b"").rpartition(b" ") for pair, _at in pairs]
    old = b"\n".join(
        head + b',id="' + pair.id.encode() + b'" ' + at for (head, _, at), (pair, _) in zip(new, pairs, strict=True)
    )
    database_at(pipeline.influx_url, f"{pipeline.database}/autogen").write([old])
    set_offsets(pipeline, 60, f"db_connector: {pipeline.name} in -/{pipeline.database}/autogen")
    said = write(pipeline, 300)
    assert f"was committed by db_connector: {pipeline.name} in -/{pipeline.database}/autogen (" in said
    assert len(pipeline.points()) == 2 * len(pairs)
    (statement,) = re.findall(r"`(DROP SERIES FROM .*?)`", (DOCS / "db_connector.md").read_text())
    ask_influx(pipeline.influx_url, statement.replace('"joined"', f'"{pipeline.name}"'), pipeline.database)
    assert pipeline.points() == pipeline.points_for(pairs)


def test_a_database_that_was_deleted_is_filled_again_from_the_log(pipeline: Pipeline) -> None:
    pairs = pairs_of(600, seed=22)
    pipeline.produce(values_of(pairs[:300]))
    process = pipeline.start()
    pipeline.wait_until_drained()
    ask_influx(pipeline.influx_url, f"DROP DATABASE {pipeline.database}")
    pipeline.produce(values_of(pairs[300:]))
    pipeline.wait_until_logged("create the database")
    ask_influx(pipeline.influx_url, f"CREATE DATABASE {pipeline.database}")
    pipeline.wait_until_drained()
    pipeline.stop(process)
    assert pipeline.points() == pipeline.points_for(pairs[300:]), "the deleted points do not come back by themselves"
    set_offsets(pipeline, 0)
    write(pipeline, 600)
    assert pipeline.points() == pipeline.points_for(pairs)
    assert pipeline.dead_letters() == []


def test_points_that_the_database_refuses_are_dead_letters_with_its_message_and_the_others_arrive(
    pipeline: Pipeline,
) -> None:
    now_ns = time.time_ns()
    ask_influx(
        pipeline.influx_url, f"ALTER RETENTION POLICY autogen ON {pipeline.database} DURATION 2d SHARD DURATION 1d"
    )
    body = f'{pipeline.name},thing=other result="text" {now_ns}'.encode()
    database_at(pipeline.influx_url, f"{pipeline.database}/autogen").write([body])
    body = f"{pipeline.name}_other,thing=other result=1 {now_ns}".encode()
    database_at(pipeline.influx_url, f"{pipeline.database}/autogen").write([body])
    old = pairs_of(10, seed=23)
    long_tag = joined("R" * 70_000, "power", 2 * now_ns, 1.0, "power:0:1:1")
    conflicting = joined("R1", "power", 2 * now_ns, 1.0, "power:0:1:2")
    # InfluxDB stores the type of a field per shard. A shard covers one day here.
    fine_ns = 2 * (now_ns - 30 * 3_600 * 10**9)
    fine = [(joined("R2", "power", fine_ns + 2 * n, 1.0, f"power:0:2:{n}"), fine_ns + 2 * n) for n in range(20)]
    pipeline.produce(values_of([*old, *fine[:10], (long_tag, 0), (conflicting, 0), *fine[10:]]))
    write(pipeline, 32)
    reasons = {dead_letter.id: dead_letter.reason for dead_letter in pipeline.dead_letters()}
    assert {reasons.pop(pair.id).partition(" dropped")[0] for pair, _ in old} == {
        "partial write: points beyond retention policy"
    }
    assert "field type conflict" in reasons.pop(conflicting.id)
    assert "unable to parse" in reasons.pop(long_tag.id)
    assert reasons == {}
    assert kept(pipeline.points()) == pipeline.points_for(fine)


def kept(points: Points) -> Points:
    """Return the points, except the one that the test wrote directly."""
    return {point: fields for point, fields in points.items() if ("thing", "other") not in point.tags}
