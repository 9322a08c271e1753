"""Is a failed unit tried again by order, and is it said what came of it?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException

from joiner.runtime.control import (
    NotServed,
    Retry,
    Standbys,
)
from joiner.runtime.membership import ordering
from joiner.runtime.membership.ordering import OrderRefused, Outcome
from joiner.runtime.ownership.unit_reports import Report
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.membership.ordering_case import SITE, Case
from tests.unit.joiner.runtime.test_model import make_checkpoint


@pytest.fixture
def make_case(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Case]:
    return lambda *instances: Case(monkeypatch, *instances)


def test_a_failed_unit_is_served_again_in_the_end(make_case: Callable[..., Case]) -> None:
    case = make_case("a", "b")
    unit = case.unit_of("a")
    case.kafka.broken.add(("a", unit))
    case.kafka.follow()
    assert case.kafka.state.server(unit) is None
    case.kafka.broken.clear()
    assert case.ordering.retry(unit) == Outcome(is_reached=True, text=f"unit {unit} is served by a")
    assert case.kafka.orders == [Retry(site=SITE, unit=unit)]


def test_a_unit_that_fails_again_is_said_to_with_the_new_reason(make_case: Callable[..., Case]) -> None:
    case = make_case("a", "b")
    unit, kafka = case.unit_of("a"), case.kafka
    kafka.broken.add(("a", unit))
    kafka.follow()
    notice = NotServed(unit=unit, instance="a", site=SITE, why="the former reason")
    kafka.reports = [Report(notice, kafka.now_ms)]
    asked = 0

    def report_late(*_given: Any) -> list[Report]:
        nonlocal asked
        asked += 1
        newer = Report(msgspec.structs.replace(notice, why="damaged"), kafka.now_ms + 1)
        other = Report(msgspec.structs.replace(notice, instance="b", why="of another"), kafka.now_ms + 1)
        return [other, newer] if asked > 3 else [other, *kafka.reports]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordering, "read_reports", report_late)
        outcome = case.ordering.retry(unit)
    assert outcome == Outcome(is_reached=False, text=f"unit {unit} has failed again at a: damaged")


def test_a_unit_that_fails_again_without_a_report_is_said_to_as_well(make_case: Callable[..., Case]) -> None:
    case = make_case("a")
    case.kafka.broken.add(("a", 2))
    case.kafka.follow()
    assert case.ordering.retry(2) == Outcome(is_reached=False, text="unit 2 has failed again at a; its log says why")


def test_a_unit_that_nobody_tries_again_is_waited_for_in_vain(make_case: Callable[..., Case]) -> None:
    case = make_case("a")
    case.kafka.broken.add(("a", 2))
    case.kafka.follow()
    case.kafka.still = True
    text = "after 10 s, unit 2 is served by no instance; not tried again yet: a"
    assert case.ordering.retry(2) == Outcome(is_reached=False, text=text)


def test_it_is_said_what_a_unit_waits_for_that_is_not_served_in_time(make_case: Callable[..., Case]) -> None:
    case = make_case("a")
    kafka = case.kafka
    kafka.still = True
    kafka.change("a", serves=[0, 1, 3])
    notice = NotServed(unit=2, instance="a", site=SITE, why="no memory", retry_ms=1000)
    kafka.reports = [Report(notice, 10**6)]
    text = "after 10 s, unit 2 is served by no instance: no memory"
    assert case.ordering.retry(2) == Outcome(is_reached=False, text=text)


def test_a_unit_that_is_served_everywhere_is_not_tried_again(make_case: Callable[..., Case]) -> None:
    case = make_case("a", "b")
    outcome = case.ordering.retry(case.unit_of("b"))
    assert outcome.is_reached
    assert outcome.text.endswith("is served by b; there is nothing to try again")
    assert case.kafka.orders == []


def test_a_unit_that_another_instance_could_not_keep_warm_is_tried_again_there(make_case: Callable[..., Case]) -> None:
    case = make_case("a", "b")
    unit = case.unit_of("a")
    case.kafka.change("b", failed=[unit])
    assert case.ordering.retry(unit) == Outcome(is_reached=True, text=f"unit {unit} is served by a")
    assert case.kafka.state.live["b"].failed == []


def test_a_unit_that_fails_again_after_it_was_served_for_a_moment_is_not_said_to_be_served(
    make_case: Callable[..., Case],
) -> None:
    case = make_case("a", "b")
    unit, kafka = case.unit_of("a"), case.kafka
    kafka.change("a", serves=[], failed=[unit])
    looks = 0

    def fail_at_the_first_batch() -> None:
        nonlocal looks
        looks += bool(kafka.orders)
        if looks == 4:
            kafka.broken.add(("a", unit))

    kafka.then = fail_at_the_first_batch
    kafka.reports = [Report(NotServed(unit=unit, instance="a", site=SITE, why="the same record"), 10**9)]
    assert case.ordering.retry(unit) == Outcome(
        is_reached=False, text=f"unit {unit} has failed again at a: the same record"
    )
    assert f"unit {unit} is served by a" in case.lines


def test_a_standby_that_is_tried_again_is_waited_for(make_case: Callable[..., Case]) -> None:
    case = make_case("a", "b")
    kafka, unit = case.kafka, case.unit_of("a")
    kafka.append(Standbys(site=SITE, count=1))
    for _ in range(5):
        kafka.follow()
    kafka.still = True
    kafka.change("b", warm=[], failed=[unit])
    looks = 0

    def try_again() -> None:
        nonlocal looks
        looks += bool(kafka.orders)
        if looks == 2:
            kafka.change("b", failed=[])
        if looks == 40:
            kafka.change("b", failed=[unit])

    kafka.then = try_again
    text = f"unit {unit} is served by a; b cannot keep it warm"
    assert case.ordering.retry(unit) == Outcome(is_reached=True, text=text)
    assert case.clock.now_s > ManualClock().now_s + 7


def test_a_unit_at_another_site_is_not_tried_again_here(make_case: Callable[..., Case]) -> None:
    case = make_case("a")
    case.kafka.checkpoints[2] = make_checkpoint(unit=2, site="spark")
    with pytest.raises(OrderRefused, match="unit 2 is at the site 'spark': add `--at spark`"):
        case.ordering.retry(2)
    assert case.kafka.orders == []


def test_waiting_ends_once_the_program_is_to_stop(make_case: Callable[..., Case]) -> None:
    case = make_case("a", "b")
    case.kafka.still = True
    stopping = replace(case.ordering, is_stopped=lambda: True)
    unit = case.unit_of("a")
    case.kafka.change("a", serves=[], failed=[unit])
    assert stopping.retry(unit).text.startswith("after 0 s")
    assert not stopping.standbys(1).is_reached
    assert case.clock.now_s < ManualClock().now_s + 1


def test_a_unit_that_is_served_for_a_moment_only_is_not_said_to_be_served(make_case: Callable[..., Case]) -> None:
    case = make_case("a")
    kafka = case.kafka
    kafka.change("a", serves=[0, 1, 3], failed=[2])
    short = replace(case.ordering, timeout_s=1.0)
    assert short.retry(2) == Outcome(is_reached=False, text="unit 2 is served by a, but not yet for 3 s")


@pytest.mark.parametrize("kind", ["retry", "standbys"])
def test_an_error_of_kafka_after_the_order_is_waited_out_or_told(make_case: Callable[..., Case], kind: str) -> None:
    case = make_case("a", "b")
    kafka, unit = case.kafka, case.unit_of("a")
    kafka.broken.add(("a", unit))
    kafka.follow()
    kafka.broken.clear()
    errors = 3

    def fail() -> None:
        nonlocal errors
        if kafka.orders and errors:
            errors -= 1
            raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))  # noqa: SLF001 - its only name

    def give() -> Outcome:
        return case.ordering.retry(unit) if kind == "retry" else case.ordering.standbys(1)

    kafka.then = fail
    assert (give().is_reached, errors) == (True, 0)
    kafka.change("a", failed=[unit])
    kafka.broken.add(("a", unit))
    kafka.orders.clear()
    errors = 10_000
    outcome = case.ordering.retry(unit) if kind == "retry" else case.ordering.standbys(2)
    assert (outcome.is_reached, outcome.text.startswith("the order was given, but")) == (False, True)
