"""Does each order happen once, whoever dies, and does everybody learn what came of it?"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from control.actions.audit import Asked, Refused
from control.actions.desk import ABANDONED_S, RUNNING_MAX, Accepted, Desk, KeyReused, NotAccepted
from control.actions.history import Action
from control.actions.orders import Move, Order
from control.actions.perform import Outcome
from control.actions.plan import OrderRefused
from tests.integration.services import wait_until
from tests.unit.control.audited import MOVE, Office, desk_with, facts_of


@pytest.fixture
def office(monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    made = Office(monkeypatch)
    yield made
    made.let_end.set()


def accept(desk: Desk, order: Order = MOVE, key: str = "k", by: str = "otto") -> Accepted:
    """Accept an order while the desk makes its turns in another thread."""
    return together(desk, lambda: desk.accept(order, key, by))[0]


def together(desk: Desk, *calls: Callable[[], Accepted]) -> list[Accepted]:
    """Make calls at the same time while the desk makes its turns."""
    found: list[Any] = [None] * len(calls)

    def run(number: int) -> None:
        try:
            found[number] = calls[number]()
        except Exception as error:  # noqa: BLE001 - raised again below
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        desk.turn()
        threads[0].join(0.01)
    for one in found:
        if isinstance(one, Exception):
            raise one
    return found


def ended(desk: Desk, number: int = -1) -> Action:
    """Make turns until an action has ended."""

    def has_ended() -> bool:
        desk.turn()
        return desk.actions[number].ended_ms is not None

    wait_until(has_ended, "the action has ended")
    return desk.actions[number]


def test_an_order_is_recorded_carried_out_and_its_outcome_is_recorded(office: Office) -> None:
    desk = office.desk()
    accepted = accept(desk)
    assert (accepted.is_new, accepted.action.state, accepted.action.by) == (True, "running", "otto")
    wait_until(lambda: office.performed == [MOVE], "it is carried out")
    office.means[0].report("unit 0: released")
    office.let_end.set()
    action = ended(desk)
    assert (action.state, action.text) == ("done", "all units are at spark")
    assert [report.text for report in action.reports] == ["unit 0: released"]


def test_the_same_request_again_is_the_same_action(office: Office) -> None:
    desk = office.desk()
    first = accept(desk)
    again = accept(desk)
    assert (again.action.id, again.is_new) == (first.action.id, False)
    office.let_end.set()
    ended(desk)
    assert accept(desk).action.state == "done"
    assert len(office.performed) == 1


def test_many_equal_requests_at_once_are_one_action(office: Office) -> None:
    desk = office.desk()
    found = together(desk, *[lambda: desk.accept(MOVE, "k", "otto")] * 8)
    assert len({one.action.id for one in found}) == 1
    assert sum(one.is_new for one in found) == 1


def test_the_same_request_to_two_services_happens_once(office: Office) -> None:
    first, second = office.desk(), office.desk()
    # Both have recorded the order before either has read it.
    for desk, action in ((first, "a"), (second, "b")):
        service = desk._service  # noqa: SLF001 - which service carries it out
        office.topic.append(Asked(action=action, key="k", by="otto", service=service, order=MOVE))
    first.turn()
    second.turn()
    wait_until(lambda: len(office.performed) == 1, "one of them carries it out")
    assert [action.id for action in second.actions] == ["a"]
    assert second.accept(MOVE, "k", "otto") == Accepted(second.actions[0], is_new=False)
    office.let_end.set()
    assert ended(second).state == "done"
    assert len(office.performed) == 1


def test_a_key_is_not_used_for_two_orders(office: Office) -> None:
    desk = office.desk()
    accept(desk)
    with pytest.raises(KeyReused, match="belongs to another order"):
        desk.accept(Move(to="spark", units=[0], epochs={}), "k", "otto")
    assert accept(desk, by="ada").is_new


def test_a_refusal_is_recorded_and_nothing_is_done(office: Office) -> None:
    desk = office.desk()
    order = Move(to="green", epochs={})
    with pytest.raises(OrderRefused, match="no instance runs at the site green"):
        desk.accept(order, "k", "otto")
    (record,) = office.topic.records()
    assert isinstance(record, Refused)
    assert (record.by, record.order) == ("otto", order)
    desk.turn()
    assert [refusal.why for refusal in desk.refusals] == [record.why]
    assert (desk.actions, office.performed) == ([], [])


def test_nothing_is_accepted_before_the_topic_is_read_or_while_it_takes_nothing(office: Office) -> None:
    unread = desk_with(office.topic, office.watcher)
    with pytest.raises(NotAccepted, match="has not been read yet"):
        unread.accept(MOVE, "k", "otto")
    desk = office.desk()
    office.topic.is_away = True
    with pytest.raises(NotAccepted, match="repeat it with the same idempotency key"):
        desk.accept(MOVE, "k", "otto")
    office.topic.is_away = False
    assert accept(desk).is_new
    assert len(desk.actions) == 1


def test_an_order_that_arrives_after_its_request_has_failed_is_carried_out_once(office: Office) -> None:
    desk = office.desk()
    service = desk._service  # noqa: SLF001 - which service carries it out
    office.topic.append(Asked(action="late", key="k", by="otto", service=service, order=MOVE))
    assert accept(desk).action.id == "late"
    wait_until(lambda: office.performed == [MOVE], "it is carried out")


def test_so_many_at_once_and_no_more(office: Office) -> None:
    desk = office.desk()
    for number in range(RUNNING_MAX):
        accept(desk, key=f"k{number}")
    with pytest.raises(NotAccepted, match="are running already"):
        desk.accept(MOVE, "more", "otto")
    office.let_end.set()
    for number in range(RUNNING_MAX):
        ended(desk, number)
    office.let_end.clear()
    assert accept(desk, key="more").is_new


@pytest.mark.parametrize(
    ("sites", "state", "text"),
    [
        (("spark", "spark"), "done", "all units are at spark (the service that carried this out has ended"),
        (("process", "spark"), "interrupted", "unit 0 not at spark"),
    ],
)
def test_the_action_of_a_service_that_died_is_given_up_by_another(
    office: Office, sites: tuple[str, str], state: str, text: str
) -> None:
    dead, alive = office.desk(), office.desk()
    accept(dead)
    alive.turn()
    office.clock.now_s += ABANDONED_S - 1
    alive.turn()
    alive.turn()
    assert [action.state for action in alive.actions] == ["running"]
    office.watcher.facts = facts_of(sites)
    office.clock.now_s += 2
    alive.turn()
    action = ended(alive)
    assert (action.state, text in action.text) == (state, True), action


def test_a_restarted_service_gives_up_what_it_had_begun(office: Office) -> None:
    accept(office.desk())
    again = office.desk()
    assert [action.state for action in again.actions] == ["running"]
    office.clock.now_s += ABANDONED_S + 1
    again.turn()
    assert ended(again).state == "interrupted"
    assert len(office.performed) == 1


def test_a_service_that_lives_is_not_given_up(office: Office) -> None:
    alive, other = office.desk(), office.desk()
    accept(alive)
    for _ in range(20):
        office.clock.now_s += 6
        alive.turn()
        other.turn()
    assert [action.state for action in other.actions] == ["running"]


def test_nothing_is_given_up_while_kafka_is_away(office: Office) -> None:
    accept(office.desk())
    other = office.desk()
    office.watcher.facts = facts_of(trouble="Kafka is away")
    office.clock.now_s += 10 * ABANDONED_S
    other.turn()
    other.turn()
    assert [action.state for action in other.actions] == ["running"]


def test_a_service_that_was_suspended_corrects_the_outcome(office: Office) -> None:
    suspended, other = office.desk(), office.desk()
    accept(suspended)
    other.turn()
    office.clock.now_s += ABANDONED_S + 1
    other.turn()
    assert ended(other).state == "interrupted"
    office.let_end.set()

    def is_corrected() -> bool:
        other.turn()
        return other.actions[0].state == "done"

    wait_until(is_corrected, "the outcome is corrected")


def test_an_error_of_the_program_ends_the_action(office: Office) -> None:
    def fail() -> Outcome:
        raise RuntimeError("a secret")

    office.outcome = fail
    office.let_end.set()
    desk = office.desk()
    accept(desk)
    action = ended(desk)
    assert (action.state, action.text) == ("interrupted", "an error in this program; see its log")


def test_an_outcome_that_cannot_be_recorded_is_found_later(office: Office) -> None:
    desk = office.desk()
    accept(desk)
    wait_until(lambda: bool(office.performed), "it is carried out")
    office.topic.is_away = True
    office.watcher.facts = facts_of(("spark", "spark"))
    office.let_end.set()
    wait_until(lambda: not desk._performing, "it has ended")  # noqa: SLF001 - has no other trace
    office.topic.is_away = False
    desk.turn()
    office.clock.now_s += ABANDONED_S + 1
    desk.turn()
    assert ended(desk).state == "done"
