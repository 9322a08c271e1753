"""Is an order refused if it cannot be carried out, and does its plan say what it would do?"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from broker.partitioner import partition_of
from broker.wire.records import Watermark
from control.actions.orders import (
    Drain,
    Move,
    Order,
    Pin,
    PutRecordsBack,
    ReleaseSilent,
    Retry,
    Scale,
    Standbys,
    decode_order,
)
from control.actions.plan import plan, plan_watermark, progress, units_to_move
from control.facts.reading import Facts
from joiner.runtime.membership.ordering import OrderRefused
from tests.unit.control.audited import facts_of, settings_of

NOW_NS = 1_554_096_460_000_000_000
SEEN = {"process": 3}


PIN = Pin(site="process", unit=0, instance="two", epochs={})
PIN_TO_ONE = msgspec.structs.replace(PIN, instance="one")
UNPIN = msgspec.structs.replace(PIN, instance=None)
PINNED = {"pinned": {0: "two"}}
STANDBY = Standbys(site="process", count=1, epochs={})
NO_STANDBY = Standbys(site="process", count=0, epochs={})
AS_SET = Standbys(site="process", count=None, epochs={})


def kept_warm(*standbys: list[str], ordered: int | None = 1, is_known: bool = True) -> Facts:
    """Return facts in which each unit has these standbys, all warm, and so many were ordered."""
    found = list(standbys)
    changed = {"standbys": found, "warm": found, "standbys_ordered": ordered}
    return facts_of(assignment=changed, is_known=is_known)


def would(order: Order, facts: Facts | None = None) -> str:
    return " ".join(plan(order, facts or facts_of(), settings_of(), NOW_NS))


@pytest.mark.parametrize(
    ("order", "text"),
    [
        (Move(to="spark", epochs=SEEN), "Move units 0, 1 to the site spark"),
        (Move(to="spark", units=[1, 1], epochs={}), "Move unit 1 to the site spark"),
        (Drain(site="process", instance="one", epochs=SEEN), "Hand over unit 0 from one to two."),
        (Scale(site="process", instance="host", processes=3, epochs=SEEN), "run 3 worker processes; now 1."),
        (
            Pin(site="process", unit=0, instance="two", epochs=SEEN),
            "Let two serve unit 0 whenever it can: one hands it",
        ),
        (Pin(site="process", unit=1, instance="two", epochs=SEEN), "Let two keep unit 1"),
        (Pin(site="process", unit=0, instance="one", epochs=SEEN), "Let one keep unit 0"),
        (Standbys(site="process", count=1, epochs=SEEN), "Let each unit of process have 1 standby, whatever"),
        (Standbys(site="process", count=0, epochs=SEEN), "Let each unit of process have no standby, whatever"),
        (
            Standbys(site="process", count=2, epochs=SEEN),
            "2 standbys, whatever `application.standbys` says. Only 1 can be kept",
        ),
        (Standbys(site="process", count=None, epochs=SEEN), "as many standbys as `application.standbys`"),
        (
            Retry(site="process", unit=1, epochs=SEEN),
            "Let all instances of process forget why they could not serve unit 1",
        ),
    ],
)
def test_a_plan_says_what_would_happen(order: Order, text: str) -> None:
    assert text in would(order)


@pytest.mark.parametrize(
    ("order", "why"),
    [
        (Move(to="spark", units=[7], epochs={}), "unknown: unit 7; the units are 0 to 1"),
        (Move(to="green", epochs={}), "no instance runs at the site green"),
        (Move(to="process", epochs={}), "nothing to do"),
        (Move(to="spark", epochs={"process": 2}), "assignment 2 of process has been replaced by 3"),
        (Move(to="spark", epochs={"green": 1}), "assignment 1 of green has been replaced by 0"),
        (
            Drain(site="process", instance="three", epochs={}),
            "no instance three runs at site process; running there: one, two",
        ),
        (Drain(site="green", instance="one", epochs={}), "running there: none"),
        (Drain(site="process", instance="one", undo=True, epochs={}), "one is not drained"),
        (Drain(site="spark", instance="green-1", epochs={}), "no other instance at site spark"),
        (Scale(site="process", instance="other", processes=2, epochs={}), "running there: host"),
        (Scale(site="spark", instance="host", processes=2, epochs={}), "start one with `joiner run --processes`"),
        (Pin(site="process", unit=2, instance="two", epochs={}), "unknown: unit 2; the units are 0 to 1"),
        (
            Pin(site="process", unit=0, instance="six", epochs={}),
            "no instance six runs at site process; running there: one",
        ),
        (Pin(site="green", unit=0, instance="one", epochs={}), "running there: none"),
        (Pin(site="process", unit=0, instance=None, epochs={}), "unit 0 is not pinned at site process"),
        (
            Pin(site="process", unit=0, instance="one", epochs={"process": 2}),
            "assignment 2 of process has been replaced",
        ),
        (Standbys(site="green", count=1, epochs={}), "no instance runs at site green"),
        (Retry(site="process", unit=2, epochs={}), "unknown: unit 2"),
        (Retry(site="green", unit=0, epochs={}), "no instance runs at site green"),
        (Retry(site="spark", unit=0, epochs={}), "unit 0 is at the site process"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_with_a_reason(order: Order, why: str) -> None:
    with pytest.raises(OrderRefused, match=why.replace("`", ".")):
        would(order)


def test_nothing_is_ordered_on_facts_that_are_not_current() -> None:
    order = Move(to="spark", epochs={})
    with pytest.raises(OrderRefused, match="not current: Kafka is away"):
        would(order, facts_of(trouble="Kafka is away"))
    with pytest.raises(OrderRefused, match="has never run"):
        would(order, facts_of(status=None))


def test_a_drained_instance_is_no_heir() -> None:
    with pytest.raises(OrderRefused, match="no other instance"):
        would(Drain(site="process", instance="one", epochs={}), facts_of(drained="two"))


def test_no_unit_is_pinned_to_a_drained_instance() -> None:
    with pytest.raises(OrderRefused, match="two is drained"):
        would(Pin(site="process", unit=0, instance="two", epochs={}), facts_of(drained="two"))


def test_a_pin_can_be_ended_even_if_its_instance_is_gone() -> None:
    facts = facts_of(assignment={"pinned": {0: "gone"}})
    order = Pin(site="process", unit=0, instance=None, epochs=SEEN)
    assert "Let any instance of process serve unit 0." in would(order, facts)


def test_only_units_elsewhere_are_moved() -> None:
    status = facts_of(("process", "spark")).status
    assert status is not None
    assert units_to_move(Move(to="spark", epochs={}), status) == ([0], [])


def test_a_unit_without_an_owner_is_not_moved_unless_it_is_named() -> None:
    status = facts_of().status
    assert status is not None
    first, second = status.units
    assert first is not None
    units = [msgspec.structs.replace(first, state="nobody"), second]
    status = msgspec.structs.replace(status, units=units)
    assert units_to_move(Move(to="spark", epochs={}), status) == ([1], [0])
    assert "Leave out unit 0, without an owner." in would(Move(to="spark", epochs={}), facts_of(status=status))
    with pytest.raises(OrderRefused, match="unit 0 without an owner"):
        units_to_move(Move(to="spark", units=[0], epochs={}), status)


@pytest.mark.parametrize(
    ("order", "facts", "is_done", "text"),
    [
        (Move(to="spark", epochs={}), facts_of(("process", "spark")), False, "unit 0 not at spark"),
        (Move(to="spark", epochs={}), facts_of(("spark", "spark")), True, "all units are at spark"),
        (Move(to="spark", units=[1], epochs={}), facts_of(("process", "spark")), True, "all units are at spark"),
        (Drain(site="process", instance="one", epochs={}), facts_of(), False, "one serves unit 0"),
        (Drain(site="process", instance="one", epochs={}), facts_of(drained="one"), False, "one serves unit 0"),
        (
            Drain(site="process", instance="one", epochs={}),
            facts_of(("spark", "process"), drained="one", owners=("two", "two")),
            True,
            "one serves no unit",
        ),
        # It is about to claim a unit.
        (
            Drain(site="process", instance="one", epochs={}),
            facts_of(("spark", "process"), drained="one"),
            False,
            "one serves no unit",
        ),
        (
            Drain(site="process", instance="one", epochs={}),
            facts_of(("spark", "process"), drained="one", owners=("two", "two"), is_known=False),
            False,
            "the instances of process are not known",
        ),
        (Drain(site="process", instance="one", epochs={}), facts_of(("spark", "process")), False, "one serves no unit"),
        (Drain(site="process", instance="one", undo=True, epochs={}), facts_of(drained="one"), False, "ordered"),
        (Drain(site="process", instance="one", undo=True, epochs={}), facts_of(), True, "one is no longer drained"),
        (PIN, facts_of(), False, "unit 0 is served by one"),
        # The order is not known yet, although the unit is there by chance.
        (PIN, facts_of(("spark", "process"), owners=("two", "two")), False, "unit 0 is served by no instance"),
        (PIN, facts_of(assignment=PINNED), False, "unit 0 is served by one"),
        (PIN, facts_of(is_known=False, assignment=PINNED), False, "the instances of process are not known"),
        (PIN, facts_of(drained="two", assignment=PINNED), False, "served by one; two is drained"),
        (PIN_TO_ONE, facts_of(assignment={"pinned": {0: "one"}}), True, "unit 0 is served by one"),
        (PIN_TO_ONE, facts_of(), False, "unit 0 is served by one"),
        # It is about to be handed over.
        (PIN_TO_ONE, facts_of(owners=("two", "two"), assignment={"pinned": {0: "one"}}), False, "is served by one"),
        (UNPIN, facts_of(assignment=PINNED), False, "ordered"),
        (UNPIN, facts_of(), True, "unit 0 is no longer pinned"),
        (STANDBY, facts_of(), False, "ordered"),
        (STANDBY, facts_of(assignment={"standbys_ordered": 1}), False, "0 of 2 standbys are warm"),
        (STANDBY, kept_warm(["two"], []), False, "1 of 2 standbys are warm"),
        (STANDBY, kept_warm(["two"], ["one"]), True, "each unit has 1 standby"),
        (STANDBY, kept_warm([], [], is_known=False), False, "the instances of process are not known"),
        (NO_STANDBY, kept_warm(["two"], ["one"], ordered=0), False, "2 of 0 standbys are warm"),
        (NO_STANDBY, kept_warm([], [], ordered=0), True, "each unit has no standby"),
        (NO_STANDBY, kept_warm([], [], ordered=None), False, "ordered"),
        (AS_SET, kept_warm([], [], ordered=0), False, "ordered"),
        (AS_SET, kept_warm([], [], ordered=None), True, "as the settings say"),
        (Scale(site="process", instance="other", processes=1, epochs={}), facts_of(), False, "other is not running"),
        (Scale(site="process", instance="host", processes=1, epochs={}), facts_of(), False, "0 of 1 worker processes"),
    ],
)
def test_progress_is_what_the_facts_say(order: Any, facts: Facts, is_done: bool, text: str) -> None:  # noqa: FBT001 - a case
    found = progress(order, facts)
    assert (found.is_done, text in found.text) == (is_done, True), found


def test_more_standbys_than_there_are_instances_are_ordered_in_vain() -> None:
    order = Standbys(site="process", count=2, epochs={})
    assert progress(order, kept_warm(["two"], [], ordered=2)) == (False, "1 of 4 standbys are warm", False)
    text = "each unit has 1 standby, because there are too few instances"
    assert progress(order, kept_warm(["two"], ["one"], ordered=2)) == (False, text, True)


def test_an_instance_that_prepares_for_a_pinned_unit_is_no_standby_too_many() -> None:
    found = {"standbys": [["two"], []], "warm": [[], []], "standbys_ordered": 0}
    assert not progress(NO_STANDBY, facts_of(assignment=found)).is_done
    assert progress(NO_STANDBY, facts_of(assignment=found | PINNED)).is_done


def test_if_all_are_drained_they_are_standbys_nevertheless() -> None:
    found = {"standbys": [["two"], ["one"]], "warm": [["two"], ["one"]], "standbys_ordered": 1}
    facts = facts_of(assignment=found | {"drained": ["one", "two"]})
    assert progress(STANDBY, facts).is_done
    assert len(plan(STANDBY, facts, settings_of(), NOW_NS)) == 1


def test_units_at_another_site_need_no_standbys() -> None:
    facts = facts_of(
        ("process", "spark"), assignment={"standbys": [["two"], []], "warm": [["two"], []], "standbys_ordered": 1}
    )
    assert progress(STANDBY, facts) == (True, "each unit has 1 standby", False)


def test_scaling_is_done_once_as_many_workers_are_members_as_were_ordered() -> None:
    order = Scale(site="process", instance="host", processes=2, epochs={})
    status = facts_of().status
    assert status is not None
    processes = {"process": {"host-1": [0], "host-2": [1], "host-x": []}}
    facts = facts_of(running=2, status=msgspec.structs.replace(status, processes=processes))
    assert progress(order, facts).is_done
    assert not progress(msgspec.structs.replace(order, processes=1), facts).is_done


def test_a_watermark_goes_to_the_partition_of_its_thing_or_to_all() -> None:
    settings = settings_of()
    one = plan_watermark(ReleaseSilent(time=5, thing="R0815", quantity="speed"), settings, NOW_NS)
    assert (one.topic, one.partitions) == ("machine.data", [partition_of(b"R0815", 2)])
    assert (one.watermark, one.time_ns) == (Watermark(5, "speed", "R0815"), 5_000_000)
    assert plan_watermark(ReleaseSilent(time=5), settings, NOW_NS).partitions == [0, 1]


@pytest.mark.parametrize(
    ("order", "why"),
    [
        (
            ReleaseSilent(time=1, topic="machine.out"),
            "machine.out is not an input topic; the input topics are: machine.data",
        ),
        (
            ReleaseSilent(time=1, quantity="pressure"),
            "nothing reads the quantity pressure from machine.data; known quantities: ",
        ),
        (ReleaseSilent(time="yesterday"), "time: "),
        (ReleaseSilent(time="2019-04-01T07:27:40"), "time: "),
        (ReleaseSilent(time=NOW_NS // 1_000_000 + 2 * 86_400_000), "ahead of now, so it would be rejected"),
    ],
)
def test_a_watermark_that_would_have_no_effect_is_refused(order: ReleaseSilent, why: str) -> None:
    with pytest.raises(OrderRefused, match=why):
        would(order)


def test_the_plan_of_a_watermark_names_time_place_and_consequence() -> None:
    text = would(ReleaseSilent(time="2019-04-01T07:27:40+02:00", thing="R0815", quantity="torque"))
    assert "2019-04-01T05:27:40" in text
    assert "the quantity torque of the thing R0815" in text
    assert "machine.late" in text
    assert "cannot be undone" in text


def test_a_corrected_value_is_for_one_dead_letter_only() -> None:
    assert "dead letters 0/1, 1/2 to the partitions" in would(PutRecordsBack(dead_letters=[(0, 1), (1, 2)]))
    assert "with a corrected value, unless" in would(PutRecordsBack(dead_letters=[(0, 1)], value="{}"))
    with pytest.raises(OrderRefused, match="for one dead letter only"):
        would(PutRecordsBack(dead_letters=[(0, 1), (1, 2)], value="{}"))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"kind":"move"}',
        b'{"kind":"fly","to":"spark","epochs":{}}',
        b'{"kind":"move","to":"Spark!","epochs":{}}',
        b'{"kind":"move","to":"spark","epochs":{},"units":[]}',
        b'{"kind":"move","to":"spark","epochs":{},"units":[-1]}',
        b'{"kind":"move","to":"spark","epochs":{},"more":1}',
        b'{"kind":"move","to":"spark","epochs":{},"timeout_s":1e9}',
        b'{"kind":"scale","site":"process","instance":"host","processes":0,"epochs":{}}',
        b'{"kind":"watermark","time":1.5}',
        b'{"kind":"watermark","time":1,"thing":""}',
        b'{"kind":"putback","dead_letters":[]}',
        b'{"kind":"putback","dead_letters":[[0,-1]]}',
        b'{"kind":"putback","dead_letters":[[0]]}',
        b"[" * 50_000,
    ],
)
def test_what_is_no_order_is_refused(body: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError, RecursionError)):
        decode_order(body)
