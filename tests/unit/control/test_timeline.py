"""Does the timeline tell what has happened, once, with the pauses, and without growing?"""

from __future__ import annotations

from typing import Any

import pytest

from control.facts.timeline import EVENTS_MAX, Timeline
from joiner.runtime.control import (
    Assignment,
    Back,
    Claiming,
    Drain,
    Heartbeat,
    Left,
    Ready,
    Refused,
    Released,
    Request,
    Resumed,
    Scale,
    UnitAssignment,
    Workers,
)
from joiner.runtime.kafka.checkpoint_log import AppendedCheckpoint
from joiner.runtime.model import RESET_RUN, OnTheWay
from tests.unit.joiner.runtime.test_model import make_checkpoint


def told(timeline: Timeline) -> list[tuple[str, str]]:
    return [(event.kind, event.text) for event in timeline.events]


def beat(instance: str = "one", run: str = "run", **more: Any) -> Heartbeat:
    return Heartbeat(site="process", instance=instance, run=run, **more)


def test_an_instance_joins_once_and_leaves_once() -> None:
    timeline = Timeline()
    for at_ms in range(3):
        timeline.apply_member(beat(), at_ms)
    timeline.apply_member(Left(site="process", instance="one", run="an older run"), 3)
    timeline.apply_member(Left(site="process", instance="one", run="run"), 4)
    timeline.apply_member(Left(site="process", instance="one", run="run"), 5)
    assert told(timeline) == [("joined", "one has joined"), ("left", "one has left")]
    assert [event.at_ms for event in timeline.events] == [0, 4]


def test_an_instance_that_was_started_again_is_a_new_process() -> None:
    timeline = Timeline()
    timeline.apply_member(beat(run="a"), 0)
    timeline.apply_member(beat(run="b"), 1)
    assert told(timeline)[-1] == ("joined", "one has joined again, as a new process")


def test_an_assignment_tells_who_failed_and_why_it_was_made() -> None:
    timeline = Timeline()
    units = [UnitAssignment("two")]
    timeline.apply_member(
        Assignment(site="process", epoch=7, units=units, gone={"one": 3}, by="two", reason="one is gone"), 5
    )
    timeline.apply_member(Assignment(site="process", epoch=8, units=units), 6)
    assert told(timeline) == [
        ("failed", "one was not heard of and is considered failed"),
        ("assigned", "assignment 7: one is gone"),
        ("assigned", "assignment 8: reason not known"),
    ]


def test_orders_of_operators_are_events() -> None:
    timeline = Timeline()
    timeline.apply_member(Drain(site="process", instance="one"), 0)
    timeline.apply_member(Drain(site="process", instance="one", drained=False), 1)
    timeline.apply_member(Scale(site="process", instance="host", processes=3), 2)
    timeline.apply_member(Workers(site="process", instance="host", host="h", running=1, wanted=3), 3)
    assert [kind for kind, _ in told(timeline)] == ["drained", "drained", "scaled"]
    assert told(timeline)[1][1] == "one may have units again"


def test_a_move_is_told_step_by_step_with_its_pause() -> None:
    timeline = Timeline()
    of: dict[str, Any] = {"move": "m", "unit": 2, "to": "spark"}
    for at_ms in (0, 1_000):  # an order is repeated until it has been carried out
        timeline.apply_move(Request(move="m", units=[2, 3], to="spark"), at_ms)
    timeline.apply_move(Ready(instance="s", **of), 1_500)
    timeline.apply_move(Released(instance="one", **of), 2_000)
    timeline.apply_move(Resumed(instance="s", late_ms=30, **of), 2_130)
    timeline.apply_move(Refused(move="m", unit=3, to="spark", instance="s", why="the state is too large"), 2_200)
    timeline.apply_move(Back(move="m", unit=3, to="spark", instance="one"), 2_300)
    timeline.apply_move(Claiming(units=[3], to="process", run="r"), 2_400)
    assert [event.kind for event in timeline.events] == ["ordered", "released", "moved", "refused", "refused"]
    moved = timeline.events[2]
    assert (moved.pause_ms, moved.unit, moved.site, moved.instance, moved.move) == (100, 2, "spark", "s", "m")


def test_a_move_whose_release_was_not_read_has_no_known_pause() -> None:
    timeline = Timeline()
    timeline.apply_move(Resumed(move="m", unit=0, to="spark", instance="s"), 5)
    assert timeline.events[0].pause_ms is None


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
def test_a_unit_that_has_another_owner_is_an_event(before: Any, after: Any, pause_ms: Any) -> None:
    timeline = Timeline()
    timeline.apply_checkpoint(
        AppendedCheckpoint(make_checkpoint(**before), 1_000), AppendedCheckpoint(make_checkpoint(**after), 1_700)
    )
    found = [event.pause_ms for event in timeline.events]
    assert found == ([] if pause_ms == "no event" else [pause_ms])


def test_the_first_checkpoint_that_is_read_is_no_event() -> None:
    timeline = Timeline()
    timeline.apply_checkpoint(None, AppendedCheckpoint(make_checkpoint(), 1_000))
    assert not timeline.events


def test_old_events_are_forgotten_and_numbers_go_on() -> None:
    timeline = Timeline()
    for number in range(EVENTS_MAX + 5):
        timeline.apply_member(Drain(site="process", instance="one"), number)
    assert (timeline.events[0].number, timeline.events[-1].number) == (6, EVENTS_MAX + 5)
