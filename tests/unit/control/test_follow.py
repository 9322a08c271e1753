"""Do the messages of an application's topics amount to what is true of it, and to events that have happened?"""

from __future__ import annotations

from typing import Any

import pytest

from control.facts.flow.meters import Move
from control.facts.follow import Followed
from control.facts.timeline import EVENTS_MAX, Timeline
from joiner.runtime.control import (
    Assignment,
    Back,
    Cancelled,
    Claiming,
    Drain,
    Heartbeat,
    Left,
    NotServed,
    Pin,
    Ready,
    Refused,
    Released,
    Request,
    Resumed,
    Retry,
    Scale,
    Standbys,
    UnitAssignment,
    Workers,
    encode,
)
from joiner.runtime.model import RESET_RUN, OnTheWay, checkpoint_key
from joiner.runtime.model import encode as encode_state
from tests.unit.joiner.runtime.test_model import make_checkpoint


class Case:
    """An application whose messages are given one by one, with growing offsets."""

    def __init__(self, units: int = 1, *, is_live: bool = True) -> None:
        self.timeline = Timeline()
        self.followed = Followed(units, self.timeline, rate_s=5.0)
        self.followed.is_live = is_live
        self._offset = 0

    def control(self, *records: Any, at_ms: int = 0) -> None:
        """Give records of the control topic."""
        for record in records:
            self._offset += 1
            value = record if isinstance(record, bytes) else encode(record)
            self.followed.apply_control(value, self._offset, at_ms)

    def commit(
        self, unit: int = 0, at_ms: int = 0, records: int = 0, offset: int | None = None, **changes: Any
    ) -> None:
        """Give a checkpoint."""
        self._offset += 1
        value = encode_state(make_checkpoint(unit=unit, counts={"records": records}, **changes))
        at = self._offset if offset is None else offset
        self.followed.apply_state(unit, at, checkpoint_key(unit).encode(), value, at_ms)

    def kinds(self) -> list[str]:
        """Return the kinds of the events."""
        return [event.kind for event in self.timeline.events]

    def texts(self) -> list[str]:
        """Return the texts of the events."""
        return [event.text for event in self.timeline.events]


def beat(instance: str = "one", run: str = "run", **more: Any) -> Heartbeat:
    return Heartbeat(site="process", instance=instance, run=run, **more)


def left(instance: str = "one", run: str = "run") -> Left:
    return Left(site="process", instance=instance, run=run)


# What is true now


def test_the_last_checkpoint_of_each_unit_counts() -> None:
    case = Case(3)
    case.commit(0, 1_000, instance="one")
    case.commit(2, 1_100, instance="one")
    case.commit(0, 1_200, instance="two")
    # A partition that is read again from its beginning changes nothing.
    case.commit(0, 900, offset=1, instance="three")
    found = [None if one is None else (one.checkpoint.instance, one.appended_ms) for one in case.followed.checkpoints]
    assert found == [("two", 1_200), None, ("one", 1_100)]
    assert case.kinds() == ["owner"]


def test_snapshots_tombstones_and_notes_are_no_checkpoints() -> None:
    followed = Case().followed
    for offset, key in enumerate((b"0/0/manifest", b"0/0/1", b"0/unsettled", b"1/progress", None)):
        followed.apply_state(0, offset, key, b"anything", 0)
    followed.apply_state(0, 9, b"0/progress", None, 0)
    assert (followed.checkpoints, followed.unreadable) == ([None], {})


def test_a_checkpoint_that_cannot_be_read_hides_no_other_unit() -> None:
    case = Case(2)
    case.commit(0, 1)
    case.followed.apply_state(1, 5, b"1/progress", b"{", 0)
    assert case.followed.checkpoints[0] is not None
    assert "unit 1: a record of the state topic cannot be read" in case.followed.unreadable[1]
    case.commit(1, 2, offset=6)
    assert case.followed.unreadable == {}


def test_rubbish_in_the_control_topic_is_passed_over() -> None:
    case = Case()
    case.control(beat(serves=[0]))
    case.control(b"", b"\xff", b'{"kind":"future"}', b'{"kind":"heartbeat","format":99}', b"[" * 100_000)
    assert case.followed.sites(0)["process"].live["one"].serves == [0]
    assert case.kinds() == ["joined"]


def test_a_site_of_which_nothing_was_heard_lately_is_left_out() -> None:
    case = Case()
    case.control(beat(), at_ms=1_000_000)
    assert set(case.followed.sites(1_010_000)) == {"process"}
    assert case.followed.sites(2_000_000) == {}


