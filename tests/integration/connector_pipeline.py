"""A connector between a real MQTT broker and real Kafka, with its own topics and MQTT session.

Connector tests use it to start the connector, publish to it and read its output. The tests define the expected results.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka.admin import AdminClient
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from broker.wire.records import Record, Rejected, decode_data, decode_rejected
from tests.integration.services import (
    DEADLINE_S,
    Stored,
    ends_of,
    kill,
    read_topic,
    start_service,
    topic_reader,
    wait_until,
)

if TYPE_CHECKING:
    # pytest loads a conftest itself; importing it at run time would create a second copy.
    from tests.integration.conftest import MqttAddress

PARTITIONS: Final = 3
TOPICS: Final = ("data", "out", "late", "rejected", "unmatched")

FLOW_PER_SECOND: Final = 4_000
"""The rate at which messages are published in the background."""

Identity = tuple[str, str, str]
"""The event id, quantity and thing of a record."""


def event(identity: str, *, thing: str = "R0815", time_ms: int = 1554096460415, **quantities: Any) -> bytes:
    """Return the payload of an event, by default with two quantities."""
    values = quantities or {"speed": 288.25, "torque": 3}
    return json.dumps({"Thing": thing, "Timestamp": time_ms, "id": identity, **values}).encode()


def events(count: int) -> list[bytes]:
    """Return ``count`` events, spread over seven things, with two quantities each."""
    return [event(f"e{n}", thing=f"R{n % 7}", time_ms=1554096460415 + n) for n in range(count)]


def expected(count: int) -> set[Identity]:
    """Return the identities of the records of ``events(count)``."""
    return {(f"e{n}", quantity, f"R{n % 7}") for n in range(count) for quantity in ("speed", "torque")}


@dataclass
class Pipeline:
    """Topics and an MQTT session on the shared servers, and the connector between them."""

    name: str
    bootstrap: str
    mqtt_host: str
    mqtt_port: int
    folder: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def log(self) -> Path:
        """The path of the connector's log."""
        return self.folder / "connector.log"

    def start(self, *, connected: bool = True, **environment: str) -> subprocess.Popen[bytes]:
        """Start the connector. By default, wait until it is connected."""
        before = self.count_logged("connected to MQTT")
        settings = {
            "LSB_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap,
            "LSB_MQTT__HOST": self.mqtt_host,
            "LSB_MQTT__PORT": str(self.mqtt_port),
            "LSB_MQTT__TOPIC": f"{self.name}/states",
            "LSB_CONNECTOR__CLIENT_ID": self.name,
            "LSB_TOPICS__PARTITIONS": str(PARTITIONS),
            **{f"LSB_TOPICS__{topic.upper()}": self.topic(topic) for topic in TOPICS},
        }
        # An empty settings file, so that the project's own settings are not read.
        config = self.folder / "empty.toml"
        config.touch()
        process = start_service(
            "connector", "--config", str(config), environment={**settings, **environment}, log=self.log
        )
        self.started.append(process)
        if connected:
            self.wait_until_logged("connected to MQTT", before)
        return process

    def topic(self, kind: str) -> str:
        """Return the name of a topic of this pipeline."""
        return f"{self.name}.{kind}"

    def count_logged(self, words: str) -> int:
        """Return how many times the connector has logged ``words``."""
        return self.log.read_text().count(words) if self.log.exists() else 0

    def wait_until_logged(self, words: str, before: int = 0) -> None:
        """Wait until the connector has logged ``words`` more than ``before`` times."""
        wait_until(lambda: self.count_logged(words) > before, f"the connector logs {words!r}")

    def publish(self, payloads: Sequence[bytes], per_second: int | None = None) -> None:
        """Publish events in order at QoS 1, limited to ``per_second``. Return when the broker has acknowledged all."""
        self.publish_to([(f"{self.name}/states", payload) for payload in payloads], per_second)

    def publish_to(
        self, messages: Sequence[tuple[str, bytes]], per_second: int | None = None, *, retain: bool = False
    ) -> None:
        """Publish messages, each with its topic, as `publish` does."""
        client = Client(CallbackAPIVersion.VERSION2)
        client.connect(self.mqtt_host, self.mqtt_port)
        client.loop_start()
        infos = []
        began_s = time.monotonic()
        for count, (topic, payload) in enumerate(messages):
            if per_second is not None and count % 40 == 0:
                _wait_for_turn(began_s + count / per_second)
            infos.append(client.publish(topic, payload, qos=1, retain=retain))
        for info in infos:
            info.wait_for_publish(DEADLINE_S)
            assert info.is_published(), f"the broker acknowledged no message within {DEADLINE_S} s"
        client.disconnect()
        client.loop_stop()

    def start_publishing(self, payloads: Sequence[bytes]) -> threading.Thread:
        """Publish at `FLOW_PER_SECOND` in a thread while the test continues. The test must join the thread."""
        publisher = threading.Thread(target=self.publish, args=(payloads, FLOW_PER_SECOND))
        publisher.start()
        return publisher

    def count_records(self) -> int:
        """Return the number of records in Kafka."""
        with closing(topic_reader(self.bootstrap, self.name)) as consumer:
            return sum(ends_of(consumer, self.topic("data"), PARTITIONS))

    def wait_for_records(self, count: int) -> None:
        """Wait until at least ``count`` records are in Kafka."""
        with closing(topic_reader(self.bootstrap, self.name)) as consumer:
            wait_until(
                lambda: sum(ends_of(consumer, self.topic("data"), PARTITIONS)) >= count,
                f"{count} records are in Kafka",
            )

    def wait_for_all(self, count: int) -> None:
        """Wait until every record of ``events(count)`` is in Kafka."""
        wait_until(lambda: set(self.identities()) >= expected(count), f"all records of {count} events arrive")

    def values(self, kind: str) -> list[Stored]:
        """Return all records of a topic."""
        return read_topic(self.bootstrap, self.topic(kind), PARTITIONS)

    def records(self) -> list[Record]:
        """Return all records in the data topic."""
        decoded = (decode_data(stored.value, "ms")[0] for stored in self.values("data"))
        return [record for record in decoded if isinstance(record, Record)]

    def identities(self) -> list[Identity]:
        """Return the identities of all records in the data topic."""
        return [(record.id, record.quantity, record.thing) for record in self.records()]

    def dead_letters(self) -> list[Rejected]:
        """Return all dead letters."""
        return [decode_rejected(stored.value) for stored in self.values("rejected")]

    def close(self) -> None:
        """Kill running connectors, delete the topics and end the MQTT session."""
        for process in self.started:
            kill(process)
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for future in admin.delete_topics([self.topic(kind) for kind in TOPICS], operation_timeout=30).values():
            future.exception()  # fails if the test created no topics
        # The broker would queue messages for an abandoned session for days.
        ender = Client(CallbackAPIVersion.VERSION2, client_id=self.name)
        ender.connect(self.mqtt_host, self.mqtt_port)
        ender.loop_start()
        wait_until(ender.is_connected, "the session is taken over to end it")
        ender.disconnect()
        ender.loop_stop()


def connector_pipeline(kafka: str, mqtt: MqttAddress, folder: Path) -> Iterator[Pipeline]:
    """Yield a pipeline, and remove it at the end. For fixtures."""
    made = Pipeline(f"t{uuid.uuid4().hex[:12]}", kafka, mqtt.host, mqtt.port, folder)
    yield made
    made.close()


def _wait_for_turn(moment_s: float) -> None:
    """Wait until the next message is due."""
    wait_until(lambda: time.monotonic() >= moment_s, "the moment of the next message")
