"""The connector between real Kafka and real InfluxDB: exactly the points of the committed pairs."""

# ruff: noqa: D102 - as with functions: the name of a test, or of a stand-in's part, is its sentence

from __future__ import annotations

import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from broker.settings import InfluxdbSettings
from broker.wire import Joined, Rejected, decode_rejected, encode
from db_connector.database import Database, InfluxDatabase
from db_connector.settings import ConnectorSettings
from tests.unit.test_db_connector_contract import DatabaseContract, Fields, Point, expected, joined

if TYPE_CHECKING:
    from broker.stack import LocalStack
    from tests.integration.conftest import InfluxdbAccess

ROOT = Path(__file__).parents[2]
PARTITIONS = 5
DEADLINE_S = 60.0

Points = dict[Point, Fields]


def ask_influx(url: str, question: str, database: str = "") -> list[dict[str, Any]]:
    """The series that InfluxDB answers to an InfluxQL statement."""
    body = urllib.parse.urlencode({"q": question}).encode()
    address = f"{url}/query?db={database}&epoch=ns"
    with urllib.request.urlopen(address, body, timeout=60) as answer:
        result: dict[str, Any] = json.load(answer)["results"][0]
    assert "error" not in result, result
    series: list[dict[str, Any]] = result.get("series", [])
    return series


def points_of(url: str, database: str, measurement: str) -> Points:
    """Every point of a measurement."""
    points: Points = {}
    question = f'SELECT * FROM "{measurement}" GROUP BY *'  # noqa: S608 - the test's own name
    for series in ask_influx(url, question, database):
        tags = frozenset((name, value) for name, value in series["tags"].items() if value)
        for row in series["values"]:
            fields = dict(zip(series["columns"][1:], row[1:], strict=True))
            points[Point(measurement, tags, row[0])] = {k: v for k, v in fields.items() if v is not None}
    return points


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {DEADLINE_S} s"
        time.sleep(0.05)


