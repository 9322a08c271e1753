"""No data is lost when the connector or its servers fail. Tested on real servers.

`test_connector` covers normal operation.
"""

from __future__ import annotations

import random
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker.stack import LocalStack
from tests.integration.connector_pipeline import Pipeline, connector_pipeline, events, expected
from tests.integration.services import kill, stop
from tests.integration.tcp_door import Door
from tests.long import rest_long

if TYPE_CHECKING:
    from tests.integration.conftest import MqttAddress


@pytest.fixture
def pipeline(kafka: str, mqtt: MqttAddress, tmp_path: Path) -> Iterator[Pipeline]:
    yield from connector_pipeline(kafka, mqtt, tmp_path)


@pytest.fixture
def door(pipeline: Pipeline) -> Iterator[Door]:
    """A TCP proxy in front of the MQTT broker, initially shut."""
    found = Door(pipeline.mqtt_host, pipeline.mqtt_port)
    yield found
    found.shut()


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.parametrize("seed", rest_long(1, 2))
def test_a_connector_killed_at_any_moment_loses_nothing(pipeline: Pipeline, seed: int) -> None:
    draw = random.Random(seed)
    count = 12_000
    process = pipeline.start()
    publisher = pipeline.start_publishing(events(count))
    before = 0
    for _ in range(4):
        # The seed determines each kill: after some number of records since the previous kill, but no later than the
        # last record.
        pipeline.wait_for_records(min(before + draw.randrange(4_000), len(expected(count))))
        kill(process)
        before = pipeline.count_records()
        process = pipeline.start()
    publisher.join()
    pipeline.wait_for_all(count)
    assert stop(process) == 0
    assert set(pipeline.identities()) == expected(count)


def test_a_stop_in_the_middle_loses_nothing_and_doubles_nothing(pipeline: Pipeline) -> None:
    process = pipeline.start()
    for start, number in ((0, signal.SIGTERM), (3_000, signal.SIGINT)):
        publisher = pipeline.start_publishing(events(6_000)[start : start + 3_000])
        pipeline.wait_for_records(2 * start + 1)
        assert stop(process, number) == 0
        process = pipeline.start()
        publisher.join()
        pipeline.wait_for_records(2 * (start + 3_000))
    pipeline.wait_for_all(6_000)
    assert stop(process) == 0
    assert sorted(pipeline.identities()) == sorted(expected(6_000))


def test_a_lost_mqtt_connection_is_made_again_and_loses_nothing(pipeline: Pipeline, door: Door) -> None:
    door.open()
    process = pipeline.start(LSB_MQTT__HOST="127.0.0.1", LSB_MQTT__PORT=str(door.port))
    for start in (0, 3_000):
        publisher = pipeline.start_publishing(events(6_000)[start : start + 3_000])
        pipeline.wait_for_records(2 * start + 1)
        connections, losses = pipeline.count_logged("connected to MQTT"), pipeline.count_logged("no MQTT connection")
        door.shut()
        pipeline.wait_until_logged("no MQTT connection", losses)
        door.open()
        pipeline.wait_until_logged("connected to MQTT", connections)
        publisher.join()
        pipeline.wait_for_records(2 * (start + 3_000))
    pipeline.wait_for_all(6_000)
    assert stop(process) == 0
    assert set(pipeline.identities()) == expected(6_000)


def test_a_broker_that_is_unavailable_at_the_start_is_waited_for(pipeline: Pipeline, door: Door) -> None:
    process = pipeline.start(connected=False, LSB_MQTT__HOST="127.0.0.1", LSB_MQTT__PORT=str(door.port))
    pipeline.wait_until_logged("no MQTT connection")
    door.open()
    pipeline.wait_until_logged("connected to MQTT")
    assert stop(process) == 0
    assert "Traceback" not in pipeline.log.read_text()


def test_a_stop_ends_a_connector_that_waits_for_kafka(pipeline: Pipeline) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        closed_address = f"127.0.0.1:{probe.getsockname()[1]}"
    process = pipeline.start(connected=False, LSB_KAFKA__BOOTSTRAP_SERVERS=closed_address)
    pipeline.wait_until_logged("has not answered yet")
    assert stop(process) == 0
    assert "Traceback" not in pipeline.log.read_text()


@pytest.mark.slow
@pytest.mark.chaos
def test_kafka_stopped_and_started_again_loses_nothing(pipeline: Pipeline, stack: LocalStack) -> None:
    process = pipeline.start(LSB_CONNECTOR__IN_FLIGHT_MAX="500")
    pipeline.publish(events(1_000))
    pipeline.wait_for_records(2_000)
    stack.kafka.stop()
    pipeline.publish(events(5_000)[1_000:])
    stack.up([stack.kafka])
    pipeline.wait_for_all(5_000)
    assert stop(process) == 0
    assert set(pipeline.identities()) == expected(5_000)


@pytest.mark.slow
@pytest.mark.chaos
def test_a_stop_while_kafka_is_unavailable_keeps_unacknowledged_messages(pipeline: Pipeline, stack: LocalStack) -> None:
    process = pipeline.start()
    stack.kafka.stop()
    pipeline.publish(events(1_000))
    assert stop(process) == 0
    stack.up([stack.kafka])
    process = pipeline.start()
    pipeline.wait_for_all(1_000)
    assert stop(process) == 0


@pytest.mark.slow
def test_killing_the_connector_and_then_the_mqtt_broker_loses_nothing(pipeline: Pipeline, stack: LocalStack) -> None:
    process = pipeline.start()
    pipeline.publish(events(1_000))
    kill(process)
    pipeline.publish(events(2_000)[1_000:])
    stack.mqtt.kill()
    stack.up([stack.mqtt])
    process = pipeline.start()
    pipeline.wait_for_all(2_000)
    assert stop(process) == 0
    assert set(pipeline.identities()) == expected(2_000)


def test_two_connectors_of_one_name_report_it_and_lose_nothing(pipeline: Pipeline) -> None:
    first = pipeline.start()
    second = pipeline.start()
    pipeline.wait_until_logged(f"is another connector using the client id '{pipeline.name}'?")
    pipeline.publish(events(500))
    pipeline.wait_for_all(500)
    assert stop(first) == 0
    assert stop(second) == 0
