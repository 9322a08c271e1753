"""How a worker of the Spark stage executes a plan, with an in-memory state store and without Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.batches.gaps import gaps_in
from joiner.runtime.kafka.transaction import OwnershipInDoubt
from joiner.runtime.model import Checkpoint, UnitStopped
from joiner.runtime.ownership.eligibility import LogShort
from joiner.runtime.runners.spark import worker
from joiner.runtime.runners.spark.plans import Outcome, Plan, unpack
from joiner.runtime.runners.spark.worker import StateCopy, WorkerMemory
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.decode import Messages
from joiner.runtime.task.unit import Unit
from tests.unit.joiner.runtime.joiner_inputs import BASE_MS, DATA, batch, make_settings, record

SETTINGS = make_settings()
LOG = [
    record(number, ("speed", "torque")[number % 2], BASE_MS + number // 3, result=float(number)) for number in range(40)
]
START = {DATA: 0}


class Handle:
    """A state store with the interface of Spark's handle: one value, one map."""

    def __init__(self) -> None:
        self.value: tuple[Any, ...] | None = None
        self.parts: dict[int, bytes] = {}

    def getValueState(self, _name: str, _schema: str) -> Any:  # noqa: N802 - Spark's name
        def update(value: tuple[Any, ...]) -> None:
            self.value = value

        return SimpleNamespace(get=lambda: self.value, update=update)

    def getMapState(self, _name: str, _key: str, _value: str) -> Any:  # noqa: N802 - Spark's name
        def get(key: tuple[int]) -> tuple[bytes] | None:
            return (self.parts[key[0]],) if key[0] in self.parts else None

        def update(key: tuple[int], value: tuple[bytes]) -> None:
            self.parts[key[0]] = value[0]

        return SimpleNamespace(getValue=get, updateValue=update, removeKey=lambda key: self.parts.pop(key[0]))


def read(_settings: Any, plan: Plan) -> Iterator[tuple[dict[str, Messages], dict[str, int]]]:
    """Yield the range of the plan in parts of seven messages."""
    for begin in range(plan.begin[DATA], plan.end[DATA], 7):
        end = min(begin + 7, plan.end[DATA])
        found = batch(LOG[begin:end])
        yield {DATA: found} if len(found) else {}, {DATA: end}


MEMORY = WorkerMemory(SystemClock())


def execute(settings: JoinerSettings, plan: Plan, copy: StateCopy) -> Outcome:
    """Execute the plan in a process that keeps its units in memory."""
    return worker.execute(settings, plan, copy, MEMORY)


