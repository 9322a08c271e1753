"""Does each order happen once, whoever dies, and does everybody learn what came of it?"""

from __future__ import annotations

import threading

import pytest

from control.actions.audit import Doubted, Refused
from control.actions.desk import RUNNING_MAX, Accepted, Desk, KeyReused, NotAccepted
from control.actions.orders import Drain, Move, Order, Pin, PutRecordsBack, ReleaseSilent, Retry, Scale, Standbys
from control.actions.perform import Outcome
from control.actions.tasks import ANSWER_S, SILENT_S
from joiner.runtime.membership.ordering import OrderRefused
from tests.integration.services import wait_until
from tests.unit.control.audited import MOVE, Office, accept, desk_with, ended, facts_of, together


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
    calls = [lambda: first.accept(MOVE, "k", "otto"), lambda: second.accept(MOVE, "k", "otto")]
    found: list[Accepted] = []
    threads = [threading.Thread(target=lambda call=call: found.append(call())) for call in calls]
    for thread in threads:
        thread.start()
    # Both have recorded the order before either has read it.
    wait_until(lambda: len(office.topic.records()) == 2, "both have recorded the order")
    for desk in (second, first):
        desk.turn()
    for thread in threads:
        thread.join()
    assert len({one.action.id for one in found}) == 1
    assert sorted(one.is_new for one in found) == [False, True]
    wait_until(lambda: bool(office.performed), "one of them carries it out")
    office.let_end.set()
    for desk in (first, second):
        assert ended(desk, others=[first, second]).state == "done"
    assert len(office.performed) == 1


def test_a_key_is_not_used_for_two_orders(office: Office) -> None:
    desk = office.desk()
    accept(desk)
    with pytest.raises(KeyReused, match="belongs to another order"):
        desk.accept(Move(to="spark", units=[0], epochs={}), "k", "otto")
    assert accept(desk, ReleaseSilent(time=1), by="ada").is_new


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
    assert (desk.actions(), office.performed) == ([], [])


def test_nothing_is_accepted_before_the_topic_is_read_or_while_it_takes_nothing(office: Office) -> None:
    new = desk_with(office.topic, office.watcher)
    with pytest.raises(NotAccepted, match="has not been read yet"):
        new.accept(MOVE, "k", "otto")
    desk = office.desk()
    office.topic.is_away = True
    with pytest.raises(NotAccepted, match="may not have been recorded") as refused:
        desk.accept(MOVE, "k", "otto")
    assert refused.value.may_count
    office.topic.is_away = False
    assert accept(desk).is_new
    assert len(desk.actions()) == 1


def test_an_order_that_is_not_read_back_can_be_repeated_and_is_carried_out_once(office: Office) -> None:
    desk = office.desk()
    with pytest.raises(NotAccepted, match="has not been read back yet") as refused:
        unread(desk, office)
    assert refused.value.may_count
    again = accept(desk)
    wait_until(lambda: office.performed == [MOVE], "it is carried out")
    assert not again.is_new
    office.let_end.set()
    assert ended(desk).state == "done"
    assert len(office.performed) == 1


def test_an_order_that_is_read_back_much_later_is_not_carried_out(office: Office) -> None:
    desk = office.desk()
    with pytest.raises(NotAccepted):
        unread(desk, office)
    office.clock.now_s += 60
    action = ended(desk)
    assert (action.state, action.text) == (
        "withdrawn",
        "the order was recorded too late: nothing was done; order it again if it is needed",
    )
    assert office.performed == []


def unread(desk: Desk, office: Office) -> None:
    """Accept an order while nothing is read back, until the desk does not wait any longer."""

    def wait(timeout: float) -> bool:
        assert timeout > 0
        # Only now: before, the desk has not noted until when it waits.
        office.clock.now_s += 11
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(desk._changed, "wait", wait)  # noqa: SLF001 - the only place where it waits
        desk.accept(MOVE, "k", "otto")


