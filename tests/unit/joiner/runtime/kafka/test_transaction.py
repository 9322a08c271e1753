"""Writing to a producer whose queue is full, the place of the next snapshot, and offsets as text.

(tests/integration covers the transactions themselves.)
"""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka import snapshot_log, transaction, unit_producer
from joiner.runtime.kafka.clients import within
from joiner.runtime.kafka.snapshot_log import SnapshotPlace
from joiner.runtime.kafka.transaction import Aborted, UnitTransactions, offsets_as_text
from joiner.runtime.model import (
    FORMAT_VERSION,
    Checkpoint,
    Manifest,
    OnTheWay,
    StateLog,
    decode_checkpoint,
    decode_manifest,
    encode,
    manifest_key,
)
from joiner.runtime.task.batch import Batch
from joiner.runtime.task.effects import Outgoing
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import DATA, make_settings

FULL = KafkaError(KafkaError._QUEUE_FULL)  # noqa: SLF001 - its public name


def state(serials: dict[int, int], chunks: dict[int, int]) -> StateLog:
    """Return a state log with manifests that have these serials, and this many chunks, by slot."""
    manifests = {
        manifest_key(2, slot): encode(Manifest(FORMAT_VERSION, serial, slot, 1, 1, "", {}, ""))
        for slot, serial in serials.items()
    }
    return StateLog(2, manifests | {f"2/{slot}/{n}": b"x" for slot, count in chunks.items() for n in range(count)})


@pytest.mark.parametrize(
    ("serials", "chunks", "place"),
    [
        ({}, {}, SnapshotPlace(-1, [0, 0])),
        ({0: 0}, {0: 3}, SnapshotPlace(0, [3, 0])),
        ({0: 4, 1: 5}, {0: 1, 1: 2}, SnapshotPlace(5, [1, 2])),
        ({0: 6, 1: 5}, {0: 12, 1: 0}, SnapshotPlace(6, [12, 0])),
    ],
)
def test_the_next_snapshot_follows_what_is_there(
    serials: dict[int, int], chunks: dict[int, int], place: SnapshotPlace
) -> None:
    assert SnapshotPlace.after(state(serials, chunks)) == place


def test_a_call_that_does_not_return_is_given_up_and_its_error_is_passed_on() -> None:
    for_ever = threading.Event()
    with pytest.raises(KafkaException, match=r"did not return within 0\.05 s"):
        within(0.05, for_ever.wait)
    for_ever.set()
    with pytest.raises(ValueError, match="what it says"):
        within(30, _refuse, "what it says")


def _refuse(words: str) -> None:
    raise ValueError(words)


def test_an_error_that_is_passed_on_does_not_hold_whose_call_it_was() -> None:
    """Otherwise each Kafka outage would leak the producer whose call failed, with its threads and connections."""

    class Failing:
        def call(self) -> None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - its public name

    failing = Failing()
    gone = weakref.ref(failing)
    gc.disable()
    try:
        with pytest.raises(KafkaException):
            within(30, failing.call)
        del failing
        deadline_s = time.monotonic() + 30
        while gone() is not None and time.monotonic() < deadline_s:
            time.sleep(0.01)  # the thread that made the call is about to end
        assert gone() is None
    finally:
        gc.enable()


def test_offsets_are_told_in_the_order_of_their_topics() -> None:
    assert offsets_as_text({"b": 2, "a": 1}) == "a@1, b@2"


