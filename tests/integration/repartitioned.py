"""Topics that are partitioned by something else than the key of their streams, for tests on real servers."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from broker.wire.origin import ORIGIN_HEADER, Origin, encode_origin
from joiner.check.found.copy_log import Copy, CopyLog
from joiner.runtime.kafka.clients import make_consumer
from joiner.runtime.repartition.status import lag_of
from tests.integration.joiner_application import BASE_MS, Application, application, things_over_all_units
from tests.integration.services import DEADLINE_S, wait_until

PARTITIONS = {"plant": 3, "orders": 2}
"""The topics to copy: ``plant`` has the keys of other things, and ``orders`` has no keys."""

STREAMS = """
[[stream]]
name = "speed"
topic = "{name}.plant"
key = "$.machine"
time = "$.ts"
value = "$.rpm"
where = "$.rpm"
repartition = true

[[stream]]
name = "torque"
topic = "{name}.plant"
key = "$.machine"
time = "kafka.timestamp"
value = "$.nm"
where = "$.nm"
repartition = true

[[stream]]
name = "command"
topic = "{name}.orders"
key = "$.for"
time = "$.at"
value = "$.rpm"
repartition = true
"""


class Repartitioned:
    """An application with two such topics."""

    def __init__(self, app: Application) -> None:
        self.app = app
        app.aligns = STREAMS.replace("{name}", app.name)
        self.create({})
        self._producer = Producer({"bootstrap.servers": app.bootstrap, "enable.idempotence": True})

    def create(self, config: dict[str, str]) -> None:
        """Create the topics to copy."""
        config = {"message.timestamp.type": "LogAppendTime", **config}
        new = [NewTopic(self.app.topic(topic), count, 1, config=config) for topic, count in PARTITIONS.items()]
        for future in self.app.admin().create_topics(new).values():
            future.result()

    def send(self, entries: list[tuple[str, bytes | None, bytes | None, int]]) -> None:
        """Write entries of `entries_of`, and wait until Kafka has them."""
        for topic, key, value, partition in entries:
            self._producer.produce(self.app.topic(topic), value, key, partition)
        assert self._producer.flush(DEADLINE_S) == 0

    def wait_until_copied(self) -> None:
        """Wait until all messages that are there now have been copied."""
        settings = self.app.settings()
        with closing(make_consumer(settings.kafka, settings.repartition_group)) as consumer:

            def is_done() -> bool:
                return not any(lag_of(consumer, self.app.topic(name), count) for name, count in PARTITIONS.items())

            wait_until(is_done, "all messages are copied", DEADLINE_S, 0.2)

    def copies(self, target: str) -> list[Copy]:
        """Return the committed copies in a repartition topic."""
        with closing(CopyLog(self.app.settings())) as log:
            return list(log.copies(target))

    def origins(self) -> list[Origin]:
        """Return the places of the originals of all committed copies."""
        return [copy.origin for target in self.app.settings().repartitioned.values() for copy in self.copies(target)]

    def write_copy_of(self, topic: str, target: str) -> None:
        """Write what looks like a copy of another topic's message."""
        headers: list[tuple[str, str | bytes | None]] = [(ORIGIN_HEADER, encode_origin(Origin(topic, 0, 0)))]
        self._producer.produce(target, b"{}", headers=headers)
        assert self._producer.flush(DEADLINE_S) == 0

    def finish(self) -> dict[str, Any]:
        """Wait until everything is joined, and return the tester's findings."""
        self.wait_until_copied()
        self.app.wait_until_through()
        return self.app.verify()

    def close(self) -> None:
        """Delete the topics."""
        settings = self.app.settings()
        names = [self.app.topic(topic) for topic in PARTITIONS] + list(settings.repartitioned.values())
        for future in self.app.admin().delete_topics(names, operation_timeout=DEADLINE_S).values():
            future.exception()


def repartitioned(kafka: str, folder: Path, **options: Any) -> Iterator[Repartitioned]:
    """Yield an application, and remove it at the end. For fixtures."""
    for app in application(kafka, folder, **options):
        made = Repartitioned(app)
        yield made
        for joiner in app.started:
            joiner.kill()
        made.close()


def entries_of(seed: int, count: int) -> list[tuple[str, bytes | None, bytes | None, int]]:
    """Return the topic, key, value and partition of messages. Some cannot be read."""
    draw, clock = random.Random(seed), BASE_MS + 600_000_000 * seed
    things = things_over_all_units(6)
    found: list[tuple[str, bytes | None, bytes | None, int]] = []
    for _ in range(count):
        clock += draw.choice([0, 1, 40, 300])
        thing, chance = draw.choice(things), draw.random()
        value: bytes | None
        if chance < 0.05:
            topic = draw.choice([*PARTITIONS])
            value = draw.choice([None, b"", b"{", b'{"rpm": 1}'])
        elif chance < 0.6:
            topic = "plant"
            value = json.dumps({"machine": thing, "ts": clock, draw.choice(["rpm", "rpm", "nm"]): clock % 997}).encode()
        else:
            topic, value = "orders", json.dumps({"for": thing, "at": clock, "rpm": clock % 991}).encode()
        key = None if topic == "orders" else f"line-{draw.randrange(9)}".encode()
        found.append((topic, key, value, draw.randrange(PARTITIONS[topic])))
    return found
