"""Does a filled form become the order that it says?"""

from __future__ import annotations

from typing import Any

import pytest

from control.actions.orders import Drain, Move, Order, Pin, PutRecordsBack, ReleaseSilent, Retry, Scale, Standbys
from control.page.forms import (
    DRAIN,
    INPUTS,
    KINDS,
    MOVE,
    PIN,
    RELEASE,
    RETRY,
    SCALE,
    STANDBYS,
    UNDO,
    UNPIN,
    describe,
    options,
    order_of,
    units_of,
)
from joiner.runtime.membership.ordering import OrderRefused
from tests.unit.control.audited import facts_of, settings_of
from tests.unit.joiner.runtime.joiner_inputs import DATA


@pytest.mark.parametrize(
    ("kind", "fields", "order", "words"),
    [
        (MOVE, {"to": "spark"}, Move(to="spark", epochs={"process": 3}), "move all units to spark"),
        (
            MOVE,
            {"to": "spark", "units": "1, 0"},
            Move(to="spark", units=[0, 1], epochs={"process": 3}),
            "move units 0, 1 to spark",
        ),
        (
            DRAIN,
            {"instance": "process one"},
            Drain(site="process", instance="one", epochs={"process": 3}),
            "drain one at process",
        ),
        (
            UNDO,
            {"instance": "process a name with spaces"},
            Drain(site="process", instance="a name with spaces", undo=True, epochs={"process": 3}),
            "undo the drain of a name with spaces at process",
        ),
        (
            SCALE,
            {"instance": "process host", "processes": 3.0},
            Scale(site="process", instance="host", processes=3, epochs={"process": 3}),
            "run 3 worker processes under host at process",
        ),
        (
            PIN,
            {"instance": "process two", "unit": 0.0},
            Pin(site="process", unit=0, instance="two", epochs={"process": 3}),
            "pin unit 0 to two at process",
        ),
        (
            UNPIN,
            {"pin": "process 12 a name with spaces"},
            Pin(site="process", unit=12, instance=None, epochs={"process": 3}),
            "unpin unit 12 at process",
        ),
        (
            STANDBYS,
            {"site": "process", "count": 1.0},
            Standbys(site="process", count=1, epochs={"process": 3}),
            "1 standby for each unit of process",
        ),
        (
            STANDBYS,
            {"site": "spark", "count": None},
            Standbys(site="spark", count=None, epochs={}),
            "as many standbys as the settings say for each unit of spark",
        ),
        (
            RETRY,
            {"site": "process", "unit": 1},
            Retry(site="process", unit=1, epochs={"process": 3}),
            "try unit 1 again at process",
        ),
        (
            RELEASE,
            {"time": "1554096460415000000"},
            ReleaseSilent(time=1554096460415000000),
            "watermark 1554096460415000000 for everything",
        ),
        (RELEASE, {"time": "-5", "thing": ""}, ReleaseSilent(time=-5), "watermark -5 for everything"),
        (
            RELEASE,
            {"time": "2019-04-01T00:00:00Z", "thing": "R0815", "quantity": "torque"},
            ReleaseSilent(time="2019-04-01T00:00:00Z", thing="R0815", quantity="torque"),
            "watermark 2019-04-01T00:00:00Z for thing R0815 and quantity torque",
        ),
    ],
)
def test_a_form_becomes_an_order(kind: str, fields: dict[str, Any], order: Order, words: str) -> None:
    assert order_of(kind, fields, facts_of()) == order
    assert describe(order) == words


def test_an_order_to_put_records_back_is_described_without_their_contents() -> None:
    order = PutRecordsBack(dead_letters=[(3, 17), (0, 4)], value="a secret")
    assert describe(order) == "put back the records of dead letters 3/17, 0/4"


def test_a_move_rests_on_the_assignments_of_the_sites_that_its_units_leave() -> None:
    order = order_of(MOVE, {"to": "spark", "units": "1"}, facts_of(("process", "spark")))
    assert order == Move(to="spark", units=[1], epochs={})


@pytest.mark.parametrize(
    ("kind", "fields", "why"),
    [
        (MOVE, {}, "choose the site to move"),
        (MOVE, {"to": "Spark!"}, "at .*to"),
        (MOVE, {"to": "spark", "units": "one"}, "units: 'one' is neither a number"),
        (MOVE, {"to": "spark", "units": "5-3"}, "units: '5-3' is not a range"),
        (MOVE, {"to": "spark", "units": "0-999999"}, "units: '0-999999' is not a range"),
        (DRAIN, {}, "choose an instance"),
        (SCALE, {"instance": "process host"}, "say how many worker processes"),
        (SCALE, {"instance": "process host", "processes": 0}, "at .*processes"),
        (SCALE, {"instance": "process host", "processes": 2.5}, "at .*processes"),
        (PIN, {"unit": 1.0}, "choose an instance"),
        (PIN, {"instance": "process one"}, "say which unit"),
        (PIN, {"instance": "process one", "unit": 1.5}, "at .*unit"),
        (UNPIN, {}, "choose a pin"),
        (STANDBYS, {"count": 1.0}, "choose a site"),
        (STANDBYS, {"site": "process", "count": 3.0}, "at .*count"),
        (STANDBYS, {"site": "process", "count": -1.0}, "at .*count"),
        (RETRY, {"unit": 1.0}, "choose a site"),
        (RETRY, {"site": "process"}, "say which unit"),
        (RETRY, {"site": "process", "unit": -1.0}, "at .*unit"),
        (RELEASE, {}, "enter a time"),
        (RELEASE, {"time": "5", "thing": "x" * 300}, "at .*thing"),
    ],
)
def test_a_form_that_is_not_filled_says_what_is_missing(kind: str, fields: dict[str, Any], why: str) -> None:
    with pytest.raises(OrderRefused, match=why):
        order_of(kind, fields, facts_of())


@pytest.mark.parametrize("kind", KINDS)
def test_each_choice_of_a_form_has_options(kind: str) -> None:
    choices = {field.name for field in INPUTS[kind] if field.kind == "choice"}
    assert options(kind, facts_of(), settings_of()).keys() == choices
    assert options(kind, facts_of(status=None), settings_of()).keys() == choices


def test_mapped_streams_are_not_offered_for_watermarks_because_they_have_none() -> None:
    stream = {"name": "speed", "topic": "plant", "key": "$.id", "time": "$.ts", "value": "$.rpm"}
    found = options(RELEASE, facts_of(), settings_of(stream=[stream]))
    assert (found["quantity"], found["topic"]) == (["torque"], [DATA])


def test_a_pin_that_is_chosen_is_ended() -> None:
    facts = facts_of(assignment={"pinned": {1: "two"}})
    (chosen,) = options(UNPIN, facts, settings_of())["pin"]
    assert chosen == "process 1 two"
    assert describe(order_of(UNPIN, {"pin": chosen}, facts)) == "unpin unit 1 at process"


def test_numbers_of_units_are_read_as_people_write_them() -> None:
    assert units_of("") is None
    assert units_of(" 3 ,0-2  7") == [0, 1, 2, 3, 7]
