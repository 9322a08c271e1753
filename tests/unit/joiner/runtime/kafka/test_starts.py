"""Does each transaction of a replica begin with a start record wherever readers need one, and only there?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from confluent_kafka import TopicPartition

from broker.wire.start_records import read_start
from joiner.library.merging.protocol import ReplicaUnion
from joiner.runtime.clock import Clock, SystemClock
from joiner.runtime.kafka import snapshot_log, transaction
from joiner.runtime.kafka.pending_markers import BEGINNING
from joiner.runtime.kafka.snapshot_log import SnapshotPlace, beginning
from joiner.runtime.kafka.transaction import START_RECORDS_S, UnitTransactions
from joiner.runtime.model import (
    RESET_RUN,
    Checkpoint,
    OnTheWay,
    StateLog,
    checkpoint_key,
    decode_checkpoint,
    decode_manifest,
    manifest_key,
)
from joiner.runtime.settings import JoinerSettings, replica_settings
from joiner.runtime.task.batch import Batch
from joiner.runtime.task.effects import Outgoing
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import DATA, GAP, make_settings

SETTINGS = make_settings(GAP | {"emit_unmatched": "both"}, application={"name": "app", "replicas": 2})
OUT, LATE, UNMATCHED, REJECTED = (getattr(SETTINGS.topics, name) for name in ("out", "late", "unmatched", "rejected"))
STATE = SETTINGS.state_topic


def at(offset: int, **changes: Any) -> Checkpoint:
    made = Checkpoint(1, "app", 0, "run", "one", "green", {DATA: offset}, {DATA: 0}, {}, 1, "", {}, {}, {})
    return msgspec.structs.replace(made, **changes)


class Producer:
    """A `UnitProducer` that keeps the records of each transaction, by topic."""

    was_asked_again = False

    def __init__(self) -> None:
        self.firsts: dict[str, int] = {}
        self.open: list[tuple[str, str | bytes | None, bytes | None]] = []
        self.committed: list[list[tuple[str, str | bytes | None, bytes | None]]] = []
        self.offsets: list[dict[str, int] | None] = []
        self._end = 0

    def begin(self) -> None:
        self.firsts, self.open = {}, []
        self.offsets.append(None)

    def send_offsets(self, offsets: dict[str, int]) -> None:
        self.offsets[-1] = dict(offsets)

    def write_all(self, messages: Outgoing) -> None:
        for topic, batch in messages.items():
            self._note(topic, [(topic, *one) for one in batch.each()])

    def write(self, topic: str, key: str, value: bytes | None) -> None:
        self._note(topic, [(topic, key, value)])

    def _note(self, topic: str, records: list[Any]) -> None:
        self.firsts.setdefault(topic, self._end)
        self._end += len(records)
        self.open += records

    def commit(self) -> None:
        self.committed.append(self.open)


def transactions(
    monkeypatch: pytest.MonkeyPatch, settings: JoinerSettings = SETTINGS, clock: Clock | None = None
) -> tuple[UnitTransactions, Producer]:
    producer = Producer()
    monkeypatch.setattr(transaction, "UnitProducer", lambda *_given: producer)
    monkeypatch.setattr(transaction, "log_ends", lambda _consumer, topics, _unit: dict.fromkeys(topics, 10**6))
    consumer: Any = SimpleNamespace(
        offsets_for_times=lambda places, _timeout: [TopicPartition(DATA, 0, 1)] * len(places)
    )
    return UnitTransactions(settings, 0, consumer, clock or SystemClock()), producer


def starts(records: list[Any]) -> dict[str, int]:
    """Return the start record's offset by topic, and check that it is the first record there and the only one."""
    found = {}
    for topic in {topic for topic, _, _ in records} - {STATE}:
        values = [value for name, _, value in records if name == topic]
        first, *rest = map(read_start, values)
        assert rest == [None] * len(rest)
        if first is not None:
            found[topic] = first[DATA]
    return found


