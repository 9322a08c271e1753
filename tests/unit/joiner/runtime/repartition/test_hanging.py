"""Is a transaction reported that keeps the copies behind it from being joined, and only such a one?"""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition

from joiner.runtime.repartition.hanging import HANGING_S, INTERVAL_S, HangingTransactions
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings
from tests.unit.joiner.runtime.repartition.test_copies import SPEED

TARGET = "lsb.plant.repartition"


class Ends:
    """The ends of the logs of two partitions. ``stable``: for read-committed consumers, or None for an error."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.stable: list[int | None] = [5, 7]
        self.ends = [5, 7]
        self.requests = 0
        settings = make_settings(stream=[SPEED], partitions=2)
        admin: Any = self
        self.hanging = HangingTransactions(admin, settings, self.clock)

    def list_offsets(self, places: dict[TopicPartition, Any], *, isolation_level: Any, **_: Any) -> dict[Any, Any]:
        self.requests += 1
        found: dict[Any, Future[Any]] = {}
        for place in places:
            assert place.topic == TARGET
            found[place] = future = Future[Any]()
            is_stable = isolation_level == IsolationLevel.READ_COMMITTED
            at = self.stable[place.partition] if is_stable else self.ends[place.partition]
            if at is None:
                future.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))  # noqa: SLF001 - the public name
            else:
                future.set_result(SimpleNamespace(offset=at))
        return found

    def watch(self, seconds: float) -> None:
        for _ in range(int(seconds / INTERVAL_S) + 1):
            self.clock.sleep(INTERVAL_S)
            self.hanging.check()
            self.hanging.check()


def test_a_transaction_that_does_not_end_is_reported_once_with_the_way_to_end_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ends = Ends()
    ends.stable = [5, 6]
    ends.watch(HANGING_S - 2 * INTERVAL_S)
    assert caplog.text == ""
    ends.watch(10 * HANGING_S)
    assert caplog.text.count("a transaction in lsb.plant.repartition [1] has been open from offset 6 for") == 1
    assert "abort --topic lsb.plant.repartition --partition 1 --start-offset 6" in caplog.text
    ends.stable, ends.ends = [5, 9], [5, 10]
    ends.watch(HANGING_S + 2 * INTERVAL_S)
    assert "[1] has been open from offset 9 for" in caplog.text


def test_transactions_that_follow_each_other_are_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    ends = Ends()
    for number in range(20):
        ends.stable, ends.ends = [5 + number, 6], [6 + number, 6 + number % 2]
        ends.watch(0)
    assert caplog.text == ""


def test_an_error_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    ends = Ends()
    ends.stable, ends.ends = [None, 7], [9, 7]
    ends.watch(3 * HANGING_S)
    assert caplog.text == ""


def test_requests_are_rare(caplog: pytest.LogCaptureFixture) -> None:
    ends = Ends()
    for _ in range(100):
        ends.clock.sleep(INTERVAL_S / 10)
        ends.hanging.check()
    assert 2 <= ends.requests <= 2 * 10
    assert caplog.text == ""
