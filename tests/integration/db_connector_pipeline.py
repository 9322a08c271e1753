"""Database connectors between real Kafka and a real InfluxDB, with their own topics, database and measurement.

Tests of the database connector use it to produce pairs, start connectors, and read points and dead letters. The
database contract defines the point expected for a pair.
"""

from __future__ import annotations

import json
import random
import subprocess
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from broker.settings import InfluxdbSettings
from broker.wire.records import Joined, Rejected, decode_rejected, encode
from db_connector.settings import ConnectorSettings
from db_connector.sinks.influxdb import InfluxSink
from tests.integration.services import (
    MOMENT_S,
    ends_of,
    kill,
    read_topic,
    start_service,
    stop,
    topic_reader,
    wait_until,
)
from tests.integration.tcp_door import Door
from tests.unit.db_connector.test_contract import Fields, Point, expected, joined

if TYPE_CHECKING:
    # pytest loads a conftest itself; importing it at run time would create a second copy.
    from tests.integration.conftest import InfluxdbAccess

PARTITIONS: Final = 5

Points = dict[Point, Fields]


def ask_influx(url: str, question: str, database: str = "") -> list[dict[str, Any]]:
    """Return the series in InfluxDB's response to an InfluxQL statement."""
    body = urllib.parse.urlencode({"q": question}).encode()
    address = f"{url}/query?db={database}&epoch=ns"
    with urllib.request.urlopen(address, body, timeout=60) as answer:
        result: dict[str, Any] = json.load(answer)["results"][0]
    assert "error" not in result, result
    series: list[dict[str, Any]] = result.get("series", [])
    return series


def points_of(url: str, database: str, measurement: str) -> Points:
    """Return all points of a measurement."""
    points: Points = {}
    question = f'SELECT * FROM "{measurement}" GROUP BY *'  # noqa: S608 - the name comes from the test
    for series in ask_influx(url, question, database):
        tags = frozenset((name, value) for name, value in series["tags"].items() if value)
        for row in series["values"]:
            fields = dict(zip(series["columns"][1:], row[1:], strict=True))
            points[Point(measurement, tags, row[0])] = {k: v for k, v in fields.items() if v is not None}
    return points


def database_of(influxdb: InfluxdbAccess) -> str:
    """Return the database name of a bucket."""
    return influxdb.bucket.partition("/")[0]


def database_at(url: str, bucket: str) -> InfluxSink:
    """Return a client for a bucket, of the kind that the connector uses."""
    influxdb = InfluxdbSettings.model_validate({"url": url, "bucket": bucket})
    return InfluxSink(influxdb, ConnectorSettings(), "ms")