def test_what_is_read_again_is_not_carried_out_again(office: Office) -> None:
    desk = office.desk()
    accept(desk)
    office.let_end.set()
    ended(desk)
    office.log_of(desk).read_again()
    for _ in range(3):
        desk.turn()
    assert len(office.performed) == 1
    assert [action.state for action in desk.actions()] == ["done"]


def test_a_topic_that_was_created_anew_is_used(office: Office) -> None:
    desk = office.desk()
    accept(desk)
    office.let_end.set()
    ended(desk)
    office.topic.values.clear()
    log = office.log_of(desk)
    log.read_again()
    log.generation += 1
    assert accept(desk, key="other").is_new
    assert len(desk.actions()) == 2


def test_two_actions_on_one_target_do_not_run_at_the_same_time(office: Office) -> None:
    desk = office.desk()
    drain = Drain(site="process", instance="one", epochs={})
    accept(desk, drain, "k1")
    with pytest.raises(OrderRefused, match="an action on the same target is running"):
        desk.accept(drain, "k2", "ada")
    assert accept(desk, MOVE, "k3").is_new
    with pytest.raises(OrderRefused, match="an action on the same target is running"):
        desk.accept(Move(to="spark", units=[0], epochs={}), "k4", "otto")


def test_what_a_unit_is_ordered_to_do_is_not_contradicted_meanwhile(office: Office) -> None:
    desk = office.desk()
    accept(desk, Pin(site="process", unit=0, instance="two", epochs={}), "k1")
    for order in (Pin(site="process", unit=0, instance="one", epochs={}), Retry(site="process", unit=0, epochs={})):
        with pytest.raises(OrderRefused, match="an action on the same target is running"):
            desk.accept(order, "k2", "ada")
    assert accept(desk, Pin(site="process", unit=1, instance="one", epochs={}), "k3").is_new
    assert accept(desk, Standbys(site="process", count=1, epochs={}), "k4").is_new
    with pytest.raises(OrderRefused, match="an action on the same target is running"):
        desk.accept(Standbys(site="process", count=2, epochs={}), "k5", "ada")


def test_refusals_cannot_fill_the_topic(office: Office) -> None:
    desk = office.desk()
    for number in range(50):
        with pytest.raises(OrderRefused):
            desk.accept(Move(to="green", epochs={}), f"k{number}", "otto")
    assert len(office.topic.records()) == 1
    office.clock.now_s += 1
    with pytest.raises(OrderRefused):
        desk.accept(Move(to="green", epochs={}), "k", "otto")
    assert len(office.topic.records()) == 2


def test_after_a_stop_nothing_is_accepted_and_nothing_waits(office: Office) -> None:
    desk = office.desk()
    desk.stop()
    with pytest.raises(NotAccepted, match="the service is stopping"):
        desk.accept(MOVE, "k", "otto")


def test_so_many_at_once_and_no_more_of_all_services(office: Office) -> None:
    first, second = office.desk(), office.desk()
    for number in range(RUNNING_MAX):
        accept(first if number % 2 else second, ReleaseSilent(time=number), f"k{number}")
        first.turn()
        second.turn()
    with pytest.raises(NotAccepted, match="are running already"):
        second.accept(MOVE, "more", "otto")
    office.let_end.set()
    for number in range(RUNNING_MAX):
        ended(first, number, others=[second])
    assert accept(first, key="more").is_new


def silence(office: Office, desk: Desk) -> None:
    """Let a desk hear nothing of an action, doubt it, and get no answer."""
    for seconds in (0, SILENT_S + 1, ANSWER_S + 1):
        office.clock.now_s += seconds
        desk.turn()
        desk.turn()


@pytest.mark.parametrize(
    ("sites", "state", "text"),
    [
        (("spark", "spark"), "done", "all units are at spark (nothing has been heard of the service"),
        (("process", "spark"), "interrupted", "unit 0 not at spark"),
    ],
)
def test_the_action_of_a_service_that_died_is_given_up_by_another(
    office: Office, sites: tuple[str, str], state: str, text: str
) -> None:
    dead, alive = office.desk(), office.desk()
    accept(dead)
    alive.turn()
    office.clock.now_s += SILENT_S - 1
    alive.turn()
    assert not any(isinstance(record, Doubted) for record in office.topic.records())
    office.watcher.facts = facts_of(sites)
    silence(office, alive)
    action = ended(alive)
    assert (action.state, text in action.text) == (state, True), action


