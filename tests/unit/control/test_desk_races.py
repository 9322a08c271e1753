"""What becomes of orders that are accepted before any service has read back another one, and what is logged?"""

from __future__ import annotations

import logging

import pytest

from control.actions.desk import RUNNING_MAX
from control.actions.orders import Drain, PutRecordsBack, ReleaseSilent
from joiner.runtime.membership.ordering import OrderRefused
from tests.integration.services import wait_until
from tests.unit.control.audited import Office, accept, ended


@pytest.mark.parametrize("services", [1, 2])
def test_of_two_contradicting_orders_that_are_accepted_at_once_the_first_in_the_topic_counts(
    office: Office, services: int
) -> None:
    desks = [office.desk() for _ in range(services)]
    orders = (
        Drain(site="process", instance="one", epochs={}),
        Drain(site="process", instance="one", undo=True, epochs={}),
    )
    for number, order in enumerate(orders):
        desk = desks[number % services]
        # Recorded, as in `accept`, before any service has read anything back.
        desk._record(order, f"k{number}", "otto")  # noqa: SLF001 - there is no other way to be as fast
    office.let_end.set()
    for desk in desks:
        desk.turn()
    second = ended(desks[-1], others=desks)
    assert (second.state, second.text) == (
        "withdrawn",
        "another action on the same target was ordered just before: nothing was done; order it again if it is needed",
    )
    assert (ended(desks[0], 0, desks).state, office.performed) == ("done", [orders[0]])


def test_what_is_accepted_at_once_is_no_more_than_may_run(office: Office) -> None:
    desk = office.desk()
    for number in range(RUNNING_MAX + 1):
        desk._record(ReleaseSilent(time=number), f"k{number}", "otto")  # noqa: SLF001 - as above
    office.let_end.set()
    desk.turn()
    assert ended(desk).text.startswith(f"{RUNNING_MAX} other actions were ordered just before: nothing was done")
    wait_until(lambda: len(office.performed) == RUNNING_MAX, "the others are carried out")


def test_the_contents_of_a_record_are_not_logged(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    desk = office.desk()
    accept(desk, PutRecordsBack(dead_letters=[(0, 1)], value="SECRET"))
    with pytest.raises(OrderRefused):
        desk.accept(PutRecordsBack(dead_letters=[(0, 1)], value="SECRET"), "other", "otto")
    wait_until(lambda: "otto ordered: PutRecordsBack" in caplog.text, "the order is logged")
    assert "refused an order from otto" in caplog.text
    assert "SECRET" not in caplog.text
