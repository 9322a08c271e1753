"""Is what the autoscaler decides done, or only logged, and does a silent Kafka do no harm?"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from joiner.runtime.clock import SystemClock
from joiner.runtime.runners.workers import host_load, scaling
from joiner.runtime.runners.workers.autoscaler import Autoscaler, Observation
from joiner.runtime.runners.workers.host_load import HostLoad
from joiner.runtime.settings import ScalingSettings
from tests.unit.joiner.runtime.joiner_inputs import make_settings


def never(_name: str) -> bool:
    return False


class Supervisor:
    """Runs as many workers as are wanted."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted

    def want(self, count: int, _reason: str) -> None:
        self.wanted = count

    def running(self, for_s: float = 0.0) -> dict[str, int]:
        del for_s
        return {f"w-{number + 1}": number for number in range(self.wanted)}


class Load:
    """By default, twice as many records arrive as a worker can consume. Some looks fail.

    ``fails_at``: these, counted from the last.
    """

    def __init__(self, supervisor: Supervisor, looks: int, arriving: int = 2000) -> None:
        self.supervisor, self.is_over = supervisor, threading.Event()
        self.left, self.arriving = looks, arriving
        self.at_s = self.cpu_s = self.idle_s = 0.0
        self.consumed = self.lag = 0
        self.is_closed = False
        self.fails_at = {0}

    def observe(self, process_ids: Collection[int]) -> Observation:
        self.left -= 1
        if not self.left:
            self.is_over.set()
        if self.left in self.fails_at:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - the public name of the constant
        done = min(1000 * len(process_ids), self.arriving + self.lag)
        self.at_s, self.consumed, self.lag = self.at_s + 5, self.consumed + done, self.lag + self.arriving - done
        self.cpu_s, self.idle_s = self.cpu_s + done / 200, self.idle_s + 20
        return Observation(self.at_s, self.consumed, dict.fromkeys(range(4), self.lag // 4), self.cpu_s, self.idle_s)

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(("dry_run", "expected"), [(False, 3), (True, 1)], ids=["real", "dry run"])
def test_workers_are_added_unless_it_is_a_dry_run(
    *, dry_run: bool, expected: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(scaling, "_EVERY_S", 0.0)
    supervisor: Any = Supervisor(1)
    load: Any = Load(supervisor, 40)
    with caplog.at_level(logging.INFO):
        scaling.scale(supervisor, Autoscaler(1, 4), load, never, load.is_over, dry_run=dry_run)
    assert supervisor.wanted == expected
    assert ("would run 3 worker processes instead of 1" in caplog.text) == dry_run
    assert load.is_closed


def test_a_load_that_cannot_be_observed_is_logged_once_an_outage(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(scaling, "_EVERY_S", 0.0)
    supervisor: Any = Supervisor(1)
    load: Any = Load(supervisor, 9)
    load.fails_at = {2, 3, 4, 7, 8}
    with caplog.at_level(logging.INFO):
        scaling.scale(supervisor, Autoscaler(1, 4), load, never, load.is_over, dry_run=False)
    assert [message.partition(",")[0] for message in caplog.messages] == ["the load is not known"] * 2


def test_while_a_worker_is_drained_the_number_is_not_changed_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(scaling, "_EVERY_S", 0.0)
    supervisor: Any = Supervisor(2)
    load: Any = Load(supervisor, 40, arriving=4000)
    with caplog.at_level(logging.INFO):
        scaling.scale(supervisor, Autoscaler(1, 4), load, {"w-2"}.__contains__, load.is_over, dry_run=False)
    assert supervisor.wanted == 2
    assert "2 worker processes: only 1 of them can serve units" in caplog.text


@pytest.mark.parametrize(("processes", "bounds"), [("1-4", (1, 4)), ("3-3", (3, 3)), ("2-64", (2, 64)), (None, None)])
def test_a_range_has_bounds(processes: str | None, bounds: tuple[int, int] | None) -> None:
    assert ScalingSettings(processes=processes).bounds == bounds


@pytest.mark.parametrize("processes", ["4", "0-4", "4-1", "1-65", "1-", "a-b", "1-4-6", ""])
def test_anything_else_is_refused(processes: str) -> None:
    with pytest.raises(ValueError, match="processes"):
        ScalingSettings(processes=processes)


def test_the_load_is_that_of_all_units_and_of_the_given_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_settings(partitions=3)

    class Consumer:
        """Has committed 10, 20, ... in each unit but the last, which has never been started; 5 records follow."""

        def committed(self, places: list[TopicPartition], _timeout: float) -> list[TopicPartition]:
            at = [10 * (place.partition + 1) if place.partition < 2 else -1001 for place in places]
            return [
                TopicPartition(place.topic, place.partition, offset) for place, offset in zip(places, at, strict=True)
            ]

        def offsets_for_times(self, places: list[TopicPartition], _timeout: float) -> list[TopicPartition]:
            return [TopicPartition(place.topic, place.partition, 10 * (place.partition + 1) + 5) for place in places]

    monkeypatch.setattr(host_load, "make_consumer", lambda *_, **__: Consumer())
    seen = HostLoad(settings, SystemClock()).observe([os.getpid(), 2**22 + 1])
    topics = len(settings.input_topics)
    assert seen.consumed == 30 * topics
    assert seen.lag == {0: 5 * topics, 1: 5 * topics, 2: 0}
    assert seen.cpu_s > 0
    assert seen.idle_s > 0
