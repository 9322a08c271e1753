"""From which offsets are the assigned partitions copied, and what is refused?"""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from broker.kafka.topics import TopicFacts
from joiner.runtime.kafka.batches.messages import Read
from joiner.runtime.repartition import merging, source
from joiner.runtime.repartition.awaited import LONG_S, SELDOM_S
from joiner.runtime.repartition.prior import Prior, RepartitionError
from joiner.runtime.repartition.progress import Progress, decode_progress, encode_progress, shown_key
from joiner.runtime.repartition.source import SourceReader
from joiner.runtime.task.decoding.messages import Messages
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings
from tests.unit.joiner.runtime.repartition.test_copies import SPEED

TARGET = "lsb.plant.repartition"
FACTS = {"plant": TopicFacts("source-id", 3), TARGET: TopicFacts("target-id", 1)}
NOTE = encode_progress(Progress("source-id", "target-id", "$.id", 2))


class FakeConsumer:
    """A member of the group. ``known``: the committed offsets, with their notes."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[int, str]] = {}
        self.assigned: dict[int, int] = {}
        self.paused: set[int] = set()
        self.faults: list[KafkaException] = []
        self.callbacks: dict[str, Any] = {}

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        assert topics == ["plant"]
        self.callbacks = callbacks

    def committed(self, places: list[TopicPartition], _timeout: float) -> list[TopicPartition]:
        if self.faults:
            raise self.faults.pop(0)
        return [TopicPartition("plant", at.partition, *self.known.get(at.partition, (-1001, ""))) for at in places]

    def get_watermark_offsets(self, _place: TopicPartition, **_more: Any) -> tuple[int, int]:
        return 3, 9

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        self.assigned |= {at.partition: at.offset for at in places}

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        for at in places:
            del self.assigned[at.partition]

    def pause(self, places: list[TopicPartition]) -> None:
        self.paused |= {at.partition for at in places}

    def resume(self, places: list[TopicPartition]) -> None:
        self.paused -= {at.partition for at in places}

    def assign_from_group(self, *partitions: int) -> None:
        self.callbacks["on_assign"](self, [TopicPartition("plant", number) for number in partitions])

    def revoke(self, *partitions: int) -> None:
        self.callbacks["on_revoke"](self, [TopicPartition("plant", number) for number in partitions])


class FakeReader:
    """A batch reader. ``reads``: what the next calls return."""

    def __init__(self) -> None:
        self.reads: list[Read] = []

    def add(self, _topic: str, _unit: int) -> None: ...

    def remove(self, _topic: str, _unit: int) -> None: ...

    def read(self, _most: int, _wait_s: float) -> Read:
        return self.reads.pop(0) if self.reads else Read({}, {}, [])


class Made:
    """A `SourceReader` with fake clients."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, prior: dict[tuple[str, int], Prior] | None = None, **application: Any
    ) -> None:
        self.consumer, self.batches, self.clock = FakeConsumer(), FakeReader(), ManualClock()
        monkeypatch.setattr(source, "make_consumer", lambda *_, **__: self.consumer)
        monkeypatch.setattr(source, "make_batch_reader", lambda *_, **__: self.batches)
        settings = make_settings(stream=[SPEED], application=application)
        self.reader = SourceReader(settings, FACTS, self.clock, prior or {})

    def read(self, partition: int, *offsets: int, end: int | None = None, at_ms: int = 5) -> list[list[int]]:
        """Let the consumer return these messages. Return the offsets of the parts."""
        messages = Messages.of(offsets, [at_ms] * len(offsets), [b"{}"] * len(offsets), [None] * len(offsets))
        ends = {} if end is None else {partition: {"plant": end}}
        self.batches.reads.append(Read({partition: {"plant": messages}} if offsets else {}, ends, []))
        return [part.messages.offset.tolist() for part in self.reader.read(0)]

    def offsets(self) -> dict[int, int]:
        return {at.partition: at.offset for at in self.reader.offsets()}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


def test_a_partition_is_copied_from_its_committed_offset(made: Made) -> None:
    made.consumer.known = {0: (5, NOTE), 2: (7, NOTE)}
    made.consumer.assign_from_group(0, 2)
    assert made.consumer.assigned == {}
    assert made.read(2, end=7) == []
    assert made.read(0, 5, 6) == [[5, 6]]
    assert made.consumer.assigned == {0: 5, 2: 7}
    assert made.offsets() == {0: 7, 2: 7}
    assert made.offsets() == {}


