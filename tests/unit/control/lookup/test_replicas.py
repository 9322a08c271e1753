"""Are the ends of the replicas' topics read, within limits, and become what is true of the replicas?"""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException

from control.facts.lookup import replicas
from control.facts.lookup.leads import STRETCH_MS, Compared, Lead, ReplicaLead
from control.facts.lookup.one_at_a_time import Deadline, DeadlinePassed
from control.facts.lookup.replicas import Merged, ReplicasRead, read_replicas, spread
from joiner.runtime.kafka.clients import EOF_CODE
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings

OUT, STATE = "machine.out", "lsb.merged.state"
Log = list[tuple[bytes | None, bytes | None, int]]
"""Key, value and append time of each message."""


class Message:
    """A message, or the event that a partition has been read to its end."""

    def __init__(self, offset: int, content: tuple[bytes | None, bytes | None, int] | None) -> None:
        self._offset, self._content = offset, content

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._content[0] if self._content else None

    def value(self) -> bytes | None:
        return self._content[1] if self._content else None

    def timestamp(self) -> tuple[int, int]:
        return 2, self._content[2] if self._content else 0

    def error(self) -> Any:
        return None if self._content is not None else self

    def code(self) -> int:
        return EOF_CODE


class Kafka:
    """Topics in memory, as a consumer shows them. ``read``: the offsets that were read, by topic and partition."""

    def __init__(self) -> None:
        self.logs: dict[tuple[str, int], Log] = {}
        self.read: dict[tuple[str, int], list[int]] = {}
        self.closed = 0
        self.is_down = False
        self._place, self._at = ("", 0), 0

    def write(self, topic: str, at_ms: int, *values: bytes, partition: int = 0, key: bytes | None = None) -> None:
        self.logs.setdefault((topic, partition), []).extend((key, value, at_ms) for value in values)

    def topic_facts(self, _admin: Any, names: list[str], _timeout_s: float) -> dict[str, Any]:
        known = {topic for topic, _ in self.logs}
        return {name: object() for name in names if name in known}

    def log_range(self, _consumer: Any, topic: str, partition: int) -> tuple[int, int]:
        if self.is_down:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "away"))  # noqa: SLF001 - its only name
        return 0, len(self.logs.get((topic, partition), []))

    # The consumer

    def assign(self, places: list[Any]) -> None:
        (place,) = places
        self._place, self._at = (place.topic, place.partition), place.offset

    def unassign(self) -> None:
        self._place = ("", 0)

    def consume(self, count: int, _wait_s: float) -> list[Message]:
        log = self.logs.get(self._place, [])
        found = [Message(offset, log[offset]) for offset in range(self._at, min(len(log), self._at + count))]
        self.read.setdefault(self._place, []).extend(one.offset() for one in found)
        self._at += len(found)
        return found or [Message(len(log), None)]

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    made = Kafka()
    monkeypatch.setattr(replicas, "make_admin", lambda _kafka: None)
    monkeypatch.setattr(replicas, "make_tail_reader", lambda _settings: made)
    monkeypatch.setattr(replicas, "topic_facts", made.topic_facts)
    monkeypatch.setattr(replicas, "log_range", made.log_range)
    return made


def read(partitions: int = 2, count: int = 2, stop: threading.Event | None = None) -> ReplicasRead:
    settings = make_settings(partitions=partitions, application={"replicas": count})
    clock = ManualClock()
    return read_replicas(settings, clock, Deadline(clock, clock.monotonic_s() + 20.0, stop or threading.Event()))


def result(identity: Any) -> bytes:
    return msgspec.json.encode({"id": str(identity), "result": 1.0})


def progress(*states: tuple[bool, bool]) -> bytes:
    union = {"replicas": [{"accepted": accepted, "complete": complete, "start": {}} for accepted, complete in states]}
    return msgspec.json.encode({"union": union, "format": 1, "positions": {}})


def test_the_results_of_all_partitions_are_compared(kafka: Kafka) -> None:
    kafka.write(OUT, 1_000, b'{"start":{"machine.data":5}}', result("a"), result("b"))
    kafka.write(f"{OUT}.r1", 1_006, b'{"start":{"machine.data":5}}', result("a"), result("b"))
    kafka.write(OUT, 1_020, result("c"), partition=1)
    kafka.write(f"{OUT}.r1", 1_004, result("c"), partition=1)
    found = read()
    assert found.leads.compared == Compared(3, 1_000, 1_004, 0, 0, Lead(6, 16))
    assert found.leads.replicas == [ReplicaLead(2, Lead(6, 6)), ReplicaLead(1, Lead(16, 16))]
    assert (found.partitions, found.merged, kafka.closed) == (2, None, 1)


def test_a_replica_that_has_never_run_is_left_out(kafka: Kafka) -> None:
    kafka.write(OUT, 1_000, result("a"))
    found = read()
    assert (found.leads.compared.results, found.leads.compared.missing) == (0, 1)
    assert f"{OUT}.r1" not in {topic for topic, _ in kafka.read}
    assert read(count=3).leads.replicas == [ReplicaLead(0, None)] * 3


