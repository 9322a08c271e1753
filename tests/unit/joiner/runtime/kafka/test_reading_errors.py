"""Are records kept out of the join if one before them was not read? Covers errors and gaps within a batch."""

# ruff: noqa: SLF001 - the tests set up the loop's internals and run a single turn

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.batches import gaps
from joiner.runtime.kafka.batches.gaps import GapVerifier
from joiner.runtime.kafka.batches.messages import sort_messages
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.kafka.transaction import OwnershipInDoubt
from joiner.runtime.model import UnitStopped
from joiner.runtime.ownership import restore
from joiner.runtime.task.decoding.messages import Messages
from joiner.runtime.task.flow_control import BatchLimit
from joiner.runtime.task.unit import Unit
from tests.simulation.memory_clients import MemoryMessage
from tests.unit.joiner.runtime.joiner_inputs import BASE_MS, DATA, make_settings
from tests.unit.joiner.runtime.runner_parts import idle_loop, make_task, serve

BAD_MESSAGE = KafkaError(KafkaError._BAD_MSG, "MessageSet at offset 10 failed CRC32C check")
BROKERS_DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN, "3/3 brokers are down")


def records(begin: int, end: int, unit: int = 0) -> list[MemoryMessage]:
    content = {"thing": "a", "quantity": "else", "result": 1.0, "id": ""}
    return [
        MemoryMessage((DATA, unit), at, BASE_MS, (None, json.dumps(content | {"phenomenonTime": at}).encode()))
        for at in range(begin, end)
    ]


def fault(error: KafkaError, topic: str | None = DATA, unit: int = 0, at: int = 10) -> MemoryMessage:
    return MemoryMessage((topic, unit), at, fault=error)


def turn(batch: Sequence[MemoryMessage], *, gap: Exception | None = None) -> tuple[Any, Unit, list[Any]]:
    """Run a turn of a process that owns unit 0 and reads ``batch``. Return the loop, the unit and the gaps found."""
    loop: Any = idle_loop(make_settings())
    tasks = loop.tasks
    read: Any = list(batch)
    tasks._input = SimpleNamespace(
        read=lambda _most, _wait_s: sort_messages(read, [DATA]),
        remove=lambda *_: None,
        batch_limit=BatchLimit(make_settings()),
        messages_max=1000,
        records_max=1000,
    )
    asked: list[Any] = []

    def check(number: int, offsets: dict[str, int], batches: dict[str, Messages]) -> None:
        found = {topic: gaps.gaps_in(offsets[topic], batch.offset) for topic, batch in batches.items()}
        asked.extend((number, topic, gap) for topic, some in found.items() for gap in some)
        if gap is not None and asked:
            raise gap

    tasks._gaps = SimpleNamespace(check=check)
    handed_in: list[int] = []
    tasks._commits.begin = lambda number, *_given, **_more: handed_in.append(number)
    unit = Unit(make_settings(), 0, {DATA: 0})
    serve(loop, 0, make_task(unit))
    tasks.turn()
    loop.supervisor.collect_failures()
    return loop, unit, asked


def test_nothing_behind_an_error_inside_a_batch_is_joined() -> None:
    loop, unit, _ = turn([*records(0, 10), fault(BAD_MESSAGE), *records(20, 30)])
    assert unit.offsets[DATA] <= 10, "records that were not read count as read"
    assert not loop.tasks.tasks
    assert 0 in loop.supervisor._assignment._waiting, "it is claimed again from its last commit"
    assert not loop.supervisor._assignment.failed


@pytest.mark.parametrize("code", [KafkaError._BAD_COMPRESSION, KafkaError.KAFKA_STORAGE_ERROR, KafkaError.UNKNOWN])
def test_an_error_of_a_partition_gives_its_unit_up_whatever_it_is(code: int) -> None:
    loop, _, _ = turn([fault(KafkaError(code))])
    assert (list(loop.tasks.tasks), list(loop.supervisor._assignment._waiting)) == ([], [0])


