"""How many messages are read at a time if each may hold many records? When is the consumer connected and closed?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from joiner.operators import AlignSettings
from joiner.runtime.kafka.batches.messages import Read
from joiner.runtime.kafka.batches.parts import split
from joiner.runtime.runners import input as runner_input
from joiner.runtime.runners.input import InputConsumer, _MessageLimit
from joiner.runtime.task.decoding.messages import Messages
from tests.unit.joiner.runtime.arrow_inputs import settings_of
from tests.unit.joiner.runtime.joiner_inputs import DATA, POWER


def read(*sizes: int) -> Read:
    return Read(
        {0: {"data": Messages.of(range(len(sizes)), [0] * len(sizes), [b"x" * size for size in sizes])}}, {}, []
    )


def test_the_limit_follows_the_size_of_the_largest_messages() -> None:
    limit = _MessageLimit(1_000)
    assert limit.messages == 10, "while their size is not known"
    limit.note(read(100, 24_000))
    assert limit.messages == 10
    limit.note(read(240_000))
    assert limit.messages == 1
    for _ in range(100):
        limit.note(read(240))
    assert limit.messages == 1_000, "no more than a batch of single records has"


def test_a_message_is_read_however_large_it_is_and_nothing_read_changes_nothing() -> None:
    limit = _MessageLimit(1)
    limit.note(read(10**6))
    assert limit.messages == 1
    limit.note(Read({}, {}, []))
    assert limit.messages == 1


def compressed(count: int) -> bytes:
    """Return a message of a few hundred bytes with ``count`` records."""
    names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, dtype=np.int8)), pa.array(["a"]))
    columns = [names, names, pa.array(np.ones(count, dtype=np.int64)), pa.array(np.ones(count))]
    batch = pa.record_batch(columns, names=["thing", "quantity", "phenomenonTime", "result"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    value: bytes = sink.getvalue().to_pybytes()
    return value


def messages(first: int, *counts: int) -> Messages:
    values = [compressed(count) if count else b'{"mark": 1}' for count in counts]
    return Messages.of(range(first, first + len(counts)), [0] * len(counts), values)


def offsets(read: Read) -> dict[tuple[int, str], list[int]]:
    return {
        (unit, topic): part.offset.tolist() for unit, topics in read.batches.items() for topic, part in topics.items()
    }


def test_messages_with_more_records_than_their_size_suggests_are_divided() -> None:
    found = Read({0: {"a": messages(5, 600, 0, 399, 1, 5000, 1), "b": messages(7, 10)}}, {0: {"a": 11, "c": 9}}, [])
    first, rest = split(found, 1000)
    assert offsets(first) == {(0, "a"): [5, 6, 7]}
    assert first.ends == {0: {"c": 9}}, "the end of a log comes after its messages"
    second, rest = split(rest, 1000)
    assert offsets(second) == {(0, "a"): [8, 9]}, "a message is not divided"
    third, rest = split(rest, 1000)
    assert offsets(third) == {(0, "a"): [10], (0, "b"): [7]}
    assert third.ends == {0: {"a": 11}}
    assert rest == Read({}, {}, [])


class FakeReader:
    """Returns what it was given, one by one."""

    def __init__(self, *given: Read) -> None:
        self.given = [*given]

    def read(self, _count_max: int, _wait_s: float) -> Read:
        return self.given.pop(0)

    def remove(self, topic: str, unit: int) -> None:
        pass

    def close(self) -> None:
        pass


class FakeConsumer:
    """Accepts calls."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_closed = False
        self.while_asked: Callable[[], None] = lambda: None

    def incremental_unassign(self, places: Iterable[Any]) -> None:
        pass

    def get_watermark_offsets(self, place: TopicPartition, **_options: Any) -> tuple[int, int]:
        self.asked.append(place.topic)
        self.while_asked()
        return 0, 0

    def close(self) -> None:
        self.is_closed = True


def make_input(monkeypatch: pytest.MonkeyPatch, *given: Read, aligns: Sequence[AlignSettings] = ()) -> InputConsumer:
    monkeypatch.setattr(runner_input, "make_consumer", lambda *_, **__: FakeConsumer())
    monkeypatch.setattr(runner_input, "make_batch_reader", lambda *_, **__: FakeReader(*given))
    settings = settings_of("arrow", POWER, batch_records_max=100)
    return InputConsumer(settings.model_copy(update={"align": list(aligns)}))


def test_a_batch_has_about_as_many_records_as_it_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    found = make_input(monkeypatch, Read({0: {DATA: messages(0, *[1000] * 4)}}, {}, []), Read({}, {0: {DATA: 9}}, []))
    assert found.records_max == 1000
    assert [offsets(found.read(10, 0)) for _ in range(4)] == [{(0, DATA): [at]} for at in range(4)]
    assert found.read(10, 0).ends == {0: {DATA: 9}}


def test_a_batch_has_fewer_records_if_they_complete_many_rows_of_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = {"name": "g", "grid": {"every": "1ms", "max_gap": "999ms"}, "columns": {"speed": {}}}
    aligns = [AlignSettings.model_validate(grid)]
    reads = [Read({0: {DATA: messages(0, *[300] * 4)}}, {}, []), Read({}, {}, [])]
    found = make_input(monkeypatch, *reads, aligns=aligns)
    assert found.records_max == 500
    assert offsets(found.read(10, 0)) == {(0, DATA): [0, 1]}
    found.batch_limit.note(100, 200_000, 1)
    assert offsets(found.read(10, 0)) == {(0, DATA): [2]}


def test_what_was_read_of_a_unit_is_dropped_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {unit: {DATA: messages(0, 1000, 1000)} for unit in (0, 1)}
    found = make_input(monkeypatch, Read(both, {0: {DATA: 2}}, []), Read({}, {}, []))
    assert offsets(found.read(10, 0)) == {(0, DATA): [0]}
    found.remove(0, [DATA], [])
    assert [offsets(found.read(10, 0)) for _ in range(2)] == [{(1, DATA): [0]}, {(1, DATA): [1]}]
    assert found.read(10, 0) == Read({}, {}, [])


def test_a_consumer_is_not_closed_while_another_thread_connects_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = make_input(monkeypatch)
    consumer: Any = found._consumer  # noqa: SLF001 - the fake
    consumer.while_asked = found.close
    found.connect(0)
    assert (consumer.asked, consumer.is_closed) == ([DATA], False)
    found.connect(0)
    assert consumer.asked == [DATA], "nothing is asked of a closed consumer"
    found.close()
    assert consumer.is_closed


def test_errors_of_connecting_early_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))  # noqa: SLF001 - the public name

    found = make_input(monkeypatch)
    consumer: Any = found._consumer  # noqa: SLF001 - the fake
    consumer.while_asked = fail
    found.connect_early(0)
    with pytest.raises(KafkaException):
        found.connect(0)
    found.close()
    assert consumer.is_closed, "a call that has failed no longer uses it"
