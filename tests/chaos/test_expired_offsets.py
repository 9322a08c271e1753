"""Nothing is lost or duplicated after Kafka has deleted the offsets of a group that was empty for too long.

Kafka retains such offsets for at least one minute, so this runs only with LSB_CHAOS_FULL=1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from broker.stack import LocalStack, ephemeral_stack
from broker.stack.parts import Parts, parts_folder
from broker.stack.servers import Kafka
from tests.integration.conftest import InfluxdbAccess
from tests.integration.db_connector_pipeline import Pipeline, db_connector_pipeline, pairs_of, values_of
from tests.integration.joiner_application import Application, application, run_once, seeded_entries
from tests.integration.services import wait_until

EXPIRY_S = 150.0
"""One minute of retention, one second until the check, and an allowance for a session timeout and a busy machine."""


class ForgetfulKafka(Kafka):
    """A Kafka broker that keeps the offsets of an empty group for only a minute."""

    def _prepare(self, ports: Mapping[str, int]) -> list[str]:
        command = super()._prepare(ports)
        with Path(command[-1]).open("a") as properties:
            properties.write("\noffsets.retention.minutes=1\noffsets.retention.check.interval.ms=1000\n")
        return command


@pytest.fixture
def forgetful() -> Iterator[LocalStack]:
    with ephemeral_stack(say=print) as stack:
        stack.kafka = ForgetfulKafka(stack.kafka.folder, Parts(parts_folder(Path(".lsb")), print), usual_ports=False)
        stack.up([stack.kafka, stack.influxdb])
        yield stack


@pytest.fixture
def app(forgetful: LocalStack, tmp_path: Path) -> Iterator[Application]:
    yield from application(forgetful.kafka.address, tmp_path)


@pytest.fixture
def pipeline(forgetful: LocalStack, tmp_path: Path) -> Iterator[Pipeline]:
    forgetful.influxdb.create_database("expiry")
    access = InfluxdbAccess(forgetful.influxdb.url, ":", "-", "expiry/autogen")
    yield from db_connector_pipeline(forgetful.kafka.address, access, tmp_path)


def has_offsets(admin: AdminClient, group: str) -> bool:
    """Return whether Kafka has any committed offset of a group."""
    listed = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result()
    return any(at.offset >= 0 for at in listed.topic_partitions or [])


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.long
def test_expired_offsets_lose_and_duplicate_nothing(app: Application, pipeline: Pipeline) -> None:
    pairs = pairs_of(1_000, seed=30)
    pipeline.produce(values_of(pairs[:500]))
    connector = pipeline.start()
    run_once(app, 101)
    pipeline.wait_until_drained()
    pipeline.stop(connector)
    groups = (app.name, pipeline.name)
    assert all(has_offsets(app.admin(), group) for group in groups)
    wait_until(
        lambda: not any(has_offsets(app.admin(), group) for group in groups), "the offsets have expired", EXPIRY_S
    )
    app.produce(seeded_entries(102, 600))
    joiner = app.start()
    app.wait_until_through()
    assert joiner.stop() == 0
    app.verify()
    pipeline.produce(values_of(pairs[500:]))
    connector = pipeline.start()
    pipeline.wait_until_drained()
    pipeline.stop(connector)
    assert pipeline.points() == pipeline.points_for(pairs)