def test_a_report_of_a_unit_that_is_not_served_is_shown_until_it_is_withdrawn_or_old() -> None:
    case = Case()
    report: dict[str, Any] = {"unit": 0, "instance": "one", "site": "process"}
    case.control(NotServed(why="memory is short", **report), at_ms=100_000)
    (line,) = case.followed.notices(101_000)
    assert "unit 0: not served by process one" in line
    assert line.endswith("memory is short")
    case.control(NotServed(why="", **report), at_ms=102_000)
    assert case.followed.notices(103_000) == []
    case.control(NotServed(why="memory is short", **report), at_ms=104_000)
    assert case.followed.notices(200_000) == []


def test_the_rate_is_that_of_the_last_seconds() -> None:
    case = Case(2)
    records = 0
    for second in range(20):
        records += 100 if second < 10 else 500
        case.commit(0, records=records)
        case.followed.sample(float(second))
    assert case.followed.rates() == [500.0, 0.0]
    for second in range(20, 26):
        case.followed.sample(float(second))
    assert case.followed.rates() == [0.0, 0.0]
    # The rate after a long pause is not that of the pause.
    case.commit(0, records=records + 1_000)
    case.followed.sample(3_600.0)
    case.followed.sample(3_601.0)
    case.commit(0, records=records + 6_000)
    case.followed.sample(3_605.0)
    assert case.followed.rates()[0] == 1_000.0


def test_a_unit_that_was_reset_has_no_negative_rate() -> None:
    case = Case()
    case.commit(records=5_000)
    case.followed.sample(1.0)
    case.commit(records=10)
    case.followed.sample(2.0)
    assert case.followed.rates() == [0.0]


# What has happened


def test_an_instance_joins_once_and_leaves_once() -> None:
    case = Case()
    case.control(beat(), beat(), beat(), left(run="an older run"), left(), left())
    assert case.texts() == ["one has joined", "one has left"]
    # A heartbeat that was written before the end arrives after it.
    case.control(beat())
    assert case.kinds() == ["joined", "left"]


def test_an_instance_that_was_started_again_is_another_process_once() -> None:
    case = Case()
    # The former process has not noticed yet that it was replaced.
    case.control(beat(run="a"), beat(run="b"), beat(run="a"), beat(run="b"), beat(run="a"))
    assert case.texts() == ["one has joined", "one has joined again, as another process"]


def test_whoever_was_there_before_the_service_has_not_just_joined() -> None:
    case = Case(is_live=False)
    case.control(beat(), Drain(site="process", instance="two"))
    case.followed.is_live = True
    case.control(beat(), beat("two"))
    assert case.texts() == ["two is to be drained", "two has joined"]


def test_a_failure_and_a_return_are_events_and_a_refuted_suspicion_is_none() -> None:
    case = Case()
    units = [UnitAssignment("two")]
    case.control(beat(), beat("two"))
    case.control(Assignment(site="process", epoch=7, units=units, gone={"one": 1}, by="two", reason="one is gone"))
    case.control(beat())
    # One has been heard since then, and an assignment may not have an older epoch.
    case.control(Assignment(site="process", epoch=8, units=units, gone={"one": 1}, by="two"))
    case.control(Assignment(site="process", epoch=6, units=units))
    case.control(Assignment(site="process", epoch=9, units=units))
    assert case.texts()[2:] == [
        "one was silent for too long and is considered failed",
        "assignment 7: one is gone",
        "one is heard from again",
        "assignment 9: reason not known",
    ]
    assert case.kinds()[2:] == ["failed", "assigned", "returned", "assigned"]


def test_orders_of_operators_are_events() -> None:
    case = Case()
    case.control(
        Drain(site="process", instance="one"),
        Drain(site="process", instance="one", drained=False),
        Scale(site="process", instance="host", processes=3),
        Workers(site="process", instance="host", host="h", running=1, wanted=3),
        Pin(site="process", unit=1, instance="one"),
        Pin(site="process", unit=1),
        Standbys(site="process", count=1),
        Standbys(site="process"),
        Retry(site="process", unit=0),
    )
    assert case.kinds() == [*["drained"] * 2, "scaled", *["pinned"] * 2, *["standbys"] * 2, "retried"]
    assert case.texts() == [
        "one is to be drained",
        "one is no longer drained",
        "host is to run 3 worker processes",
        "unit 1 is pinned to one",
        "unit 1 is no longer pinned",
        "each unit of process is to have 1 standby",
        "each unit of process is to have as many standbys as the settings say",
        "unit 0 is to be tried again",
    ]