def output(*topics: str, keys: bool = True) -> Outgoing:
    return {topic: Batch.of([b"k"] * 2 if keys else None, [b'{"id":"1"}', b'{"id":"2"}']) for topic in topics}


def test_every_transaction_has_one_among_the_results_and_the_first_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    owned, producer = transactions(monkeypatch)
    owned.commit({}, at(5))
    owned.commit(output(OUT), at(8))
    owned.commit(output(OUT, LATE), at(9))
    owned.commit({}, at(9))
    owned.commit(output(REJECTED, keys=False), at(12))
    owned.commit({}, at(13))
    owned.commit({}, at(14))
    assert [starts(records) for records in producer.committed] == [
        {OUT: 5, LATE: 5, UNMATCHED: 5, REJECTED: 5},
        {OUT: 5},
        {OUT: 8, LATE: 8},
        {OUT: 9, LATE: 9},
        {OUT: 9, REJECTED: 9},
        {OUT: 12, REJECTED: 12},
        {OUT: 13},
    ]


def test_a_replica_becomes_complete_in_all_topics_although_nothing_is_written_to_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    owned, producer = transactions(monkeypatch, clock=clock)
    unions = {topic: ReplicaUnion(2, 10) for topic in (OUT, LATE, UNMATCHED, REJECTED)}

    def commit(messages: Outgoing, offset: int) -> dict[str, int]:
        owned.commit(messages, at(offset))
        found = starts(producer.committed[-1])
        for topic, vector in found.items():
            unions[topic].on_start(0, {DATA: vector})
        return found

    commit({}, 5)
    for union in unions.values():
        union.on_start(1, {DATA: 8})
    clock.now_s += START_RECORDS_S / 2
    assert commit(output(OUT), 9) == {OUT: 5}
    clock.now_s += START_RECORDS_S / 2
    assert commit(output(OUT), 10) == dict.fromkeys(unions, 9)
    assert commit(output(OUT), 11) == {OUT: 10}
    assert [union.complete for union in unions.values()] == [[0, 1]] * 4


def test_a_start_record_has_no_key_and_the_output_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    owned, producer = transactions(monkeypatch)
    owned.commit(output(OUT) | output(REJECTED, keys=False), at(5))
    written = [(topic, key) for topic, key, _ in producer.committed[0] if topic in {OUT, REJECTED}]
    assert written == [(OUT, b""), (OUT, b"k"), (OUT, b"k"), (REJECTED, None), (REJECTED, None), (REJECTED, None)]


def test_what_a_claim_says_precedes_its_output_in_all_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    owned, producer = transactions(monkeypatch)
    owned.commit(output(OUT) | output(REJECTED, keys=False), at(5), starts=[{}, {DATA: 2}])
    owned.commit(output(OUT), at(6))
    first, second = producer.committed
    for topic in (OUT, LATE, UNMATCHED, REJECTED):
        vectors = [read_start(value) for name, _, value in first if name == topic]
        assert vectors[:2] == [{}, {DATA: 2}]
        assert vectors[2:] == [None] * (2 if topic in {OUT, REJECTED} else 0)
    assert starts(second) == {OUT: 5, REJECTED: 5}


def test_after_a_claim_that_does_not_know_where_it_begins_the_next_transaction_has_start_records_everywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owned, producer = transactions(monkeypatch)
    owned.commit(output(OUT), at(5), starts=[{}])
    owned.commit({}, at(6))
    owned.commit({}, at(7))
    first, *rest = producer.committed
    assert [read_start(value) for name, _, value in first if name == OUT] == [{}, None, None]
    assert list(map(starts, rest)) == [dict.fromkeys((OUT, LATE, UNMATCHED, REJECTED), 5), {OUT: 6}]


def test_without_replicas_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    owned, producer = transactions(monkeypatch, make_settings())
    owned.commit({}, at(5), starts=[{}, {DATA: 5}])
    owned.commit(output(OUT, LATE), at(8))
    names = [[topic for topic, _, _ in records] for records in producer.committed]
    assert names == [["lsb.state"], [OUT, OUT, LATE, LATE, "lsb.state"]]


