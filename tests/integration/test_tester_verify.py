"""Runs `tester.py verify` on a real Kafka broker and a real InfluxDB.

A fake joiner (`tests.unit.joiner.check.pretended_pipeline`, based on the oracle) writes its outputs and checkpoints in
transactions. Each scenario has its own output topics. All share the input topic and the state topic.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from influxdb_client.client.influxdb_client import InfluxDBClient
from influxdb_client.client.write.point import Point
from influxdb_client.client.write_api import SYNCHRONOUS

from broker.kafka.topics import data_topic_specs, ensure_topics, state_topic_spec
from joiner.check.command import main
from joiner.check.found.evidence import Message
from joiner.runtime import model
from joiner.runtime.settings import JoinerSettings
from tests.unit.joiner.check.pretended_pipeline import (
    APPLICATION,
    JOINS,
    PARTITIONS,
    Pipeline,
    make_checkpoint,
    make_pipeline,
    make_settings,
)

TIMEOUT_S = 60.0


class World:
    """An application that has run. Its inputs and checkpoints are in Kafka; `scenario` writes its outputs."""

    def __init__(self, kafka: str, folder: Path) -> None:
        self.kafka = kafka
        self.folder = folder
        self.name = f"tester-{uuid.uuid4().hex[:8]}"
        # Every output contains the application's name, which is also part of the state topic's name, so each run has
        # one world.
        self.pipeline = make_pipeline(seed=11, rows=150, settings=self.settings("first"))
        self._create_topics(self.pipeline.settings)
        given = self.pipeline.inputs
        self.pipeline.inputs = self.produce(given)
        for message in self.pipeline.inputs:
            self.pipeline.ends[message.topic, message.partition] = message.offset + 1
        self.pipeline.run()
        self._write_progress(self.pipeline.settings)
        self.events = folder / "events.json"
        self.events.write_bytes(b"".join(row + b"\n" for row in self.pipeline.rows))

    def settings(self, scenario: str) -> JoinerSettings:
        """Return the settings with the output topics of a scenario."""
        topics = {
            "data": f"{self.name}.data",
            "out": f"{self.name}.out.{scenario}",
            "late": f"{self.name}.late.{scenario}",
            "rejected": f"{self.name}.rejected.{scenario}",
            "unmatched": f"{self.name}.unmatched.{scenario}",
            "partitions": PARTITIONS,
        }
        return make_settings(topics=topics, kafka={"bootstrap_servers": self.kafka})

    def produce(self, messages: Iterable[Message], *, abort: bool = False) -> list[Message]:
        """Write in transactions of 50 messages. Return the messages with their real offsets and append times."""
        producer, written = self.producer(), list[Message]()

        def note(original: Message) -> Callable[[Any, Any], None]:
            def delivered(error: Any, message: Any) -> None:
                assert error is None, error
                written.append(original._replace(offset=message.offset(), time_ms=message.timestamp()[1]))

            return delivered

        given = list(messages)
        for start in range(0, len(given), 50):
            producer.begin_transaction()
            for m in given[start : start + 50]:
                producer.produce(m.topic, m.value, m.key, m.partition, on_delivery=note(m))
            producer.flush(TIMEOUT_S)
            if abort:
                producer.abort_transaction(TIMEOUT_S)
            else:
                producer.commit_transaction(TIMEOUT_S)
        return written

    def producer(self) -> Producer:
        """Return a new transactional producer."""
        producer = Producer(
            {"bootstrap.servers": self.kafka, "transactional.id": uuid.uuid4().hex, "transaction.timeout.ms": 120_000}
        )
        producer.init_transactions(TIMEOUT_S)
        return producer

    def _create_topics(self, settings: JoinerSettings) -> None:
        admin = AdminClient({"bootstrap.servers": self.kafka})
        specs = [*data_topic_specs(settings.topics), state_topic_spec(APPLICATION, settings.topics)]
        self.topic_ids = {name: fact.topic_id for name, fact in ensure_topics(admin, specs).items()}

    def _write_progress(self, settings: JoinerSettings) -> None:
        topic, records = settings.topics.data, []
        changed = {
            "topics": {topic: self.topic_ids[topic]},
            "fingerprint": settings.fingerprint(),
            "semantics": settings.semantics(),
        }
        for unit in range(PARTITIONS):
            for stop in (0, 5, None):
                made = make_checkpoint(self.pipeline, unit, stop)
                fields = {name: getattr(made, name) for name in made.__struct_fields__}
                whole = model.Checkpoint(**(fields | changed))
                key = model.checkpoint_key(unit).encode()
                records.append(Message(f"{APPLICATION}.state", unit, 0, 0, key, model.encode(whole)))
        self.produce(records)

    def scenario(self, name: str, change: Callable[[list[Message]], list[Message]]) -> Path:
        """Write the outputs, modified by ``change``, to the topics of a scenario. Return a settings file."""
        settings, first = self.settings(name), self.pipeline.settings.topics
        self._create_topics(settings)
        kinds = ("out", "late", "unmatched", "rejected")
        renamed = {getattr(first, kind): getattr(settings.topics, kind) for kind in kinds}
        outputs = [message._replace(topic=renamed[message.topic]) for message in self.pipeline.outputs]
        self.produce(change(outputs))
        # The output topics are part of the application's fingerprint.
        self._write_progress(settings)
        file = self.folder / f"{name}.toml"
        file.write_text(_toml(settings), encoding="utf-8")
        return file


def _toml(settings: JoinerSettings) -> str:
    topics = "\n".join(
        f"{name} = {json.dumps(getattr(settings.topics, name))}"
        for name in ("data", "out", "late", "rejected", "unmatched", "partitions")
    )
    joins = "\n".join(
        "[[join]]\n" + "\n".join(f"{name} = {json.dumps(value)}" for name, value in join.items()) for join in JOINS
    )
    servers = json.dumps(settings.kafka.bootstrap_servers)
    application = f"[application]\nname = {json.dumps(APPLICATION)}\n"
    return f"[kafka]\nbootstrap_servers = {servers}\n[topics]\n{topics}\n{application}{joins}\n"


@pytest.fixture(scope="module")
def world(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    admin = AdminClient({"bootstrap.servers": kafka})
    yield World(kafka, tmp_path_factory.mktemp("tester"))
    for future in admin.delete_topics([f"{APPLICATION}.state"]).values():
        future.result()


Verify = Callable[..., tuple[int, str, dict[str, Any]]]


@pytest.fixture
def verify(world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Verify:
    """A function that runs the command and returns its exit status, its output and its JSON report."""

    def run(config: Path, *arguments: str) -> tuple[int, str, dict[str, Any]]:
        report = tmp_path / "report.json"
        status = main(["verify", "--config", str(config), "--json", str(report), "--timeout", "30", *arguments])
        shown = capsys.readouterr()
        content = json.loads(report.read_text()) if report.exists() else {}
        return status, shown.out + shown.err, content

    return run


def at(outputs: list[Message], topic_part: str) -> int:
    """Return the position of the third output of a topic."""
    return [place for place, message in enumerate(outputs) if topic_part in message.topic][2]


def altered(outputs: list[Message], place: int) -> list[Message]:
    content = json.loads(outputs[place].value or b"")
    content["left"]["result"] += 1
    changed = outputs[place]._replace(value=json.dumps(content).encode())
    return [*outputs[:place], changed, *outputs[place + 1 :]]


def test_a_right_run_is_right_with_its_file(world: World, verify: Verify) -> None:
    config = world.scenario("right", lambda outputs: outputs)
    status, shown, report = verify(config, "--events", str(world.events))
    assert status == 0, shown
    assert report["total"]["expected"] == len(world.pipeline.outputs) + report["events"]["quantities"]
    assert report["counts"]["not consumed yet (log offsets)"] <= PARTITIONS  # markers of the last transactions


def test_records_of_aborted_transactions_do_not_count(world: World, verify: Verify) -> None:
    config = world.scenario("aborted", lambda outputs: outputs)
    topics = world.settings("aborted").topics
    extra = [m._replace(topic=topics.out) for m in world.pipeline.outputs if ".out." in m.topic]
    world.produce(extra, abort=True)
    assert verify(config)[0] == 0


@pytest.mark.parametrize(
    ("name", "change", "verdict"),
    [
        ("removed", lambda o: o[: at(o, ".out.")] + o[at(o, ".out.") + 1 :], "WRONG: 1 missing."),
        ("doubled", lambda o: [*o, o[at(o, ".out.")]], "WRONG: 1 doubled."),
        ("altered", lambda o: altered(o, at(o, ".out.")), "WRONG: 1 altered."),
        ("late", lambda o: o[: at(o, ".late.")] + o[at(o, ".late.") + 1 :], "WRONG: 1 missing."),
    ],
)
def test_a_wrong_output_is_found(
    world: World, verify: Verify, name: str, change: Callable[[list[Message]], list[Message]], verdict: str
) -> None:
    status, shown, _ = verify(world.scenario(name, change))
    assert status == 1
    assert shown.rstrip().endswith(verdict), shown
    assert " partition " in shown
    assert " offset " in shown


def test_an_event_lost_before_kafka_is_found(world: World, verify: Verify, tmp_path: Path) -> None:
    config = world.scenario("lost", lambda outputs: outputs)
    file = tmp_path / "more.json"
    lost = b'{"Thing":"R2","Timestamp":1554096470123,"id":"lost","speed":3.5}\n'
    file.write_bytes(world.events.read_bytes() + lost)
    status, shown, _ = verify(config, "--events", str(file))
    assert status == 1
    assert "lost before Kafka: thing 'R2', quantity 'speed', id 'lost'" in shown


def test_an_open_transaction_ends_the_check_with_its_reason(world: World, verify: Verify) -> None:
    config = world.scenario("open", lambda outputs: outputs)
    producer = world.producer()
    producer.begin_transaction()
    producer.produce(world.settings("open").topics.out, b"{}", partition=0)
    producer.flush(TIMEOUT_S)
    # A busy Kafka broker may take seconds to answer. The transaction stays open for far longer.
    status, shown, _ = verify(config, "--timeout", "8")
    assert status == 1
    assert "an open transaction hides later records" in shown
    producer.abort_transaction(TIMEOUT_S)
    assert verify(config)[0] == 0


def test_topics_that_do_not_exist_are_named(world: World, verify: Verify) -> None:
    file = world.folder / "nothing.toml"
    file.write_text(_toml(world.settings("nothing")), encoding="utf-8")
    status, shown, _ = verify(file)
    assert status == 1
    assert f"there is no topic {world.name}.out.nothing" in shown


def test_other_settings_than_those_it_ran_with_are_status_2(world: World, verify: Verify) -> None:
    config = world.scenario("other", lambda outputs: outputs)
    config.write_text(config.read_text().replace("800ms", "4s"), encoding="utf-8")
    status, shown, _ = verify(config)
    assert status == 2
    assert "joins.gap.tolerance_ns was 800000000 and is 4000000000 here" in shown


def write_points(pipeline: Pipeline, access: Any) -> None:
    with InfluxDBClient(url=access.url, token=access.token, org=access.org) as client:
        points = []
        for (join, thing, quantity, half, tie, time_ns), fields in pipeline.points.items():
            made: Any = Point("joined")  # type: ignore[no-untyped-call] # untyped in the library
            point = made.tag("join", join).tag("thing", thing).tag("quantity", quantity).time(time_ns)
            for name, value in (("half", half), ("tie", tie)):
                if value:
                    point.tag(name, value)
            for name, content in fields.items():
                point.field(name, content)
            points.append(point)
        client.write_api(write_options=SYNCHRONOUS).write(access.bucket, record=points)


def test_the_points_are_compared_one_by_one(
    world: World, verify: Verify, influxdb: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = world.scenario("points", lambda outputs: outputs)
    for name in ("url", "token", "org", "bucket"):
        monkeypatch.setenv(f"LSB_INFLUXDB__{name.upper()}", getattr(influxdb, name))
    pipeline = replace(world.pipeline, points=dict(world.pipeline.points))
    keys = list(pipeline.points)
    removed = pipeline.points.pop(keys[3])
    write_points(pipeline, influxdb)
    status, shown, _ = verify(config, "--influx")
    assert status == 1
    assert shown.rstrip().endswith("WRONG: 1 missing.")
    assert f": thing={keys[3][1]}, quantity={keys[3][2]}, join={keys[3][0]}" in shown
    pipeline.points[keys[3]] = removed
    write_points(pipeline, influxdb)
    assert verify(config, "--influx")[0] == 0
    pipeline.points[keys[3]] = {**removed, "id": "gap:0:9:9"}
    pipeline.points[(keys[3][0], "R77", *keys[3][2:])] = removed
    write_points(pipeline, influxdb)
    status, shown, _ = verify(config, "--influx")
    assert status == 1
    assert shown.rstrip().endswith("WRONG: 1 unexpected, 1 altered.")
