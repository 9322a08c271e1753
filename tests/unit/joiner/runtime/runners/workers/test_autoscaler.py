"""Does the autoscaler add workers when they help, and otherwise leave their number alone?

The autoscaler drives a model of a host: workers with a certain capacity, units, cores that Kafka uses as well.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from joiner.runtime.runners.workers.autoscaler import CALM_S, Autoscaler, Observation

EVERY_S = 5.0
CAPACITY = 100_000.0
"""Records a second that a worker consumes with one core."""
KAFKA = 0.3
"""Kafka's CPU time for a record, in relation to a worker's."""
STARTS_S = 4.0

Rate = Callable[[float], float]


@dataclass
class Host:
    """A host whose workers consume records. ``shares``: the share of the records that each unit gets."""

    rate: Rate
    shares: list[float]
    cores: float = 8.0
    at_most: int = 6
    at_least: int = 1
    noise: float = 0.1
    every_s: float = EVERY_S
    """The time between two observations."""
    silent: bool = False
    """Whether one stream is silent, so that the units hold what arrives but do not consume it."""
    seed: int = 1
    workers: int = 0
    reasons: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    notes: set[str] = field(default_factory=set)
    lag: list[float] = field(default_factory=list)

    def run(self, seconds: float) -> list[int]:
        """Run for some time. Return the numbers of workers, without repetitions."""
        scaler, draw = Autoscaler(self.at_least, self.at_most), random.Random(self.seed)
        self.workers = self.workers or self.at_least
        self.numbers = [self.workers]
        self.lag = [0.0] * len(self.shares)
        consumed = cpu_s = idle_s = changed_s = 0.0
        for look in range(round(seconds / self.every_s)):
            at_s = look * self.every_s
            running = self.workers if at_s - changed_s >= STARTS_S else self.workers - 1
            done, busy = self._consume(at_s, running, draw)
            consumed, cpu_s = consumed + done, cpu_s + busy
            idle_s += self.every_s * self.cores - busy * (1 + KAFKA)
            lag = {unit: round(lag) for unit, lag in enumerate(self.lag)}
            seen = Observation(at_s, round(consumed), lag, cpu_s, idle_s)
            decided = scaler.observe(seen, self.workers, running)
            self.notes.add(scaler.note)
            if decided is not None:
                self.workers, changed_s = decided.workers, at_s
                self.numbers.append(decided.workers)
                self.reasons.append(decided.reason)
        return self.numbers

    def _consume(self, at_s: float, running: int, draw: random.Random) -> tuple[float, float]:
        arrived = max(0.0, self.rate(at_s) * (1 + draw.uniform(-self.noise, self.noise)) * self.every_s)
        self.lag = [lag + share * arrived for lag, share in zip(self.lag, self.shares, strict=True)]
        if self.silent or not running:
            return 0.0, 0.05 * running
        # All workers and Kafka share the cores.
        speed = min(1.0, self.cores / (running * (1 + KAFKA))) * (1 + draw.uniform(-self.noise, self.noise))
        done = 0.0
        for worker in range(running):
            mine = range(worker, len(self.lag), running)
            budget = CAPACITY * speed * self.every_s
            for number, unit in enumerate(mine):
                part = min(self.lag[unit], budget / (len(mine) - number))
                self.lag[unit] -= part
                budget -= part
                done += part
        return done, done / CAPACITY


def even(units: int) -> list[float]:
    return [1 / units] * units


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("load", [0.0, 0.3, 0.9, 1.1, 1.7, 2.5, 3.4, 9.0])
def test_under_a_constant_load_the_number_is_never_reversed(load: float, seed: int) -> None:
    host = Host(lambda _: load * CAPACITY, even(12), seed=seed)
    numbers = host.run(3600)
    assert numbers == sorted(numbers)
    assert numbers[-1] >= min(load, 4.5)
    assert len(numbers) <= 3


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("high", [1.3, 1.9, 2.6, 3.7])
def test_a_step_is_followed_with_at_most_one_overshoot(high: float, seed: int) -> None:
    host = Host(lambda at_s: (high if 600 <= at_s < 3000 else 0.2) * CAPACITY, even(12), seed=seed)
    numbers = host.run(6000)
    most = max(numbers)
    top = numbers.index(most)
    assert numbers[:top] == sorted(numbers[:top])
    assert numbers[top:] == sorted(numbers[top:], reverse=True)
    assert numbers[-1] == 1
    assert high <= most <= math.ceil(high / 0.8) + 1
    assert sum(host.lag) < CAPACITY


@pytest.mark.parametrize("period_s", [60, 300, 3600])
def test_a_load_that_rises_and_falls_changes_the_number_at_most_once_each_way_a_period(period_s: int) -> None:
    host = Host(lambda at_s: (1.5 + 1.3 * math.sin(2 * math.pi * at_s / period_s)) * CAPACITY, even(12))
    numbers = host.run(4 * 3600)
    turns = sum((b - a) * (c - b) < 0 for a, b, c in zip(numbers, numbers[1:], numbers[2:], strict=False))
    assert turns <= (8 if period_s > CALM_S else 0)


def test_a_backlog_that_is_being_worked_off_adds_no_worker() -> None:
    host = Host(lambda at_s: (6.0 if 600 <= at_s < 615 else 0.3) * CAPACITY, even(12))
    assert host.run(3600) == [1]


def test_held_input_of_a_silent_stream_adds_no_worker_and_is_named() -> None:
    host = Host(lambda _: 2 * CAPACITY, even(12), silent=True)
    assert host.run(3600) == [1]
    assert any("a stream may be silent" in note for note in host.notes)


def test_a_single_hot_unit_adds_no_worker_and_is_named() -> None:
    host = Host(lambda _: 1.6 * CAPACITY, [0.95, *[0.01] * 5])
    assert host.run(3600) == [1]
    assert any("unit 0, which more workers cannot share" in note for note in host.notes)


def test_a_host_without_idle_cores_gets_no_worker_and_it_is_said() -> None:
    host = Host(lambda _: 3 * CAPACITY, even(12), cores=1.4)
    assert host.run(3600) == [1]
    assert any("no core is idle" in note for note in host.notes)


@pytest.mark.parametrize(("at_most", "units", "expected"), [(2, 12, 2), (6, 3, 3)])
def test_there_are_never_more_workers_than_allowed_or_than_units(at_most: int, units: int, expected: int) -> None:
    host = Host(lambda _: 9 * CAPACITY, even(units), at_most=at_most)
    host.run(3600)
    assert max(host.numbers) == expected


def test_there_are_never_fewer_workers_than_required() -> None:
    host = Host(lambda _: 0.0, even(12), at_least=2, workers=4)
    assert host.run(3600) == [4, 3, 2]


@pytest.mark.parametrize("every_s", [4.97, 5.03, 7.0, 29.0])
def test_a_worker_is_removed_however_often_the_load_is_observed(every_s: float) -> None:
    host = Host(lambda _: 0.0, even(12), workers=3, every_s=every_s)
    assert host.run(3600) == [3, 2, 1]


def test_nothing_is_decided_while_workers_start_or_stop() -> None:
    scaler = Autoscaler(1, 4)
    for number in range(100):
        seen = Observation(number * 5.0, number * 1000, {0: number * 100_000, 1: number * 100_000}, number * 10.0, 0.0)
        assert scaler.observe(seen, 2, 1) is None


def test_it_is_noted_that_not_all_workers_serve_units_once_that_has_lasted() -> None:
    scaler, notes = Autoscaler(1, 4), list[str]()
    for number, running in enumerate([*[1] * 6, 2, *[1] * 8, 2]):
        scaler.observe(Observation(number * 5.0, 0, {0: 0}, 0.0, 0.0), 2, running)
        notes.append(scaler.note)
    named = [number for number, note in enumerate(notes) if "only 1 of them can serve units" in note]
    assert named == [13, 14]
    assert set(notes) == {"", notes[13]}
