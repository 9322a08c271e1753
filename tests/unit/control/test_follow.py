"""Do the messages of an application's topics add up to what is true of it?"""

from __future__ import annotations

from typing import Any

import pytest

from control.facts.follow import Followed
from joiner.runtime.control import Heartbeat, NotServed, encode
from joiner.runtime.model import UnitStopped, checkpoint_key
from joiner.runtime.model import encode as encode_state
from tests.unit.joiner.runtime.test_model import make_checkpoint


def commit(followed: Followed, unit: int, at_ms: int, records: int, **changes: Any) -> None:
    checkpoint = make_checkpoint(unit=unit, counts={"records": records}, **changes)
    followed.apply_state(unit, checkpoint_key(unit).encode(), encode_state(checkpoint), at_ms)


def test_the_last_checkpoint_of_each_unit_counts() -> None:
    followed = Followed(3)
    commit(followed, 0, 1_000, 10)
    commit(followed, 2, 1_100, 20)
    commit(followed, 0, 1_200, 30, instance="two")
    found = [None if one is None else (one.checkpoint.instance, one.appended_ms) for one in followed.checkpoints]
    assert found == [("two", 1_200), None, ("one", 1_100)]
    assert [event.kind for event in followed.timeline.events] == ["owner"]


def test_snapshots_tombstones_and_notes_are_no_checkpoints() -> None:
    followed = Followed(1)
    for key in (b"0/0/manifest", b"0/0/1", b"0/unsettled", b"1/progress", None):
        followed.apply_state(0, key, b"anything", 0)
    followed.apply_state(0, b"0/progress", None, 0)
    assert followed.checkpoints == [None]


def test_a_checkpoint_that_cannot_be_read_is_told() -> None:
    with pytest.raises(UnitStopped, match="cannot be read"):
        Followed(1).apply_state(0, b"0/progress", b"{", 0)


def test_records_of_the_control_topic_go_where_they_belong_and_rubbish_is_passed_over() -> None:
    followed = Followed(1)
    followed.apply_control(encode(Heartbeat(site="process", instance="one", run="r", serves=[0])), 7, 100)
    for value in (None, b"", b"\xff", b'{"kind":"future"}', b'{"kind":"heartbeat","format":99}', b"[" * 100_000):
        followed.apply_control(value, 8, 100)
    assert followed.sites["process"].live["one"].serves == [0]
    assert [event.kind for event in followed.timeline.events] == ["joined"]


def test_a_report_of_a_unit_that_is_not_served_is_shown_until_it_is_withdrawn_or_old() -> None:
    followed = Followed(1)
    report: dict[str, Any] = {"unit": 0, "instance": "one", "site": "process"}
    followed.apply_control(encode(NotServed(why="memory is short", **report)), 1, 100_000)
    (line,) = followed.notices(101_000)
    assert "unit 0: not served by process one" in line
    assert line.endswith("memory is short")
    followed.apply_control(encode(NotServed(why="", **report)), 2, 102_000)
    assert followed.notices(103_000) == []
    followed.apply_control(encode(NotServed(why="memory is short", **report)), 3, 104_000)
    assert followed.notices(200_000) == []


def test_the_rate_is_that_of_the_last_seconds() -> None:
    followed = Followed(2)
    for second in range(20):
        commit(followed, 0, 1_000 * second, 100 * second if second < 10 else 1_000 + 500 * (second - 10))
    at_once, idle = followed.rates(19_000)
    assert (at_once, idle) == (500.0, 0.0)
    assert followed.rates(60_000) == [0.0, 0.0]


def test_a_unit_that_was_reset_has_no_negative_rate() -> None:
    followed = Followed(1)
    commit(followed, 0, 1_000, 5_000)
    commit(followed, 0, 2_000, 10)
    assert followed.rates(2_000) == [0.0]
