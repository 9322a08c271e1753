"""Is an order refused if it cannot be carried out, and does its plan say what it would do?"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from broker.partitioner import partition_of
from broker.wire.records import Watermark
from control.actions.orders import Drain, Move, Order, PutRecordsBack, ReleaseSilent, Scale, decode_order
from control.actions.plan import OrderRefused, plan, plan_watermark, progress, units_to_move
from control.facts.reading import Facts
from tests.unit.control.audited import facts_of, settings_of

NOW_NS = 1_554_096_460_000_000_000
SEEN = {"process": 3}


def would(order: Order, facts: Facts | None = None) -> str:
    return " ".join(plan(order, facts or facts_of(), settings_of(), NOW_NS))


@pytest.mark.parametrize(
    ("order", "text"),
    [
        (Move(to="spark", epochs=SEEN), "Move units 0, 1 to the site spark"),
        (Move(to="spark", units=[1, 1], epochs={}), "Move unit 1 to the site spark"),
        (Drain(site="process", instance="one", epochs=SEEN), "Hand over unit 0 of one to two."),
        (Scale(site="process", instance="host", processes=3, epochs=SEEN), "run 3 worker processes; now 1."),
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
    assert "Not move unit 0, without an owner." in would(Move(to="spark", epochs={}), facts_of(status=status))
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
        (Drain(site="process", instance="one", undo=True, epochs={}), facts_of(), True, "one may have units again"),
        (Scale(site="process", instance="other", processes=1, epochs={}), facts_of(), False, "other is not running"),
        (Scale(site="process", instance="host", processes=1, epochs={}), facts_of(), False, "0 of 1 worker processes"),
    ],
)
def test_progress_is_what_the_facts_say(order: Any, facts: Facts, is_done: bool, text: str) -> None:  # noqa: FBT001 - a case
    found = progress(order, facts)
    assert (found.is_done, text in found.text) == (is_done, True), found


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
        (ReleaseSilent(time=1, topic="machine.out"), "machine.out is not an input topic; these are: machine.data"),
        (
            ReleaseSilent(time=1, quantity="pressure"),
            "nothing reads the quantity pressure of machine.data; known are: ",
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
