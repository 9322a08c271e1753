"""The metrics of a running connector, joiner and database connector match the data, tested on real servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker.stack.ports import choose_port
from tests.integration.connector_pipeline import Pipeline as FromMqtt
from tests.integration.connector_pipeline import connector_pipeline, event, events
from tests.integration.db_connector_pipeline import Pipeline as ToDatabase
from tests.integration.db_connector_pipeline import db_connector_pipeline, pairs_of, values_of
from tests.integration.endpoints import Endpoints
from tests.integration.joiner_application import PARTITIONS, SPARK_STARTS_S, Application, application, seeded_entries
from tests.integration.services import stop, wait_until

if TYPE_CHECKING:
    from tests.integration.conftest import InfluxdbAccess, MqttAddress


@pytest.fixture
def endpoints() -> Endpoints:
    return Endpoints(choose_port())


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


def test_a_joiner_exposes_what_it_read_wrote_and_holds(app: Application, endpoints: Endpoints) -> None:
    app.create_topics()
    entries = seeded_entries(seed=8, count=1500)
    app.produce(entries[:1000])
    joiner = app.start(LSB_METRICS__LISTEN=str(endpoints.port))
    endpoints.wait_until_ready()
    app.produce(entries[1000:])
    app.wait_until_through()
    # A checkpoint becomes visible a moment before its records are counted.
    wait_until(lambda: endpoints.total("joiner_records_total") == len(entries), "all records are counted")
    for name, kind in (("pairs", "out"), ("late", "late"), ("rejected", "rejected"), ("unmatched", "unmatched")):
        app.wait_until_decided(kind)
        assert endpoints.total(f"joiner_{name}_total") == len(app.values(kind)), name
    progress = app.checkpoints()
    assert endpoints.total("joiner_pairs_total") > 500
    assert endpoints.total("joiner_late_total") > 0
    assert endpoints.total("joiner_output_latency_seconds_count") == endpoints.total("joiner_pairs_total")
    assert (
        endpoints.total("joiner_transaction_messages_count")
        == endpoints.total("joiner_transaction_duration_seconds_count")
        > 0
    )
    for unit, found in progress.items():
        for name, join in found.joins.items():
            held = [
                endpoints.total("joiner_held_records", unit=str(unit), join=name, side=side)
                for side in ("left", "right")
            ]
            assert held == [join.held_left, join.held_right]
    assert (endpoints.total("joiner_held_bytes") > 0) == (endpoints.total("joiner_held_records") > 0)
    assert endpoints.total("joiner_unit_owner", owner="one", site="process") == PARTITIONS
    assert (
        endpoints.total("joiner_recovery_duration_seconds_count")
        == endpoints.total("joiner_claims_total")
        == PARTITIONS
    )
    assert (
        endpoints.total("joiner_lag_records")
        == endpoints.total("joiner_failed_units")
        == endpoints.total("joiner_fencings_total")
        == 0
    )
    assert endpoints.total("joiner_snapshot_bytes") > 0
    assert endpoints.ask("/healthz") == (200, "ok\n")
    assert joiner.stop() == 0
    assert endpoints.ask("/healthz") == (0, "")


def test_a_second_joiner_at_the_same_address_is_refused_and_a_chosen_port_is_logged(
    app: Application, endpoints: Endpoints
) -> None:
    first = app.start(LSB_METRICS__LISTEN=str(endpoints.port))
    endpoints.wait_until_ready()
    second = app.start(instance="two", LSB_METRICS__LISTEN=str(endpoints.port))
    assert second.ends() == 2
    assert f"127.0.0.1:{endpoints.port} cannot be used" in second.text()
    assert "Traceback" not in second.text()
    third = app.start(instance="three", LSB_METRICS__LISTEN="0")
    port = third.wait_for(r"metrics at http://127\.0\.0\.1:(\d+)/metrics")[1]
    Endpoints(int(port)).wait_until_ready()
    assert (first.stop(), third.stop()) == (0, 0)


@pytest.mark.long
def test_the_stage_in_spark_exposes_the_same_metrics(app: Application, endpoints: Endpoints) -> None:
    app.runner = "spark"
    app.create_topics()
    app.produce(seeded_entries(seed=9, count=800))
    stage = app.start(LSB_METRICS__LISTEN=str(endpoints.port), LSB_SPARK__INSTANCES="1")
    app.wait_until_through(SPARK_STARTS_S)
    endpoints.wait_until_ready()
    wait_until(lambda: endpoints.total("joiner_records_total") == 800, "all records are counted")
    app.wait_until_decided("out")
    assert endpoints.total("joiner_pairs_total") == len(app.values("out"))
    assert endpoints.total("joiner_output_latency_seconds_count") == endpoints.total("joiner_pairs_total")
    assert endpoints.total("joiner_unit_owner", site="spark") == PARTITIONS
    assert endpoints.total("joiner_held_records") == sum(
        join.held_left + join.held_right for found in app.checkpoints().values() for join in found.joins.values()
    )
    assert (endpoints.total("joiner_held_bytes") > 0) == (endpoints.total("joiner_held_records") > 0)
    assert endpoints.total("joiner_lag_records") == 0
    assert stage.stop() == 0


@pytest.fixture
def from_mqtt(kafka: str, mqtt: MqttAddress, tmp_path: Path) -> Iterator[FromMqtt]:
    yield from connector_pipeline(kafka, mqtt, tmp_path)


def test_a_connector_exposes_what_it_received_and_sent(from_mqtt: FromMqtt, endpoints: Endpoints) -> None:
    process = from_mqtt.start(LSB_METRICS__LISTEN=str(endpoints.port))
    endpoints.wait_until_ready()
    from_mqtt.publish([*events(2000), b"no event", event("bad", good=1, bad="text")])
    wait_until(lambda: endpoints.total("connector_events_total") == 2002, "all events have arrived")
    wait_until(lambda: endpoints.total("connector_unacknowledged_events") == 0, "all of them are in Kafka")
    assert endpoints.total("connector_records_total") == from_mqtt.count_records() == 4001
    assert endpoints.total("connector_rejected_total") == len(from_mqtt.dead_letters()) == 2
    assert endpoints.total("connector_publish_duration_seconds_count") == 2002
    assert endpoints.total("connector_unacknowledged_bytes") == endpoints.total("connector_mqtt_losses_total") == 0
    assert endpoints.total("connector_mqtt_connected") == endpoints.total("ready") == 1
    assert stop(process) == 0
    assert endpoints.ask("/healthz") == (0, "")


def test_a_connector_without_its_broker_is_healthy_and_not_ready(from_mqtt: FromMqtt, endpoints: Endpoints) -> None:
    closed_port = str(choose_port())
    from_mqtt.start(connected=False, LSB_METRICS__LISTEN=str(endpoints.port), LSB_MQTT__PORT=closed_port)
    wait_until(lambda: endpoints.total("connector_mqtt_losses_total") > 0, "an attempt to connect has failed")
    assert endpoints.ask("/readyz") == (503, f"there is no connection to MQTT at 127.0.0.1:{closed_port}\n")
    assert endpoints.ask("/healthz") == (200, "ok\n")


@pytest.fixture
def to_database(kafka: str, influxdb: InfluxdbAccess, tmp_path: Path) -> Iterator[ToDatabase]:
    yield from db_connector_pipeline(kafka, influxdb, tmp_path)


def test_a_db_connector_exposes_what_it_read_and_wrote_and_whether_the_database_is_available(
    to_database: ToDatabase, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LSB_METRICS__LISTEN", str(endpoints.port))
    process = to_database.start()
    endpoints.wait_until_ready()
    to_database.produce([*values_of(pairs_of(3000, seed=5)), (0, b"no pair")])
    wait_until(lambda: endpoints.total("db_connector_points_total") == 3000, "all points are written")
    to_database.wait_until_drained()
    assert len(to_database.points()) == 3000
    assert endpoints.total("db_connector_results_total") == 3001
    assert endpoints.total("db_connector_rejected_total") == len(to_database.dead_letters()) == 1
    assert endpoints.total("db_connector_write_duration_seconds_count") >= 6
    wait_until(lambda: endpoints.total("db_connector_lag_records") == 0, "the lag is 0")
    assert endpoints.total("db_connector_database_up") == endpoints.total("ready") == 1
    to_database.door.shut()
    to_database.produce(values_of(pairs_of(10, seed=6)))
    wait_until(lambda: endpoints.total("db_connector_database_up") == 0, "the database is reported as unavailable")
    assert endpoints.ask("/readyz") == (503, "the database does not accept results\n")
    assert endpoints.ask("/healthz") == (200, "ok\n")
    assert endpoints.total("db_connector_failed_writes_total") > 0
    assert endpoints.total("db_connector_batches_in_flight") > 0
    to_database.door.open()
    endpoints.wait_until_ready()
    to_database.wait_until_drained()
    to_database.stop(process)
