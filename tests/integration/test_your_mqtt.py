"""SenML and Sparkplug B, published to a real MQTT broker, are joined with the settings in docs/connector.md."""

from __future__ import annotations

import json
import random
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from broker.settings import MqttSettings
from connector.formats.payload import Metric, Payload
from tests.integration.joiner_application import Application, application, found_of
from tests.integration.services import (
    DEADLINE_S,
    ends_of,
    kill,
    logged,
    start_service,
    stop,
    topic_reader,
    wait_until,
)
from tests.unit.project.documents import DOCS, blocks

if TYPE_CHECKING:
    from tests.integration.conftest import MqttAddress

PAGE: Final = DOCS / "connector.md"
AT: Final = 1_700_000_000_000
COUNT: Final = 300
"""The number of measurements of each quantity, per thing."""

THINGS: Final = 4
LINES_MAX: Final = 15


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


def settings_of(name: str, app: Application) -> str:
    """Return the settings on the page for a format, with MQTT topics of the application's own."""
    (text,) = [block.text for block in blocks(PAGE, "toml") if block.info == f"toml {name}"]
    assert len([line for line in text.splitlines() if line.strip()]) <= LINES_MAX
    return text.replace('"senml/#"', f'"{app.name}/senml/#"').replace('"spBv1.0/#"', f'"spBv1.0/{app.name}/#"')


def senml(app: Application, draw: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield topics and packs. The devices measure the humidity some time after the temperature."""
    for number in range(COUNT):
        for thing in range(THINGS):
            base = {"bn": f"urn:dev:ow:{thing}:", "bt": (AT + 1000 * number + draw.randrange(900)) / 1000}
            temperature = {"n": "temperature", "u": "Cel", "v": draw.uniform(0, 40)}
            humidity = {"n": "humidity", "u": "%RH", "t": draw.randrange(300) / 1000, "v": draw.uniform(0, 100)}
            yield f"{app.name}/senml/{thing}", json.dumps([base | temperature, humidity]).encode()


def sparkplug(app: Application, draw: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield topics and payloads: the births of a node and its devices, and then their data with aliases."""
    sequence = 0

    def encoded(*metrics: Any) -> bytes:
        nonlocal sequence
        payload: bytes = Payload(timestamp=AT, seq=sequence % 256, metrics=metrics).SerializeToString()
        sequence += 1
        return payload

    yield f"spBv1.0/{app.name}/NBIRTH/cell", encoded(Metric(name=b"bdSeq", datatype=4, long_value=0))
    for thing in range(THINGS):
        speed = Metric(name=b"Spindle/Speed", alias=2 * thing, datatype=10, double_value=0, timestamp=AT)
        torque = Metric(name=b"Spindle/Torque", alias=2 * thing + 1, datatype=9, float_value=0, timestamp=AT)
        yield f"spBv1.0/{app.name}/DBIRTH/cell/press-{thing}", encoded(speed, torque)
    for number in range(COUNT):
        for thing in range(THINGS):
            at = AT + 1000 * (number + 1) + draw.randrange(900)
            speed = Metric(alias=2 * thing, double_value=draw.uniform(0, 3000), timestamp=at)
            torque = Metric(alias=2 * thing + 1, float_value=draw.uniform(0, 99), timestamp=at + draw.randrange(300))
            yield f"spBv1.0/{app.name}/DDATA/cell/press-{thing}", encoded(speed, torque)


def started(app: Application, mqtt: MqttAddress) -> subprocess.Popen[bytes]:
    """Start the connector with the settings of the application, and wait until it is connected."""
    log = app.folder / "connector.log"
    own = {
        "LSB_MQTT__HOST": mqtt.host,
        "LSB_MQTT__PORT": str(mqtt.port),
        "LSB_MQTT__TOPIC": f"{app.name}/states",
        "LSB_CONNECTOR__CLIENT_ID": app.name,
    }
    process = start_service("connector", "--config", str(app.config), environment=own, log=log)
    wait_until(lambda: "connected to MQTT" in log.read_text(), "the connector is connected")
    return process


def listening(app: Application, mqtt: MqttAddress, count: int) -> subprocess.Popen[bytes]:
    """Start `lsb-init`, and wait until it listens to the topics of both formats, for so many messages."""
    log = app.folder / "init.log"
    filters = ["--mqtt", f"{app.name}/senml/#", "--mqtt", f"spBv1.0/{app.name}/#"]
    limits = ["--samples", str(count), "--listen", "60", "--output", str(app.folder / "proposed.toml")]
    own = {"LSB_MQTT__HOST": mqtt.host, "LSB_MQTT__PORT": str(mqtt.port)}
    config = ["--config", str(app.config)]
    process = start_service("joiner.cli.proposal", *filters, *limits, *config, environment=own, log=log)
    logged(process, log, "listening to MQTT at")
    return process


def check_proposal(app: Application, mqtt: MqttAddress) -> None:
    """Check that `lsb-init` proposes templates for what it has heard, and joins of all quantities."""
    found = tomllib.loads((app.folder / "proposed.toml").read_text())
    assert found["connector"]["topic"] == [
        {"format": "sparkplug", "topic": f"spBv1.0/{app.name}/#"},
        {"format": "senml", "topic": f"{app.name}/senml/#"},
    ]
    assert found.get("mqtt", {}).get("port", MqttSettings().port) == mqtt.port
    assert {name for one in found["join"] for name in (one["left"], one["right"])} == {
        *("temperature", "humidity", "Spindle/Speed", "Spindle/Torque"),
    }


def publish(mqtt: MqttAddress, messages: list[tuple[str, bytes]], qos: int) -> None:
    client = Client(CallbackAPIVersion.VERSION2)
    client.connect(mqtt.host, mqtt.port)
    client.loop_start()
    for sent in [client.publish(topic, payload, qos=qos) for topic, payload in messages]:
        sent.wait_for_publish(DEADLINE_S)
        assert sent.is_published()
    client.disconnect()
    client.loop_stop()


def records_in(app: Application) -> int:
    consumer = topic_reader(app.bootstrap, f"{app.name}-count")
    try:
        return sum(ends_of(consumer, app.topic("data"), app.partitions))
    finally:
        consumer.close()


def test_senml_and_sparkplug_are_joined_with_the_settings_on_the_page(app: Application, mqtt: MqttAddress) -> None:
    app.aligns = settings_of("senml", app) + settings_of("sparkplug", app)
    joiner = app.start()
    joiner.wait_for_units()
    process = started(app, mqtt)
    messages = [*senml(app, random.Random(1))], [*sparkplug(app, random.Random(2))]
    listener = listening(app, mqtt, sum(map(len, messages)))
    try:
        publish(mqtt, messages[0], qos=1)
        # The measurements on QoS 0 are few enough for the queues of the broker.
        publish(mqtt, messages[1], qos=0)
        expected = 2 * 2 * THINGS * COUNT + 2 * THINGS
        wait_until(lambda: records_in(app) >= expected, f"{expected} records are in Kafka")
        assert stop(process) == 0
        assert listener.wait(DEADLINE_S) == 0, (app.folder / "init.log").read_text()
    finally:
        kill(process)
        kill(listener)
    check_proposal(app, mqtt)
    app.wait_until_through()
    findings = app.verify()
    assert records_in(app) == expected
    assert app.rejected() == {}
    for name in ("climate", "spindle"):
        assert found_of(findings, "results", name) > THINGS * COUNT, name
    assert joiner.stop() == 0