@dataclass
class Pipeline:
    """The topics, measurement and door of a test, and the connectors that it started."""

    name: str
    bootstrap: str
    influx_url: str
    database: str
    door: Door
    """The proxy between the connectors and the database. Points are read directly, not through it."""
    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    """Further variables for the connectors, for example to choose another sink."""

    @property
    def out(self) -> str:
        """The name of the result topic."""
        return f"{self.name}.out"

    @property
    def rejected(self) -> str:
        """The name of the rejected topic."""
        return f"{self.name}.rejected"

    @property
    def journal(self) -> Path:
        """The path of the connectors' journal of acknowledged writes."""
        return self.folder / "journal.tsv"

    def start(self, **settings: str) -> subprocess.Popen[bytes]:
        """Start a connector. ``settings``: the settings in its section of the settings file."""
        environment = {
            "LSB_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap,
            "LSB_INFLUXDB__URL": f"http://127.0.0.1:{self.door.port}",
            "LSB_INFLUXDB__BUCKET": f"{self.database}/autogen",
            "LSB_TOPICS__OUT": self.out,
            "LSB_TOPICS__REJECTED": self.rejected,
            "LSB_TOPICS__PARTITIONS": str(PARTITIONS),
            "LSB_DB_CONNECTOR__MEASUREMENT": self.name,
            "LSB_DB_CONNECTOR__GROUP": self.name,
            "LSB_DB_CONNECTOR__BATCH_RECORDS": "500",
            "LSB_DB_CONNECTOR__BACKOFF_MAX": "500ms",
            "LSB_DB_CONNECTOR__REQUEST_TIMEOUT": "3s",
            **self.environment,
            **{f"LSB_DB_CONNECTOR__{name.upper()}": value for name, value in settings.items()},
        }
        process = start_service(
            "db_connector", "--journal", str(self.journal), environment=environment, log=self._log_file
        )
        self.processes.append(process)
        return process

    def stop(self, process: subprocess.Popen[bytes], moment_s: float = MOMENT_S) -> None:
        """Stop a connector with SIGTERM. It must exit in time with status 0. ``moment_s``: see `services.stop`."""
        assert stop(process, moment_s=moment_s) == 0, self.log()

    def log(self) -> str:
        """Return the log of the connectors."""
        return self._log_file.read_text()

    def wait_until_logged(self, words: str) -> None:
        """Wait until a connector has logged ``words``."""
        wait_until(lambda: words in self.log(), f"a connector logs {words!r}")

    def produce(self, values: list[tuple[int, bytes]], *, abort: bool = False) -> None:
        """Write values in one transaction, each to its partition."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": self.name, "linger.ms": 5})
        producer.init_transactions(30)
        producer.begin_transaction()
        for partition, value in values:
            producer.produce(self.out, value, key=b"k", partition=partition)
        if abort:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)

    def wait_until_drained(self, group: str | None = None) -> None:
        """Wait until a group (default: the usual one) has committed the end offsets of the result topic."""
        partitions = [TopicPartition(self.out, number) for number in range(PARTITIONS)]
        with closing(topic_reader(self.bootstrap, group or self.name)) as consumer:

            def drained() -> bool:
                assert all(process.poll() in {None, 0, -9} for process in self.processes), self.log()
                try:
                    committed = consumer.committed(partitions, timeout=30)
                except KafkaException:
                    return False  # a broker that has just started may have no coordinator yet; the deadline applies
                return [max(0, partition.offset) for partition in committed] == ends_of(consumer, self.out, PARTITIONS)

            try:
                wait_until(drained, "the group reaches the ends of the log")
            except AssertionError as error:
                raise AssertionError(f"{error}\n{self.log()}") from error

    def write_with_kills(
        self, values: list[tuple[int, bytes]], seed: int, crash: Callable[[], None] | None = None
    ) -> None:
        """Produce values in four parts, and kill a connector in the middle of each. Another one writes the rest.

        ``crash`` is called before every second kill.
        """
        chance = random.Random(seed)
        size = len(values) // 4
        for part in range(4):
            self.produce(values[part * size : (part + 1) * size])
            process = self.start(batch_records="50", linger="5ms", instance="one")
            self.wait_for_journal(more_bytes=chance.randrange(1, 1_000))
            if part % 2 and crash is not None:
                crash()
            kill(process)
        last = self.start(instance="one")
        self.wait_until_drained()
        self.stop(last)

    def write_with_an_outage(self, pairs: list[tuple[Joined, int]], has_begun: Callable[[], bool], name: str) -> None:
        """Write pairs through a door that is shut for a while. ``name``: that of the database in the log."""
        self.produce(values_of(pairs[:2_000]))
        process = self.start()
        wait_until(has_begun, "the first results")
        self.door.shut()
        self.produce(values_of(pairs[2_000:]))
        self.wait_until_logged(f"{name} has not accepted results")
        self.door.open()
        self.wait_until_drained()
        self.stop(process)
        assert f"{name} accepts results again" in self.log()

    def journal_records(self, skip_lines: int = 0) -> int:
        """Return the number of records listed in the journal, ignoring its first ``skip_lines`` lines."""
        lines = self.journal.read_text().splitlines()[skip_lines:]
        spans = [[int(part) for part in line.split("\t")] for line in lines]
        assert all(len(span) == 4 and span[0] > 1.6e18 for span in spans), lines
        return sum(last - first + 1 for _ns, _partition, first, last in spans)

    def wait_for_journal(self, more_bytes: int) -> None:
        """Wait until the journal has grown by ``more_bytes``, so the connector is in the middle of its work."""
        size = self.journal.stat().st_size if self.journal.exists() else 0
        wait_until(
            lambda: self.journal.exists() and self.journal.stat().st_size >= size + more_bytes,
            f"{more_bytes} more bytes of acknowledgements",
        )

    def points(self) -> Points:
        """Return all points of the pipeline's measurement."""
        return points_of(self.influx_url, self.database, self.name)

    def points_for(self, pairs: list[tuple[Joined, int]]) -> Points:
        """Return the expected points of the pairs."""
        points = dict(expected(pair, self.name, twice_ns) for pair, twice_ns in pairs)
        assert len(points) == len(pairs), "two of the pairs have the same point"
        return points

    def dead_letters(self) -> list[Rejected]:
        """Return all dead letters."""
        return [decode_rejected(stored.value) for stored in read_topic(self.bootstrap, self.rejected, PARTITIONS)]

    def create_topics(self) -> None:
        """Create the topics as the joiner would."""
        topics = [
            NewTopic(topic, PARTITIONS, 1, config={"message.timestamp.type": "LogAppendTime"})
            for topic in (self.out, self.rejected)
        ]
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for future in admin.create_topics(topics).values():
            future.result(30)

    def close(self) -> None:
        """Kill running connectors and shut the door."""
        for process in self.processes:
            kill(process)
        self.door.shut()

    @property
    def _log_file(self) -> Path:
        return self.folder / "db_connector.log"


def db_connector_pipeline(kafka: str, influxdb: InfluxdbAccess, folder: Path) -> Iterator[Pipeline]:
    """Yield a pipeline with an open door, and close it at the end. For fixtures."""
    address = urllib.parse.urlsplit(influxdb.url)
    door = Door(address.hostname or "", address.port or 80)
    name = f"dbc-{uuid.uuid4().hex[:12]}"
    made = Pipeline(name, kafka, influxdb.url, database_of(influxdb), door, folder)
    door.open()
    made.create_topics()
    yield made
    made.close()


def pairs_of(count: int, seed: int) -> list[tuple[Joined, int]]:
    """Return pairs, each with twice its mean time in ns. Some have ties, half nanoseconds or two values."""
    chance = random.Random(seed)
    pairs = []
    for number in range(count):
        twice_ns = 2 * 1_554_096_460_422_000_000 + number // 2 * 1_000_000 + number // 2 % 2
        result = {"left": chance.random(), "right": 1.0} if number % 10 == 0 else chance.gauss(0, 1e6)
        tie = f"{number % 2}-0" if number % 2 else ""
        identity = f"power:{number % PARTITIONS}:{number}:{number + 1}"
        pairs.append((joined(f"thing {number % 7}", "power", twice_ns, result, identity, tie), twice_ns))
    return pairs


def values_of(pairs: list[tuple[Joined, int]]) -> list[tuple[int, bytes]]:
    """Return the partition and the value of each pair, with the pairs spread round-robin over the partitions."""
    return [(number % PARTITIONS, encode(pair)) for number, (pair, _twice_ns) in enumerate(pairs)]
