"""The local stack with its real servers. Data and state survive a stop, a crash and a freeze."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from influxdb_client import InfluxDBClient
from influxdb_client.client.write_api import SYNCHRONOUS

from broker.stack import LocalStack, StackError, ephemeral_stack

DEADLINE_S = 60.0

_PUBLISHERS = 30
_MESSAGES_EACH = 4


def wait_for(condition: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    end = time.monotonic() + deadline_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, "the condition was not met in time"
        pause.wait(0.02)


@pytest.fixture(scope="module")
def stack_to_stop() -> Iterator[LocalStack]:
    with ephemeral_stack() as own:
        yield own


@pytest.fixture
def own_mqtt(stack_to_stop: LocalStack) -> LocalStack:
    """A separate stack with an MQTT broker that has no session, for tests that stop it."""
    stack_to_stop.up([stack_to_stop.mqtt])
    Subscriber(stack_to_stop.mqtt.port, acknowledge=False, keep=False).close()
    return stack_to_stop


def produce(bootstrap: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, value)
    assert producer.flush(DEADLINE_S) == 0


def consume(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[bytes] = []

    def enough() -> bool:
        values.extend(value for m in consumer.consume(count, 0.1) if (value := m.value()) is not None)
        return len(values) >= count

    try:
        wait_for(enough)
    finally:
        consumer.close()
    return values


@pytest.mark.slow
def test_kafka_keeps_port_and_acknowledged_records_over_a_crash(stack: LocalStack, kafka: str) -> None:
    topic = "stack-crash"
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(DEADLINE_S)
    produce(kafka, topic, b"before")
    stack.kafka.kill()
    assert stack.kafka.pid is None
    stack.up([stack.kafka])
    assert stack.kafka.address == kafka
    produce(kafka, topic, b"after")
    assert consume(kafka, topic, 2) == [b"before", b"after"]


def test_kafka_makes_no_topic_by_itself(kafka: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.list_topics("stack-typing-error", timeout=DEADLINE_S)
    assert "stack-typing-error" not in admin.list_topics(timeout=DEADLINE_S).topics


def test_a_paused_server_is_not_ready_and_comes_back(stack: LocalStack, mqtt: object) -> None:
    assert mqtt
    stack.mqtt.pause()
    try:
        wait_for(lambda: stack.mqtt.paused)
        assert stack.mqtt.pid is not None
        assert not stack.mqtt.is_ready()
    finally:
        stack.mqtt.resume()
    stack.mqtt.wait_ready(DEADLINE_S)


def test_influxdb_accepts_a_point_of_the_version_2_client_and_returns_it(
    influxdb: tuple[str, str, str, str],
) -> None:
    url, token, org, bucket = influxdb
    with InfluxDBClient(url, token=token, org=org) as client:
        client.write_api(write_options=SYNCHRONOUS).write(bucket, org, "speed,thing=m1 value=1.5 1000000001")
        tables = client.query_api().query(f'from(bucket: "{bucket}") |> range(start: 0)')
    assert [(record.values["thing"], record.get_value()) for table in tables for record in table.records] == [
        ("m1", 1.5)
    ]


def test_influxdb_keeps_points_over_a_crash(stack: LocalStack, influxdb: tuple[str, str, str, str]) -> None:
    url, token, org, bucket = influxdb
    with InfluxDBClient(url, token=token, org=org) as client:
        client.write_api(write_options=SYNCHRONOUS).write(bucket, org, "speed value=2.5 1000000001")
    stack.influxdb.kill()
    stack.up([stack.influxdb])
    with InfluxDBClient(url, token=token, org=org) as client:
        tables = client.query_api().query(f'from(bucket: "{bucket}") |> range(start: 0)')
    assert [record.get_value() for table in tables for record in table.records] == [2.5]


def publish(port: int, first: int, count: int, qos: int) -> None:
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv311)
    client.connect("127.0.0.1", port)
    client.loop_start()
    sent = [client.publish("stack/events", str(i), qos=qos) for i in range(first, first + count)]
    for message in sent:
        message.wait_for_publish(DEADLINE_S)
    client.disconnect()
    client.loop_stop()


def publish_slowly(port: int, first: int) -> None:
    """Publish a few messages at QoS 2, 10 ms apart, from a separate client."""
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, f"slow-{first}", protocol=paho.MQTTv5)
    client.connect("127.0.0.1", port)
    client.loop_start()
    sent, pause = [], threading.Event()
    for i in range(first, first + _MESSAGES_EACH):
        sent.append(client.publish("stack/events", str(i), qos=2))
        pause.wait(0.01)
    for message in sent:
        message.wait_for_publish(DEADLINE_S)
    client.disconnect()
    client.loop_stop()


class Subscriber:
    """An MQTT client with manual acknowledgements. ``keep``: whether it has a persistent session. If not, that ends."""

    def __init__(self, port: int, *, acknowledge: bool, after_s: float = 0.0, keep: bool = True) -> None:
        self.got: list[int] = []
        self.session_present = False
        self._after_s, self._pause = after_s, threading.Event()
        self._subscribed = threading.Event()
        self._acknowledge = acknowledge
        self._client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            "stack-subscriber",
            clean_session=not keep,
            protocol=paho.MQTTv311,
            manual_ack=True,
        )
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.on_message = self._on_message
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        assert self._subscribed.wait(DEADLINE_S)

    def close(self) -> None:
        """Disconnect. The broker keeps the session."""
        self._client.disconnect()
        self._client.loop_stop()

    def _on_connect(self, client: paho.Client, _data: object, flags: paho.ConnectFlags, *_: object) -> None:
        self.session_present = flags.session_present
        client.subscribe("stack/events", qos=1)

    def _on_message(self, client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        self.got.append(int(message.payload))
        if self._acknowledge:
            self._pause.wait(self._after_s)
            client.ack(message.mid, message.qos)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_persistent_mqtt_session_gets_what_it_missed_in_order_over_a_stop_and_a_kill_of_the_broker(
    own_mqtt: LocalStack, end: str
) -> None:
    mqtt = own_mqtt.mqtt
    Subscriber(mqtt.port, acknowledge=True).close()
    port = mqtt.port
    publish(port, 0, 3000, qos=1)
    publish(port, 3000, 500, qos=2)
    getattr(mqtt, end)()
    own_mqtt.up([mqtt])
    assert mqtt.port == port
    late = Subscriber(port, acknowledge=True)
    assert late.session_present
    wait_for(lambda: len(late.got) >= 3500)
    late.close()
    assert late.got == list(range(3500))


def test_mqtt_messages_that_a_killed_broker_had_in_flight_come_again_in_order(own_mqtt: LocalStack) -> None:
    port = own_mqtt.mqtt.port
    Subscriber(port, acknowledge=False).close()
    publish(port, 0, 1000, qos=1)
    first = Subscriber(port, acknowledge=False)
    # All messages are in flight at once: the window is large enough for the connector's batches.
    wait_for(lambda: len(first.got) >= 1000)
    own_mqtt.mqtt.kill()
    first.close()
    own_mqtt.up([own_mqtt.mqtt])
    second = Subscriber(port, acknowledge=True)
    wait_for(lambda: len(second.got) >= 1000)
    second.close()
    assert second.got == list(range(1000))


def test_an_mqtt_message_without_acknowledgement_comes_again(mqtt: tuple[str, int]) -> None:
    port = mqtt[1]
    first = Subscriber(port, acknowledge=False)
    publish(port, 0, 500, qos=1)
    wait_for(lambda: len(first.got) >= 1)
    first.close()
    second = Subscriber(port, acknowledge=True)
    wait_for(lambda: len(set(second.got)) >= 500)
    second.close()
    assert sorted(set(second.got)) == list(range(500))


def test_a_slow_stream_from_many_mqtt_publishers_never_stalls(own_mqtt: LocalStack) -> None:
    mqtt = own_mqtt.mqtt
    # Acknowledges each message while the next one arrives, as a connector that waits for Kafka does.
    subscriber = Subscriber(mqtt.port, acknowledge=True, after_s=0.006)
    for number in range(_PUBLISHERS):
        publish_slowly(mqtt.port, _MESSAGES_EACH * number)
        wait_for(lambda sent=number + 1: len(subscriber.got) >= _MESSAGES_EACH * sent)  # type: ignore[misc]
    subscriber.close()
    assert subscriber.got == list(range(_PUBLISHERS * _MESSAGES_EACH))
    assert "No message id available" not in mqtt.log.read_text()


def test_a_second_stack_in_the_same_folder_finds_the_running_servers(stack: LocalStack, kafka: str) -> None:
    again = LocalStack(stack.folder, usual_ports=False)
    assert again.kafka.pid == stack.kafka.pid
    assert again.environment()["LSB_KAFKA__BOOTSTRAP_SERVERS"] == kafka


def test_a_server_that_cannot_start_fails_with_the_end_of_its_log() -> None:
    with ephemeral_stack() as own:
        own.up([own.influxdb])
        own.influxdb.stop()
        (own.influxdb.data / "meta" / "meta.db").write_bytes(b"nonsense")
        with pytest.raises(StackError, match=r"influxdb exited while it was starting(?s:.)*create server"):
            own.up([own.influxdb])


def test_every_server_listens_on_the_loopback_only(
    stack: LocalStack, kafka: str, mqtt: object, influxdb: object
) -> None:
    assert kafka
    assert mqtt
    assert influxdb
    for server in stack.servers:
        with socket.socket() as other:
            # A server that listens on all addresses would conflict with this one.
            other.bind(("127.0.0.2", server.port))
    with urllib.request.urlopen(f"{stack.influxdb.url}/ping", timeout=DEADLINE_S) as answer:
        assert answer.status == 204


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_start_leaves_nothing_running(tmp_path: Path, kafka: str, number: signal.Signals) -> None:
    assert kafka  # the fixture has downloaded Kafka, so that the launcher starts it at once
    parts = Path(os.environ.get("LSB_CACHE", ".lsb/parts")).absolute()
    launcher = subprocess.Popen(
        [sys.executable, "-m", "broker.stack", "up", "kafka", "mqtt", "--dir", str(tmp_path)],
        env={**os.environ, "LSB_CACHE": str(parts)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    pid_file = tmp_path / "stack" / "kafka" / "pid"
    wait_for(pid_file.exists)
    launcher.send_signal(number)
    _, words = launcher.communicate(timeout=DEADLINE_S)
    assert launcher.returncode == 1, words
    assert b"cancelled; all servers started by this command have been stopped" in words
    assert [server.pid for server in LocalStack(tmp_path).servers] == [None, None, None]


def test_the_servers_of_a_killed_test_run_are_stopped(tmp_path: Path, mqtt: object) -> None:
    assert mqtt
    program = (
        "from broker.stack import ephemeral_stack\n"
        "with ephemeral_stack() as s:\n"
        "    s.up([s.mqtt]); print(s.folder, flush=True); input()\n"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert run.stdout is not None
    folder = Path(run.stdout.readline().strip())
    orphan = LocalStack(folder).mqtt
    assert orphan.pid is not None
    run.kill()
    run.communicate()
    wait_for(lambda: not folder.exists())
    assert orphan.pid is None