@pytest.mark.parametrize(("start", "offset"), [("earliest", 3), ("latest", 9)])
def test_a_new_partition_is_copied_from_where_the_application_starts(
    monkeypatch: pytest.MonkeyPatch, start: str, offset: int
) -> None:
    made = Made(monkeypatch, {("plant", 1): Prior(-1001, "", None, None)}, start=start)
    made.consumer.assign_from_group(1)
    made.reader.read(0)
    assert made.consumer.assigned == {1: offset}
    (committed,) = made.reader.offsets()
    assert decode_progress(committed.metadata) == Progress("source-id", "target-id", "$.id", offset)


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_partition_that_was_added_while_nothing_ran_is_copied_from_its_start(
    monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    """Otherwise, what arrived in it until then would never be joined."""
    made = Made(monkeypatch, {("plant", 1): Prior(-1001, "", None, None, has_begun=True)}, start=start)
    made.consumer.assign_from_group(1)
    made.reader.read(0)
    assert made.consumer.assigned == {1: 3}


FORMER = encode_progress(Progress("source-id", "former", "$.id", 0))


def test_a_new_repartition_topic_gets_all_messages_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch, {("plant", 0): Prior(8, FORMER, None, None)})
    made.consumer.known = {0: (8, FORMER)}
    made.consumer.assign_from_group(0)
    made.reader.read(0)
    assert made.consumer.assigned == {0: 3}