class NarrowProducer:
    """Accepts at most ``room`` messages between polls, as a client with a full queue does.

    On commit it reports the offset ``at`` for every message; each topic has one partition.
    """

    def __init__(self, room: int, at: int = 0) -> None:
        self.at = at
        self._told: list[tuple[Any, str, int]] = []
        self._room = self._left = room
        self.refusal = FULL
        self.taken: list[tuple[bytes | None, bytes | None]] = []
        self.calls: list[str] = []

    def produce(self, topic: str, *_record: Any, on_delivery: Any) -> None:
        self.calls.append("produce")
        self._told.append((on_delivery, topic, self.at))

    def commit_transaction(self, _timeout_s: float) -> None:
        self.calls.append("commit_transaction")
        told, self._told = self._told, []
        for on_delivery, topic, at in told:
            if on_delivery is not None:
                message = SimpleNamespace(topic=lambda topic=topic: topic, offset=lambda at=at: at)
                on_delivery(None, message)

    def produce_batch(self, topic: str, messages: list[dict[str, Any]], partition: int) -> int:
        assert partition == 3
        assert not any("_error" in message for message in messages), "a message is offered again without its error"
        taken = messages[: self._left]
        self.taken += [(message["key"], message["value"]) for message in taken]
        self._told += [(message.get("callback"), topic, self.at) for message in taken]
        self._left -= len(taken)
        for message in messages[len(taken) :]:
            message["_error"] = self.refusal
        return len(taken)

    def poll(self, timeout_s: float) -> None:
        # Waiting empties the queue.
        self._left = self._room if timeout_s else self._left

    def __getattr__(self, name: str) -> Any:
        return lambda *_given, **_more: self.calls.append(name)


def transactions(monkeypatch: pytest.MonkeyPatch, producer: NarrowProducer) -> UnitTransactions:
    monkeypatch.setattr(unit_producer, "make_producer", lambda *_given, **_more: producer)
    consumer: Any = SimpleNamespace(
        consumer_group_metadata=lambda: "group",
        offsets_for_times=lambda places, _timeout: [TopicPartition(one.topic, one.partition, 1) for one in places],
    )
    return UnitTransactions(make_settings(), 3, consumer, SystemClock())


CHECKPOINT = Checkpoint(1, "app", 3, "run", "one", "green", {DATA: 0}, {DATA: 9}, {}, 1, "", {}, {}, {})


@pytest.mark.parametrize("room", [1, 7, 999, 1_000, 1_001, 10_000])
@pytest.mark.parametrize("count", [0, 1, 999, 1_000, 1_001, 2_500])
def test_all_messages_are_handed_over_once_and_in_order(monkeypatch: pytest.MonkeyPatch, room: int, count: int) -> None:
    producer = NarrowProducer(room)
    wanted = [(b"%d" % at, b"value %d" % at) for at in range(count)]
    messages: Outgoing = {"out": Batch.of([key for key, _ in wanted], [value for _, value in wanted])}
    transactions(monkeypatch, producer).commit(messages, CHECKPOINT)
    assert producer.taken == wanted
    assert producer.calls == ["begin_transaction", "send_offsets_to_transaction", "produce", "commit_transaction"]


def test_what_is_refused_for_another_reason_than_a_full_queue_ends_the_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    producer = NarrowProducer(5)
    producer.refusal = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "too large")
    with pytest.raises(Aborted, match="too large"):
        transactions(monkeypatch, producer).commit({"out": Batch.of(None, [b"x"] * 6)}, CHECKPOINT)
    assert "commit_transaction" not in producer.calls


class Recorder(NarrowProducer):
    """A producer that keeps the records of each transaction."""

    def __init__(self) -> None:
        super().__init__(100)
        self.open: list[tuple[str, bytes | None]] = []
        self.committed: list[list[tuple[str, bytes | None]]] = []

    def produce(self, topic: str, *record: Any, on_delivery: Any) -> None:
        super().produce(topic, *record, on_delivery=on_delivery)
        value, key = record[:2]
        self.open.append((key.decode(), value))

    def commit_transaction(self, timeout_s: float) -> None:
        super().commit_transaction(timeout_s)
        self.committed.append(self.open)
        self.open = []