def test_each_transaction_of_a_large_snapshot_has_one_and_so_has_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "SNAPSHOT_BYTES_MAX", 1000)
    monkeypatch.setattr(snapshot_log, "CHUNK_BYTES_MAX", 400)
    owned, producer = transactions(monkeypatch)
    owned.commit({}, at(5))
    released = at(8, run=OnTheWay("m", "green").run(), site="blue")
    owned.commit(output(OUT), released, (b"x" * 1500, SnapshotPlace(-1, [0, 0])))
    assert [starts(records) for records in producer.committed[1:]] == [
        {OUT: 5},
        *[{OUT: 8}] * (len(producer.committed) - 2),
    ]
    assert len(producer.committed) > 4


def test_what_names_a_transaction_is_its_output_and_not_its_start_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal start records would hide that Kafka has rolled back one of them with its results."""
    owned, producer = transactions(monkeypatch)
    monkeypatch.setattr(transaction, "log_ends", lambda _consumer, topics, _unit: dict.fromkeys(topics, 0))
    monkeypatch.setattr(UnitTransactions, "check_ended", lambda _self: None)
    for messages in ({}, output(OUT), {}, output(LATE)):
        owned.commit(messages, at(5))
    written = [decode_checkpoint(records[-1][2] or b"").written for records in producer.committed]
    named = [{topic: first.identity for topic, first in one.items()} for one in written]
    assert named == [{}, {OUT: " 1"}, {OUT: " 1"}, {OUT: " 1", LATE: " 1"}]


def test_a_transaction_that_writes_nothing_but_a_beginning_is_named_by_that_until_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If Kafka rolled it back unnoticed, a reader would take what follows for a continuation."""
    owned, producer = transactions(monkeypatch)
    stable = dict.fromkeys((OUT, LATE, UNMATCHED, REJECTED, STATE), -1)
    monkeypatch.setattr(
        transaction, "log_ends", lambda _consumer, topics, _unit: {name: stable[name] for name in topics}
    )
    owned.commit(output(LATE), at(5), starts=[{}, {DATA: 5}])
    owned.commit({}, at(6))
    owned.commit(output(OUT), at(7))
    written = [decode_checkpoint(records[-1][2] or b"").written for records in producer.committed]
    named = [{topic: first.identity for topic, first in one.items()} for one in written]
    begun = {OUT: BEGINNING, UNMATCHED: BEGINNING, REJECTED: BEGINNING, LATE: " 1"}
    assert named == [begun, begun, begun | {OUT: " 1"}]
    stable |= dict.fromkeys(stable, 10**6)
    owned.check_ended()
    owned.commit({}, at(8))
    assert decode_checkpoint(producer.committed[-1][-1][2] or b"").written == {}


def test_without_replicas_no_beginning_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    owned, producer = transactions(monkeypatch, make_settings())
    owned.commit({}, at(5), starts=[{}, {DATA: 5}])
    assert decode_checkpoint(producer.committed[-1][-1][2] or b"").written == {}


_OWNED = (
    b'{"format":1,"application":"app","unit":0,"run":"run","instance":"one","placement":"green",'
    b'"offsets":{"machine.data":%d},"start":{"machine.data":0},"topics":{},"partitions":1,"fingerprint":"",'
    b'"semantics":{},"counts":{},"joins":{}%s}'
)
_WRITTEN = (
    b',"written":{"machine.out":{"identity":" 1","start":1000000},"machine.late":{"identity":" 1","start":1000000}}'
)
_MANIFEST = (
    b'{"format":1,"serial":0,"slot":0,"chunks":1,"length":5,'
    b'"sha256":"4ba69735ca53765ed6a709edb56c6ea236b7193a3b29a6b390c346f0f4340e4e","offsets":{"machine.data":8},'
    b'"fingerprint":"","result_ends":{"app.state":1000000,"machine.out":1000000,"machine.late":1000000,'
    b'"machine.rejected":1000000}}'
)


