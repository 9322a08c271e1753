"""What the database connector writes for committed, aborted, replayed and refused input, tested on real servers.

`test_db_connector_failures` covers failures.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from broker.kafka.groups import read_group
from broker.settings import KafkaSettings
from broker.wire.records import AlignedRow, encode
from tests.integration.db_connector_pipeline import (
    Pipeline,
    database_at,
    db_connector_pipeline,
    pairs_of,
    values_of,
)
from tests.integration.services import DEADLINE_S, wait_until
from tests.unit.db_connector.test_contract import Point, joined

if TYPE_CHECKING:
    from tests.integration.conftest import InfluxdbAccess


@pytest.fixture
def pipeline(kafka: str, influxdb: InfluxdbAccess, tmp_path: Path) -> Iterator[Pipeline]:
    yield from db_connector_pipeline(kafka, influxdb, tmp_path)


def test_committed_pairs_end_up_as_exactly_their_points(pipeline: Pipeline) -> None:
    pairs = pairs_of(5_000, seed=1)
    pipeline.produce(values_of(pairs[:3_000]))
    pipeline.produce(values_of(pairs_of(100, seed=2)[50:]), abort=True)
    process = pipeline.start()
    pipeline.produce(values_of(pairs[3_000:]))
    pipeline.wait_until_drained()
    pipeline.stop(process)
    assert pipeline.points() == pipeline.points_for(pairs)
    assert pipeline.dead_letters() == []


def test_a_named_connector_that_stops_releases_its_partitions_at_once(pipeline: Pipeline) -> None:
    pairs = pairs_of(100, seed=3)
    pipeline.produce(values_of(pairs))
    process = pipeline.start(instance="one", session_timeout="30min")
    pipeline.wait_until_drained()
    pipeline.stop(process)
    admin = AdminClient({"bootstrap.servers": pipeline.bootstrap})
    kafka = KafkaSettings(bootstrap_servers=pipeline.bootstrap)
    wait_until(lambda: read_group(admin, kafka, pipeline.name, DEADLINE_S) == [], "the group has no members")


def test_aligned_rows_end_up_as_points_with_a_field_for_each_value(pipeline: Pipeline) -> None:
    pairs = pairs_of(200, seed=8)
    rows = [
        AlignedRow(
            "R 1", "spindle", number, 0.5 * number, f"spindle:0:{number}", {"speed": 1.0 + number, "a.b-c": None}
        )
        for number in range(300)
    ]
    rows.append(AlignedRow("R 1", "spindle", 7, 9.0, "spindle:0:301", {"speed": None, "a.b-c": 2.5}, "1"))
    pipeline.produce(values_of(pairs))
    pipeline.produce([(0, encode(row)) for row in rows])
    pipeline.start()
    pipeline.wait_until_drained()
    tags = {"join": "spindle", "quantity": "spindle", "thing": "R 1"}
    expected = {
        Point(pipeline.name, frozenset(tags.items()), number * 10**6): {"result": 0.5 * number, "speed": 1.0 + number}
        for number in range(300)
    }
    expected[Point(pipeline.name, frozenset((tags | {"tie": "1"}).items()), 7 * 10**6)] = {"result": 9.0, "a.b-c": 2.5}
    assert pipeline.points() == pipeline.points_for(pairs) | expected
    assert pipeline.dead_letters() == []


def test_pairs_of_an_aborted_transaction_are_never_written(pipeline: Pipeline) -> None:
    pairs = pairs_of(200, seed=3)
    pipeline.produce(values_of(pairs[:100]), abort=True)
    pipeline.produce(values_of(pairs[100:]))
    pipeline.start()
    pipeline.wait_until_drained()
    assert pipeline.points() == pipeline.points_for(pairs[100:])


def test_a_replay_from_the_beginning_changes_nothing(pipeline: Pipeline) -> None:
    pairs = pairs_of(2_000, seed=4)
    pipeline.produce(values_of(pairs))
    process = pipeline.start()
    pipeline.wait_until_drained()
    pipeline.stop(process)
    before = pipeline.points()
    journal = pipeline.journal.read_text().count("\n")
    replay = pipeline.start(group=f"{pipeline.name}-again")
    wait_until(lambda: pipeline.journal_records(skip_lines=journal) >= 2_000, "the replay")
    pipeline.stop(replay)
    assert pipeline.points() == before == pipeline.points_for(pairs)


def test_refused_points_are_dead_lettered_with_the_databases_words(pipeline: Pipeline) -> None:
    # InfluxDB stores the type of a field per shard, so only points of this week conflict with the string in `result`.
    pairs = pairs_of(1_000, seed=5)
    far = 10 * 86_400 * 10**9
    refused = [number for number in range(1_000) if number % 100 == 7]
    for number in range(1_000):
        if number not in refused:
            pair, twice_ns = pairs[number]
            moved = joined(pair.thing, pair.quantity, twice_ns + 2 * far, pair.result, identity=pair.id, tie=pair.tie)
            pairs[number] = (moved, twice_ns + 2 * far)
    first_ns = pairs[refused[0]][1] // 2
    body = f'{pipeline.name},thing=other result="text" {first_ns}'.encode()
    database_at(pipeline.influx_url, f"{pipeline.database}/autogen").write([body])
    pipeline.produce(values_of(pairs))
    pipeline.start()
    pipeline.wait_until_drained()
    dead_letters = {dead_letter.id: dead_letter for dead_letter in pipeline.dead_letters()}
    assert set(dead_letters) == {pairs[number][0].id for number in refused}
    for dead_letter in dead_letters.values():
        assert "field type conflict" in dead_letter.reason
        assert (dead_letter.source, dead_letter.topic) == ("db_connector", pipeline.out)
        assert dead_letter.partition >= 0 <= dead_letter.offset
    kept = [pair for number, pair in enumerate(pairs) if number not in refused]
    points = pipeline.points()
    assert {p: f for p, f in points.items() if ("thing", "other") not in p.tags} == pipeline.points_for(kept)


def test_values_without_a_point_are_dead_lettered_and_stop_nothing(pipeline: Pipeline) -> None:
    good = pairs_of(10, seed=6)
    bad: list[bytes | None] = [
        b"", b"{", b"\xff\xfe", b"[]", b'{"thing":"a"}', b"x" * 100_000, None,
        encode(joined("a\nb", identity="newline")), encode(joined("a\\", identity="backslash")),
    ]  # fmt: skip
    producer = Producer({"bootstrap.servers": pipeline.bootstrap})
    for value in bad:
        producer.produce(pipeline.out, value, partition=0)
    producer.flush(30)
    pipeline.produce(values_of(good))
    pipeline.start()
    pipeline.wait_until_drained()
    dead_letters = pipeline.dead_letters()
    assert {dead_letter.id for dead_letter in dead_letters} == {f"{pipeline.out}:0:{n}" for n in range(7)} | {
        "newline",
        "backslash",
    }
    assert all(dead_letter.reason for dead_letter in dead_letters)
    assert pipeline.points() == pipeline.points_for(good)