class Door:
    """A TCP door before the database: shut, it refuses new connections and breaks those there are."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 80)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._address = free.getsockname()
        self.url = f"http://127.0.0.1:{self._address[1]}"
        self._server: socket.socket | None = None
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []

    def open(self) -> None:
        self._server = socket.create_server(self._address, reuse_port=False)
        self._start(self._accept, self._server)

    def shut(self) -> None:
        if self._server is not None:
            self._server.shutdown(socket.SHUT_RDWR)
            self._server.close()
            self._server = None
        for pair in self._pairs:
            for end in pair:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # the other side was quicker
        for thread in self._threads:
            thread.join(10)
        self._pairs, self._threads = [], []

    def _start(self, target: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                inner, _address = server.accept()
            except OSError:
                return
            try:
                outer = socket.create_connection(self._target)
            except OSError:
                inner.close()
                continue
            self._pairs.append((inner, outer))
            self._start(self._carry, inner, outer)

    def _carry(self, inner: socket.socket, outer: socket.socket) -> None:
        with inner, outer:
            while True:
                readable, _, _ = select.select([inner, outer], [], [])
                for one in readable:
                    try:
                        data = one.recv(65_536)
                        (outer if one is inner else inner).sendall(data)
                    except OSError:
                        return
                    if not data:
                        return


@dataclass
class Pipeline:
    """Topics, a measurement and a door of one test, and the connectors it started."""

    name: str
    bootstrap: str
    influx_url: str
    door: Door
    folder: Path
    processes: list[subprocess.Popen[bytes]]
    database: str

    @property
    def out(self) -> str:
        return f"{self.name}.out"

    @property
    def rejected(self) -> str:
        return f"{self.name}.rejected"

    def start(self, **settings: str) -> subprocess.Popen[bytes]:
        """Start a connector; its log is in ``folder``."""
        environment = {
            **os.environ,
            "LSB_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap,
            "LSB_INFLUXDB__URL": self.door.url,
            "LSB_INFLUXDB__BUCKET": f"{self.database}/autogen",
            "LSB_TOPICS__OUT": self.out,
            "LSB_TOPICS__REJECTED": self.rejected,
            "LSB_TOPICS__PARTITIONS": str(PARTITIONS),
            "LSB_DB_CONNECTOR__MEASUREMENT": self.name,
            "LSB_DB_CONNECTOR__GROUP": self.name,
            "LSB_DB_CONNECTOR__BATCH_RECORDS": "500",
            "LSB_DB_CONNECTOR__BACKOFF_MAX": "500ms",
            "LSB_DB_CONNECTOR__REQUEST_TIMEOUT": "3s",
            **{f"LSB_DB_CONNECTOR__{name.upper()}": value for name, value in settings.items()},
        }
        with (self.folder / "db_connector.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "db_connector", "--journal", str(self.folder / "journal.tsv")],
                cwd=ROOT, env=environment, stdout=log, stderr=log,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def log(self) -> str:
        return (self.folder / "db_connector.log").read_text()

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """End a connector by SIGTERM; 5 s are its promise."""
        process.send_signal(signal.SIGTERM)
        assert process.wait(5.0) == 0, self.log()

    def produce(self, values: list[tuple[int, bytes]], *, abort: bool = False) -> None:
        """Write values, each with its partition, in one transaction."""
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

    def points(self) -> Points:
        return points_of(self.influx_url, self.database, self.name)

    def wait_until_drained(self) -> None:
        """Wait until the group has committed everything up to the ends of the log."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.name})
        partitions = [TopicPartition(self.out, number) for number in range(PARTITIONS)]

        def drained() -> bool:
            assert all(process.poll() in {None, 0, -9} for process in self.processes), self.log()
            try:
                committed = consumer.committed(partitions, timeout=30)
            except KafkaException:
                return False  # a young Kafka is still choosing a coordinator; the deadline holds
            ends = [consumer.get_watermark_offsets(partition, timeout=30)[1] for partition in partitions]
            return [max(0, partition.offset) for partition in committed] == ends

        try:
            wait_until(drained, "the group to reach the ends of the log")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from error
        finally:
            consumer.close()

    def letters(self) -> list[Rejected]:
        """All dead letters."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": f"{self.name}.reader",
                "enable.partition.eof": True,
            }
        )
        consumer.assign([TopicPartition(self.rejected, number, 0) for number in range(PARTITIONS)])
        letters, ends = [], 0
        while ends < PARTITIONS:
            for message in consumer.consume(1_000, 1.0):
                error, value = message.error(), message.value()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error  # noqa: SLF001 - its only name
                    ends += 1
                elif value is not None:
                    letters.append(decode_rejected(value))
        consumer.close()
        return letters


@pytest.fixture
def pipeline(kafka: str, influxdb: InfluxdbAccess, tmp_path: Path) -> Iterator[Pipeline]:
    name = f"dbc-{uuid.uuid4().hex[:12]}"
    door = Door(influxdb.url)
    door.open()
    found = Pipeline(name, kafka, influxdb.url, door, tmp_path, [], database_of(influxdb))
    topics = [
        NewTopic(topic, PARTITIONS, 1, config={"message.timestamp.type": "LogAppendTime"})
        for topic in (found.out, found.rejected)
    ]
    admin = AdminClient({"bootstrap.servers": found.bootstrap})
    for future in admin.create_topics(topics).values():
        future.result(30)
    yield found
    for process in found.processes:
        if process.poll() is None:
            process.kill()
            process.wait(10)
    door.shut()


def database_of(influxdb: InfluxdbAccess) -> str:
    return influxdb.bucket.partition("/")[0]


def pairs_of(count: int, seed: int) -> list[tuple[Joined, int]]:
    """Pairs and twice their mean times in ns: ties, halves of a nanosecond, both forms of a result."""
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
    return [(number % PARTITIONS, encode(pair)) for number, (pair, _twice_ns) in enumerate(pairs)]


def points_for(pipeline: Pipeline, pairs: list[tuple[Joined, int]]) -> Points:
    points = dict(expected(pair, pipeline.name, twice_ns) for pair, twice_ns in pairs)
    assert len(points) == len(pairs)
    return points


def test_committed_pairs_end_up_as_exactly_their_points(pipeline: Pipeline) -> None:
    pairs = pairs_of(5_000, seed=1)
    pipeline.produce(values_of(pairs[:3_000]))
    pipeline.produce(values_of(pairs_of(100, seed=2)[50:]), abort=True)
    process = pipeline.start()
    pipeline.produce(values_of(pairs[3_000:]))
    pipeline.wait_until_drained()
    pipeline.stop(process)
    assert pipeline.points() == points_for(pipeline, pairs)
    assert pipeline.letters() == []


def test_pairs_of_an_aborted_transaction_are_never_written(pipeline: Pipeline) -> None:
    pairs = pairs_of(200, seed=3)
    pipeline.produce(values_of(pairs[:100]), abort=True)
    pipeline.produce(values_of(pairs[100:]))
    pipeline.start()
    pipeline.wait_until_drained()
    assert pipeline.points() == points_for(pipeline, pairs[100:])


def test_a_replay_from_the_beginning_changes_nothing(pipeline: Pipeline) -> None:
    pairs = pairs_of(2_000, seed=4)
    pipeline.produce(values_of(pairs))
    process = pipeline.start()
    pipeline.wait_until_drained()
    pipeline.stop(process)
    before = pipeline.points()
    journal = (pipeline.folder / "journal.tsv").read_text().count("\n")
    replay = pipeline.start(group=f"{pipeline.name}-again")
    wait_until(lambda: journal_records(pipeline, skip_lines=journal) >= 2_000, "the replay")
    pipeline.stop(replay)
    assert pipeline.points() == before == points_for(pipeline, pairs)


def journal_records(pipeline: Pipeline, skip_lines: int = 0) -> int:
    lines = (pipeline.folder / "journal.tsv").read_text().splitlines()[skip_lines:]
    spans = [[int(part) for part in line.split("\t")] for line in lines]
    assert all(len(span) == 4 and span[0] > 1.6e18 for span in spans)
    return sum(last - first + 1 for _ns, _partition, first, last in spans)


def wait_for_journal(pipeline: Pipeline, more_bytes: int) -> None:
    """Wait until the journal has grown: the connector is in the middle of its work."""
    journal = pipeline.folder / "journal.tsv"
    size = journal.stat().st_size if journal.exists() else 0
    wait_until(lambda: journal.exists() and journal.stat().st_size >= size + more_bytes, "acknowledgements")


@pytest.mark.parametrize("seed", [11, 12])
def test_kills_at_any_moment_lose_and_double_nothing(pipeline: Pipeline, seed: int) -> None:
    chance = random.Random(seed)
    pairs = pairs_of(12_000, seed)
    conflicting = [number for number in range(12_000) if number % 3_001 == 1]
    for number in conflicting:
        pairs[number] = (joined("a\nb", identity=f"bad:{number}"), 0)
    values = values_of(pairs)
    for part in range(4):
        pipeline.produce(values[part * 3_000 : (part + 1) * 3_000])
        process = pipeline.start(batch_records="50", linger="5ms", instance="one")
        wait_for_journal(pipeline, more_bytes=chance.randrange(1, 1_000))
        process.kill()
        process.wait(10)
    last = pipeline.start(instance="one")
    pipeline.wait_until_drained()
    pipeline.stop(last)
    kept = [pair for number, pair in enumerate(pairs) if number not in conflicting]
    assert pipeline.points() == points_for(pipeline, kept)
    assert {letter.id for letter in pipeline.letters()} == {f"bad:{number}" for number in conflicting}


def test_refused_points_are_dead_lettered_with_the_databases_words(pipeline: Pipeline) -> None:
    # The type of a field is kept for each shard: only the points in this week meet the text in `result`.
    pairs = pairs_of(1_000, seed=5)
    far = 10 * 86_400 * 10**9
    refused = [number for number in range(1_000) if number % 100 == 7]
    for number in range(1_000):
        if number not in refused:
            pair, twice_ns = pairs[number]
            moved = joined(pair.thing, pair.quantity, twice_ns + 2 * far, pair.result, identity=pair.id, tie=pair.tie)
            pairs[number] = (moved, twice_ns + 2 * far)
    first_ns = pairs[refused[0]][1] // 2
    body = f'{pipeline.name},thing=other result="text" {first_ns}'.encode()
    database_at(pipeline.influx_url, f"{pipeline.database}/autogen").write(body)
    pipeline.produce(values_of(pairs))
    pipeline.start()
    pipeline.wait_until_drained()
    letters = {letter.id: letter for letter in pipeline.letters()}
    assert set(letters) == {pairs[number][0].id for number in refused}
    for letter in letters.values():
        assert "field type conflict" in letter.reason
        assert (letter.source, letter.topic) == ("db_connector", pipeline.out)
        assert letter.partition >= 0 <= letter.offset
    kept = [pair for number, pair in enumerate(pairs) if number not in refused]
    points = pipeline.points()
    assert {p: f for p, f in points.items() if ("thing", "other") not in p.tags} == points_for(pipeline, kept)


def test_values_without_a_point_are_dead_lettered_and_stop_nothing(pipeline: Pipeline) -> None:
    good = pairs_of(10, seed=6)
    bad: list[bytes | None] = [
        b"", b"{", b"\xff\xfe", b"[]", b'{"thing":"a"}', b"x" * 100_000, None,
        encode(joined("a\nb", identity="newline")), encode(joined("a\\", identity="backslash")),
    ]  # fmt: skip
    producer = Producer({"bootstrap.servers": pipeline.bootstrap})
    for value in bad:
        producer.produce(pipeline.out, value, partition=0)
    producer.flush(30)
    pipeline.produce(values_of(good))
    pipeline.start()
    pipeline.wait_until_drained()
    letters = pipeline.letters()
    assert {letter.id for letter in letters} == {f"{pipeline.out}:0:{n}" for n in range(7)} | {
        "newline",
        "backslash",
    }
    assert all(letter.reason for letter in letters)
    assert pipeline.points() == points_for(pipeline, good)


def test_nothing_is_missing_after_the_database_was_away(pipeline: Pipeline) -> None:
    pairs = pairs_of(6_000, seed=7)
    pipeline.produce(values_of(pairs[:2_000]))
    process = pipeline.start()
    wait_until(lambda: len(pipeline.points()) > 0, "the first points")
    pipeline.door.shut()
    pipeline.produce(values_of(pairs[2_000:]))
    wait_until(lambda: "takes no points" in pipeline.log(), "the line that says so")
    pipeline.door.open()
    pipeline.wait_until_drained()
    pipeline.stop(process)
    assert "takes points again" in pipeline.log()
    assert pipeline.points() == points_for(pipeline, pairs)


def test_nothing_is_missing_after_the_database_was_killed(pipeline: Pipeline, stack: LocalStack) -> None:
    pairs = pairs_of(6_000, seed=14)
    pipeline.produce(values_of(pairs[:3_000]))
    process = pipeline.start(batch_records="50", linger="5ms")
    wait_for_journal(pipeline, more_bytes=100)
    stack.influxdb.kill()
    try:
        pipeline.produce(values_of(pairs[3_000:]))
        wait_until(lambda: "takes no points" in pipeline.log(), "the line that says so")
    finally:
        stack.up([stack.influxdb])
    pipeline.wait_until_drained()
    pipeline.stop(process)
    assert pipeline.points() == points_for(pipeline, pairs)


def test_a_missing_database_is_waited_for_and_dead_letters_nothing(pipeline: Pipeline) -> None:
    pairs = pairs_of(100, seed=8)
    pipeline.produce(values_of(pairs))
    ask_influx(pipeline.influx_url, "DROP DATABASE lsb_later")
    pipeline.database = "lsb_later"
    process = pipeline.start()
    wait_until(lambda: "create the database" in pipeline.log(), "the line that says what to do")
    ask_influx(pipeline.influx_url, "CREATE DATABASE lsb_later")
    pipeline.wait_until_drained()
    pipeline.stop(process)
    assert pipeline.points() == points_for(pipeline, pairs)
    assert pipeline.letters() == []
    ask_influx(pipeline.influx_url, "DROP DATABASE lsb_later")


def test_sigterm_ends_within_five_seconds_while_the_database_is_away(pipeline: Pipeline) -> None:
    pairs = pairs_of(3_000, seed=9)
    pipeline.produce(values_of(pairs))
    pipeline.door.shut()
    process = pipeline.start()
    wait_until(lambda: "takes no points" in pipeline.log(), "the first failed write")
    pipeline.stop(process)
    pipeline.door.open()
    pipeline.start()
    pipeline.wait_until_drained()
    assert pipeline.points() == points_for(pipeline, pairs)


def test_several_connectors_share_the_partitions(pipeline: Pipeline) -> None:
    pairs = pairs_of(9_000, seed=10)
    first = pipeline.start(batch_records="50")
    pipeline.produce(values_of(pairs[:3_000]))
    second = pipeline.start(batch_records="50")
    pipeline.produce(values_of(pairs[3_000:6_000]))
    wait_until(lambda: "go to another member" in pipeline.log(), "the rebalance")
    pipeline.produce(values_of(pairs[6_000:]))
    pipeline.stop(first)
    pipeline.wait_until_drained()
    pipeline.stop(second)
    assert pipeline.points() == points_for(pipeline, pairs)
    assert pipeline.letters() == []


def test_a_committed_offset_that_left_the_log_is_an_error_with_the_way_out(pipeline: Pipeline) -> None:
    pipeline.produce(values_of(pairs_of(100, seed=13)))
    consumer = Consumer({"bootstrap.servers": pipeline.bootstrap, "group.id": pipeline.name})
    consumer.commit(offsets=[TopicPartition(pipeline.out, 0, 5)], asynchronous=False)
    consumer.close()
    admin = AdminClient({"bootstrap.servers": pipeline.bootstrap})
    for future in admin.delete_records([TopicPartition(pipeline.out, 0, 10)]).values():
        future.result(30)
    process = pipeline.start()
    assert process.wait(30) == 1
    assert "--reset-offsets" in pipeline.log()


def database_at(url: str, bucket: str) -> InfluxDatabase:
    influxdb = InfluxdbSettings.model_validate({"url": url, "bucket": bucket})
    return InfluxDatabase(influxdb, ConnectorSettings())


class RealStand:
    """The real server, as the contract needs it."""

    def __init__(self, influxdb: InfluxdbAccess) -> None:
        self._url, self._name = influxdb.url, database_of(influxdb)
        ask_influx(self._url, f"CREATE RETENTION POLICY short ON {self._name} DURATION 1h REPLICATION 1")
        self.measurement = "joined"
        buckets = (influxdb.bucket, f"{self._name}/short", "missing/autogen")
        self._databases = [database_at(self._url, bucket) for bucket in buckets]
        self.database: Database = self._databases[0]
        self.short_lived: Database = self._databases[1]
        self.missing: Database = self._databases[2]

    def points(self) -> Points:
        return points_of(self._url, self._name, self.measurement)

    def close(self) -> None:
        for database in self._databases:
            database.close()


class TestTheRealDatabase(DatabaseContract):
    """InfluxDB keeps the contract that the stand-in was written to."""

    @pytest.fixture
    def stand(self, influxdb: InfluxdbAccess) -> Iterator[RealStand]:
        stand = RealStand(influxdb)
        yield stand
        stand.close()
