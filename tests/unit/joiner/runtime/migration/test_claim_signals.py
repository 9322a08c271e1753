"""When does a runner announce a claim in progress, and for how long do other runners rely on the announcement?"""

from __future__ import annotations

from joiner.runtime.control import Claiming, decode, encode
from joiner.runtime.migration.claim_signals import LASTS_S, REPEAT_S, Claims


def test_a_claim_is_told_once_it_lasts_and_again_for_as_long_as_it_does() -> None:
    claims = Claims("process", "a-1")
    told = Claiming(units=[2], to="process", run="a-1")
    assert claims.due({2}, 10.0) is None, "most claims have ended by then"
    assert claims.due({2}, 10.0 + REPEAT_S) == told
    assert claims.due({2}, 10.1 + REPEAT_S) is None
    assert claims.due({2, 5}, 10.0 + 2 * REPEAT_S) == told, "the other claim has only just begun"
    assert claims.due(set(), 20.0) is None
    assert claims.due({2}, 21.0) is None, "a new claim"


def test_others_are_believed_for_a_while_and_oneself_is_not_another() -> None:
    claims = Claims("process", "a-1")
    claims.hear(Claiming(units=[1, 2], to="green", run="b-1"), 5.0)
    claims.hear(Claiming(units=[3], to="process", run="a-1"), 5.0)
    assert claims.of_others(5.0 + LASTS_S - 0.1) == {1, 2}
    assert claims.of_others(5.0 + LASTS_S) == set()


def test_it_is_read_as_it_is_written() -> None:
    told = Claiming(units=[1, 2], to="green", run="b-1")
    assert decode(encode(told)) == told
