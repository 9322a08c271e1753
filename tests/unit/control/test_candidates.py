"""Are exactly those records put back that the joiner would accept now?"""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.partitioner import partition_of
from broker.wire.records import RECORD_BYTES_MAX, Unreadable
from control.actions.candidates import Candidate, candidate_of, check_record
from tests.unit.control.letters_made import NOW_MS, letter_text, message, record_text
from tests.unit.joiner.runtime.joiner_inputs import BASE_MS, DATA, make_settings, thing_of

SETTINGS = make_settings(partitions=2)
THING = thing_of(0, 2)
GOOD = record_text(thing=THING)


def test_a_record_that_is_good_by_now_is_put_back_as_it_was_under_its_thing() -> None:
    letter = letter_text(GOOD, "its time is 99 s ahead of its arrival, more than application.max_future_skew allows")
    found = candidate_of(SETTINGS, message(letter), None, NOW_MS)
    assert found == Candidate(DATA, 0, THING.encode(), GOOD, f"{DATA}:0:3")


def test_a_key_that_the_dead_letter_has_is_kept() -> None:
    found = candidate_of(SETTINGS, message(letter_text(GOOD), key=b"its own"), None, NOW_MS)
    assert isinstance(found, Candidate)
    assert found.key == b"its own"


@pytest.mark.parametrize("value", [None, b"", b"{}", b"\xff", b"x" * 70_000])
def test_a_corrected_value_takes_the_place_of_any_value(value: bytes | None) -> None:
    letter = message(letter_text(value))
    refused = candidate_of(SETTINGS, letter, None, NOW_MS)
    assert isinstance(refused, str)
    assert "give a corrected value" in refused
    found = candidate_of(SETTINGS, letter, GOOD, NOW_MS)
    assert isinstance(found, Candidate)
    assert found.value == GOOD


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "the value is empty"),
        (b"{", "not a JSON object"),
        (b"\xff", "not a JSON object"),
        (b"[" * 300, "brackets"),
        (b" " * (RECORD_BYTES_MAX + 1), "more than 65536"),
        (record_text(thing=THING, result="x"), "result"),
        (record_text(thing=THING, phenomenonTime="yesterday"), "yesterday"),
        (record_text(thing=THING, phenomenonTime=NOW_MS + 2 * 86_400_000), "ahead of its arrival"),
        (record_text(thing=thing_of(1, 2)), "belongs to partition 1, but the message is in partition 0"),
        (record_text(thing=THING, quantity="heat"), "no join and no align reads the quantity 'heat' from machine.data"),
        (json.dumps({"mark": BASE_MS, "thing": THING}).encode(), "a watermark, which a later one replaces"),
    ],
)
def test_a_record_that_would_be_rejected_or_ignored_is_refused(value: bytes, reason: str) -> None:
    with pytest.raises(Unreadable) as refused:
        check_record(SETTINGS, DATA, 0, value, NOW_MS)
    assert reason in str(refused.value)
    corrected = candidate_of(SETTINGS, message(letter_text(b"{}")), value, NOW_MS)
    assert isinstance(corrected, str)
    assert corrected.startswith("the corrected value would be rejected: ")
    as_it_is = candidate_of(SETTINGS, message(letter_text(value)), None, NOW_MS)
    assert isinstance(as_it_is, str)
    assert "give a corrected value" in as_it_is


def test_a_record_with_an_exact_time_is_accepted() -> None:
    text = record_text(thing=THING).replace(str(BASE_MS).encode(), f"{BASE_MS}.25".encode())
    assert check_record(SETTINGS, DATA, 0, text, NOW_MS) == THING


@pytest.mark.parametrize("changed", [{"source": "connector"}, {"row": 1}, {"topic": "x"}, {"offset": -1}])
def test_not_even_a_corrected_value_makes_up_for_a_letter_that_is_about_something_else(changed: dict[str, Any]) -> None:
    found = candidate_of(SETTINGS, message(letter_text(GOOD, **changed)), GOOD, NOW_MS)
    assert isinstance(found, str)
    assert found


def test_a_message_that_is_no_dead_letter_is_refused() -> None:
    for text in (None, b"", GOOD):
        assert "not a dead letter" in candidate_of(SETTINGS, message(text), GOOD, NOW_MS)


PLANT = {"name": "speed", "topic": "plant", "key": "$.id", "time": "$.ts", "value": "$.rpm", "where": "$.rpm"}


def test_a_message_of_another_program_is_put_back_as_it_was() -> None:
    settings = make_settings(partitions=2, stream=[PLANT])
    value = json.dumps({"id": THING, "ts": NOW_MS, "rpm": 5}).encode()
    found = candidate_of(settings, message(letter_text(value, topic="plant")), None, NOW_MS)
    assert found == Candidate("plant", 0, THING.encode(), value, "plant:0:3")
    for wrong, reason in ((b"{}", "it belongs to none of the streams"), (b'{"rpm":1}', "there is no key at $.id")):
        refused = candidate_of(settings, message(letter_text(wrong, topic="plant")), None, NOW_MS)
        assert isinstance(refused, str)
        assert reason in refused


def test_a_message_whose_time_is_that_of_its_arrival_is_not_put_back() -> None:
    settings = make_settings(partitions=2, stream=[PLANT | {"time": "kafka.timestamp"}])
    value = json.dumps({"id": THING, "rpm": 5}).encode()
    refused = candidate_of(settings, message(letter_text(value, topic="plant")), value, NOW_MS)
    assert isinstance(refused, str)
    assert "second arrival" in refused


def test_a_message_whose_key_only_kafka_knew_is_not_put_back() -> None:
    settings = make_settings(partitions=2, stream=[PLANT | {"key": "kafka.key"}])
    value = json.dumps({"ts": NOW_MS, "rpm": 5}).encode()
    refused = candidate_of(settings, message(letter_text(value, topic="plant")), value, NOW_MS)
    assert isinstance(refused, str)
    assert "dead letters do not contain keys" in refused


def test_a_corrected_message_is_put_into_the_partition_of_its_key_if_its_topic_is_repartitioned() -> None:
    settings = make_settings(partitions=2, stream=[PLANT | {"repartition": True}])
    copy = "lsb.plant.repartition"
    for thing in ("m1", "m2", "m3", "m4"):
        value = json.dumps({"id": thing, "ts": NOW_MS, "rpm": 5}).encode()
        found = candidate_of(settings, message(letter_text(b"{}", topic=copy)), value, NOW_MS)
        assert isinstance(found, Candidate)
        assert (found.topic, found.partition) == (copy, partition_of(thing.encode(), 2))
