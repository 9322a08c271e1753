"""One connector between the real MQTT broker and real Kafka, with topics and a session of its own.

What the tests of the connector act with: they start it, publish to it, and read what came out. No test is here,
and what is expected of the connector stands in the tests.
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
    # pytest loads a conftest by itself; a second copy is not wanted.
    from tests.integration.conftest import MqttAddress

PARTITIONS: Final = 3
TOPICS: Final = ("data", "out", "late", "rejected", "unmatched")

FLOW_PER_SECOND: Final = 4_000
"""How many messages a second are published while a test acts."""

Identity = tuple[str, str, str]
"""A record's event id, quantity and thing."""


def event(identity: str, *, thing: str = "R0815", time_ms: int = 1554096460415, **quantities: Any) -> bytes:
    """The payload of an event, by default with two quantities."""
    values = quantities or {"speed": 288.25, "torque": 3}
    return json.dumps({"Thing": thing, "Timestamp": time_ms, "id": identity, **values}).encode()


def events(count: int) -> list[bytes]:
    """Payloads of seven things that take turns, two quantities each."""
    return [event(f"e{n}", thing=f"R{n % 7}", time_ms=1554096460415 + n) for n in range(count)]


def expected(count: int) -> set[Identity]:
    """The identities of the records that ``events(count)`` must become."""
    return {(f"e{n}", quantity, f"R{n % 7}") for n in range(count) for quantity in ("speed", "torque")}


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
        # An empty file of settings, so that the project's own does not speak here.
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
        """The name of a topic here."""
        return f"{self.name}.{kind}"

    def told(self, words: str) -> int:
        """How often the connector has said this."""
        return self.log.read_text().count(words) if self.log.exists() else 0

    def wait_until_logged(self, words: str, before: int = 0) -> None:
        """Wait until the connector has said this more than ``before`` times."""
        wait_until(lambda: self.told(words) > before, f"the connector says {words!r}")

    def publish(self, payloads: Sequence[bytes], per_second: int | None = None) -> None:
        """Publish in order at QoS 1, at most so many a second; all of them are with the broker at the end."""
        client = Client(CallbackAPIVersion.VERSION2)
        client.connect(self.mqtt_host, self.mqtt_port)
        client.loop_start()
        infos = []
        began_s = time.monotonic()
        for count, payload in enumerate(payloads):
            if per_second is not None and count % 40 == 0:
                _wait_for_turn(began_s + count / per_second)
            infos.append(client.publish(f"{self.name}/states", payload, qos=1))
        for info in infos:
            info.wait_for_publish(DEADLINE_S)
            assert info.is_published(), f"the broker took no message within {DEADLINE_S} s"
        client.disconnect()
        client.loop_stop()

    def start_publishing(self, payloads: Sequence[bytes]) -> threading.Thread:
        """Publish at `FLOW_PER_SECOND` in a thread, so that data flows while the test acts; join it at the end."""
        publisher = threading.Thread(target=self.publish, args=(payloads, FLOW_PER_SECOND))
        publisher.start()
        return publisher

    def count_records(self) -> int:
        """How many records are in Kafka now."""
        with closing(topic_reader(self.bootstrap, self.name)) as consumer:
            return sum(ends_of(consumer, self.topic("data"), PARTITIONS))

    def wait_for_records(self, count: int) -> None:
        """Wait until at least so many records are in Kafka."""
        with closing(topic_reader(self.bootstrap, self.name)) as consumer:
            wait_until(
                lambda: sum(ends_of(consumer, self.topic("data"), PARTITIONS)) >= count,
                f"{count} records are in Kafka",
            )

    def wait_for_all(self, count: int) -> None:
        """Wait until every record of ``events(count)`` is in Kafka, among whatever else."""
        wait_until(lambda: set(self.identities()) >= expected(count), f"all records of {count} events arrive")

    def values(self, kind: str) -> list[Stored]:
        """Everything that lies in a topic now."""
        return read_topic(self.bootstrap, self.topic(kind), PARTITIONS)

    def records(self) -> list[Record]:
        """Every record in Kafka."""
        decoded = (decode_data(stored.value, "ms")[0] for stored in self.values("data"))
        return [record for record in decoded if isinstance(record, Record)]

    def identities(self) -> list[Identity]:
        """The identities of every record in Kafka."""
        return [(record.id, record.quantity, record.thing) for record in self.records()]

    def dead_letters(self) -> list[Rejected]:
        """Every dead letter."""
        return [decode_rejected(stored.value) for stored in self.values("rejected")]

    def close(self) -> None:
        """Kill what runs, delete the topics, end the session."""
        for process in self.started:
            kill(process)
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for future in admin.delete_topics([self.topic(kind) for kind in TOPICS], operation_timeout=30).values():
            future.exception()  # a test that made no topics has none to delete
        # A session that nobody takes up again would collect messages for days.
        goodbye = Client(CallbackAPIVersion.VERSION2, client_id=self.name)
        goodbye.connect(self.mqtt_host, self.mqtt_port)
        goodbye.loop_start()
        wait_until(goodbye.is_connected, "the session is taken over to end it")
        goodbye.disconnect()
        goodbye.loop_stop()


def connector_pipeline(kafka: str, mqtt: MqttAddress, folder: Path) -> Iterator[Pipeline]:
    """A pipeline that is removed again at the end; for fixtures."""
    made = Pipeline(f"t{uuid.uuid4().hex[:12]}", kafka, mqtt.host, mqtt.port, folder)
    yield made
    made.close()


def _wait_for_turn(moment_s: float) -> None:
    """The rate of a publisher is its input: nothing is hoped to have happened by then."""
    wait_until(lambda: time.monotonic() >= moment_s, "the moment of the next message")
