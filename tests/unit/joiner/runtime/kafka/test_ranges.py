"""Are the records between two offset vectors read completely and exactly once, however the consumer delivers them?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.batches import ranges
from joiner.runtime.kafka.clients import EOF_CODE
from joiner.runtime.kafka.readers import ClaimCancelled
from tests.simulation.memory_clients import MemoryMessage

UNIT = 3
TOPICS = ("left", "right")


class ScriptedConsumer:
    """A consumer that interleaves the records of its logs and reports the end of each log."""

    def __init__(self, logs: dict[str, list[int]], ends: dict[str, int], turns: Sequence[tuple[str, int]]) -> None:
        self._logs, self._ends, self._turns = logs, ends, iter(turns)
        self._waiting: dict[str, list[MemoryMessage]] = {}
        self.assigned: set[str] = set()

    def assign(self, places: list[Any]) -> None:
        for place in places:
            assert place.partition == UNIT
            records = [
                MemoryMessage((place.topic, UNIT), at, content=(None, f"{place.topic} {at}".encode()))
                for at in self._logs[place.topic]
                if at >= place.offset
            ]
            fault = KafkaError(EOF_CODE)
            self._waiting[place.topic] = [
                *records,
                MemoryMessage((place.topic, UNIT), self._ends[place.topic], 0, (None, None), fault),
            ]
            self.assigned.add(place.topic)

    def fail(self, error: KafkaError) -> None:
        """Deliver the error next."""
        for topic, waiting in self._waiting.items():
            waiting.insert(0, MemoryMessage((topic, UNIT), 0, fault=error))

    def tell(self, event: MemoryMessage) -> None:
        """Deliver ``event``, which has no partition, next."""
        self._waiting["left"].insert(0, event)

    def consume(self, count: int, _timeout_s: float) -> list[MemoryMessage]:
        topic, most = next(self._turns, (None, count))
        found: list[MemoryMessage] = []
        for of_topic in self._waiting if topic is None else [topic]:
            waiting = self._waiting.get(of_topic, [])
            take = min(most, count - len(found))
            found += waiting[:take]
            del waiting[:take]
        return found

    def unassign(self) -> None:
        self.assigned.clear()
        self._waiting.clear()

    def incremental_unassign(self, places: list[Any]) -> None:
        for place in places:
            self.assigned.remove(place.topic)
            # The library delivers no more records of such a partition, not even those already fetched.
            del self._waiting[place.topic]


@given(st.data())
def test_the_parts_of_a_range_are_all_of_it_in_order_and_each_goes_on_where_the_last_one_ended(
    data: st.DataObject,
) -> None:
    logs, log_ends, begin, end = {}, {}, {}, {}
    for topic in TOPICS:
        # Some offsets hold no record, as if they belonged to transaction markers.
        logs[topic] = sorted(data.draw(st.sets(st.integers(0, 40)), label=topic))
        log_ends[topic] = data.draw(st.integers(logs[topic][-1] + 1 if logs[topic] else 0, 45))
        begin[topic] = data.draw(st.integers(0, log_ends[topic]))
        end[topic] = data.draw(st.integers(begin[topic], log_ends[topic]))
    turns = data.draw(st.lists(st.tuples(st.sampled_from(TOPICS), st.integers(0, 9)), max_size=20))
    at_once = data.draw(st.integers(1, 50))
    consumer: Any = ScriptedConsumer(logs, log_ends, turns)
    vector, found = begin, defaultdict[str, list[int]](list)
    for part, reached in ranges.read_range(consumer, SystemClock(), UNIT, begin, end, at_once):
        assert 0 <= sum(map(len, part.values())) <= at_once
        for topic, messages in part.items():
            assert vector[topic] <= messages.first <= messages.last < reached[topic]
            assert messages.values() == [f"{topic} {at}".encode() for at in messages.offset]
            found[topic] += messages.offset.tolist()
        assert all(vector[topic] <= reached[topic] <= end[topic] for topic in TOPICS)
        vector = reached
    assert vector == end
    assert found == {
        topic: wanted for topic in TOPICS if (wanted := [at for at in logs[topic] if begin[topic] <= at < end[topic]])
    }
    assert not consumer.assigned


def test_an_error_on_the_way_ends_the_range() -> None:
    broken = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    consumer: Any = ScriptedConsumer({"left": [0, 1]}, {"left": 9}, [("left", 1)] * 9)
    parts = ranges.read_range(consumer, SystemClock(), UNIT, {"left": 0}, {"left": 9}, 10)
    assert next(parts)[1] == {"left": 1}
    consumer.fail(broken)
    with pytest.raises(KafkaException) as raised:
        next(parts)
    assert raised.value.args[0] is broken
    assert not consumer.assigned


def test_a_range_that_does_not_come_can_be_cancelled_at_once() -> None:
    def check() -> None:
        checked.append(None)
        if len(checked) > 3:
            raise ClaimCancelled

    checked: list[None] = []
    consumer: Any = ScriptedConsumer({"left": []}, {"left": 0}, [("left", 0)] * 9)
    with pytest.raises(ClaimCancelled):
        list(ranges.read_range(consumer, SystemClock(), UNIT, {"left": 0}, {"left": 5}, 10, check=check))
    assert not consumer.assigned


def test_a_range_that_is_not_read_to_its_end_is_fetched_no_longer() -> None:
    consumer: Any = ScriptedConsumer({"left": [0, 1]}, {"left": 9}, [("left", 1)])
    parts = ranges.read_range(consumer, SystemClock(), UNIT, {"left": 0}, {"left": 9}, 10)
    assert next(parts)[1] == {"left": 1}
    parts.close()
    assert not consumer.assigned


def test_brokers_that_are_away_for_a_while_do_not_end_the_range() -> None:
    consumer: Any = ScriptedConsumer({"left": [0, 1]}, {"left": 2}, [])
    parts = ranges.read_range(consumer, SystemClock(), UNIT, {"left": 0}, {"left": 2}, 1)
    assert next(parts)[1] == {"left": 1}
    consumer.tell(MemoryMessage((None, -1), -1, fault=KafkaError(KafkaError._ALL_BROKERS_DOWN)))  # noqa: SLF001
    assert next(parts)[1] == {"left": 2}


def test_a_range_that_does_not_come_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "TIMEOUT_S", 0.0)
    consumer: Any = ScriptedConsumer({"left": []}, {"left": 2}, [("left", 0)] * 3)
    with pytest.raises(KafkaException) as raised:
        list(ranges.read_range(consumer, SystemClock(), UNIT, {"left": 0}, {"left": 5}, 10))
    assert raised.value.args[0].code() == KafkaError._TIMED_OUT  # noqa: SLF001 - its public name
