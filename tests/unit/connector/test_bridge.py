"""The loop between MQTT and Kafka, tested without either: is the memory for in-flight messages bounded?"""

# ruff: noqa: SLF001 - the loop is driven step by step

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from broker.kafka.producer import Outgoing
from broker.settings import TopicSettings
from connector.bridge import Bridge
from connector.formats.payload import Metric, Payload
from connector.session import Message, SessionLostError
from connector.settings import ConnectorSettings, Settings

MIB = 1024 * 1024


class KeepingProducer:
    """A producer that stores records and confirms none of them."""

    def __init__(self) -> None:
        self.sent: list[Outgoing[Any]] = []
        self.topics: list[str] = []
        """The topics to which records were sent."""

    def send(self, topic: str, records: list[Outgoing[Any]]) -> None:
        """Store the records."""
        self.sent += records
        self.topics += [topic] if records else []


def bridge() -> tuple[Bridge, KeepingProducer]:
    own = ConnectorSettings(in_flight_bytes_max=4 * MIB)
    found, producer = Bridge(Settings(connector=own), lambda: False), KeepingProducer()
    found._forwarder._producer = producer  # type: ignore[assignment] # only `send` is used here
    return found, producer


def bridge_for_numbers(clock: Callable[[], int] = lambda: 7_999_999) -> tuple[Bridge, KeepingProducer]:
    number = {"format": "number", "topic": "plant/{thing}/{quantity}"}
    own = ConnectorSettings.model_validate({"topic": [number], "idle_after": "1s"})
    found, producer = Bridge(Settings(connector=own), lambda: False, clock), KeepingProducer()
    found._forwarder._producer = producer  # type: ignore[assignment] # only `send` is used here
    return found, producer