def test_an_error_of_another_unit_gives_nothing_up() -> None:
    loop, unit, _ = turn([*records(0, 10), fault(BAD_MESSAGE, unit=1), *records(10, 20)])
    assert (list(loop.tasks.tasks), unit.offsets) == ([0], {DATA: 20})


@pytest.mark.parametrize("topic", [None, DATA])
def test_a_client_that_reaches_nobody_for_a_while_gives_nothing_up(topic: str | None) -> None:
    loop, unit, _ = turn([*records(0, 10), fault(BROKERS_DOWN, topic, -1, -1), *records(10, 20)])
    assert (list(loop.tasks.tasks), unit.offsets) == ([0], {DATA: 20})


def test_gaps_inside_a_batch_are_looked_at_like_one_before_it() -> None:
    _, unit, asked = turn([*records(2, 5), *records(6, 8), *records(20, 22)])
    assert asked == [(0, DATA, (0, 2)), (0, DATA, (5, 6)), (0, DATA, (8, 20))]
    assert unit.offsets == {DATA: 22}


def test_a_record_that_only_a_second_reader_sees_stops_the_unit() -> None:
    loop, unit, _ = turn([*records(0, 5), *records(8, 10)], gap=UnitStopped("records are missing"))
    assert unit.offsets == {DATA: 0}
    assert loop.supervisor._assignment.failed == {0: "records are missing"}


class Log:
    """A fake consumer of one partition with records at the given offsets. Each call returns at most four."""

    def __init__(self, offsets: Sequence[int], low: int = 0) -> None:
        self._offsets, self._low = offsets, low
        self._rest: list[MemoryMessage] = []
        self.begun: list[int] = []
        self.is_assigned = self.is_closed = False
        self.next: list[MemoryMessage] = []
        """Messages to deliver before all others."""

    def get_watermark_offsets(self, _place: Any, timeout: float) -> tuple[int, int]:
        assert timeout > 0
        return self._low, self._offsets[-1] + 1

    def assign(self, places: list[Any]) -> None:
        self.begun.append(places[0].offset)
        self._rest = [MemoryMessage((DATA, 0), at) for at in self._offsets if at >= places[0].offset]
        self.is_assigned = True

    def unassign(self) -> None:
        self.is_assigned = False

    def close(self) -> None:
        self.is_closed = True

    def consume(self, count: int, _wait_s: float) -> list[MemoryMessage]:
        first, self.next = self.next, []
        count = min(count, 4)
        found, self._rest = self._rest[:count], self._rest[count:]
        return first + found


def batch_of(offsets: Sequence[int]) -> dict[str, Messages]:
    return {DATA: Messages.of(offsets, [BASE_MS] * len(offsets), [None] * len(offsets))}


def second_reader(monkeypatch: pytest.MonkeyPatch, log: Log) -> GapVerifier:
    monkeypatch.setattr(gaps, "make_reader", lambda *_given, **_more: log)
    return GapVerifier(make_settings(), SystemClock())


COME = [3, 4, 5, 9, 10, 11, 12, 20, 21, 22, 23]


def test_all_gaps_of_a_batch_are_looked_at_by_reading_it_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log([0, 1, *COME, 24, 25])
    log.next = [fault(BROKERS_DOWN, None, -1, -1)]
    second_reader(monkeypatch, log).check(0, {DATA: 2}, batch_of(COME))
    assert log.begun == [2]
    assert not log.is_assigned


@pytest.mark.parametrize("lost", [2, 7, 13, 19])
def test_a_record_that_lies_in_any_gap_is_found(monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    log = Log(sorted([0, 1, *COME, lost, 24, 25]))
    where = "machine.data partition 0 between offsets 2 and 20"
    with pytest.raises(UnitStopped, match=rf"skipped 1 record \({lost}\) in {where}"):
        second_reader(monkeypatch, log).check(0, {DATA: 2}, batch_of(COME))


def test_offsets_without_a_gap_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaps, "make_reader", None)
    reader = GapVerifier(make_settings(), SystemClock())
    reader.check(0, {DATA: 5}, batch_of(range(5, 5000)))
    reader.close()