def test_a_large_snapshot_does_not_go_with_the_batch_and_each_transaction_of_it_is_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the batch's transaction it would time out on a slow Kafka cluster, and the batch would fail every time."""
    monkeypatch.setattr(transaction, "SNAPSHOT_BYTES_MAX", 1000)
    monkeypatch.setattr(snapshot_log, "CHUNK_BYTES_MAX", 400)
    producer = Recorder()
    owned = transactions(monkeypatch, producer)
    place = owned.commit({}, CHECKPOINT, (b"x" * 2500, SnapshotPlace(4, [9, 9])))
    assert place == SnapshotPlace(5, [9, 7])
    first, *rest = producer.committed
    assert [key for key, _ in first] == ["3/progress"], "the batch"
    slot, _ = rest[0][0]
    assert (slot, rest[0][0][1]) == (manifest_key(3, 1), None), "its old chunks no longer belong to a snapshot"
    assert [[key for key, _ in part][-1] for part in rest] == ["3/progress"] * len(rest)
    chunks = [[value or b"" for key, value in part if key.split("/")[-1].isdigit()] for part in rest]
    assert b"".join(chunk for part in chunks for chunk in part) == b"x" * 2500
    assert all(sum(map(len, part)) <= 1000 for part in chunks)
    assert rest[-1][-2][0] == manifest_key(3, 1), "the new manifest is written last"
    assert decode_manifest(rest[-1][-2][1] or b"").chunks == 7


def test_a_unit_is_released_behind_a_large_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target may claim it as soon as the release is visible."""
    monkeypatch.setattr(transaction, "SNAPSHOT_BYTES_MAX", 1000)
    producer = Recorder()
    owned = transactions(monkeypatch, producer)
    owned.commit({}, CHECKPOINT)
    released = msgspec.structs.replace(CHECKPOINT, run=OnTheWay("m", "green").run(), site="blue")
    owned.commit({}, released, (b"x" * 2500, SnapshotPlace(4, [9, 9])))
    told = [decode_checkpoint(part[-1][1] or b"") for part in producer.committed]
    assert [one.owner for one in told] == [CHECKPOINT.owner] * (len(told) - 1) + [released.owner]
    assert producer.committed[-2][-2][0] == manifest_key(3, 1)


def test_records_that_were_never_delivered_do_not_hold_their_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client keeps the callbacks of undelivered records. If one refers to the client, it keeps the client alive.

    Each Kafka broker killed during a transaction would then leak a client, with its threads and connections.
    """
    producer = Recorder()
    monkeypatch.setattr(producer, "commit_transaction", refuse)
    owned = transactions(monkeypatch, producer)
    with pytest.raises(Aborted):
        owned.commit({"machine.out": Batch.of(None, [b"{}"])}, CHECKPOINT)
    assert producer._told, "no record is undelivered"  # noqa: SLF001 - stands for the client's queue
    gone = weakref.ref(owned)
    del owned
    gc.collect()
    assert gone() is None


def refuse(_timeout_s: float) -> None:
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - its public name


@pytest.mark.parametrize(("late_s", "is_given_up"), [(4.0, False), (6.0, True)])
def test_markers_have_their_time_from_the_first_answer_of_a_broker_that_was_silent(
    monkeypatch: pytest.MonkeyPatch, late_s: float, *, is_given_up: bool
) -> None:
    clock = ManualClock(0.0)
    silent_s = 20.0

    def offsets_for_times(places: Sequence[TopicPartition], _timeout_s: float) -> list[TopicPartition]:
        clock.now_s = max(clock.now_s, silent_s)
        end = 1 if clock.now_s >= silent_s + late_s else 0
        return [TopicPartition(place.topic, place.partition, end) for place in places]

    monkeypatch.setattr(unit_producer, "make_producer", lambda *_given, **_more: NarrowProducer(5))
    consumer: Any = SimpleNamespace(consumer_group_metadata=lambda: "group", offsets_for_times=offsets_for_times)
    owned = UnitTransactions(make_settings(), 3, consumer, clock)
    expected: AbstractContextManager[Any] = (
        pytest.raises(Aborted, match="left a committed transaction open") if is_given_up else nullcontext()
    )
    with expected:
        owned.commit({"out": Batch.of(None, [b"{}"])}, CHECKPOINT)
    assert clock.now_s >= silent_s + min(late_s, 5.0)