def test_a_move_is_reported_step_by_step_with_its_pause() -> None:
    case = Case()
    of: dict[str, Any] = {"move": "m", "unit": 2, "to": "spark"}
    for at_ms in (0, 1_000):  # an order is repeated until it has been carried out
        case.control(Request(move="m", units=[2, 3], to="spark"), at_ms=at_ms)
    case.control(Ready(instance="s", **of), at_ms=1_500)
    for at_ms in (2_000, 2_100):  # the target reports a release that it has found as well
        case.control(Released(instance="one", **of), at_ms=at_ms)
    case.control(Resumed(instance="s", late_ms=30, **of), at_ms=2_130)
    for at_ms in (2_200, 2_700):
        case.control(Refused(move="m", unit=3, to="spark", instance="s", why="too large"), at_ms=at_ms)
    case.control(Back(move="m", unit=3, to="spark", instance="one"), Claiming(units=[3], to="process", run="r"))
    case.control(Cancelled(move="m", units=[3]))
    assert case.kinds() == ["ordered", "released", "moved", "refused", "refused", "cancelled"]
    moved = case.timeline.events[2]
    assert (moved.pause_ms, moved.unit, moved.site, moved.instance, moved.move) == (100, 2, "spark", "s", "m")


def test_units_are_being_moved_from_the_order_until_they_run_at_the_target() -> None:
    case = Case(units=3)
    for unit in range(3):
        case.commit(unit)
    case.control(Request(move="m", units=[0, 1, 9], to="edge"), at_ms=1_000)
    ordered = Move("process", "edge", is_released=False)
    assert case.followed.moves(2_000) == {0: ordered, 1: ordered}
    assert case.followed.moves(6_001) == {}, "an order that is not repeated has expired"
    case.control(Refused(move="m", unit=1, to="edge", instance="two", why="no"), at_ms=2_000)
    assert case.followed.moves(2_000) == {0: ordered}
    case.commit(0, site="edge", run=OnTheWay("m", "process").run())
    assert case.followed.moves(9_000) == {0: Move("process", "edge", is_released=True)}
    case.commit(0, site="edge", instance="two")
    # The order is repeated until all its units have moved.
    case.control(Request(move="m", units=[0, 1], to="edge"), at_ms=9_000)
    assert case.followed.moves(9_000) == {1: ordered}
    case.control(Cancelled(move="m", units=[1]), at_ms=9_000)
    assert case.followed.moves(9_000) == {}


def test_a_move_whose_release_was_not_read_has_no_known_pause() -> None:
    case = Case()
    case.control(Resumed(move="m", unit=0, to="spark", instance="s"))
    assert case.timeline.events[0].pause_ms is None


@pytest.mark.parametrize(
    ("before", "after", "pause_ms"),
    [
        ({"run": "a"}, {"run": "a"}, "no event"),
        ({"run": "a", "instance": "one"}, {"run": "b", "instance": "two"}, 700),
        ({"run": "a", "stopped": True}, {"run": "b"}, None),
        ({"run": OnTheWay("m", "process").run()}, {"run": "b", "site": "spark"}, None),
        ({"run": "a"}, {"run": OnTheWay("m", "process").run()}, "no event"),
        ({"run": "a"}, {"run": RESET_RUN}, "no event"),
    ],
)
def test_a_unit_that_is_served_by_another_process_is_an_event(before: Any, after: Any, pause_ms: Any) -> None:
    case = Case()
    case.commit(at_ms=1_000, **before)
    case.commit(at_ms=1_700, **after)
    found = [event.pause_ms for event in case.timeline.events]
    assert found == ([] if pause_ms == "no event" else [pause_ms])


def test_owners_before_the_service_are_no_events() -> None:
    case = Case(is_live=False)
    case.commit(instance="one", run="a")
    case.commit(instance="two", run="b")
    case.followed.is_live = True
    assert case.kinds() == []
    case.commit(instance="three", run="c")
    assert case.texts() == ["unit 0 is served by process three; before: process two"]


def test_old_events_are_forgotten_and_numbers_go_on() -> None:
    case = Case()
    for _ in range(EVENTS_MAX + 5):
        case.control(Drain(site="process", instance="one"))
    events = case.timeline.events
    assert (events[0].number, events[-1].number) == (6, EVENTS_MAX + 5)
    # After a connection was lost, the topics are read anew, and the numbers go on.
    again = Followed(1, case.timeline, 5.0)
    again.apply_control(encode(Drain(site="process", instance="one")), 1, at_ms=1)
    assert events[-1].number == EVENTS_MAX + 6
