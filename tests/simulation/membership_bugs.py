"""Defects that are planted into `joiner.runtime.membership`, to see whether the histories find them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Final

from joiner.runtime.membership import assign, member, state
from joiner.runtime.membership.detector import FailureDetector
from joiner.runtime.membership.member import Member
from joiner.runtime.membership.state import SiteState


@contextmanager
def _changed(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _stale_assignments_are_accepted() -> AbstractContextManager[None]:
    apply = SiteState._assign  # noqa: SLF001

    def assign_any(self: SiteState, assignment: Any) -> bool:
        self.epoch = assignment.epoch - 1
        return apply(self, assignment)

    return _changed(SiteState, "_assign", assign_any)


def _who_was_heard_is_declared_gone() -> AbstractContextManager[None]:
    apply = SiteState._assign  # noqa: SLF001
    return _changed(
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

    return _changed(SiteState, "_hear", keep)


BUGS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "stale_assignments_are_accepted": _stale_assignments_are_accepted,
    "who_was_heard_is_declared_gone": _who_was_heard_is_declared_gone,
    "whoever_was_gone_stays_gone": _whoever_was_gone_stays_gone,
    "a_new_owner_does_not_wait_for_the_release": lambda: _changed(Member, "_is_held", lambda *_: False),
    "owners_do_not_release": lambda: _changed(
        Member,
        "orders",
        lambda self, *given, orders=Member.orders: orders(self, *given)._replace(release=frozenset()),
    ),
    "a_stalled_reader_suspects_everybody": lambda: _changed(FailureDetector, "tick", lambda *_: None),
    "nobody_is_silent": lambda: _changed(FailureDetector, "silent", lambda *_: set()),
    "new_instances_believe_the_first_assignment": lambda: _changed(member, "Summary", type("Never", (), {})),
    "the_load_is_not_balanced": lambda: _changed(assign._Planner, "balance", lambda _: None),  # noqa: SLF001
    "standbys_are_not_replaced": lambda: _changed(assign._Planner, "choose_standbys", lambda _: None),  # noqa: SLF001
    "instances_that_return_are_settled": lambda: _changed(state, "SETTLED_BEATS", 0),
}
