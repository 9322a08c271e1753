"""What the connector writes for valid and invalid events and for silent quantities, tested on real servers.

`test_connector_failures` covers failures.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker.partitioner import partition_of
from broker.wire.records import REJECTED_BYTES_MAX, Record, Watermark, decode_data
from tests.integration.connector_pipeline import (
    FLOW_PER_SECOND,
    PARTITIONS,
    Pipeline,
    connector_pipeline,
    event,
    events,
    expected,
)
from tests.integration.services import DEADLINE_S, kill, stop, wait_until

if TYPE_CHECKING:
    from tests.integration.conftest import MqttAddress


@pytest.fixture
def pipeline(kafka: str, mqtt: MqttAddress, tmp_path: Path) -> Iterator[Pipeline]:
    yield from connector_pipeline(kafka, mqtt, tmp_path)


def test_each_quantity_of_each_event_arrives_once_in_its_things_partition(pipeline: Pipeline) -> None:
    process = pipeline.start()
    pipeline.publish(events(2000))
    pipeline.wait_for_records(4000)
    assert stop(process) == 0
    assert sorted(pipeline.identities()) == sorted(expected(2000))
    for stored in pipeline.values("data"):
        record, _ = decode_data(stored.value, "ms")
        assert stored.key is not None
        assert stored.key.decode() == record.thing
        assert stored.partition == partition_of(stored.key, PARTITIONS)
    assert pipeline.dead_letters() == []


WHOLE = b'{"Thing": "R", "Timestamp": 1, "id": "x", "q": 1}'


def with_value(text: bytes) -> bytes:
    """Return the event with this JSON text as its value."""
    return WHOLE.replace(b'"q": 1', b'"q": ' + text)


def with_time(text: bytes) -> bytes:
    """Return the event with this JSON text as its time."""
    return WHOLE.replace(b'"Timestamp": 1', b'"Timestamp": ' + text)


BAD: list[tuple[bytes, str]] = [
    (b"", "the payload is empty"),
    (b"\x00\xff\xfe", "not a JSON object"),
    (event("t")[:-5], "not a JSON object"),
    (b"[1, 2]", "not a JSON object"),
    (event("n").replace(b"288.25", b"NaN"), "JSON has no NaN"),
    (b'{"Timestamp": 1, "id": "x", "q": 1}', "Thing is missing"),
    (b'{"Thing": "R", "id": "x", "q": 1}', "Timestamp is missing"),
    (b'{"Thing": "R", "Timestamp": 1, "q": 1}', "id is missing"),
    (b'{"Thing": 1, "Timestamp": 1, "id": "x", "q": 1}', "Thing must be a string"),
    (b'{"Thing": "R", "Timestamp": true, "id": "x", "q": 1}', "neither a number nor an ISO-8601"),
    (b'{"Thing": "R", "Timestamp": 1, "id": "x"}', "the event has no quantity"),
    (b'{"Thing": "R", "Timestamp": "0001-01-01T00:00:00Z", "id": "x", "q": 1}', "outside the years"),
    (event("y", time_ms=253402300799000), "outside the years"),
    (event("part", bad=None), "quantity 'bad' is null"),
    (event("part2", bad="1"), "quantity 'bad' is a string"),
    (b'{"pad": "' + b"x" * 2_000_000 + b'"}', "more than events.event_bytes_max"),
    (b"null", "Expected `object`, got `null`"),
    (b"\xef\xbb\xbf" + WHOLE, "invalid character (byte 0)"),
    (WHOLE.decode().encode("utf-16"), "codec can't decode byte 0xff"),
    (WHOLE + b"x", "trailing characters (byte 50)"),
    (WHOLE + WHOLE, "trailing characters (byte 50)"),
    (WHOLE + b"\n" + WHOLE, "trailing characters (byte 51)"),
    (WHOLE.replace(b'"', b"'"), "keys must be strings (byte 1)"),
    (WHOLE.replace(b"}", b",}"), "trailing comma"),
    (WHOLE.replace(b'"R"', b'"R\n"'), "invalid character (byte 12)"),
    (WHOLE.replace(b'"R"', b'"\xff"'), "codec can't decode byte 0xff in position 11"),
    (WHOLE.replace(b'"R"', b'"\\ud800"'), "end of hex escape"),
    (WHOLE.replace(b'"R"', b"null"), "Thing must be a string, not null"),
    (WHOLE.replace(b'"R"', b'""'), "Thing is empty"),
    (WHOLE.replace(b'"R"', b'"' + b"R" * 257 + b'"'), "Thing has 257 characters"),
    (WHOLE.replace(b'"x"', b'""'), "id is empty"),
    (WHOLE.replace(b'"x"', b"7"), "id must be a string, not 7"),
    (WHOLE.replace(b'"q"', b'"Thing"'), "the member 'Thing' occurs more than once"),
    (with_value(b'1, "q": 2'), "the member 'q' occurs more than once"),
    (WHOLE.replace(b'"q"', b'"' + b"q" * 257 + b'"'), "has 257 characters, more than 256"),
    (WHOLE.replace(b'"q"', b'""'), "the name of quantity '' is empty"),
    (with_value(b"-Infinity"), "JSON has no NaN and no Infinity"),
    (with_value(b"1e999"), "beyond the range of a 64-bit float: 1e999"),
    (with_value(b"9" * 400), "beyond the range of a 64-bit float: 999"),
    (with_value(b"01"), "invalid number (byte 48)"),
    (with_value(b"+1"), "invalid character (byte 47)"),
    (with_value(b"0x10"), "expected ',' or '}' (byte 48)"),
    (with_value(b"1."), "invalid number (byte 49)"),
    (with_value(b"true"), "quantity 'q' is a boolean"),
    (with_value(b"[1]"), "quantity 'q' is an array"),
    (with_value(b'{"v": 1}'), "quantity 'q' is an object"),
    (with_value(b"[" * 300 + b"]" * 300), "more than 256 brackets"),
    (with_time(b"1.00000001"), "finer than a nanosecond"),
    (with_time(b"1e300"), "time 1e300 is outside the years"),
    (with_time(b"9" * 20), "99 is outside the years"),
    (with_time(b'"1554096460415"'), "is not an ISO-8601 time"),
    (with_time(b'"2019-04-01T05:26:20"'), "has no offset from UTC"),
    (with_time(b'"2019-02-30T05:26:20Z"'), "does not exist"),
    (with_time(b'"9999-12-31T23:59:59Z"'), "9999-12-31T23:59:59Z is outside the years"),
]


def test_each_bad_input_is_in_the_dead_letters_with_its_reason_and_nothing_stops(pipeline: Pipeline) -> None:
    process = pipeline.start()
    payloads = [
        event("first"),
        *(payload for payload, _ in BAD),
        event("y2200", time_ms=7258118400000),
        event("last"),
    ]
    pipeline.publish(payloads)
    wait_until(lambda: {"first", "last"} <= {record.id for record in pipeline.records()}, "the valid events arrive")
    wait_until(lambda: len(pipeline.dead_letters()) >= len(BAD), "the dead letters arrive")
    assert stop(process) == 0
    dead_letters = pipeline.dead_letters()
    assert len(dead_letters) == len(BAD)
    for payload, reason in BAD:
        assert any(reason in dead_letter.reason for dead_letter in dead_letters), (payload[:60], reason)
    assert {dead_letter.source for dead_letter in dead_letters} == {"connector"}
    assert {dead_letter.topic for dead_letter in dead_letters} == {f"{pipeline.name}/states"}
    (large,) = [dead_letter for dead_letter in dead_letters if dead_letter.length > 2_000_000]
    assert len(large.value) == REJECTED_BYTES_MAX
    assert {record.id for record in pipeline.records()} == {"first", "y2200", "last"}


def test_a_silent_quantity_gets_a_watermark_in_its_things_partition(pipeline: Pipeline) -> None:
    process = pipeline.start(LSB_CONNECTOR__IDLE_AFTER="500ms")
    pipeline.publish([event("e0", torque=1, speed=1)])
    count = 0

    def watermarks() -> list[tuple[int, Watermark]]:
        nonlocal count
        count += 1
        pipeline.publish([event(f"s{count}", time_ms=1554096460415 + 1_000 * count, speed=1)])
        found = ((stored.partition, decode_data(stored.value, "ms")[0]) for stored in pipeline.values("data"))
        return [(partition, value) for partition, value in found if isinstance(value, Watermark)]

    wait_until(lambda: bool(watermarks()), "a watermark is written")
    assert stop(process) == 0
    for partition, watermark in watermarks():
        assert (watermark.thing, watermark.quantity) == ("R0815", "torque")
        assert partition == partition_of(b"R0815", PARTITIONS)
        assert isinstance(watermark.time, int)
        assert 1554096460415 < watermark.time <= 1554096460415 + 1_000 * count - 500


def test_plain_numbers_and_events_arrive_whatever_kills_the_connector(pipeline: Pipeline) -> None:
    """A plain number may become several records after a kill, but never none."""
    name = pipeline.name
    templates = [
        {"format": "number", "topic": f"{name}/plant/{{site}}/{{thing}}/{{quantity}}", "thing": "{site}/{thing}"},
        {"format": "number", "topic": f"{name}/meter/{{thing}}/#", "quantity": "energy"},
    ]
    count = 3_000
    numbers = [
        (f"{name}/plant/s{n % 2}/oven{n % 3}/temperature", b"%d.5\n" % n)
        if n % 2
        else (f"{name}/meter/m1/kwh", b"%d" % n)
        for n in range(count)
    ]
    of_events = [(f"{name}/states", payload) for payload in events(count)]
    mixed = [message for pair in zip(numbers, of_events, strict=True) for message in pair]
    # The broker sends retained numbers on each subscription, long after they were measured.
    retained = [(f"{name}/plant/s1/oven1/temperature", b"-1"), (f"{name}/meter/m1/kwh", b"-1")]
    pipeline.publish_to(retained, retain=True)

    before_ms = time.time_ns() // 10**6
    process = pipeline.start(LSB_CONNECTOR__TOPIC=json.dumps(templates))
    # Only then does the broker have the subscriptions of the new session.
    pipeline.wait_until_logged("skipped the retained message")
    publisher = threading.Thread(target=pipeline.publish_to, args=(mixed, FLOW_PER_SECOND))
    publisher.start()
    pipeline.wait_for_records(count // 2)
    kill(process)
    # A message for a session that exists is no replay of a retained message, although it will be retained.
    live = [(f"{name}/plant/s1/oven1/temperature", b"-2")]
    pipeline.publish_to(live, retain=True)
    process = pipeline.start(LSB_CONNECTOR__TOPIC=json.dumps(templates))
    publisher.join()
    pipeline.publish_to([(f"{name}/meter/m1", b"off"), (f"{name}/plant/s1/oven1/", b"1")])
    pipeline.wait_for_all(count)
    wait_until(
        lambda: {record.result for record in of_numbers(pipeline)} >= values_of(numbers + live), "all numbers arrive"
    )
    wait_until(lambda: len(pipeline.dead_letters()) >= 2, "the dead letters arrive")
    assert stop(process) == 0
    pipeline.publish_to([(topic, b"") for topic, _ in retained], retain=True)

    found = of_numbers(pipeline)
    assert {record.result for record in found} == values_of(numbers + live)
    assert len({record.id for record in found}) == len(found)
    assert {(record.thing, record.quantity) for record in found} == {
        ("s1/oven0", "temperature"), ("s1/oven1", "temperature"), ("s1/oven2", "temperature"), ("m1", "energy"),
    }  # fmt: skip
    assert all(isinstance(record.phenomenonTime, int) for record in found)
    assert all(before_ms <= int(record.phenomenonTime) <= time.time_ns() // 10**6 for record in found)
    letters = {letter.topic: letter.reason for letter in pipeline.dead_letters()}
    assert letters.keys() == {f"{name}/meter/m1", f"{name}/plant/s1/oven1/"}
    assert "the quantity in the MQTT topic is empty" in letters[f"{name}/plant/s1/oven1/"]
    assert "not a number as in JSON: off" in letters[f"{name}/meter/m1"]


def of_numbers(pipeline: Pipeline) -> list[Record]:
    """Return the records of plain numbers."""
    return [record for record in pipeline.records() if record.quantity in {"temperature", "energy"}]


def values_of(numbers: list[tuple[str, bytes]]) -> set[float]:
    """Return the values of plain numbers, given as topics and payloads."""
    return {float(payload) for _topic, payload in numbers}


def test_topics_that_do_not_fit_end_the_connector_with_the_way_out(pipeline: Pipeline) -> None:
    assert stop(pipeline.start()) == 0
    process = pipeline.start(connected=False, LSB_TOPICS__PARTITIONS="4")
    assert process.wait(DEADLINE_S) == 1
    assert "set topics.partitions to 3" in pipeline.log.read_text()


def test_wrong_settings_are_reported_together_before_anything_starts(pipeline: Pipeline) -> None:
    process = pipeline.start(
        connected=False, LSB_CONNECTOR__IN_FLIGHT_MAX="0", LSB_CONNECTOR__LINGER="5", LSB_MQTT__PORT="x"
    )
    assert process.wait(DEADLINE_S) == 2
    logged = pipeline.log.read_text()
    assert all(name in logged for name in ("connector.in_flight_max", "connector.linger", "mqtt.port"))
    assert "Traceback" not in logged