def test_a_new_repartition_topic_that_was_filled_by_its_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes write by name until they notice, within seconds, that the topic is another one."""
    made = Made(monkeypatch, {("plant", 0): Prior(8, FORMER, 6, 7)})
    made.consumer.known = {0: (8, FORMER)}
    made.consumer.assign_from_group(0)
    with pytest.raises(RepartitionError, match=f"second time: stop the joiner .*joiner reset`, which deletes {TARGET}"):
        made.reader.read(0)


def test_a_missing_offset_is_found_from_the_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch, {("plant", 0): Prior(-1001, "", 4, 6)})
    made.consumer.assign_from_group(0)
    made.reader.read(0)
    assert made.consumer.assigned == {0: 7}
    (committed,) = made.reader.offsets()
    assert decode_progress(committed.metadata) == Progress("source-id", "target-id", "$.id", 4)


@pytest.mark.parametrize("prior", [{}, {("plant", 0): Prior(5, FORMER, None, None)}])
def test_copies_that_were_read_before_another_commit_are_not_relied_on(
    monkeypatch: pytest.MonkeyPatch, prior: dict[tuple[str, int], Prior]
) -> None:
    made = Made(monkeypatch, prior)
    made.consumer.known = {0: (8, FORMER)}
    made.consumer.assign_from_group(0)
    with pytest.raises(RepartitionError, match="plant partition 0 has changed"):
        made.reader.read(0)


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_partition_that_was_added_meanwhile_is_copied_from_its_start(
    monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    made = Made(monkeypatch, start=start)
    made.consumer.assign_from_group(3)
    made.reader.read(0)
    assert made.consumer.assigned == {3: 3}


def test_an_offset_that_an_operator_has_set_is_used(made: Made) -> None:
    made.consumer.known = {0: (6, "")}
    made.consumer.assign_from_group(0)
    made.reader.read(0)
    assert made.consumer.assigned == {0: 6}


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (Progress("former", "target-id", "$.id", 0), "deleted and recreated.*joiner reset"),
        (Progress("source-id", "target-id", "$.other", 0), r"key = '\$.other', but now it is '\$.id'.*new name"),
    ],
)
def test_offsets_of_other_topics_or_keys_are_refused(made: Made, before: Progress, reason: str) -> None:
    made.consumer.known = {0: (8, encode_progress(before))}
    made.consumer.assign_from_group(0)
    with pytest.raises(RepartitionError, match=reason):
        made.reader.read(0)


def test_other_partitions_are_read_while_an_offset_is_not_known(made: Made) -> None:
    made.consumer.known = {0: (5, NOTE), 1: (4, NOTE)}
    made.consumer.assign_from_group(0)
    made.reader.read(0)
    made.consumer.faults = [KafkaException(KafkaError(KafkaError._TIMED_OUT))]  # noqa: SLF001 - the public name
    made.consumer.assign_from_group(1)
    assert made.read(0, 5) == [[5]]
    assert made.consumer.assigned == {0: 5}
    made.clock.sleep(1)
    made.reader.read(0)
    assert made.consumer.assigned == {0: 5, 1: 4}


def test_messages_of_a_revoked_partition_are_neither_copied_nor_committed(made: Made) -> None:
    made.consumer.known = {0: (5, NOTE), 1: (4, NOTE)}
    made.consumer.assign_from_group(0, 1)
    made.reader.read(0)
    made.consumer.revoke(0)
    assert made.consumer.assigned == {1: 4}
    assert made.read(0, 5, 6) == []
    assert made.offsets() == {1: 4}


def test_messages_before_the_position_are_not_copied_again(made: Made) -> None:
    made.consumer.known = {0: (5, NOTE)}
    made.consumer.assign_from_group(0)
    assert made.read(0, 3, 4, 5) == [[5]]
    assert made.read(0, 4, 5) == []


def test_the_offset_moves_past_what_is_no_message(made: Made) -> None:
    made.consumer.known = {0: (5, NOTE)}
    made.consumer.assign_from_group(0)
    assert made.read(0, 5, end=8) == [[5]]
    assert made.offsets() == {0: 8}


@pytest.mark.parametrize(
    ("committed", "reason", "option"),
    [
        (1, "it begins at 3, so retention has deleted", "--to-earliest"),
        (10, "it ends at 9, so the log has lost", "--to-latest"),
        (8, "it has lost messages that were copied, and has grown to 9 since", "--to-latest"),
    ],
)
def test_messages_that_are_gone_are_an_error_that_says_what_to_do(
    made: Made, committed: int, reason: str, option: str
) -> None:
    """The advice must not be to copy everything a second time."""
    made.consumer.known = {0: (committed, NOTE)}
    made.consumer.assign_from_group(0)
    gone = KafkaError(KafkaError._AUTO_OFFSET_RESET)  # noqa: SLF001 - the public name
    made.batches.reads.append(Read({}, {}, [(gone, 0, "plant")]))
    command = f"--group lsb/repartition --topic plant:0 --reset-offsets {option} "
    with pytest.raises(RepartitionError, match=f"no offset {committed}: {reason}.*{command}"):
        made.reader.read(0)


@pytest.mark.parametrize("part", ["k", "é", "😀", "\x01", '"', "\\"])
def test_a_note_is_short_whatever_the_key(part: str) -> None:
    """Kafka refuses longer ones, and then nothing would be copied."""
    long = "$." + part * 1500
    notes = [encode_progress(Progress("i" * 22, "j" * 22, shown_key(key), 2**63 - 1)) for key in (long, long + part)]
    assert all(len(note.encode()) < 4096 for note in notes)
    assert notes[0] != notes[1]
    assert shown_key("$.id") == "$.id"


@pytest.mark.parametrize("note", [None, "", "x", "{}", '{"source": 1}'])
def test_a_note_of_another_program_says_nothing(note: str | None) -> None:
    assert decode_progress(note) is None


def test_messages_that_wait_for_another_partition_are_not_committed(made: Made) -> None:
    made.consumer.known = {0: (5, NOTE), 1: (4, NOTE)}
    made.consumer.assign_from_group(0, 1)
    made.reader.read(0)
    assert made.offsets() == {0: 5, 1: 4}
    assert made.read(0, 5, 6) == []
    assert made.offsets() == {}
    assert made.read(1, end=4) == [[5, 6]]
    assert made.offsets() == {0: 7}


def test_a_partition_whose_offset_cannot_be_read_counts_as_not_copied(made: Made) -> None:
    """Kafka does not tell an offset as long as a transaction that changes it is open, which may be for ever."""
    made.consumer.known = {0: (5, NOTE)}
    made.consumer.assign_from_group(0)
    made.consumer.faults = [KafkaException(KafkaError(KafkaError._TIMED_OUT))] * 2  # noqa: SLF001 - the public name
    made.reader.read(0)
    assert made.reader.lags() == {}
    made.clock.sleep(LONG_S + 1)
    made.reader.read(0)
    assert made.reader.lags() == {"plant": 6}
    made.clock.sleep(SELDOM_S)
    made.reader.read(0)
    assert made.reader.lags() == {"plant": 4}


def test_a_partition_that_was_ahead_is_waited_for_after_it_has_been_resumed(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "HELD_BYTES_MAX", 2_500)
    made.consumer.known = {0: (5, NOTE), 1: (4, NOTE)}
    made.consumer.assign_from_group(0, 1)
    assert made.read(0, 5, 6) == []
    assert made.consumer.paused == {0}
    made.clock.sleep(merging.PATIENCE_S + 1)
    assert made.read(1, 4) == [[5, 6], [4]]
    assert made.consumer.paused == set()
    assert made.read(1, 5, at_ms=9) == []
    assert made.read(0, 7, at_ms=9) == [[7], [5]]
