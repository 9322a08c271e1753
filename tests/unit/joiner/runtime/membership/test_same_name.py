"""Do instances agree on which of two processes of the same name counts?"""

from __future__ import annotations

import pytest

from joiner.runtime.control import Heartbeat, Left, Logged
from joiner.runtime.membership.member import Identity, Member, Timing, Work


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