def test_a_log_that_begins_behind_a_gap_by_now_is_left_to_the_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OwnershipInDoubt) as raised:
        second_reader(monkeypatch, Log(COME, low=3)).check(0, {DATA: 2}, batch_of(COME))
    assert type(raised.value) is OwnershipInDoubt, "no claim has fenced the unit"


def test_an_error_at_the_second_reading_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log([0, 1, *COME, 24])
    log.next = [fault(BAD_MESSAGE)]
    with pytest.raises(KafkaException, match="CRC32C"):
        second_reader(monkeypatch, log).check(0, {DATA: 2}, batch_of(COME))
    assert not log.is_assigned


def test_a_silent_replay_looks_at_gaps_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_given: Any, **_options: Any) -> Iterator[tuple[dict[str, Messages], dict[str, int]]]:
        read: Any = [*records(0, 3), *records(5, 8)]
        yield sort_messages(read, [DATA])[0][0], {DATA: 8}

    asked: list[Any] = []
    monkeypatch.setattr(restore, "read_range", read)
    monkeypatch.setattr(GapVerifier, "check", lambda *given: asked.append(given))
    settings = make_settings()
    readers = Readers(settings, SystemClock())
    monkeypatch.setattr(Readers, "input", None)
    restore._replay(readers, Unit(settings, 0, {DATA: 0}), {DATA: 8})
    assert len(asked) == 1


def test_all_replays_of_a_unit_verify_gaps_with_one_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(
        _input: Any, _clock: Any, _unit: int, begin: Any, end: Any, *_given: Any, **_options: Any
    ) -> Iterator[Any]:
        read: Any = [*records(begin[DATA] + 1, end[DATA])]
        yield sort_messages(read, [DATA])[0][0], end

    made: list[Log] = []

    def make_consumer(*_given: Any, **_more: Any) -> Log:
        made.append(Log([1, 2, 4, 5]))
        return made[-1]

    monkeypatch.setattr(restore, "read_range", read)
    monkeypatch.setattr(gaps, "make_reader", make_consumer)
    monkeypatch.setattr(Readers, "input", None)
    settings = make_settings()
    readers, unit = Readers(settings, SystemClock()), Unit(settings, 0, {DATA: 0})
    for end in (3, 6):
        restore._replay(readers, unit, {DATA: end})
    assert len(made) == 1
    assert not made[0].is_closed
    readers.close()
    assert made[0].is_closed


def test_a_replay_of_what_was_just_removed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def removed(*_given: Any) -> None:
        raise OwnershipInDoubt

    def read(*_given: Any, **_options: Any) -> Iterator[Any]:
        yield {}, {DATA: 8}

    monkeypatch.setattr(restore, "read_range", read)
    monkeypatch.setattr(GapVerifier, "check", removed)
    settings = make_settings()
    readers = Readers(settings, SystemClock())
    monkeypatch.setattr(Readers, "input", None)
    with pytest.raises(KafkaException, match="retention removed input during the replay"):
        restore._replay(readers, Unit(settings, 0, {DATA: 0}), {DATA: 8})


@given(st.integers(0, 5), st.lists(st.integers(1, 3), min_size=1))
def test_the_gaps_are_those_that_a_look_at_each_offset_finds(before: int, steps: list[int]) -> None:
    offsets = [before + at for at in itertools.accumulate(steps, initial=0)]
    each = [(last + 1, at) for last, at in itertools.pairwise([-1, *offsets]) if at != last + 1]
    assert gaps.gaps_in(0, np.array(offsets)) == each
