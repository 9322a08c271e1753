"""Defects that are planted into `joiner.runtime.membership`, to see whether the histories find them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Final

import msgspec

from joiner.runtime.control import Assignment
from joiner.runtime.membership import assign, detector, member
from joiner.runtime.membership.detector import FailureDetector
from joiner.runtime.membership.member import Member
from joiner.runtime.membership.state import SiteState, StandingOrders
from tests.simulation.bugs import changed


def _who_was_heard_is_declared_gone() -> AbstractContextManager[None]:
    apply = SiteState._assign  # noqa: SLF001
    return changed(
        SiteState,
        "_assign",
        lambda self, assignment: apply(
            self,
            type(assignment)(
                **{name: getattr(assignment, name) for name in ("site", "epoch", "units", "by", "reason")},
                gone=dict.fromkeys(assignment.gone, 1 << 60),
            ),
        ),
    )


def _whoever_was_gone_stays_gone() -> AbstractContextManager[None]:
    hear = SiteState._hear  # noqa: SLF001

    def keep(self: SiteState, heartbeat: Any, offset: int) -> None:
        was_gone = (before := self.members.get(heartbeat.instance)) is not None and before.is_gone
        hear(self, heartbeat, offset)
        if was_gone:
            self.members[heartbeat.instance] = replace(self.members[heartbeat.instance], is_gone=True)

    return changed(SiteState, "_hear", keep)


def _records_after_a_summary_are_skipped() -> AbstractContextManager[None]:
    begin = Member._begin  # noqa: SLF001

    def forget(self: Member, state: SiteState, now_s: float) -> None:
        self._unsure = deque(one for one in self._unsure or () if not isinstance(one.record, Assignment))
        begin(self, state, now_s)

    return changed(Member, "_begin", forget)


@contextmanager
def _the_log_is_taken_for_complete() -> Iterator[None]:
    assign = SiteState._assign  # noqa: SLF001

    def next_only(self: SiteState, assignment: Assignment) -> bool:
        return assignment.epoch == self.epoch + 1 and assign(self, assignment)

    with changed(SiteState, "_assign", next_only), changed(SiteState, "_adopt", lambda *_: False):
        yield


def _each_plans_with_its_own_number_of_standbys() -> AbstractContextManager[None]:
    def plan(state: SiteState, units: int, by: str, silent: Collection[str] = ()) -> Assignment | None:
        own = state.members[by].heartbeat.standbys if by in state.members else 0
        members = {
            name: replace(one, heartbeat=msgspec.structs.replace(one.heartbeat, standbys=own))
            for name, one in state.members.items()
        }
        return assign.next_assignment(replace(state, members=members), units, by, silent)

    return changed(member, "next_assignment", plan)


def _an_order_is_lost_by_a_summary(what: str, nothing: Any) -> AbstractContextManager[None]:
    summary = SiteState.summary
    return changed(SiteState, "summary", lambda self: msgspec.structs.replace(summary(self), **{what: nothing}))


def _a_summary_undoes_newer_orders() -> AbstractContextManager[None]:
    def adopt(self: StandingOrders, summary: Any) -> bool:
        before = self.drained, self.pinned, self.standbys
        self.drained, self.pinned, self.standbys = set(summary.drained), dict(summary.pinned), summary.standbys
        self.offsets = dict(summary.ordered)
        return before != (self.drained, self.pinned, self.standbys)

    return changed(StandingOrders, "merge", adopt)


def _a_pin_is_followed_before_the_state_is_built() -> AbstractContextManager[None]:
    def may_follow(self: Any, unit: int) -> bool:
        pin = self._pinned.get(unit)
        return pin is not None and pin != self.owners[unit] and self._is_settled(pin)

    return changed(assign._Planner, "_may_follow_pin", may_follow)  # noqa: SLF001


BUGS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "who_was_heard_is_declared_gone": _who_was_heard_is_declared_gone,
    "whoever_was_gone_stays_gone": _whoever_was_gone_stays_gone,
    "a_new_owner_does_not_wait_for_the_release": lambda: changed(SiteState, "is_taken", lambda *_, **__: False),
    "owners_do_not_release": lambda: changed(
        Member,
        "orders",
        lambda self, *given, orders=Member.orders: orders(self, *given)._replace(release=frozenset()),
    ),
    "observed_gaps_are_ignored": lambda: changed(detector, "_GAPS", 0.0),
    "nobody_is_silent": lambda: changed(FailureDetector, "silent", lambda *_: set()),
    "an_outage_is_taken_for_failures": lambda: changed(Member, "is_in_touch", lambda *_: True),
    "the_log_is_taken_for_complete": _the_log_is_taken_for_complete,
    "records_after_a_summary_are_skipped": _records_after_a_summary_are_skipped,
    "each_plans_with_its_own_number_of_standbys": _each_plans_with_its_own_number_of_standbys,
    "the_load_is_not_balanced": lambda: changed(assign._Planner, "balance", lambda _: None),  # noqa: SLF001
    "standbys_are_not_replaced": lambda: changed(assign._Planner, "choose_standbys", lambda _: None),  # noqa: SLF001
    "pinned_units_are_moved_to_balance_the_load": lambda: changed(assign._Planner, "_is_fixed", lambda *_: False),  # noqa: SLF001
    "a_pin_is_followed_before_the_state_is_built": _a_pin_is_followed_before_the_state_is_built,
    "a_standby_does_not_take_over_from_a_server_that_is_not_the_owner": lambda: changed(
        assign._Planner,  # noqa: SLF001
        "_is_abandoned",
        lambda *_: False,
    ),
    "whoever_is_to_take_a_unit_over_claims_it_before_a_warm_standby": lambda: changed(
        member._Proposals,  # noqa: SLF001
        "move",
        lambda *_: False,
    ),
    "who_has_claimed_a_unit_is_not_noted": lambda: changed(SiteState, "_note_claims", lambda *_: None),
    "a_fenced_owner_claims_its_units_before_a_warm_standby": lambda: changed(
        member._Waits,  # noqa: SLF001
        "_is_unreported",
        lambda *_: False,
    ),
    "a_summary_loses_the_number_of_standbys": lambda: _an_order_is_lost_by_a_summary("standbys", None),
    "a_summary_loses_pins": lambda: _an_order_is_lost_by_a_summary("pinned", {}),
    "a_summary_undoes_newer_orders": _a_summary_undoes_newer_orders,
    "an_order_to_try_again_reaches_nobody": lambda: changed(Member, "take_retries", lambda _: set()),
}