def test_without_replicas_transactions_are_byte_for_byte_what_they_were_before_there_were_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owned, producer = transactions(monkeypatch, make_settings(application={"name": "app"}))
    owned.commit({}, at(5), removed=["0/unsettled"], starts=[{}, {DATA: 5}])
    owned.commit(output(OUT, LATE), at(8), (b"state", SnapshotPlace(-1, [0, 0])))
    owned.begin_anew(StateLog(0, {checkpoint_key(0): b"old"}), at(0, run=RESET_RUN))
    results = [(b"k", b'{"id":"1"}'), (b"k", b'{"id":"2"}')]
    claimed, batch, reset = producer.committed
    assert claimed == [(STATE, "0/unsettled", None), (STATE, "0/progress", _OWNED % (5, b""))]
    assert batch == [
        *((OUT, *one) for one in results),
        *((LATE, *one) for one in results),
        (STATE, "0/0/0", b"state"),
        (STATE, "0/0/manifest", _MANIFEST),
        (STATE, "0/progress", _OWNED % (8, _WRITTEN)),
    ]
    assert reset == [
        (STATE, "0/progress", None),
        (STATE, "0/progress", (_OWNED % (0, b"")).replace(b'"run":"run"', b'"run":"reset"')),
    ]
    assert producer.offsets == [{DATA: 5}, {DATA: 8}, {DATA: 0}]


FOUNDED = at(7, run=RESET_RUN, founded={DATA: 7}, result_ends={OUT: 3})


def test_a_unit_begins_with_a_snapshot_before_which_nothing_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    owned, producer = transactions(monkeypatch, replica_settings(SETTINGS, 1))
    owned.begin_anew(StateLog(0), FOUNDED, b"state", with_offsets=False)
    ((chunk, manifest, checkpoint),) = producer.committed
    assert chunk == ("app.r1.state", "0/1/0", b"state")
    assert manifest[1] == manifest_key(0, 1)
    found = decode_manifest(manifest[2] or b"")
    assert (found.serial, found.offsets, found.result_ends) == (1, {DATA: 7}, {OUT: 3})
    assert checkpoint[1] == checkpoint_key(0)
    assert decode_checkpoint(checkpoint[2] or b"").founded == {DATA: 7}
    assert producer.offsets == [None], "with them, a claim would take a lost foundation for a lost state topic"
    owned.commit({}, FOUNDED)
    assert read_start(producer.committed[-1][0][2]) == {DATA: 7}


def test_the_old_checkpoint_is_deleted_with_its_snapshots_before_a_large_one_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction, "SNAPSHOT_BYTES_MAX", 1000)
    monkeypatch.setattr(snapshot_log, "CHUNK_BYTES_MAX", 400)
    owned, producer = transactions(monkeypatch)
    old = {checkpoint_key(0): b"old", manifest_key(0, 1): b"old", "0/1/0": b"old", "0/1/9": b"old"}
    owned.begin_anew(StateLog(0, old), FOUNDED, b"x" * 2500)
    *parts, last = producer.committed
    assert len(parts) >= 2
    assert {(key, value) for _, key, value in parts[0]} >= {(manifest_key(0, 1), None), ("0/1/9", None)}
    assert (STATE, checkpoint_key(0), None) in parts[0], "if the reset is interrupted, the unit must not be continued"
    assert [key for part in parts[1:] for _, key, _ in part if key == checkpoint_key(0)] == []
    assert [key for _, key, _ in last][-2:] == [manifest_key(0, 1), checkpoint_key(0)]
    assert producer.offsets == [*[None] * len(parts), {DATA: 7}]


def test_without_a_snapshot_all_old_records_are_deleted() -> None:
    old = {checkpoint_key(0): b"old", "0/1/0": b"old"}
    assert beginning(StateLog(0, old), at(7), None) == [(checkpoint_key(0), None), ("0/1/0", None)]