@pytest.mark.parametrize(
    ("order", "state", "text"),
    [
        (Drain(site="process", instance="one", epochs={}), "interrupted", "now: one serves unit 0"),
        (Scale(site="process", instance="host", processes=1, epochs={}), "interrupted", "0 of 1 worker processes"),
        (Pin(site="process", unit=0, instance="two", epochs={}), "interrupted", "now: unit 0 is served by one"),
        (Standbys(site="process", count=None, epochs={}), "done", "as the settings say (nothing has been heard"),
        (Retry(site="process", unit=0, epochs={}), "interrupted", "the unit may have been tried again"),
        (ReleaseSilent(time=5), "interrupted", "writing it again is harmless"),
        (PutRecordsBack(dead_letters=[(0, 1)]), "interrupted", "putting them back again is refused"),
    ],
)
def test_what_can_be_seen_is_told_of_an_order_whose_service_died(
    office: Office, order: Order, state: str, text: str
) -> None:
    accept(office.desk(), order)
    alive = office.desk()
    silence(office, alive)
    action = ended(alive)
    assert (action.state, text in action.text) == (state, True), action


def test_a_restarted_service_gives_up_what_it_had_begun(office: Office) -> None:
    accept(office.desk())
    again = office.desk()
    assert [action.state for action in again.actions()] == ["running"]
    silence(office, again)
    assert ended(again).state == "interrupted"
    assert len(office.performed) == 1


def test_a_service_that_lives_is_not_given_up(office: Office) -> None:
    alive, other = office.desk(), office.desk()
    accept(alive)
    for _ in range(20):
        office.clock.now_s += 6
        alive.turn()
        other.turn()
    assert [action.state for action in other.actions()] == ["running"]


def test_a_service_that_is_heard_again_after_an_outage_is_not_given_up(office: Office) -> None:
    alive, other = office.desk(), office.desk()
    accept(alive)
    other.turn()
    # Kafka was away, so neither has written or read anything.
    office.clock.now_s += 10 * SILENT_S
    for _ in range(3):
        other.turn()
    office.clock.now_s += 1
    alive.turn()
    office.clock.now_s += ANSWER_S + 1
    for _ in range(3):
        other.turn()
    assert [action.state for action in other.actions()] == ["running"]


def test_nothing_is_given_up_while_kafka_is_away(office: Office) -> None:
    accept(office.desk())
    other = office.desk()
    office.watcher.facts = facts_of(trouble="Kafka is away")
    silence(office, other)
    assert [action.state for action in other.actions()] == ["running"]
    # When it is back, the service is asked first.
    office.watcher.facts = facts_of()
    other.turn()
    other.turn()
    assert [action.state for action in other.actions()] == ["running"]
    assert isinstance(office.topic.records()[-1], Doubted)


def test_a_service_that_was_suspended_corrects_the_outcome(office: Office) -> None:
    suspended, other = office.desk(), office.desk()
    accept(suspended)
    other.turn()
    silence(office, other)
    assert ended(other).state == "interrupted"
    office.let_end.set()

    def is_corrected() -> bool:
        suspended.turn()
        other.turn()
        return other.actions()[0].state == "done"

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


def test_an_outcome_that_cannot_be_recorded_at_once_is_recorded_later(office: Office) -> None:
    desk = office.desk()
    accept(desk)
    wait_until(lambda: bool(office.performed), "it is carried out")
    office.topic.is_away = True
    office.outcome = lambda: Outcome("failed", "unit 0: no target was ready in time")
    office.let_end.set()
    wait_until(lambda: not any("action " in one.name for one in threading.enumerate()), "it has ended")
    desk.turn()
    assert desk.actions()[0].state == "running"
    office.topic.is_away = False
    office.clock.now_s += 10
    action = ended(desk)
    assert (action.state, action.text) == ("failed", "unit 0: no target was ready in time")
