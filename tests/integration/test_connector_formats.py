"""MQTT messages in other formats than events become records, or messages of their own, on real servers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from broker.partitioner import partition_of
from connector.formats.payload import REBIRTH, Metric, Payload, decode
from tests.integration.connector_pipeline import PARTITIONS, Pipeline, connector_pipeline
from tests.integration.services import DEADLINE_S, kill, stop, topic_reader, wait_until

if TYPE_CHECKING:
    from tests.integration.conftest import MqttAddress

AT: Final = 1_700_000_000_000


@pytest.fixture
def pipeline(kafka: str, mqtt: MqttAddress, tmp_path: Path) -> Iterator[Pipeline]:
    yield from connector_pipeline(kafka, mqtt, tmp_path)


@contextmanager
def client_of(pipeline: Pipeline) -> Iterator[Client]:
    """Yield a connected MQTT client."""
    client = Client(CallbackAPIVersion.VERSION2)
    client.connect(pipeline.mqtt_host, pipeline.mqtt_port)
    client.loop_start()
    wait_until(client.is_connected, "the client is connected")
    yield client
    client.disconnect()
    client.loop_stop()


def found(pipeline: Pipeline) -> set[tuple[str, str, Any, float]]:
    """Return what is in the records of the data topic."""
    return {(one.thing, one.quantity, one.phenomenonTime, one.result) for one in pipeline.records()}


def test_senml_packs_become_records_whatever_kills_the_connector(pipeline: Pipeline) -> None:
    name = pipeline.name
    template = {"format": "senml", "topic": f"{name}/{{site}}/senml", "thing": "{site}/{bn}"}
    process = pipeline.start(LSB_CONNECTOR__TOPIC=json.dumps([template]))
    count = 600
    packs = [
        json.dumps([
            {"bn": f"dev{n % 5}:", "bt": AT / 1000 + n, "n": "temperature", "u": "Cel", "v": n},
            {"n": "humidity", "t": 0.5, "v": n + 0.5},
            {"n": "label", "vs": "on"},
        ]).encode()
        for n in range(count)
    ]  # fmt: skip
    pipeline.publish_to([(f"{name}/a/senml", pack) for pack in packs[: count // 2]])
    kill(process)
    pipeline.publish_to([(f"{name}/a/senml", pack) for pack in packs[count // 2 :]])
    pipeline.publish_to([(f"{name}/a/senml", b"[1]"), (f"{name}/a/senml", packs[0])])
    process = pipeline.start(LSB_CONNECTOR__TOPIC=json.dumps([template]))
    expected: set[tuple[str, str, Any, float]] = {
        (f"a/dev{n % 5}:", "temperature", AT + 1000 * n, n) for n in range(count)
    }
    expected |= {(f"a/dev{n % 5}:", "humidity", AT + 1000 * n + 500, n + 0.5) for n in range(count)}
    wait_until(lambda: found(pipeline) >= expected, "all numbers arrive")
    wait_until(lambda: len(pipeline.dead_letters()) >= 1, "the dead letter arrives")
    assert stop(process) == 0
    assert found(pipeline) == expected
    # A second copy has the id of the first one.
    assert len({(one.id, one.quantity) for one in pipeline.records()}) == 2 * count
    (letter, *_) = pipeline.dead_letters()
    assert (letter.topic, letter.value) == (f"{name}/a/senml", "[1]")


def payload(seq: int, *metrics: Any) -> bytes:
    encoded: bytes = Payload(timestamp=AT + seq, seq=seq, metrics=metrics).SerializeToString()
    return encoded


def test_a_sparkplug_node_is_asked_for_its_births_and_its_metrics_become_records(pipeline: Pipeline) -> None:
    group = pipeline.name
    birth = payload(
        0,
        Metric(name=b"bdSeq", datatype=4, long_value=1),
        Metric(name=b"speed", alias=1, datatype=10, double_value=1480.5, timestamp=AT),
        Metric(name=b"offset", alias=2, datatype=3, int_value=2**32 - 7, timestamp=AT),
    )
    device = payload(1, Metric(name=b"level", alias=3, datatype=7, int_value=5, timestamp=AT + 1))
    births = [(f"spBv1.0/{group}/NBIRTH/press", birth), (f"spBv1.0/{group}/DBIRTH/press/tank", device)]
    data = f"spBv1.0/{group}/NDATA/press"
    with client_of(pipeline) as node:

        def answer(_client: object, _data: object, message: Any) -> None:
            (asked,) = decode(message.payload).metrics
            if asked.name == REBIRTH.encode() and asked.boolean_value:
                for topic, given in births:
                    node.publish(topic, given, qos=0)

        node.on_message = answer
        granted: list[int] = []
        node.on_subscribe = lambda _client, _data, packet_id, *_: granted.append(packet_id)
        node.subscribe(f"spBv1.0/{group}/NCMD/press")
        wait_until(lambda: bool(granted), "the node hears commands")
        template = {"format": "sparkplug", "topic": f"spBv1.0/{group}/#"}
        process = pipeline.start(LSB_CONNECTOR__TOPIC=json.dumps([template]))
        # The connector has missed the births of this node.
        node.publish(data, payload(9, Metric(alias=1, double_value=1)), qos=0)
        pipeline.wait_for_records(3)
        node.publish(data, payload(2, Metric(alias=1, double_value=1490, timestamp=AT + 5)), qos=0)
        node.publish(
            f"spBv1.0/{group}/DDATA/press/tank", payload(3, Metric(alias=3, int_value=6, timestamp=AT + 7)), qos=0
        )
        node.publish(data, payload(5, Metric(name=b"offset", datatype=3, int_value=8, timestamp=AT + 6)), qos=0)
        node.publish(data, payload(6, Metric(alias=1, double_value=1)), qos=0)
        expected = {
            (f"{group}/press", "speed", AT, 1480.5),
            (f"{group}/press", "offset", AT, -7),
            (f"{group}/press/tank", "level", AT + 1, 5),
            (f"{group}/press", "speed", AT + 5, 1490),
            (f"{group}/press", "offset", AT + 6, 8),
            (f"{group}/press/tank", "level", AT + 7, 6),
        }
        wait_until(lambda: found(pipeline) == expected, "all metrics arrive")
        pipeline.wait_until_logged("are missing: after the sequence number 3 came 5")
        node.publish(f"spBv1.0/{group}/NDEATH/press", Payload(metrics=decode(birth).metrics[:1]).SerializeToString())
        node.publish(data, payload(7, Metric(alias=1, double_value=1)), qos=0)
        wait_until(lambda: len(pipeline.dead_letters()) == 3, "data after the death is refused")
        assert stop(process) == 0
    told = [letter.reason for letter in pipeline.dead_letters()]
    assert sum("the birth of the node" in one for one in told) == 2
    assert sum("the alias 1 is not used until the next birth" in one for one in told) == 1
    assert found(pipeline) == expected


def test_raw_messages_are_forwarded_unchanged_with_their_keys(pipeline: Pipeline) -> None:
    name, topic = pipeline.name, f"{pipeline.name}.raw"
    template = {
        "format": "raw",
        "topic": f"{name}/raw/{{site}}/{{thing}}",
        "kafka_topic": topic,
        "key": "{site}/{thing}",
    }
    own: dict[str, Any] = {"LSB_CONNECTOR__TOPIC": json.dumps([template]), "LSB_EVENTS__EVENT_BYTES_MAX": "2048"}
    pipeline.publish_to([(f"{name}/raw/a/old", b"old")], retain=True)
    process = pipeline.start(**own)
    pipeline.wait_until_logged("skipped the retained message")
    sent = [(f"{name}/raw/a/oven{n % 7}", b'{"n":%d}' % n) for n in range(500)]
    pipeline.publish_to([*sent[:250], (f"{name}/raw/a/oven1", b""), (f"{name}/raw/a/oven1", b"x" * 2049)])
    kill(process)
    pipeline.publish_to(sent[250:])
    process = pipeline.start(**own)
    try:
        wait_until(
            lambda: {value for _, _, value, _ in stored(pipeline, topic)} >= {one for _, one in sent}, "all arrive"
        )
        wait_until(lambda: len(pipeline.dead_letters()) >= 1, "the dead letter arrives")
        assert stop(process) == 0
        messages = stored(pipeline, topic)
    finally:
        pipeline.publish_to([(f"{name}/raw/a/old", b"")], retain=True)
        admin = AdminClient({"bootstrap.servers": pipeline.bootstrap})
        admin.delete_topics([topic])[topic].result(DEADLINE_S)
    assert {(mqtt, value) for _, _, value, mqtt in messages} == {(mqtt.encode(), value) for mqtt, value in sent}
    for partition, key, _, mqtt in messages:
        assert key == b"/".join(mqtt.split(b"/")[2:])
        assert partition == partition_of(key, PARTITIONS)
    assert "more than events.event_bytes_max = 2048" in pipeline.dead_letters()[0].reason
    assert pipeline.records() == []


def stored(pipeline: Pipeline, topic: str) -> list[tuple[int, bytes, bytes, bytes]]:
    """Return the partition, key, value and MQTT topic of each message in a topic."""
    messages: list[tuple[int, bytes, bytes, bytes]] = []
    with closing(topic_reader(pipeline.bootstrap, f"{topic}.headers")) as consumer:
        ends = {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), DEADLINE_S)[1]
            for number in range(PARTITIONS)
        }
        consumer.assign([TopicPartition(topic, number, 0) for number, end in ends.items() if end])
        until_s = time.monotonic() + DEADLINE_S
        while len(messages) < sum(ends.values()):
            assert time.monotonic() < until_s, f"{topic} was not read within {DEADLINE_S} s"
            for message in consumer.consume(1000, 0.2):
                if message.error() is None:
                    headers: Any = message.headers()
                    ((name, mqtt_topic),) = headers
                    assert name == "mqtt.topic"
                    place = message.partition() or 0
                    messages.append((place, message.key() or b"", message.value() or b"", mqtt_topic))
    return messages
