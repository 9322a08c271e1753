"""The import command, tested without Kafka: what is sent, reported, and waited for."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

import connector.forwarding
from broker.commandline import Stop
from broker.kafka.producer import DeliveryError, Outgoing
from broker.settings import TopicSettings
from broker.wire.records import decode_data, decode_rejected
from connector.forwarding import Forwarder
from connector.settings import Settings
from simulator.importer import command
from simulator.recording import SortedRecording

TOPICS = TopicSettings()


class Producer:
    """Keeps what is sent, and confirms up to ``confirmed_at_once`` of it at each poll. ``refusal``: raised instead."""

    def __init__(self, *_settings: Any, confirmed_at_once: int | None = None, refusal: str = "", **_more: Any) -> None:
        self.confirm: Callable[[Any], None] = _settings[2]
        self.confirmed_at_once, self.refusal = confirmed_at_once, refusal
        self.sent: list[tuple[str, Outgoing[Any]]] = []
        self.unconfirmed: list[Any] = []
        self.most = 0

    def send(self, topic: str, records: list[Outgoing[Any]]) -> None:
        self.sent += [(topic, record) for record in records]
        self.unconfirmed += [record.ticket for record in records]
        self.most = max(self.most, len(self.unconfirmed))

    def poll(self, _wait_s: float) -> None:
        if self.refusal:
            raise DeliveryError(self.refusal)
        confirmed = self.unconfirmed[: self.confirmed_at_once]
        for ticket in confirmed:
            self.confirm(ticket)
        del self.unconfirmed[: len(confirmed)]

    flush = poll

    def close(self) -> None: ...

    def records(self) -> list[Any]:
        return [decode_data(one.value, "ms")[0] for topic, one in self.sent if topic == TOPICS.data]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """How the producer behaves (``behaviour``), whether there are topics, and in the end, the ``producer``."""
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {"has_topics": True, "behaviour": {}}

    class Made(Producer):
        def __init__(self, *settings: Any, **more: Any) -> None:
            super().__init__(*settings, **given["behaviour"], **more)
            given["producer"] = self

        def __class_getitem__(cls, _item: Any) -> type[Made]:
            return cls

    def wait_for_topics(_kafka: Any, _specs: Any, is_stopping: Callable[[], bool], *_logs: Any) -> Any:
        while not given["has_topics"] and not is_stopping():
            pass
        return {} if given["has_topics"] else None

    monkeypatch.setattr(connector.forwarding, "LastingProducer", Made)
    monkeypatch.setattr(connector.forwarding, "wait_for_topics", wait_for_topics)
    return given


def event(number: int, **fields: Any) -> bytes:
    return json.dumps({"Thing": "R", "Timestamp": number, "id": f"e{number}", "speed": number, **fields}).encode()


def write(lines: list[bytes]) -> None:
    Path("events.json").write_bytes(b"".join(line + b"\n" for line in lines))


def test_all_events_are_sent_in_time_order(made: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    write([event(number, torque=1.5) for number in (3, 1, 2)])
    assert command.run([]) == 0
    found = made["producer"].records()
    assert [(one.id, one.quantity, one.result) for one in found] == [
        (f"e{number}", quantity, value)
        for number in (1, 2, 3)
        for quantity, value in (("speed", number), ("torque", 1.5))
    ]
    assert {one.key for _, one in made["producer"].sent} == {b"R"}
    first, last = "1970-01-01T00:00:00.001Z", "1970-01-01T00:00:00.003Z"
    said = f"lsb-import: 3 lines, 6 records written to machine.data\nlsb-import: event times from {first} to {last}\n"
    assert capsys.readouterr() == (said, "")


@pytest.mark.parametrize(
    ("arguments", "numbers"),
    [
        (["--as-recorded"], [3, 1, 2, 4]),
        (["--skip-first", "1"], [1, 2, 4]),
        (["--skip-first", "1", "--read-first", "2"], [1, 2]),
        (["--read-first", "1"], [3]),
    ],
)
def test_which_events_are_sent_and_in_which_order(
    made: dict[str, Any], arguments: list[str], numbers: list[int]
) -> None:
    write([event(number) for number in (3, 1, 2, 4)])
    assert command.run(arguments) == 0
    assert [one.result for one in made["producer"].records()] == numbers


def test_what_cannot_be_used_becomes_dead_letters(made: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    write([event(1), b"nothing", event(2, torque="high"), event(3)])
    assert command.run([]) == command.REJECTED
    assert [one.id for one in made["producer"].records()] == ["e1", "e2", "e3"]
    dead = [decode_rejected(one.value) for topic, one in made["producer"].sent if topic == TOPICS.rejected]
    assert [one.topic for one in dead] == ["events.json"] * 2
    output = capsys.readouterr()
    assert output.out.startswith("lsb-import: 4 lines, 3 records written to machine.data\n")
    first, last = output.err.splitlines()
    assert first.startswith(
        "lsb-import: 1 of 4 lines are not events and become dead letters. The first is line 2: JSON is malformed"
    )
    assert last.startswith("lsb-import: parts that cannot be used are in machine.rejected: 2; the first: not a JSON")


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([], "no lines are selected; nothing was written"),
        ([b"time;speed", b"1;2"], "none of the 2 lines tried is an event (not a JSON object: "),
        (
            [b'{"Timestamp": 1, "speed": 3}'] * 2000,
            "none of the 1,000 lines tried is an event (Thing is missing); nothing",
        ),
        ([b"\0" * 300_000] * 3, "none of the 3 lines tried is an event (the payload is 300000 bytes long, more than"),
    ],
)
def test_a_file_without_events_is_refused_before_anything_is_sent(
    made: dict[str, Any], lines: list[bytes], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(lines)
    assert command.run([]) == 2
    assert "producer" not in made
    assert capsys.readouterr().err.startswith(f"lsb-import: events.json: {error}")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["absent.json"], "absent.json does not exist"),
        (["."], ". is not a file"),
        (["a" * 300], "cannot be read: File name too long"),
        (["--skip-first", "-1"], "must be a whole number, not '-1'"),
        (["--read-first", "9" * 5000], "must be a whole number"),
        (["--config", "absent.toml"], "absent.toml"),
    ],
)
def test_invalid_arguments_are_refused(
    made: dict[str, Any], arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write([event(1)])
    try:
        status: object = command.run(arguments)
    except SystemExit as exited:
        status = exited.code
    assert status == 2
    assert error in capsys.readouterr().err
    assert "producer" not in made


@pytest.mark.parametrize(("limit", "most"), [("1000", 1499), ("5000", 5499)])
def test_no_more_is_under_way_than_the_settings_allow(
    made: dict[str, Any], monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setenv("LSB_CONNECTOR__IN_FLIGHT_MAX", limit)
    made["behaviour"]["confirmed_at_once"] = 100
    write([event(number) for number in range(10_000)])
    assert command.run([]) == 0
    assert len(made["producer"].records()) == 10_000
    assert int(limit) <= made["producer"].most <= most


def test_events_that_are_much_larger_in_kafka_are_sent_in_smaller_blocks(
    made: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LSB_CONNECTOR__IN_FLIGHT_BYTES_MAX", str(1024 * 1024))
    made["behaviour"]["confirmed_at_once"] = 10_000
    write([event(number, **{f"{quantity:x}": 0 for quantity in range(5_000)}) for number in range(40)])
    assert command.run([]) == 0
    assert len(made["producer"].records()) == 40 * 5_001
    # Up to five events of 50 KB are sent before the next look at what is under way.
    assert made["producer"].most <= 6 * 5_001


def test_kafka_that_does_not_answer_is_reported(made: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    made["has_topics"] = False
    write([event(1)])
    assert command.run(["--connect-timeout", "0"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("lsb-import: Kafka at 127.0.0.1:9092 has not created the topics, or not answered at all, ")
    assert error.endswith(" within 0 s; nothing was written\n")
    assert made["producer"].sent == []


def test_a_refusal_by_kafka_ends_the_import(made: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    made["behaviour"]["refusal"] = "Kafka refused a record"
    write([event(1)])
    assert command.run([]) == 1
    error = capsys.readouterr().err
    written = "0 of 1 lines are in Kafka, and perhaps some of the next 1"
    assert error == f"lsb-import: Kafka refused a record; correct the cause; {written}; {command._AGAIN}\n"  # noqa: SLF001


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KafkaException(KafkaError(KafkaError._FATAL, "failed")), "Kafka: failed"),  # noqa: SLF001 - public
        (OSError("unreadable"), "unreadable"),
        (KeyboardInterrupt(), "stopped at once, without waiting for Kafka"),
    ],
)
def test_what_is_in_kafka_is_said_however_the_import_fails(
    made: dict[str, Any],
    error: BaseException,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Failing(command.Import):
        def run(self, lines: Iterable[bytes]) -> None:
            super().run(islice(lines, 3))
            self.sent += 2
            raise error

    monkeypatch.setattr(command, "Import", Failing)
    write([event(number) for number in range(10)])
    assert command.run([]) == 1
    expected = f"lsb-import: {text}; 3 of 10 lines are in Kafka, and perhaps some of the next 2; import the file again"
    assert capsys.readouterr().err.startswith(expected)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [([], "events.json has been truncated while it was read; "), (["--as-recorded"], "events.json has changed; ")],
)
def test_a_file_that_shrinks_is_not_complete(
    made: dict[str, Any],
    arguments: list[str],
    error: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write([event(number) for number in range(2000)])

    def forwarder(settings: Settings) -> Forwarder:
        write([event(0)])
        return Forwarder(settings)

    monkeypatch.setattr(command, "Forwarder", forwarder)
    assert command.run(arguments) == 1
    assert {one.id for one in made["producer"].records()} <= {"e0"}
    assert error in capsys.readouterr().err


@pytest.mark.parametrize("client", ['{"nonsense": 1}', '{"reconnect.backoff.max.ms": 1}'])
def test_settings_that_the_kafka_client_refuses_are_named(
    client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LSB_KAFKA__CLIENT", client)
    write([event(1)])
    assert command.run([]) == 2
    error = capsys.readouterr().err
    assert error.startswith("lsb-import: invalid settings; nothing was written\nKafka: ")
    assert client.split('"')[1] in error


def test_a_file_name_that_is_not_utf8_can_be_named_in_a_dead_letter(made: dict[str, Any]) -> None:
    name = os.fsdecode(b"\xff.json")
    Path(name).write_bytes(event(1) + b"\nnothing\n")
    assert command.run([name]) == command.REJECTED
    (dead,) = (decode_rejected(one.value) for topic, one in made["producer"].sent if topic == TOPICS.rejected)
    assert dead.topic == "\\xff.json"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_reading_of_the_file(
    made: dict[str, Any], monkeypatch: pytest.MonkeyPatch, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    def survey(_recording: object) -> None:
        signal.raise_signal(number)

    monkeypatch.setattr(SortedRecording, "survey", survey)
    write([event(1)])
    assert command.run([]) == 1
    assert capsys.readouterr().err == "lsb-import: stopped; nothing was written\n"
    assert "producer" not in made


def test_a_signal_ends_the_import_and_says_what_is_in_kafka(
    made: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made["behaviour"]["confirmed_at_once"] = 0
    monkeypatch.setattr(command, "_FAREWELL_S", 0)

    class Requested(Stop):
        """Requested as soon as anything waits for Kafka."""

        @property
        def requested(self) -> bool:
            return "producer" in made and bool(made["producer"].sent)

        @requested.setter
        def requested(self, _value: bool) -> None: ...

    monkeypatch.setattr(command, "Stop", Requested)
    write([event(number) for number in range(2000)])
    assert command.run([]) == 1
    assert len(made["producer"].sent) == 500
    assert "stopped; 0 of 2,000 lines are in Kafka, and perhaps some of the next 500; import" in capsys.readouterr().err
