"""Do instances agree on which of two processes of the same name counts?"""

from __future__ import annotations

import msgspec
import pytest

from joiner.runtime.control import Heartbeat, Left, Logged, MemberRecord
from joiner.runtime.membership.member import Identity, Member, Timing, Work
from joiner.runtime.membership.state import SiteState


def beat(run: str) -> Heartbeat:
    return Heartbeat(site="plain", instance="a", run=run)


@pytest.mark.parametrize("has_left", [False, True])
def test_a_process_that_was_suspended_notices_that_another_one_has_started_under_its_name(*, has_left: bool) -> None:
    one = Member(Identity("plain", "a", "first"), 4, Timing(), 0.0)
    one.hear(Logged(beat("first"), 0, 0), 0.1)
    one.beat(Work(), 1.0)
    assert not one.is_replaced
    # It reads all this at once when it continues.
    one.hear(Logged(beat("second"), 1, 0), 9.0)
    if has_left:
        one.hear(Logged(Left(site="plain", instance="a", run="second"), 2, 0), 9.0)
    assert one.is_replaced


class Log:
    """A control topic, and the processes that write their heartbeats to it and read it."""

    def __init__(self) -> None:
        self.records: list[MemberRecord] = []
        self.now_s = 0.0

    def turn(self, one: Member, *, is_reading: bool = True) -> None:
        """Let a process write its next heartbeat."""
        self.now_s += 1.0
        self.records += [record for record in one.beat(Work(), self.now_s) if isinstance(record, Heartbeat)]
        if is_reading:
            one.hear(Logged(self.records[-1], len(self.records) - 1, 0), self.now_s)

    def run_of_a(self, since: int) -> str:
        """Return the run of `a` that counts for an instance that has read the log from an offset on."""
        state = SiteState("plain")
        for offset, record in [*enumerate(self.records)][since:]:
            state.apply(record, offset)
        return state.members["a"].heartbeat.run


def test_a_process_that_was_suspended_does_not_replace_its_successor_whoever_has_begun_to_read_since() -> None:
    log = Log()
    first, second = (Member(Identity("plain", "a", run), 4, Timing(), 0.0) for run in ("first", "second"))
    log.turn(first)
    for _ in range(3):
        log.turn(second)
    # It writes before it reads when it continues.
    log.turn(first, is_reading=False)
    log.turn(second)
    assert {log.run_of_a(since) for since in range(5)} == {"second"}


@pytest.mark.parametrize("began", [-1, 7, 1_000])
def test_a_process_replaces_another_one_in_a_topic_that_has_been_recreated(began: int) -> None:
    state = SiteState("plain")
    state.apply(beat("first"), 1_000)
    state.apply(msgspec.structs.replace(beat("second"), began=began), 7)
    assert state.members["a"].heartbeat.run == "second"
