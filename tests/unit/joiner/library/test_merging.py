"""Does a reader of replicas deliver the right messages, continue from its state, and say what it cannot do?"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException

from broker.kafka.replicas import REPLICA_HEADER, merged_topic, replica_name, replica_of
from broker.kafka.topics import TopicFacts
from broker.wire.start_records import encode_start, read_start
from joiner.library.merging import reader as reading
from joiner.library.merging.inputs import SHORT_QUEUE, ReplicaInputs, Source
from joiner.library.merging.leads import Leads
from joiner.library.merging.partition import MergedPartition, MergeError
from joiner.library.merging.protocol import ReplicaUnion, Verdict
from joiner.library.merging.reader import MergedReader
from tests.unit.joiner.library.fake_consumer import AWAY, FakeConsumer, FakeMessage

OUT, OTHER = "out", "out.r1"
NOT_IN_LOG = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001 - the public names of the constants
END = KafkaError._PARTITION_EOF  # noqa: SLF001


def result(identity: str) -> bytes:
    return json.dumps({"thing": "R1", "quantity": "q", "phenomenonTime": 1, "result": 2.0, "id": identity}).encode()


def watermark(time: int | str) -> bytes:
    return json.dumps({"mark": time, "quantity": "q"}).encode()


def start(at: int) -> bytes:
    return encode_start({"a": at})


def partition(limit: int = 10, replicas: int = 2) -> MergedPartition:
    return MergedPartition(ReplicaUnion(replicas, limit), frozenset({"app", "app.r1"}), "ms")


class Reading:
    """Two replicas of one partition, read from a fake consumer."""

    def __init__(self, limit: int = 10, positions: dict[tuple[str, int], int] | None = None) -> None:
        self.consumer, self.merged = FakeConsumer(), partition(limit)
        sources = {(OUT, 0): Source(0, (OUT, 0)), (OTHER, 0): Source(1, (OUT, 0))}
        self.inputs = ReplicaInputs(
            self.consumer,  # type: ignore[arg-type] # has what is needed of one
            sources,
            {(OUT, 0): self.merged},
            positions or {},
        )

    def read(self) -> list[str]:
        values = [message.value() for _, message in self.inputs.take(100, 0.0)]
        return [json.loads(value or b"{}").get("id", "other") for value in values]


def test_a_start_record_is_read_back_and_nothing_else_is_one() -> None:
    assert read_start(encode_start({"b": 2, "a": 1})) == {"a": 1, "b": 2}
    assert read_start(encode_start({})) == {}
    for other in (
        None,
        b"",
        b"{}",
        b'{"start": 1}',
        b'{"start": {"a": -1}}',
        b'{"start": {}, "x": 1}',
        result("start"),
    ):
        assert read_start(other) is None


def test_the_names_of_replicas() -> None:
    assert [replica_name("machine.out", replica) for replica in (0, 1, 2)] == [
        "machine.out", "machine.out.r1", "machine.out.r2",
    ]  # fmt: skip
    assert merged_topic("machine.out") == "machine.out.merged"


def test_each_result_is_delivered_once_and_start_records_are_not() -> None:
    two = Reading()
    two.consumer.send(OUT, start(0), result("x"))
    two.consumer.send(OTHER, start(0), result("x"), result("y"))
    assert two.read() == ["x", "y"]
    assert two.inputs.positions() == {(OUT, 0): 2, (OTHER, 0): 3}
    assert two.merged.verdicts == {("deliver", 0): 1, ("known", 1): 1, ("deliver", 1): 1}


def test_an_incomplete_replica_is_paused_while_memory_is_full_and_goes_on_in_order() -> None:
    two = Reading(limit=1)
    two.consumer.send(OTHER, start(5), result("a"), result("b"), result("c"))
    assert two.read() == ["a"]
    assert two.consumer.paused == {OTHER}
    assert two.inputs.decided[OTHER, 0] == 2
    assert two.inputs.waiting() == 1
    two.consumer.send(OUT, start(4))
    assert two.read() == []
    assert two.inputs.waiting() == 1
    two.consumer.send(OTHER, start(7))
    two.consumer.send(OUT, result("a"), start(8))
    assert two.read() == [], "now replica 1 is behind, so that its results come from replica 0"
    assert two.inputs.positions() == {(OUT, 0): 3, (OTHER, 0): 4}
    assert not two.consumer.paused
    two.consumer.send(OUT, result("b"), result("c"))
    assert two.read() == ["b", "c"]
    assert two.inputs.positions() == {(OUT, 0): 5, (OTHER, 0): 5}, "what was not read while it was paused is read now"


def test_ids_of_a_replica_that_goes_back_are_kept_until_all_have_passed_the_ends_of_the_input() -> None:
    two = Reading()
    two.consumer.send(OUT, start(5))
    two.consumer.send(OTHER, start(5))
    two.read()
    two.consumer.ends["a"] = 12
    two.consumer.send(OTHER, result("x"), encode_start({}), start(9))
    two.read()
    assert two.merged.union.complete == [0]
    two.consumer.send(OTHER, start(11))
    two.consumer.send(OUT, start(11))
    two.read()
    assert two.merged.union.remembered == 1, "it may belong to any record that was in the input"
    two.consumer.send(OTHER, start(12))
    two.consumer.send(OUT, start(12))
    two.read()
    assert two.merged.union.remembered == 0


def test_a_vector_that_goes_back_waits_for_the_ends_of_the_input_unless_its_topic_is_gone() -> None:
    two = Reading()
    two.consumer.send(OUT, start(5), encode_start({}))
    with pytest.raises(KafkaException, match="a partition 0: "):
        two.read()
    two = Reading()
    two.consumer.unknown = KafkaError.UNKNOWN_TOPIC_OR_PART
    two.consumer.send(OUT, start(5), encode_start({}))
    assert two.read() == []


def test_the_ends_of_the_input_are_asked_for_once_for_all_that_was_read_together() -> None:
    """Each request waits for the one before, which may be a fetch."""
    consumer: Any = FakeConsumer()
    outputs = [("out", 0), ("late", 0)]
    sources = {(replica_name(name, one), 0): Source(one, (name, 0)) for name, _ in outputs for one in (0, 1)}
    inputs = ReplicaInputs(consumer, sources, {output: partition() for output in outputs}, {})
    for topic in ("out", "late"):
        consumer.send(topic, start(5))
    list(inputs.take(100, 0.0))
    before = consumer.requests
    consumer.ends["a"] = 12
    for topic in ("out.r1", "late.r1"):
        consumer.send(topic, encode_start({}), start(3), encode_start({}))
    list(inputs.take(100, 0.0))
    assert consumer.requests - before == 1
    consumer.send("late.r1", start(3), encode_start({}))
    list(inputs.take(100, 0.0))
    assert consumer.requests - before == 2, "they may have grown since"


def test_messages_that_were_deleted_are_replaced_by_those_of_another_replica() -> None:
    two = Reading(positions={(OUT, 0): 4, (OTHER, 0): 4})
    assert two.consumer.assigned == [(OUT, 0, 4), (OTHER, 0, 4)]
    two.consumer.send(OUT, start(5))
    two.consumer.send(OTHER, start(5))
    two.consumer.ends["a"] = 9
    two.read()
    two.consumer.fail(OUT, NOT_IN_LOG)
    assert two.read() == []
    assert two.merged.union.complete == [1]
    assert two.inputs.positions()[OUT, 0] == OFFSET_BEGINNING
    two.consumer.fail(OTHER, NOT_IN_LOG)
    with pytest.raises(MergeError, match="were deleted before they were merged"):
        two.read()


def test_what_waits_is_read_again_if_messages_of_another_output_were_deleted() -> None:
    consumer: Any = FakeConsumer()
    outputs = [("out", 0), ("late", 0)]
    sources = {(replica_name(name, one), 0): Source(one, (name, 0)) for name, _ in outputs for one in (0, 1)}
    inputs = ReplicaInputs(consumer, sources, {output: partition(limit=1) for output in outputs}, {})
    consumer.send("late.r1", start(5), result("a"), result("b"), result("c"))
    assert [message.value() for _, message in inputs.take(100, 0.0)] == [result("a")]
    assert (consumer.paused, inputs.waiting()) == ({"late.r1"}, 1)
    consumer.fail("out.r1", NOT_IN_LOG)
    assert list(inputs.take(100, 0.0)) == []
    assert (consumer.paused, inputs.waiting()) == (set(), 0)
    assert ("late.r1", 0, 2) in consumer.assigned
    consumer.ends["late.r1"] = 2
    consumer.send("late.r1", result("b"), result("c"))
    assert list(inputs.take(100, 0.0)) == []
    assert (consumer.paused, inputs.waiting()) == ({"late.r1"}, 1)


def test_the_last_start_record_before_messages_that_were_deleted_does_not_count_any_more() -> None:
    """Who restores the state would otherwise read what follows it again, at an offset of the former log."""
    two = Reading()
    two.consumer.send(OUT, start(4), result("x"), start(5))
    two.consumer.send(OTHER, start(5))
    two.consumer.ends["a"] = 9
    two.read()
    assert two.inputs.starts == {(OUT, 0): 2, (OTHER, 0): 0}
    two.consumer.fail(OUT, NOT_IN_LOG)
    two.consumer.ends[OUT] = 0
    two.read()
    assert two.inputs.starts == {(OTHER, 0): 0}
    two.consumer.send(OUT, result("y"))
    two.read()
    assert two.inputs.decided[OUT, 0] == 1
    assert two.inputs.starts == {(OTHER, 0): 0}, "there is none in this log yet"
    two.consumer.send(OUT, start(7))
    two.read()
    assert two.inputs.starts == {(OUT, 0): 1, (OTHER, 0): 0}


def test_the_position_is_after_the_marker_of_a_transaction() -> None:
    two = Reading()
    two.consumer.send(OUT, start(5))
    two.consumer.queue.append(FakeMessage(OUT, 2, None, KafkaError(END)))
    two.read()
    assert two.inputs.decided[OUT, 0] == 1
    assert two.inputs.positions()[OUT, 0] == 2


def test_an_error_that_may_skip_messages_is_raised_and_others_are_not() -> None:
    two = Reading()
    two.consumer.queue.append(FakeMessage("", 0, None, KafkaError(AWAY)))
    assert two.read() == []
    two.consumer.fail(OTHER, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException, match=r"out\.r1 partition 0: Broker: Topic authorization failed") as denied:
        two.read()
    assert denied.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_watermarks_of_complete_replicas_are_delivered_if_they_rise() -> None:
    merged = partition()
    merged.union.on_start(0, {"a": 4})
    merged.union.on_start(1, {"a": 5})
    assert merged.union.complete == [0]
    assert merged.offer(1, watermark(9)) is Verdict.IGNORED
    assert merged.offer(0, watermark(5)) is Verdict.DELIVER
    assert merged.offer(0, watermark(5)) is Verdict.KNOWN
    merged.union.on_start(0, {"a": 5})
    assert merged.union.complete == [0, 1]
    assert merged.offer(1, watermark(4)) is Verdict.KNOWN
    assert merged.offer(1, watermark("1970-01-01T00:00:00.006Z")) is Verdict.DELIVER
    assert merged.offer(1, watermark("no time")) is Verdict.DELIVER


def test_dead_letters_of_other_programs_and_what_has_no_id_are_delivered_as_they_are() -> None:
    merged = partition()
    foreign = b'{"id": "mqtt:1", "source": "connector"}'
    own, others = b'{"id": "data:0:1", "source": "app"}', b'{"id": "data:0:1", "source": "app.r1"}'
    for value in (foreign, foreign, None, None, b"\xff", b"[]"):
        assert merged.offer(0, value) is Verdict.DELIVER
    merged.union.on_start(1, {"a": 0})
    assert merged.offer(1, others) is Verdict.DELIVER
    assert merged.offer(0, own) is Verdict.KNOWN


def test_by_how_much_a_replica_is_first_is_measured_for_some_ids() -> None:
    leads = Leads()
    for number in range(64):
        leads.note_first(number, 1, f"x{number}", 1_000 + number)
    for number in range(64):
        leads.note_later(1, f"x{number}", 9_000)
        leads.note_later(0, f"x{number}", 1_500 + number)
        leads.note_later(2, f"x{number}", 9_000)
    assert (leads.counts, leads.lead_ms) == ({1: 4}, {1: 4 * 500})
    leads.note_first(64, 0, "y", 1_000)
    leads.note_later(1, "y", 900)
    assert (leads.counts[0], leads.lead_ms[0]) == (1, 0), "clocks may differ"


def test_what_no_second_replica_writes_is_not_waited_for_without_end() -> None:
    leads = Leads()
    for number in range(0, 16 * 5_000, 16):
        leads.note_first(number, 1, number, 0)
    for number in range(0, 16 * 5_000, 16):
        leads.note_later(0, number, 7)
    assert leads.counts == {1: 1_000}


def test_a_partition_measures_leads() -> None:
    merged = partition()
    merged.union.on_start(1, {"a": 0})
    merged.offer(1, result("x"), 1_000)
    merged.offer(0, result("x"), 1_250)
    assert (merged.leads.counts, merged.leads.lead_ms) == ({1: 1}, {1: 250})


def test_long_ids_are_remembered_by_their_hash() -> None:
    merged = partition()
    identity = merged.identity(result("x" * 200))
    assert isinstance(identity, bytes)
    assert len(identity) == 16
    assert identity != merged.identity(result("x" * 201))
    assert merged.identity(result("x" * 64)) == "x" * 64


def test_results_in_arrow_are_refused() -> None:
    with pytest.raises(MergeError, match=r"application\.results"):
        partition().offer(0, b"\xff\xff\xff\xff\x00")


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> FakeConsumer:
    made = FakeConsumer()
    monkeypatch.setattr(reading, "Consumer", lambda _config: made)
    monkeypatch.setattr(reading, "AdminClient", lambda _config: None)
    monkeypatch.setattr(
        reading,
        "topic_facts",
        lambda _admin, names: {name: TopicFacts(made.ids.get(name, "first"), 1) for name in names},
    )
    return made


def open_reader(**more: Any) -> MergedReader:
    return MergedReader({}, OUT, "app", 2, partitions=[0], **more)


def test_a_reader_continues_from_its_state(consumer: FakeConsumer) -> None:
    with open_reader() as reader:
        assert consumer.assigned == [(OUT, 0, OFFSET_BEGINNING), (OTHER, 0, OFFSET_BEGINNING)]
        consumer.send(OUT, start(0), result("x"))
        consumer.send(OTHER, start(0), result("y"))
        assert [message.value() for message in reader.read()] == [result("x"), result("y")]
        assert reader.remembered == 2
        assert reader.complete == {0: [0, 1]}
        state = reader.state()
    with open_reader(state=state) as reader:
        assert consumer.assigned == [(OUT, 0, 2), (OTHER, 0, 2)]
        consumer.send(OUT, result("y"), result("z"))
        consumer.send(OTHER, result("x"))
        assert [message.value() for message in reader.read()] == [result("z")]


def test_a_reader_fetches_little_in_advance_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(SHORT_QUEUE) == {"queued.min.messages", "max.partition.fetch.bytes"}
    given: list[dict[str, Any]] = []

    def make(config: dict[str, Any]) -> FakeConsumer:
        given.append(config)
        return FakeConsumer()

    monkeypatch.setattr(reading, "Consumer", make)
    monkeypatch.setattr(reading, "AdminClient", lambda _config: None)
    monkeypatch.setattr(reading, "topic_facts", lambda _admin, names: {name: TopicFacts("first", 1) for name in names})
    own = {"queued.min.messages": 7}
    for config in ({}, own):
        MergedReader(config, OUT, "app", 2, partitions=[0]).close()
    assert [{name: config[name] for name in SHORT_QUEUE} for config in given] == [SHORT_QUEUE, SHORT_QUEUE | own]


def test_a_topic_that_was_recreated_is_read_from_its_beginning(consumer: FakeConsumer) -> None:
    consumer.ends["a"] = 9
    with open_reader() as reader:
        consumer.send(OUT, start(0), result("x"), start(3))
        consumer.send(OTHER, start(0), result("y"), start(3))
        reader.read()
        assert reader.complete == {0: [0, 1]}
        state = reader.state()
    consumer.ids[OTHER] = "second"
    with open_reader(state=state) as reader:
        assert consumer.assigned == [(OUT, 0, 3), (OTHER, 0, OFFSET_BEGINNING)]
        assert reader.complete == {0: [0]}
        state = reader.state()
    consumer.ids[OUT] = "third"
    with pytest.raises(MergeError, match="topic out was deleted since the state was saved"):
        open_reader(state=state)


def test_a_state_of_another_release_is_refused(consumer: FakeConsumer, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later, open_reader() as reader:
        later.setattr(reading, "FORMAT_VERSION", 2)
        state = reader.state()
    assert consumer.assigned
    with pytest.raises(ValueError, match=r"another release \(format 2\)"):
        open_reader(state=state)


@pytest.mark.usefixtures("consumer")
def test_a_state_with_other_contents_is_refused() -> None:
    with open_reader() as reader:
        saved = msgspec.msgpack.decode(reader.state())
    del saved["unions"][0][1]["memory"]
    with pytest.raises(ValueError, match=r"the state of partition 0 cannot be continued.*memory"):
        open_reader(state=msgspec.msgpack.encode(saved))
    del saved["format"]
    with pytest.raises(ValueError, match="another release"):
        open_reader(state=msgspec.msgpack.encode(saved))


def test_a_merged_message_says_which_replica_was_first() -> None:
    for headers, number in (
        ([("other", b"7"), (REPLICA_HEADER, b"2")], 2),
        ({REPLICA_HEADER: b"0"}, 0),
        ([(REPLICA_HEADER, b"")], None),
        ([(REPLICA_HEADER, b"12")], None),
        ([(REPLICA_HEADER, b"x")], None),
        ([(REPLICA_HEADER, None)], None),
        ([], None),
        (None, None),
    ):
        assert replica_of(headers) == number


@pytest.mark.usefixtures("consumer")
def test_a_state_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="not the state of a reader"):
        open_reader(state=b"\x00\xff")
    with open_reader() as reader:
        state = reader.state()
    with pytest.raises(ValueError, match="the state is of the topic 'out'"):
        MergedReader({}, "other", "app", 2, partitions=[0], state=state)
