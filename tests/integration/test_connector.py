"""The connector between a real MQTT broker and real Kafka: nothing is lost, whatever goes away."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from broker.partitioner import partition_of
from broker.stack import LocalStack, ephemeral_stack
from broker.wire import REJECTED_BYTES_MAX, Mark, Record, Rejected, decode_data, decode_rejected

ROOT = Path(__file__).parents[2]
PARTITIONS = 3
DEADLINE_S = 60.0
STOP_S = 5.0

Identity = tuple[str, str, str]
"""A record's event id, quantity and thing."""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {DEADLINE_S} s"
        time.sleep(0.02)


def event(identity: str, *, thing: str = "R0815", time_ms: int = 1554096460415, **quantities: Any) -> bytes:
    values = quantities or {"speed": 288.25, "torque": 3}
    return json.dumps({"Thing": thing, "Timestamp": time_ms, "id": identity, **values}).encode()


class Door:
    """A TCP door before a broker: shut, it refuses new connections and breaks those there are."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener: socket.socket | None = None
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def open(self) -> None:
        """Let connections through."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._start(self._accept, self._listener)

    def shut(self) -> None:
        """Break the connections and refuse new ones."""
        sockets = [*self._connections] + ([self._listener] if self._listener else [])
        self._listener = None
        for one in sockets:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # the other side has gone already
        for thread in self._threads:
            thread.join()
        for one in sockets + self._connections:
            one.close()
        self._connections.clear()
        self._threads.clear()

    def _start(self, work: Callable[..., None], *sockets: socket.socket) -> None:
        thread = threading.Thread(target=work, args=sockets, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            self._connections += [near, far]
            self._start(self._carry, near, far)
            self._start(self._carry, far, near)

    @staticmethod
    def _carry(source: socket.socket, sink: socket.socket) -> None:
        try:
            while block := source.recv(65536):
                sink.sendall(block)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return


@dataclass
class Pipeline:
    """Topics and a session of their own on the shared servers, and the connector between them."""

    name: str
    bootstrap: str
    mqtt_host: str
    mqtt_port: int
    folder: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def log(self) -> Path:
        """What the connector wrote."""
        return self.folder / "connector.log"

    def start(self, *, connected: bool = True, **environment: str) -> subprocess.Popen[bytes]:
        """Start the connector, by default until it is connected."""
        before = self.told("connected to MQTT")
        settings = {
            "LSB_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap,
            "LSB_MQTT__HOST": self.mqtt_host,
            "LSB_MQTT__PORT": str(self.mqtt_port),
            "LSB_MQTT__TOPIC": f"{self.name}/states",
            "LSB_CONNECTOR__CLIENT_ID": self.name,
            "LSB_TOPICS__PARTITIONS": str(PARTITIONS),
            **{f"LSB_TOPICS__{topic.upper()}": self.topic(topic) for topic in TOPICS},
        }
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "connector", "--config", str(self.folder / "empty.toml")],
                cwd=ROOT,
                env={**os.environ, **settings, **environment},
                stderr=log,
            )
        self.started.append(process)
        if connected:
            self.wait_until_told("connected to MQTT", before)
        return process

    def topic(self, kind: str) -> str:
        """The name of a topic here."""
        return f"{self.name}.{kind}"

    def told(self, words: str) -> int:
        """How often the connector has said this."""
        return self.log.read_text().count(words) if self.log.exists() else 0

    def wait_until_told(self, words: str, before: int = 0) -> None:
        """Wait until the connector has said this more than ``before`` times."""
        wait_until(lambda: self.told(words) > before, f"the connector says {words!r}")

    def wait_for_records(self, count: int) -> None:
        """Wait until at least so many records are in Kafka."""
        wait_until(lambda: len(self.values("data")) >= count, f"{count} records are in Kafka")

    def publish(self, payloads: list[bytes], pace: Callable[[int], None] = lambda _count: None) -> None:
        """Publish in order at QoS 1; all of them are with the broker at the end."""
        client = Client(CallbackAPIVersion.VERSION2)
        client.connect(self.mqtt_host, self.mqtt_port)
        client.loop_start()
        infos = []
        for count, payload in enumerate(payloads):
            infos.append(client.publish(f"{self.name}/states", payload, qos=1))
            pace(count)
        for info in infos:
            info.wait_for_publish(DEADLINE_S)
        client.disconnect()
        client.loop_stop()

    def values(self, kind: str) -> list[tuple[int, bytes | None, bytes]]:
        """Partition, key and value of everything that lies in a topic now."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.name, "enable.auto.commit": False})
        found: list[tuple[int, bytes | None, bytes]] = []
        try:
            partitions = [TopicPartition(self.topic(kind), partition, 0) for partition in range(PARTITIONS)]
            ends = {p.partition: self._end(consumer, p) for p in partitions}
            consumer.assign(partitions)
            while len(found) < sum(ends.values()):
                for message in consumer.consume(10_000, 1.0):
                    assert message.error() is None
                    found.append((message.partition() or 0, message.key(), message.value() or b""))
        finally:
            consumer.close()
        return found

    @staticmethod
    def _end(consumer: Consumer, partition: TopicPartition) -> int:
        """The end of a partition; a topic just made, and a Kafka just started, say for a moment that it has
        no leader.
        """
        end_s = time.monotonic() + DEADLINE_S
        while True:
            try:
                return consumer.get_watermark_offsets(partition, timeout=10)[1]
            except KafkaException:
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.1)

    def records(self) -> list[Record]:
        """Every record in Kafka."""
        decoded = (decode_data(value, "ms")[0] for _, _, value in self.values("data"))
        return [record for record in decoded if isinstance(record, Record)]

    def identities(self) -> list[Identity]:
        """The identities of every record in Kafka."""
        return [(record.id, record.quantity, record.thing) for record in self.records()]

    def letters(self) -> list[Rejected]:
        """Every dead letter."""
        return [decode_rejected(value) for _, _, value in self.values("rejected")]


TOPICS = ("data", "out", "late", "rejected", "unmatched")


@pytest.fixture
def pipeline(kafka: str, mqtt: Any, tmp_path: Path) -> Iterator[Pipeline]:
    found = Pipeline(f"t{uuid.uuid4().hex[:12]}", kafka, mqtt.host, mqtt.port, tmp_path)
    (tmp_path / "empty.toml").touch()
    yield found
    for process in found.started:
        process.kill()
        process.wait()
    admin = AdminClient({"bootstrap.servers": found.bootstrap})
    for future in admin.delete_topics([found.topic(kind) for kind in TOPICS], operation_timeout=30).values():
        future.exception()  # a test that made no topics has none to delete
    # A session that nobody takes up again would collect messages for days.
    goodbye = Client(CallbackAPIVersion.VERSION2, client_id=found.name)
    goodbye.connect(found.mqtt_host, found.mqtt_port)
    goodbye.loop_start()
    wait_until(goodbye.is_connected, "the session is taken over to end it")
    goodbye.disconnect()
    goodbye.loop_stop()


@pytest.fixture
def door(pipeline: Pipeline) -> Iterator[Door]:
    """A door before the MQTT broker, shut at first."""
    found = Door(pipeline.mqtt_host, pipeline.mqtt_port)
    yield found
    found.shut()


def stop(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> int:
    process.send_signal(number)
    return process.wait(STOP_S)


def expected(count: int) -> set[Identity]:
    return {(f"e{n}", quantity, f"R{n % 7}") for n in range(count) for quantity in ("speed", "torque")}


def events(count: int) -> list[bytes]:
    return [event(f"e{n}", thing=f"R{n % 7}", time_ms=1554096460415 + n) for n in range(count)]


def test_each_quantity_of_each_event_arrives_once_in_its_things_partition(pipeline: Pipeline) -> None:
    process = pipeline.start()
    pipeline.publish(events(2000))
    pipeline.wait_for_records(4000)
    assert stop(process) == 0
    assert sorted(pipeline.identities()) == sorted(expected(2000))
    for partition, key, value in pipeline.values("data"):
        record, _ = decode_data(value, "ms")
        assert key is not None
        assert key.decode() == record.thing
        assert partition == partition_of(key, PARTITIONS)
    assert pipeline.letters() == []


BAD: list[tuple[bytes, str]] = [
    (b"", "the payload is empty"),
    (b"\x00\xff\xfe", "not a JSON object"),
    (event("t")[:-5], "not a JSON object"),
    (b"[1, 2]", "not a JSON object"),
    (event("n").replace(b"288.25", b"NaN"), "JSON has no NaN"),
    (b'{"Timestamp": 1, "id": "x", "q": 1}', "Thing is missing"),
    (b'{"Thing": "R", "id": "x", "q": 1}', "Timestamp is missing"),
    (b'{"Thing": "R", "Timestamp": 1, "q": 1}', "id is missing"),
    (b'{"Thing": 1, "Timestamp": 1, "id": "x", "q": 1}', "Thing must be a string"),
    (b'{"Thing": "R", "Timestamp": true, "id": "x", "q": 1}', "neither a number nor an ISO-8601"),
    (b'{"Thing": "R", "Timestamp": 1, "id": "x"}', "the event has no quantity"),
    (b'{"Thing": "R", "Timestamp": "0001-01-01T00:00:00Z", "id": "x", "q": 1}', "outside the years"),
    (event("y", time_ms=253402300799000), "outside the years"),
    (event("part", bad=None), "quantity 'bad' is null"),
    (event("part2", bad="1"), "quantity 'bad' is a string"),
    (b'{"pad": "' + b"x" * 2_000_000 + b'"}', "more than events.event_bytes_max"),
]


def test_each_bad_input_is_in_the_dead_letters_with_its_reason_and_nothing_stops(pipeline: Pipeline) -> None:
    process = pipeline.start()
    payloads = [
        event("first"),
        *(payload for payload, _ in BAD),
        event("y2200", time_ms=7258118400000),
        event("last"),
    ]
    pipeline.publish(payloads)
    wait_until(lambda: {"first", "last"} <= {record.id for record in pipeline.records()}, "the good ones arrive")
    wait_until(lambda: len(pipeline.letters()) >= len(BAD), "the dead letters arrive")
    assert stop(process) == 0
    letters = pipeline.letters()
    assert len(letters) == len(BAD)
    for payload, reason in BAD:
        assert any(reason in letter.reason for letter in letters), (payload[:60], reason)
    assert {letter.source for letter in letters} == {"connector"}
    assert {letter.topic for letter in letters} == {f"{pipeline.name}/states"}
    (large,) = [letter for letter in letters if letter.length > 2_000_000]
    assert len(large.value) == REJECTED_BYTES_MAX
    assert {record.id for record in pipeline.records()} == {"first", "y2200", "last"}


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.parametrize("seed", [1, 2])
def test_a_connector_killed_at_any_moment_loses_nothing(pipeline: Pipeline, seed: int) -> None:
    draw = random.Random(seed)
    count = 12_000
    process = pipeline.start()
    publisher = threading.Thread(target=pipeline.publish, args=(events(count), _pace))
    publisher.start()
    for _ in range(4):
        time.sleep(draw.uniform(0.0, 0.5))  # the moment of the kill is the seeded input, not a wait
        process.send_signal(signal.SIGKILL)
        process.wait()
        process = pipeline.start()
    publisher.join()
    wait_until(lambda: set(pipeline.identities()) >= expected(count), f"all records arrive (seed {seed})")
    assert stop(process) == 0
    assert set(pipeline.identities()) == expected(count)


def _pace(count: int) -> None:
    """About 4,000 messages a second, so that data flows while the test acts."""
    if count % 40 == 0:
        time.sleep(0.01)


def test_a_stop_in_the_middle_loses_nothing_and_doubles_nothing(pipeline: Pipeline) -> None:
    process = pipeline.start()
    for start, number in ((0, signal.SIGTERM), (3_000, signal.SIGINT)):
        publisher = threading.Thread(target=pipeline.publish, args=(events(6_000)[start : start + 3_000], _pace))
        publisher.start()
        pipeline.wait_for_records(2 * start + 1)
        assert stop(process, number) == 0
        process = pipeline.start()
        publisher.join()
        pipeline.wait_for_records(2 * (start + 3_000))
    wait_until(lambda: set(pipeline.identities()) >= expected(6_000), "all records arrive")
    assert stop(process) == 0
    assert sorted(pipeline.identities()) == sorted(expected(6_000))


def test_a_lost_mqtt_connection_is_made_again_and_loses_nothing(pipeline: Pipeline, door: Door) -> None:
    door.open()
    process = pipeline.start(LSB_MQTT__HOST="127.0.0.1", LSB_MQTT__PORT=str(door.port))
    for start in (0, 3_000):
        publisher = threading.Thread(target=pipeline.publish, args=(events(6_000)[start : start + 3_000], _pace))
        publisher.start()
        pipeline.wait_for_records(2 * start + 1)
        connections, losses = pipeline.told("connected to MQTT"), pipeline.told("no MQTT connection")
        door.shut()
        pipeline.wait_until_told("no MQTT connection", losses)
        door.open()
        pipeline.wait_until_told("connected to MQTT", connections)
        publisher.join()
        pipeline.wait_for_records(2 * (start + 3_000))
    wait_until(lambda: set(pipeline.identities()) >= expected(6_000), "all records arrive")
    assert stop(process) == 0
    assert set(pipeline.identities()) == expected(6_000)


def test_a_broker_that_is_away_at_the_start_is_waited_for(pipeline: Pipeline, door: Door) -> None:
    process = pipeline.start(connected=False, LSB_MQTT__HOST="127.0.0.1", LSB_MQTT__PORT=str(door.port))
    pipeline.wait_until_told("no MQTT connection")
    door.open()
    pipeline.wait_until_told("connected to MQTT")
    assert stop(process) == 0
    assert "Traceback" not in pipeline.log.read_text()


def test_a_stop_ends_a_connector_that_waits_for_kafka(pipeline: Pipeline) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        nobody = f"127.0.0.1:{probe.getsockname()[1]}"
    process = pipeline.start(connected=False, LSB_KAFKA__BOOTSTRAP_SERVERS=nobody)
    pipeline.wait_until_told("does not answer yet")
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
    wait_until(lambda: set(pipeline.identities()) >= expected(5_000), "all records arrive")
    assert stop(process) == 0
    assert set(pipeline.identities()) == expected(5_000)


@pytest.mark.slow
@pytest.mark.chaos
def test_a_stop_while_kafka_is_away_keeps_what_is_unacknowledged(pipeline: Pipeline, stack: LocalStack) -> None:
    process = pipeline.start()
    stack.kafka.stop()
    pipeline.publish(events(1_000))
    assert stop(process) == 0
    stack.up([stack.kafka])
    process = pipeline.start()
    wait_until(lambda: set(pipeline.identities()) >= expected(1_000), "all records arrive")
    assert stop(process) == 0


@pytest.mark.slow
def test_a_broker_without_mqtt_5_loses_nothing_over_a_kill(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSB_MQTT_BROKER", "nats")
    with ephemeral_stack() as own:
        own.up([own.mqtt])
        port = str(own.mqtt.port)
        process = pipeline.start(LSB_MQTT__HOST="127.0.0.1", LSB_MQTT__PORT=port)
        away = replace(pipeline, mqtt_host="127.0.0.1", mqtt_port=own.mqtt.port)
        away.publish(events(1_000))
        process.send_signal(signal.SIGKILL)
        process.wait()
        away.publish(events(2_000)[1_000:])
        process = pipeline.start(LSB_MQTT__HOST="127.0.0.1", LSB_MQTT__PORT=port)
        wait_until(lambda: set(pipeline.identities()) >= expected(2_000), "all records arrive")
        assert stop(process) == 0
    assert set(pipeline.identities()) == expected(2_000)


def test_a_silent_quantity_gets_a_mark_in_its_things_partition(pipeline: Pipeline) -> None:
    process = pipeline.start(LSB_CONNECTOR__IDLE_AFTER="500ms")
    pipeline.publish([event("e0", torque=1, speed=1)])
    count = 0

    def marks() -> list[tuple[int, Mark]]:
        nonlocal count
        count += 1
        pipeline.publish([event(f"s{count}", time_ms=1554096460415 + 1_000 * count, speed=1)])
        found = ((partition, decode_data(value, "ms")[0]) for partition, _, value in pipeline.values("data"))
        return [(partition, value) for partition, value in found if isinstance(value, Mark)]

    wait_until(lambda: bool(marks()), "a mark is written")
    assert stop(process) == 0
    for partition, mark in marks():
        assert (mark.thing, mark.quantity) == ("R0815", "torque")
        assert partition == partition_of(b"R0815", PARTITIONS)
        assert isinstance(mark.mark, int)
        assert 1554096460415 < mark.mark <= 1554096460415 + 1_000 * count - 500


def test_two_connectors_of_one_name_tell_of_it_and_lose_nothing(pipeline: Pipeline) -> None:
    first = pipeline.start()
    second = pipeline.start()
    pipeline.wait_until_told(f"is there another '{pipeline.name}'?")
    pipeline.publish(events(500))
    wait_until(lambda: set(pipeline.identities()) >= expected(500), "all records arrive")
    assert stop(first) == 0
    assert stop(second) == 0


def test_topics_that_do_not_fit_end_the_connector_with_the_way_out(pipeline: Pipeline) -> None:
    assert stop(pipeline.start()) == 0
    process = pipeline.start(connected=False, LSB_TOPICS__PARTITIONS="4")
    assert process.wait(DEADLINE_S) == 1
    assert "set topics.partitions to 3" in pipeline.log.read_text()


def test_wrong_settings_are_told_together_before_anything_starts(pipeline: Pipeline) -> None:
    process = pipeline.start(
        connected=False, LSB_CONNECTOR__IN_FLIGHT_MAX="0", LSB_CONNECTOR__LINGER="5", LSB_MQTT__PORT="x"
    )
    assert process.wait(DEADLINE_S) == 2
    told = pipeline.log.read_text()
    assert all(name in told for name in ("connector.in_flight_max", "connector.linger", "mqtt.port"))
    assert "Traceback" not in told