def test_no_topic_at_all_is_nothing(kafka: Kafka) -> None:
    found = read()
    assert (found.leads.compared.results, found.merged, kafka.read) == (0, None, {})


def test_only_the_newest_results_are_read_and_what_was_cut_off_is_not_compared(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "RESULTS_MAX", 40)
    for number in range(100):
        kafka.write(OUT, 1_000 + number, result(number))
        kafka.write(f"{OUT}.r1", 1_003 + number, result(number))
    found = read(partitions=2)
    assert {place: min(offsets) for place, offsets in kafka.read.items()} == {(OUT, 0): 80, (f"{OUT}.r1", 0): 80}
    # The oldest that was read has the time 1,083 there. Those that were not read there are not taken for missing here.
    assert found.leads.compared == Compared(16, 1_084, 1_099, 0, 0, Lead(3, 3))
    assert kafka.closed == 1


def test_the_size_of_what_is_read_is_limited(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "BYTES_MAX", 1_000)
    large = msgspec.json.encode({"id": "a", "padding": "x" * 300})
    for topic in (OUT, f"{OUT}.r1"):
        kafka.write(topic, 1_000, *[large] * 2_000)
    read(partitions=1)
    # The first part has 500 offsets, of which only the last few are kept.
    assert len(kafka.read[OUT, 0]) == 500


def test_reading_stops_at_what_is_older_than_the_stretch(kafka: Kafka) -> None:
    for topic in (OUT, f"{OUT}.r1"):
        kafka.write(topic, 5, *map(result, range(5_000)))
        kafka.write(topic, 6 + 2 * STRETCH_MS, *map(result, range(5_000, 5_100)))
    found = read(partitions=1)
    assert found.leads.compared.results == 100
    assert len(kafka.read[OUT, 0]) == 500


@pytest.mark.parametrize(("count", "most"), [(1, 16), (16, 16), (17, 16), (64, 16), (1_000, 16), (5, 2)])
def test_partitions_are_spread_evenly(count: int, most: int) -> None:
    found = spread(count, most)
    assert len(found) == min(count, most) == len(set(found))
    assert found == sorted(found)
    assert set(found) <= set(range(count))
    apart = {later - earlier for earlier, later in pairwise(found)}
    assert not apart or max(apart) - min(apart) <= 1


def test_of_many_partitions_only_some_are_read(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "PARTITIONS_MAX", 3)
    for partition in range(9):
        kafka.write(OUT, 1_000, result(partition), partition=partition)
        kafka.write(f"{OUT}.r1", 1_001, result(partition), partition=partition)
    found = read(partitions=9)
    assert (found.partitions, found.leads.compared.results) == (3, 3)
    assert {partition for _, partition in kafka.read} == {0, 3, 6}


def test_how_far_merging_is_comes_from_the_last_record_about_the_results(kafka: Kafka) -> None:
    key = f"{OUT}.merged".encode()
    for partition in (0, 1):
        kafka.write(STATE, 7, progress((True, True), (False, False)), partition=partition, key=key)
    kafka.write(STATE, 8, progress((True, True), (True, False)), key=key)
    kafka.write(STATE, 9, progress((True, True), (True, True)), key=b"machine.late.merged")
    kafka.logs[STATE, 0].append((b"rolled-back", None, 10))
    kafka.write(STATE, 9, progress((False, False), (True, True)), partition=1, key=key)
    assert read().merged == Merged(2, [1, 2], [1, 1], 9)


def test_of_a_partition_without_such_a_record_near_its_end_nothing_is_said(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = f"{OUT}.merged".encode()
    kafka.write(STATE, 7, progress((True, True), (True, True)), key=key)
    kafka.write(STATE, 8, *[progress((True, True))] * 3_000, key=b"machine.late.merged")
    kafka.write(STATE, 9, progress((True, True), (True, False)), partition=1, key=key)
    assert read().merged == Merged(1, [1, 1], [1, 0], 9)
    assert len(kafka.read[STATE, 0]) <= 2_500


@pytest.mark.parametrize(
    ("value", "merged"),
    [
        (b"{}", None),
        (b"no JSON", None),
        (b'{"union": ' + b"[" * 100_000, None),
        # Fewer replicas than now, and more.
        (progress((True, True)), Merged(1, [1, 0], [1, 0], 7)),
        (progress((True, False), (True, True), (True, True)), Merged(1, [1, 1], [0, 1], 7)),
    ],
)
def test_a_record_of_another_release_or_of_other_replicas_is_no_error(
    kafka: Kafka, value: bytes, merged: Merged | None
) -> None:
    kafka.write(STATE, 7, value, key=f"{OUT}.merged".encode())
    assert read().merged == merged


def test_an_outage_is_an_error_and_a_deadline_is_kept(kafka: Kafka) -> None:
    kafka.write(OUT, 1_000, result("a"))
    over = threading.Event()
    over.set()
    with pytest.raises(DeadlinePassed):
        read(stop=over)
    kafka.is_down, kafka.closed = True, 0
    with pytest.raises(KafkaException):
        read()
    assert kafka.closed == 1
