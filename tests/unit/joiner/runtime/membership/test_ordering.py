"""Do orders wait for what follows from them, say what it is, and refuse what cannot be meant?"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from joiner.runtime.control import (
    Drain,
    Left,
    Pin,
    Standbys,
    StandingOrder,
    Summary,
)
from joiner.runtime.membership.assign import next_assignment
from joiner.runtime.membership.ordering import OrderRefused, Outcome, UnknownUnit
from tests.unit.joiner.runtime.membership.ordering_case import SITE, UNITS, Case


@pytest.fixture
def make_case(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Case]:
    return lambda *instances: Case(monkeypatch, *instances)


def give(case: Case, kind: str) -> Outcome:
    match kind:
        case "drain":
            return case.ordering.drain("a")
        case "pin":
            return case.ordering.pin(0, "a")
        case "standbys":
            return case.ordering.standbys(1)
        case _:
            return case.ordering.retry(0)


KINDS = ["drain", "pin", "standbys", "retry"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_order_is_given_about_an_application_that_has_never_run(make_case: Callable[..., Case], kind: str) -> None:
    case = make_case()
    case.kafka.has_topic = False
    with pytest.raises(OrderRefused, match="has never run: there is no topic"):
        give(case, kind)
    assert case.kafka.orders == []


@pytest.mark.parametrize("kind", KINDS)
def test_no_order_is_given_about_instances_that_do_not_run(make_case: Callable[..., Case], kind: str) -> None:
    case = make_case()
    with pytest.raises(OrderRefused, match=r"has no instance.* at site 'process'"):
        give(case, kind)
    assert case.kafka.orders == []


@pytest.mark.parametrize("kind", ["drain", "pin"])
def test_the_instances_that_run_are_named_if_another_one_is_meant(make_case: Callable[..., Case], kind: str) -> None:
    case = make_case("b", "c")
    with pytest.raises(OrderRefused, match="no instance 'a' at site 'process'; running there: b, c"):
        give(case, kind)
    assert case.kafka.orders == []


@pytest.mark.parametrize("unit", [-1, UNITS])
def test_no_order_is_given_about_a_unit_that_does_not_exist(make_case: Callable[..., Case], unit: int) -> None:
    case = make_case("a")
    orders: list[Callable[[], Outcome]] = [
        lambda: case.ordering.pin(unit, "a"),
        lambda: case.ordering.pin(unit, ""),
        lambda: case.ordering.retry(unit),
    ]
    for order in orders:
        with pytest.raises(UnknownUnit, match=f"has no unit {unit}; its units are 0 to 3"):
            order()
    assert case.kafka.orders == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_order_that_kafka_does_not_confirm_is_not_said_to_remain(make_case: Callable[..., Case], kind: str) -> None:
    case = make_case("a", "b")
    case.kafka.broken.add((case.kafka.state.units[0].owner, 0))
    case.kafka.follow()
    case.kafka.is_lost = True
    assert give(case, kind) == Outcome(is_reached=False, text="Kafka did not confirm the order in time: give it again")
    assert case.clock.now_s <= 1000.0 + 2 * 10.0


def test_a_drained_instance_has_no_units_in_the_end(make_case: Callable[..., Case]) -> None:
    case = make_case("a", "b")
    assert case.ordering.drain("a") == Outcome(is_reached=True, text="a is drained")
    assert case.kafka.orders == [Drain(site=SITE, instance="a")]
    assert case.lines[-1] == "a serves no unit"
    assert case.ordering.drain("a", undo=True) == Outcome(is_reached=True, text="a is no longer drained")
    assert case.kafka.state.drained == set()


def test_an_instance_that_nobody_can_take_over_from_is_not_drained(make_case: Callable[..., Case]) -> None:
    case = make_case("a")
    outcome = case.ordering.drain("a")
    assert outcome == Outcome(
        is_reached=False,
        text="a serves units 0, 1, 2, 3: no other instance takes over the rest; the order remains in force",
    )
    assert case.kafka.state.drained == {"a"}


def test_the_order_to_drain_an_instance_can_be_undone_while_it_is_not_running(make_case: Callable[..., Case]) -> None:
    case = make_case("a")
    outcome = case.ordering.drain("x", undo=True)
    assert outcome == Outcome(is_reached=True, text="x is no longer drained; it is not running now")
    assert case.kafka.orders == [Drain(site=SITE, instance="x", drained=False)]


def test_a_pinned_unit_is_served_there_in_the_end(make_case: Callable[..., Case]) -> None:
    case = make_case("a", "b")
    unit = case.unit_of("a")
    assert case.ordering.pin(unit, "b") == Outcome(is_reached=True, text=f"unit {unit} is served by b")
    assert case.kafka.orders == [Pin(site=SITE, unit=unit, instance="b")]
    assert case.ordering.pin(unit, "") == Outcome(is_reached=True, text=f"unit {unit} is no longer pinned")
    assert case.kafka.state.orders.pinned == {}


def test_a_unit_that_is_there_already_is_pinned_at_once(make_case: Callable[..., Case]) -> None:
    case = make_case("a", "b")
    unit = case.unit_of("b")
    assert case.ordering.pin(unit, "b").is_reached
    assert case.clock.now_s == 1000.0
    assert case.kafka.state.orders.pinned == {unit: "b"}


@pytest.mark.parametrize(
    ("cause", "why"),
    [
        ("drained", "b is drained"),
        ("leaving", "b is stopping"),
        ("left", "b is no longer running"),
        ("failed", "b cannot serve it; see `joiner status` or its log"),
        ("mixed", "the consumer group assigns the units as long as a process of an older release is running"),
        ("slow", "b has not taken it over"),
    ],
)
def test_it_is_said_why_a_unit_is_not_served_where_it_is_pinned(
    make_case: Callable[..., Case], cause: str, why: str
) -> None:
    case = make_case("a", "b")
    unit, kafka = case.unit_of("a"), case.kafka
    match cause:
        case "drained":
            kafka.append(Drain(site=SITE, instance="b"))
        case "leaving":
            kafka.change("b", leaving=True)
        case "left":
            kafka.then = lambda: kafka.append(Left(site=SITE, instance="b", run="run of b")) if kafka.orders else None
        case "failed":
            kafka.change("b", failed=[unit])
        case "mixed":
            kafka.change("a", mixed=True)
        case "slow":
            kafka.still = True
    text = f"unit {unit} is served by a: {why}; the order remains in force"
    assert case.ordering.pin(unit, "b") == Outcome(is_reached=False, text=text)
    assert kafka.state.orders.pinned == {unit: "b"}
    has_waited = case.clock.now_s > 1000.0 + 1.0
    assert has_waited == (cause not in {"drained", "mixed"}), "whether it may change by itself"


def test_each_unit_has_the_standbys_that_are_ordered_in_the_end(make_case: Callable[..., Case]) -> None:
    case = make_case("a", "b", "c")
    assert case.ordering.standbys(2) == Outcome(is_reached=True, text="each unit has 2 standbys")
    assert case.ordering.standbys(1) == Outcome(is_reached=True, text="each unit has 1 standby")
    assert case.ordering.standbys(None) == Outcome(is_reached=True, text="each unit has 0 standbys")
    assert case.kafka.orders == [Standbys(site=SITE, count=count) for count in (2, 1, None)]
    assert case.lines[-1] == "0 of 0 standbys are warm"


def test_it_is_said_if_there_are_too_few_instances_for_the_standbys(make_case: Callable[..., Case]) -> None:
    case = make_case("a", "b")
    outcome = case.ordering.standbys(2)
    text = "4 of 8 standbys are warm: no other instance can be a standby now; the order remains in force"
    assert outcome == Outcome(is_reached=False, text=text)
    assert case.kafka.state.orders.standbys == 2


def test_standbys_that_do_not_become_warm_are_waited_for_in_vain(make_case: Callable[..., Case]) -> None:
    case = make_case("a", "b")
    case.kafka.still = True
    outcome = case.ordering.standbys(1)
    assert outcome == Outcome(
        is_reached=False, text="0 of 4 standbys are warm: some standbys are not warm; the order remains in force"
    )


def test_the_number_of_standbys_can_be_left_to_the_settings_while_nobody_runs(make_case: Callable[..., Case]) -> None:
    case = make_case()
    case.kafka.append(Summary(site=SITE, read=0, epoch=1, units=[], standbys=2, ordered={"standbys": 0}))
    assert case.ordering.standbys(None).is_reached
    assert case.kafka.state.orders.standbys is None


def test_an_order_of_somebody_else_is_not_taken_for_the_own_one(make_case: Callable[..., Case]) -> None:
    case = make_case("a", "b")
    kafka = case.kafka
    kafka.is_lost = True
    kafka.then = lambda: kafka.append(Pin(site=SITE, unit=3, instance="b")) if kafka.orders else None
    assert not case.ordering.pin(0, "").is_reached
    assert not case.ordering.standbys(None).is_reached


def test_what_is_reported_changes_with_what_is_the_case(make_case: Callable[..., Case]) -> None:
    case = make_case("a", "b")
    unit = case.unit_of("a")
    case.ordering.pin(unit, "b")
    assert len(case.lines) == len(set(case.lines))
    assert case.lines[-1] == f"unit {unit} is served by b"


def test_standbys_are_awaited_only_for_units_that_are_served_here(make_case: Callable[..., Case]) -> None:
    case = make_case("a", "b")
    kafka, elsewhere = case.kafka, case.unit_of("a")
    kafka.elsewhere = {elsewhere}
    kafka.follow()
    assert case.ordering.standbys(1) == Outcome(is_reached=True, text="each unit has 1 standby")


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        ("drain", Drain(site=SITE, instance="a", drained=False)),
        ("pin", Pin(site=SITE, unit=0, instance="b")),
        ("standbys", Standbys(site=SITE, count=2)),
    ],
)
def test_an_order_that_another_one_has_replaced_is_not_waited_for(
    make_case: Callable[..., Case], kind: str, other: StandingOrder
) -> None:
    case = make_case("a", "b")
    kafka = case.kafka
    kafka.still = True
    kafka.then = lambda: kafka.append(other) if len(kafka.orders) == 1 else None
    outcome = give(case, kind)
    assert outcome == Outcome(is_reached=False, text="another order has replaced this one")


def test_an_instance_that_is_about_to_claim_a_unit_is_not_drained_yet(make_case: Callable[..., Case]) -> None:
    case = make_case("a", "b")
    kafka = case.kafka
    kafka.change("a", serves=[])
    kafka.still = True
    assert not case.ordering.drain("a").is_reached


def test_what_could_not_be_written_at_once_can_be_written_while_the_order_is_waited_for(
    make_case: Callable[..., Case],
) -> None:
    case = make_case("a", "b")
    kafka = case.kafka
    kafka.is_lost = True
    looks = 0

    def arrive() -> None:
        nonlocal looks
        looks += bool(kafka.orders)
        if looks == 5:
            assert not kafka.is_closed
            kafka.append(kafka.orders[0])

    kafka.then = arrive
    assert case.ordering.standbys(1).is_reached
    assert kafka.is_closed


def test_standbys_are_not_waited_for_longer_because_an_instance_prepares_for_a_pinned_unit(
    make_case: Callable[..., Case],
) -> None:
    case = make_case("a", "b")
    kafka, unit = case.kafka, case.unit_of("a")
    kafka.append(Pin(site=SITE, unit=unit, instance="b"))
    following = next_assignment(kafka.state, UNITS, "a")
    assert following is not None
    kafka.append(following)
    assert kafka.state.units[unit].standbys == ["b"]
    kafka.still = True
    assert case.ordering.standbys(0).is_reached


def test_a_drained_instance_that_prepares_for_a_unit_is_waited_for(make_case: Callable[..., Case]) -> None:
    case = make_case("a", "b")
    kafka, unit = case.kafka, case.unit_of("a")
    for name in "ab":
        kafka.append(Drain(site=SITE, instance=name))
    kafka.lag = 3
    assert case.ordering.pin(unit, "b") == Outcome(is_reached=True, text=f"unit {unit} is served by b")
