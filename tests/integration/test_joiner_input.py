"""How the joiner handles invalid input, transactional input and Kafka outages."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from broker.stack import LocalStack
from broker.wire.records import REJECTED_BYTES_MAX
from tests.integration.damaged_log import DamagedLog
from tests.integration.joiner_application import (
    BASE_MS,
    Application,
    Entry,
    application,
    record,
    seeded_entries,
    things_over_all_units,
)
from tests.integration.services import DEADLINE_S
from tests.long import rest_long

THING = "R1"


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


def with_result(text: str) -> bytes:
    """Return a record with this JSON text as its result."""
    return b'{"thing":"R1","quantity":"speed","phenomenonTime":1554096460000,"id":"x","result":%s}' % text.encode()


def with_time(time_text: str) -> bytes:
    """Return a record with this JSON text as its time."""
    return b'{"thing":"R1","quantity":"speed","phenomenonTime":%s,"id":"x","result":1}' % time_text.encode()


WHOLE = with_result("1.5")
POISON: list[tuple[bytes | None, str]] = [
    (WHOLE[:-7], "not a JSON object"),
    (b"", "the value is empty"),
    (None, "the value is null"),
    (b"\x00\xff\xfe\x01", "not a JSON object"),
    (b"[1, 2]", "not a JSON object"),
    (with_result("NaN"), "not a JSON object"),
    (with_result("Infinity"), "not a JSON object"),
    (with_result("1e999"), "Number out of range"),
    (with_result("null"), "Expected `float`, got `null`"),
    (with_result('"1"'), "Expected `float`, got `str`"),
    (with_result("true"), "Expected `float`, got `bool`"),
    (WHOLE.replace(b'"id":"x",', b""), "missing required field `id`"),
    (WHOLE.replace(b'"R1"', b'"\xff\xfe"'), "utf-8"),
    (WHOLE.replace(b'"x"', b'"' + b"x" * 300 + b'"'), "length <= 256"),
    (WHOLE.replace(b"1.5", b"1.5" + b',"deep":' + b"[" * 20_000 + b"]" * 20_000), "more than 256 brackets"),
    (b'{"x":' + b"[" * 30_000, "more than 256 brackets"),
    (with_time("-62135596800000"), "outside the years 1678-2261"),
    (with_time("253402300799000"), "outside the years 1678-2261"),
    (with_time('"0001-01-01T00:00:00Z"'), "outside the years 1678-2261"),
    (with_time('"9999-12-31T23:59:59Z"'), "outside the years 1678-2261"),
    (with_time("7258118400000"), "max_future_skew"),
    (with_time('"2200-01-01T00:00:00+02:00"'), "max_future_skew"),
    (with_time('"2019-04-01T05:26:20"'), "no offset from UTC"),
    (with_time("1.00000000001"), "finer than a nanosecond"),
    (b'{"mark": true}', "got `bool`"),
    (b'{"mark": 1, "what": 2}', "unknown field `what`"),
    (b'{"mark": 7258118400000}', "max_future_skew"),
    (WHOLE[:-1] + b',"pad":"' + b"p" * 70_000 + b'"}', "more than 65536"),
    (b"\xef\xbb\xbf" + WHOLE, "not a JSON object"),
    (WHOLE + WHOLE, "trailing characters"),
    (WHOLE.decode().encode("utf-16"), "not a JSON object"),
    (WHOLE.replace(b'"R1"', b'""'), "length >= 1"),
    (WHOLE.replace(b'"R1"', b'"\\ud800"'), "end of hex escape"),
    (with_result("9" * 400), "out of range"),
    (with_result("[1]"), "got `array`"),
    (with_time("true"), "neither a number nor an ISO-8601"),
    (b'{"mark": 1, "mark": 2, "thing": ""}', "length >= 1"),
    (b'{"pad":"' + b"p" * 2_000_000 + b'"}', "more than 65536"),
]


def test_each_unusable_input_is_in_the_dead_letters_and_nothing_stops(app: Application) -> None:
    app.create_topics()
    resource = ConfigResource(ResourceType.TOPIC, app.topic("data"))
    larger = ConfigEntry("max.message.bytes", "3000000", incremental_operation=AlterConfigOpType.SET)
    resource.add_incremental_config(larger)
    for future in app.admin().incremental_alter_configs([resource]).values():
        future.result()
    home = app.unit_of(THING)
    around = (home + 1) % app.partitions
    entries = [Entry(THING, value) for value, _ in POISON]
    app.produce(entries)
    app.produce([Entry(THING, WHOLE, around), *seeded_entries(41, 300)])
    joiner = app.start()
    app.wait_until_through()
    assert joiner.stop() == 0
    dead_letters = app.rejected()
    for offset, (value, reason) in enumerate(POISON):
        dead_letter = dead_letters.pop((home, offset))
        assert reason in dead_letter.reason, (value or b"")[:80]
        assert dead_letter.length == len(value or b"")
        assert len(dead_letter.value) <= REJECTED_BYTES_MAX * 4 // 3 + 4
        assert (dead_letter.source, dead_letter.topic) == (app.name, app.topic("data"))
    (wrong,) = dead_letters.values()
    assert f"belongs to partition {home}, but the message is in partition {around}" in wrong.reason
    app.verify()


def test_a_joining_function_that_fails_costs_only_its_own_pairs(app: Application) -> None:
    app.create_topics()
    thing = things_over_all_units(1)[0]
    # 1e308 times 1e308 is not finite. The neighbouring pairs are valid.
    values = [2.0, 1e308, 3.0]
    speeds = [record(thing, "speed", BASE_MS + 10 * n, value, f"s{n}") for n, value in enumerate(values)]
    torques = [record(thing, "torque", BASE_MS + 10 * n, value, f"t{n}") for n, value in enumerate(values)]
    app.produce([*speeds, *torques])
    joiner = app.start()
    app.wait_until_through()
    assert joiner.stop() == 0
    (dead_letter,) = app.rejected().values()
    assert "spindle_power" in dead_letter.reason
    assert "not a finite number" in dead_letter.reason
    assert dead_letter.id == f"power:{app.unit_of(thing)}:1:4"
    assert {json.loads(value)["id"] for value in app.values("out")} >= {f"power:{app.unit_of(thing)}:0:3"}
    app.verify()


def test_input_of_transactions_is_read_without_what_was_rolled_back(app: Application) -> None:
    app.create_topics()
    joiner = app.start()
    joiner.wait_for_units()
    producer = Producer({"bootstrap.servers": app.bootstrap, "transactional.id": f"{app.name}-source"})
    producer.init_transactions(DEADLINE_S)
    entries = seeded_entries(42, 1200)
    for part in range(0, len(entries), 40):
        producer.begin_transaction()
        for entry in entries[part : part + 40]:
            producer.produce(app.topic("data"), entry.value, entry.key.encode(), app.unit_of(entry.key))
        producer.flush(DEADLINE_S)
        if part // 40 % 3 == 1:
            producer.abort_transaction(DEADLINE_S)
        else:
            producer.commit_transaction(DEADLINE_S)
    app.wait_until_decided()
    # The vector reaches the end offsets, after the last control records, so that retention may remove all records.
    app.wait_until_through()
    assert sum(checkpoint.counts["records"] for checkpoint in app.checkpoints().values()) == 800
    joiner.kill()
    again = app.start()
    again.wait_for_units()
    assert again.stop() == 0
    app.verify()


def test_a_log_that_retention_emptied_up_to_the_vector_is_continued(app: Application) -> None:
    app.create_topics()
    producer = Producer({"bootstrap.servers": app.bootstrap, "transactional.id": f"{app.name}-source"})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    for entry in seeded_entries(43, 300):
        producer.produce(app.topic("data"), entry.value, entry.key.encode(), app.unit_of(entry.key))
    producer.commit_transaction(DEADLINE_S)
    app.wait_until_decided()
    joiner = app.start()
    app.wait_until_through()
    assert joiner.stop() == 0
    app.remove_records()
    again = app.start()
    again.wait_for_units()
    assert again.stop() == 0, again.text()


@pytest.mark.parametrize("arguments", [(), ("--processes", "2")], ids=["alone", "workers"])
def test_a_late_start_of_kafka_is_waited_for(arguments: tuple[str, ...], tmp_path: Path) -> None:
    app = Application("127.0.0.1:1", tmp_path)
    joiner = app.start(*arguments)
    joiner.wait_for("has not answered yet, or is still creating the topics; waiting for it")
    began = time.monotonic()
    assert joiner.stop() == 0
    assert time.monotonic() - began < 5
    assert "SIGTERM: stopping" in joiner.text()


@pytest.mark.slow
@pytest.mark.parametrize("kind", rest_long(signal.SIGKILL, signal.SIGTERM))
def test_a_restart_of_kafka_costs_nothing(app: Application, stack: LocalStack, kind: signal.Signals) -> None:
    app.create_topics()
    joiner = app.start()
    app.produce(seeded_entries(44, 600))
    joiner.wait_for_units()
    if kind == signal.SIGKILL:
        stack.kafka.kill()
    else:
        stack.down([stack.kafka])
    stack.up([stack.kafka])
    app.produce(seeded_entries(45, 600))
    # The Kafka client may be stuck for half a minute, until the joiner replaces it (see broker.kafka.producer).
    app.wait_until_through(2 * DEADLINE_S)
    joiner.wait_for("Kafka is available again")
    lines = [line for line in joiner.text().splitlines() if "joiner.kafka" in line]
    counts = [
        sum(words in line for line in lines) for words in ("Kafka is unavailable", "Kafka is available again", "FAIL [")
    ]
    assert counts == [1, 1, 0], "the outage and its end are reported once each, and no attempts in between"
    assert joiner.process.poll() is None
    assert joiner.stop() == 0
    assert not re.search("Traceback", joiner.text())
    app.verify()


def test_records_that_come_damaged_are_not_left_out_and_are_joined_once_they_can_be_read(
    app: Application, stack: LocalStack
) -> None:
    app.create_topics()
    # Each call sends a separate request, and so writes a separate batch to the log.
    for part in range(3):
        times = range(BASE_MS + part * 100, BASE_MS + part * 100 + 100, 10)
        app.produce(
            record(THING, quantity, at, float(part), f"part {part} {quantity} {at}")
            for at in times
            for quantity in ("speed", "torque")
        )
    unit = app.unit_of(THING)
    damaged = DamagedLog(stack, app.topic("data"), unit, f"part 1 speed {BASE_MS + 100}".encode())
    joiner = app.start()
    joiner.wait_for(rf"unit {unit}: going back to its last commit, .*: reading {app.topic('data')}: .*CRC32C")
    assert app.checkpoints()[unit].offsets[app.topic("data")] <= 20
    damaged.mend()
    app.wait_until_through()
    assert joiner.stop() == 0
    app.verify()