@pytest.fixture(autouse=True)
def kafka(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ranges that workers read to build state. `LOG` stands in for Kafka."""
    asked: list[str] = []

    def build_state(checkpoint: Any, _state: Any, _readers: Any, warm: Unit | None) -> Unit:
        asked.append(f"from {warm.offsets[DATA] if warm else 'nothing'} to {checkpoint.offsets[DATA]}")
        unit = warm or Unit(SETTINGS, 0, START)
        unit.apply({DATA: batch(LOG[unit.offsets[DATA] : checkpoint.offsets[DATA]])}, checkpoint.offsets, silent=True)
        return unit

    def read_state(*_given: Any) -> Any:
        checkpoint = Checkpoint(1, "app", 0, "run", "one", "spark", START, START, {}, 1, "", {}, {}, {})
        return SimpleNamespace(checkpoint=lambda: checkpoint)

    monkeypatch.setattr(WorkerMemory, "read", lambda _memory, *given: read(*given))
    monkeypatch.setattr(worker, "build_state", build_state)
    monkeypatch.setattr(worker, "read_state", read_state)
    MEMORY.units.clear()  # like a new process
    return asked


def plan(begin: int, end: int, *, start: int = 0, snapshot: bool = False) -> Plan:
    return Plan(0, 1, {DATA: start}, {DATA: begin}, {DATA: end}, snapshot)


def written(*outcomes: Outcome) -> list[bytes]:
    found = (unpack(one.parts).get("machine.out") for one in outcomes)
    return sorted(value for batch in found if batch is not None for value in batch.values.each())


def whole() -> list[bytes]:
    return written(execute(SETTINGS, plan(0, 40), StateCopy(Handle())))  # type: ignore[arg-type] # stand-in


def test_the_state_comes_from_where_it_is_nearest_and_the_results_are_the_same(kafka: list[str]) -> None:
    expected = whole()
    MEMORY.units.clear()  # another process
    handle: Any = Handle()
    copy = StateCopy(handle)
    found = [execute(SETTINGS, plan(0, 10), copy)]
    assert kafka == ["from nothing to 0", "from nothing to 0"]
    # This process holds the state.
    found.append(execute(SETTINGS, plan(10, 20), copy))
    # Another process does not, but Spark's store does.
    MEMORY.units.clear()  # another process
    found.append(execute(SETTINGS, plan(20, 30), copy))
    assert len(kafka) == 2
    # Neither holds it at this vector, so it is built by a replay.
    execute(SETTINGS, plan(30, 35), StateCopy(Handle()))  # type: ignore[arg-type] # stand-in
    MEMORY.units.clear()  # another process
    handle.value = None
    found.append(execute(SETTINGS, plan(30, 40), copy))
    assert kafka[2:] == ["from nothing to 30"]
    assert written(*found) == expected
    assert not any(one.stopped or one.failed or one.lost for one in found)


def test_what_was_left_before_a_reset_is_not_gone_on_with(kafka: list[str]) -> None:
    copy = StateCopy(Handle())  # type: ignore[arg-type] # stand-in
    execute(SETTINGS, plan(0, 20), copy)
    execute(SETTINGS, plan(20, 30, start=20), copy)
    assert kafka == ["from nothing to 0", "from nothing to 20"]


def test_a_copy_that_was_written_in_part_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_CHUNK_BYTES", 10)
    handle: Any = Handle()
    copy = StateCopy(handle)
    copy.write(START, {DATA: 5}, b"a state of thirty bytes and on")
    assert copy.read(START, {DATA: 5}) == b"a state of thirty bytes and on"
    assert copy.read(START, {DATA: 6}) is None
    assert copy.read({DATA: 5}, {DATA: 5}) is None
    copy.write(START, {DATA: 7}, b"a shorter one")
    assert (copy.read(START, {DATA: 7}), sorted(handle.parts)) == (b"a shorter one", [0, 1])
    handle.parts[1] = b"xx"
    assert copy.read(START, {DATA: 7}) is None
    del handle.parts[1]
    assert copy.read(START, {DATA: 7}) is None


def test_a_snapshot_comes_where_it_is_asked_for_and_is_of_the_end() -> None:
    copy = StateCopy(Handle())  # type: ignore[arg-type] # stand-in
    assert execute(SETTINGS, plan(0, 10), copy).snapshot is None
    snapshot = execute(SETTINGS, plan(10, 20, snapshot=True), copy).snapshot
    assert snapshot is not None
    assert Unit.restore(SETTINGS, 0, snapshot).offsets == {DATA: 20}


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (UnitStopped("the buffer is full"), "stopped", "the buffer is full"),
        (ValueError("no room"), "stopped", "a batch failed with ValueError: no room; none of it was written"),
        (MemoryError("no room"), "failed", "a batch failed with MemoryError: no room; none of it was written"),
        (LogShort("the log ends"), "failed", "the log ends"),
        (KafkaException(KafkaError(KafkaError.REQUEST_TIMED_OUT, "slow")), "failed", "slow"),
        (KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "gone")), "lost", "gone"),
        (OwnershipInDoubt(), "lost", "removed"),
    ],
)
def test_whatever_fails_is_told_and_leaves_the_state_as_it_was(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: str, text: str
) -> None:
    expected = whole()
    MEMORY.units.clear()  # another process
    copy = StateCopy(Handle())  # type: ignore[arg-type] # stand-in
    first = execute(SETTINGS, plan(0, 20), copy)
    with monkeypatch.context() as patch:

        def fail(settings: Any, plan: Plan) -> Any:
            yield next(read(settings, plan))
            raise error

        patch.setattr(WorkerMemory, "read", lambda _memory, *given: fail(*given))
        failed = execute(SETTINGS, plan(20, 40), copy)
    assert text in getattr(failed, kind)
    assert not failed.parts
    assert written(first, execute(SETTINGS, plan(20, 40), copy)) == expected


def test_what_is_missing_before_or_within_any_part_of_a_range_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def check(_unit: int, offsets: dict[str, int], batches: dict[str, Messages]) -> None:
        asked.extend(gap for topic, some in batches.items() for gap in gaps_in(offsets[topic], some.offset))

    look = SimpleNamespace(check=check)
    monkeypatch.setattr(WorkerMemory, "verifier", lambda *_given: look)

    def read_some(_settings: Any, _plan: Plan) -> Iterator[tuple[dict[str, Messages], dict[str, int]]]:
        yield {DATA: batch(LOG[0:4])}, {DATA: 4}
        yield {DATA: batch(LOG[6:8])}, {DATA: 8}
        yield {}, {DATA: 9}
        yield {DATA: batch(LOG[9:12] + LOG[14:16])}, {DATA: 16}

    monkeypatch.setattr(WorkerMemory, "read", lambda _memory, *given: read_some(*given))
    outcome = execute(SETTINGS, plan(0, 16), StateCopy(Handle()))  # type: ignore[arg-type] # stand-in
    assert (outcome.records, outcome.stopped) == (11, "")
    assert asked == [(4, 6), (12, 14)]


def test_room_is_judged_behind_the_whole_of_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    # The buffer exceeds its limit in the middle of the plan, but not at the end.
    settings = make_settings(application={"buffer_records_max": 5})
    log = [record(at, "speed", BASE_MS + at) for at in range(7)] + [record(7, "torque", BASE_MS + 50)]
    log += [record(8, "speed", BASE_MS + 60)]

    def read_some(_settings: Any, plan: Plan) -> Iterator[tuple[dict[str, Messages], dict[str, int]]]:
        for at in range(plan.begin[DATA], plan.end[DATA]):
            yield {DATA: batch(log[at : at + 1])}, {DATA: at + 1}

    monkeypatch.setattr(WorkerMemory, "read", lambda _memory, *given: read_some(*given))
    monkeypatch.setattr(worker, "build_state", lambda *_given: Unit(settings, 0, START))
    assert execute(settings, plan(0, 9), StateCopy(Handle())).stopped == ""  # type: ignore[arg-type] # stand-in
    MEMORY.units.clear()  # another process
    short = execute(settings, plan(0, 7), StateCopy(Handle()))  # type: ignore[arg-type] # stand-in
    assert "more than application.buffer_records_max = 5" in short.stopped


def test_a_process_keeps_no_more_than_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = WorkerMemory(SystemClock())
    held: Any = SimpleNamespace(held=lambda: 60)
    for number in range(5):
        memory.keep(("app", number), worker._Left(START, held))  # noqa: SLF001 - tests the rule alone
    assert len(memory.units) == 5
    monkeypatch.setattr(worker, "_HELD_MAX", 130)
    memory.keep(("app", 7), worker._Left(START, held))  # noqa: SLF001 - as above
    assert list(memory.units) == [("app", 4), ("app", 7)]


def test_a_plan_of_nothing_does_nothing() -> None:
    nothing = Plan(3, 0, {}, {}, {})
    assert execute(SETTINGS, nothing, StateCopy(Handle())) == Outcome(nothing)  # type: ignore[arg-type] # stand-in