def event(quantities: int, value: object = 1) -> bytes:
    fields = {
        "Thing": "t" * 40,
        "Timestamp": 0,
        "id": "i" * 36,
        **{f"{number:x}": value for number in range(quantities)},
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def accepted_until_full(payload: bytes) -> tuple[int, int]:
    """Return how many messages are accepted until the ledger is full, and how many bytes are sent to Kafka for them."""
    found, producer = bridge()
    count = 0
    while not found._ledger.is_full:
        count += 1
        found._accept([Message("machine/states", payload, count)])
    return count, sum(len(record.key or b"") + len(record.value) for record in producer.sent)


def test_what_is_under_way_is_bounded_by_the_bytes_of_the_records_and_not_of_the_messages() -> None:
    payload = event(1000)
    count, to_kafka = accepted_until_full(payload)
    most_of_one = 100 * len(payload)
    assert to_kafka <= 4 * MIB + most_of_one
    assert 1 < count < 4 * MIB // len(payload) / 10


def test_dead_letters_count_as_well() -> None:
    payload = b"\x00" * 64 * 1024
    _count, to_kafka = accepted_until_full(payload)
    assert to_kafka <= 4 * MIB + 7 * len(payload)


def test_small_messages_are_bounded_by_their_number() -> None:
    found, _producer = bridge()
    for number in range(1000):
        found._accept([Message("machine/states", event(2), number)])
    assert not found._ledger.is_full
    assert 1000 * 2 * 1024 < found._ledger.size_bytes < 1000 * 2 * 2048


def test_at_a_stop_accepted_messages_are_sent_without_waiting_for_more() -> None:
    found, producer = bridge()
    found._accept([Message("machine/states", event(2), 1)])
    flushed: list[float] = []

    def flush(timeout_s: float) -> bool:
        flushed.append(timeout_s)
        for record in producer.sent:
            found._ledger.confirm(record.ticket)
        return True

    producer.flush = flush  # type: ignore[attr-defined] # used only when stopping
    found._finish()
    assert len(flushed) == 1
    assert not len(found._ledger)


def test_numbers_and_events_are_told_apart_by_their_topics() -> None:
    found, producer = bridge_for_numbers()
    found._accept(
        [
            Message("plant/oven/power", b"1.5", 1),
            Message("machine/states", event(1), 2),
            Message("plant/oven/power", event(1), 3),
            Message("machine/states", b"1.5", 4),
        ]
    )
    told = [json.loads(sent.value) for sent in producer.sent]
    records, letters = told[:2], told[2:]
    assert (records[0]["thing"], records[0]["quantity"], records[0]["result"]) == ("oven", "power", 1.5)
    assert records[0]["phenomenonTime"] == 7
    assert records[1]["thing"] == "t" * 40
    assert [letter["topic"] for letter in letters] == ["plant/oven/power", "machine/states"]
    assert found._ledger.release() == []
    for sent in producer.sent:
        found._ledger.confirm(sent.ticket)
    assert found._ledger.release() == [1, 2, 3, 4]


def test_the_ids_of_two_runs_are_different() -> None:
    ids = set()
    for found, producer in (bridge_for_numbers(), bridge_for_numbers()):
        found._accept([Message("plant/oven/power", b"1.5", 1)] * 2)
        ids |= {json.loads(sent.value)["id"] for sent in producer.sent}
    assert len(ids) == 4


def test_retained_numbers_are_acknowledged_in_order_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    found, producer = bridge_for_numbers()
    retained = Message("plant/oven/power", b"1.5", 1, is_retained=True)
    event_retained = Message("machine/states", event(1), 2, is_retained=True)
    found._accept([retained, event_retained, retained._replace(packet_id=3)])
    assert len(producer.sent) == 1
    assert found._ledger.release() == [1]
    found._ledger.confirm(producer.sent[0].ticket)
    assert found._ledger.release() == [2, 3]
    assert caplog.text.count("skipped the retained message of the topic 'plant/oven/power'") == 1
    assert (found._progress.messages, found._progress.skipped["retained"]) == (3, 2)
    caplog.set_level("INFO")
    found._progress.report(0, "stopped")
    assert "3 messages, 1 records, 0 rejected, 2 skipped" in caplog.text


def test_the_back_off_is_reset_by_messages_once_the_subscriptions_are_granted() -> None:
    found, _producer = bridge()
    found._session._client = Client(CallbackAPIVersion.VERSION2)
    found._back_off_s = 5.0
    found._accept([Message("machine/states", event(1), 1)])
    assert found._back_off_s == 5.0
    found._session._is_granted = True
    found._accept([Message("machine/states", event(1), 2)])
    assert found._back_off_s == 0.2


def test_a_silent_quantity_of_plain_numbers_gets_a_watermark_by_the_clock_of_their_times() -> None:
    year_2200_ns = 7_258_118_400 * 10**9
    now_ns = year_2200_ns + 10**9
    found, producer = bridge_for_numbers(lambda: now_ns)
    found._accept([Message("plant/oven/silent", b"1", 1)])
    now_ns = year_2200_ns + 3 * 10**9
    watermarks = found._watermarks
    assert watermarks is not None
    watermarks.collect(2 * 10**9, is_confirmed=True)
    found._accept([Message("plant/oven/power", b"1", 2)])
    ((key, value),) = watermarks.collect(10**8, is_confirmed=True) or watermarks.collect(10**9 // 4, is_confirmed=True)
    mark = year_2200_ns // 10**6 + 2000
    assert (key, json.loads(value)) == (b"oven", {"mark": mark, "quantity": "silent", "thing": "oven"})
    assert len(producer.sent) == 2


def bridge_of(*templates: dict[str, Any], **topics: str) -> tuple[Bridge, KeepingProducer]:
    own = ConnectorSettings.model_validate({"topic": list(templates)})
    settings = Settings(connector=own, topics=TopicSettings.model_validate(topics))
    found, producer = Bridge(settings, lambda: False, lambda: 7_999_999), KeepingProducer()
    found._forwarder._producer = producer  # type: ignore[assignment] # only `send` is used here
    return found, producer


RAW = {"format": "raw", "topic": "raw/{thing}", "key": "{thing}", "kafka_topic": "plant.raw"}
SENML = {"format": "senml", "topic": "senml"}
PACK = (
    b'[{"bn":"a:","n":"t","bt":1.5e9,"v":1},{"n":"u","v":2},{"n":"t","t":1,"v":3},{"bn":"b:","n":"t","v":4},{"vs":""}]'
)


def test_a_raw_message_is_forwarded_and_acknowledged_once_kafka_has_it() -> None:
    found, producer = bridge_of(RAW)
    found._accept(
        [Message("raw/oven", b"{}", 1), Message("raw/oven", b"", 2), Message("raw/oven", b"{}", 3, is_retained=True)]
    )
    (sent,) = producer.sent
    assert (sent.key, sent.value, sent.headers) == (b"oven", b"{}", (("mqtt.topic", b"raw/oven"),))
    assert producer.topics == ["plant.raw"]
    assert found._ledger.release() == []
    found._ledger.confirm(sent.ticket)
    assert found._ledger.release() == [1, 2, 3]
    assert (found._progress.records, dict(found._progress.skipped)) == (1, {"retained": 1, "no_number": 0, "empty": 1})


def test_the_records_of_a_pack_go_to_their_things_and_are_acknowledged_together() -> None:
    found, producer = bridge_of(SENML)
    found._accept([Message("senml", PACK, 1)])
    told = [(sent.key, json.loads(sent.value)["phenomenonTime"]) for sent in producer.sent]
    at = 1_500_000_000_000
    assert told == [(b"a:", at), (b"a:", at), (b"a:", at + 1000), (b"b:", at)]
    for sent in producer.sent:
        assert found._ledger.release() == []
        found._ledger.confirm(sent.ticket)
    assert found._ledger.release() == [1]
    assert (found._progress.records, found._progress.skipped["no_number"]) == (4, 1)


def test_the_records_of_a_pack_have_their_own_times_in_a_message_with_many_records() -> None:
    found, producer = bridge_of(SENML, data_format="arrow")
    found._accept([Message("senml", PACK, 1), Message("senml", PACK, 2)])
    rows = [row for sent in producer.sent for row in pa.ipc.open_stream(sent.value).read_all().to_pylist()]
    assert sorted((row["thing"], row["quantity"], row["result"]) for row in rows) == sorted(
        2 * [("a:", "t", 1.0), ("a:", "u", 2.0), ("a:", "t", 3.0), ("b:", "t", 4.0)]
    )
    assert {row["phenomenonTime"] for row in rows if row["result"] == 3} == {1_500_000_001_000}
    for sent in producer.sent:
        for ticket in sent.ticket:
            found._ledger.confirm(ticket)
    assert found._ledger.release() == [1, 2]


def publisher_to(topics: list[str]) -> Callable[[str, bytes], bool]:
    def publish(topic: str, _payload: bytes) -> bool:
        topics.append(topic)
        return True

    return publish


def test_gaps_are_logged_and_nodes_are_asked(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    found, producer = bridge_of({"format": "sparkplug"})
    published: list[str] = []
    monkeypatch.setattr(found._session, "publish", publisher_to(published))
    data = b"\x18\x05"
    found._accept([Message("spBv1.0/g/NDATA/n", data, 0)])
    found._send_commands()
    assert published == ["spBv1.0/g/NCMD/n"]
    found._accept([Message("spBv1.0/g/NBIRTH/n", data, 0), Message("spBv1.0/g/NDATA/n", data, 0)])
    found._send_commands()
    assert caplog.text.count("messages of the Sparkplug node 'g/n' are missing") == 1
    assert len(producer.sent) == 1
    assert (found._messages.gaps, found._messages.rebirths) == (1, 1)


def test_a_request_that_was_lost_with_the_connection_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found, producer = bridge_of({"format": "sparkplug"})
    birth = Payload(seq=0, metrics=[Metric(name=b"t", alias=1, datatype=9)]).SerializeToString()
    found._accept([Message("spBv1.0/g/NBIRTH/n", birth, 0), Message("spBv1.0/g/NDATA/other", b"", 0)])

    def lost(_topic: str, _payload: bytes) -> bool:
        raise SessionLostError("lost")

    monkeypatch.setattr(found._session, "publish", lost)
    with pytest.raises(SessionLostError) as error:
        found._send_commands()
    found._handle_loss(error.value)
    assert found._messages.rebirths == 0
    published: list[str] = []
    monkeypatch.setattr(found._session, "publish", publisher_to(published))
    by_alias = Payload(seq=1, metrics=[Metric(alias=1, float_value=1)]).SerializeToString()
    found._accept([Message("spBv1.0/g/NDATA/n", by_alias, 0), Message("spBv1.0/g/NDATA/other", b"", 0)])
    found._send_commands()
    assert published == ["spBv1.0/g/NCMD/n", "spBv1.0/g/NCMD/other"]
    assert found._messages.rebirths == 2
    assert "is not used until the next birth" in json.loads(producer.sent[-2].value)["reason"]


def test_a_connector_without_the_extra_names_it_in_a_line(tmp_path: Path) -> None:
    config = tmp_path / "lsb.toml"
    config.write_text('[[connector.topic]]\nformat = "sparkplug"\n')
    program = "import sys; sys.modules['google.protobuf'] = None; from connector.__main__ import main; main()"
    command = [sys.executable, "-c", program, "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    message = "connector: protobuf is not installed: pip install 'localstreambuffer[sparkplug]' (in the repository: "
    assert done.stderr == message + "make setup)\n"
    assert done.returncode == 2
