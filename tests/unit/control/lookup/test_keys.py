"""Are the keys that hold most found, with the streams that they wait for, and are questions answered from them?"""

from __future__ import annotations

from typing import Any

import pytest

from control.facts.lookup import keys
from control.facts.lookup.keys import Awaited, KeysRead, Selection, StreamOfKey, UnitRead, add_keys
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.unit import Unit
from tests.unit.joiner.runtime.joiner_inputs import (
    BASE_MS,
    DATA,
    GAP,
    POWER,
    Message,
    apply,
    make_settings,
    message,
    record,
)

MS = 1_000_000
SETTINGS = make_settings(POWER, GAP)
NOTHING = KeysRead([], {"power": 0, "gap": 0}, [])


def read(sent: list[Message], thing: str = "", settings: JoinerSettings = SETTINGS, number: int = 0) -> KeysRead:
    unit = Unit(settings, 0, {DATA: 0})
    apply(unit, sent)
    nothing = KeysRead([], dict.fromkeys((one.name for one in settings.operators), 0), [UnitRead(number, None)])
    return add_keys(nothing, settings, number, unit.held_by_key(), thing)


def speeds(**counts: int) -> list[Message]:
    """Return so many records of speed of each thing."""
    things = [thing for thing, count in counts.items() for _ in range(count)]
    return [record(at, "speed", BASE_MS + at, 1.0, thing) for at, thing in enumerate(things)]


def test_the_key_that_holds_most_comes_first() -> None:
    found = read(speeds(a=2, b=7, c=7, d=3))
    assert [(key.thing, key.operator, key.held) for key in found.keys] == [
        ("b", "gap", 7),
        ("b", "power", 7),
        ("c", "gap", 7),
        ("c", "power", 7),
        ("d", "gap", 3),
        ("d", "power", 3),
        ("a", "gap", 2),
        ("a", "power", 2),
    ]
    assert found.found == {"power": 4, "gap": 4}
    first = found.keys[1]
    assert (first.unit, first.kind) == (0, "join")
    assert first.streams == {
        "left": StreamOfKey("speed", 7, (BASE_MS + 8) * MS),
        "right": StreamOfKey("torque", 0, None),
    }
    assert first.waits_for == [Awaited("right", "torque", None)]


def test_a_stream_is_behind_as_far_as_the_latest_record_that_waits_for_it() -> None:
    sent = [record(0, "torque", BASE_MS, 1.0, "a"), record(1, "speed", BASE_MS + 70, 1.0, "a")]
    (power,) = (key for key in read(sent).keys if key.operator == "power")
    assert power.waits_for == [Awaited("right", "torque", 70 * MS)]


def test_of_several_streams_that_are_waited_for_the_silent_one_comes_first_and_then_the_one_furthest_behind() -> None:
    align: dict[str, Any] = {"name": "table", "driver": "speed", "columns": {"near": {}, "far": {}, "none": {}}}
    settings = JoinerSettings.model_validate({"topics": {"partitions": 1}, "align": [align]})
    sent = [
        record(0, "far", BASE_MS, 1.0, "a"),
        record(1, "near", BASE_MS + 5, 1.0, "a"),
        record(2, "speed", BASE_MS + 9, 1.0, "a"),
    ]
    (key,) = read(sent, settings=settings).keys
    assert [(one.stream, one.behind_ns) for one in key.waits_for] == [
        ("none", None),
        ("far", 9 * MS),
        ("near", 4 * MS),
    ]
    assert (key.kind, key.held, list(key.streams)) == ("align", 3, ["driver", "near", "far", "none"])
    assert [one.name for one in key.streams.values()] == list(key.streams)


def test_a_thing_without_a_part_in_a_join_is_none_of_its_keys() -> None:
    found = read([record(0, "torque", BASE_MS, 1.0, "a"), record(1, "command", BASE_MS, 1.0, "b")])
    assert [(key.thing, key.operator) for key in found.keys] == [("a", "power"), ("b", "gap")]


def test_a_thing_for_which_nothing_is_held_is_found_by_its_frontier() -> None:
    sent = [*speeds(b=1), message(1, {"mark": BASE_MS, "quantity": "torque", "thing": "a"})]
    found = [(key.thing, key.held) for key in read(sent).keys if key.operator == "power"]
    assert found == [("b", 1), ("a", 0)]


def test_a_thing_is_found_by_a_part_of_its_name_in_any_case() -> None:
    found = read(speeds(Mill1=1, mill2=2, lathe=3), "MILL")
    assert [key.thing for key in found.keys if key.operator == "power"] == ["mill2", "Mill1"]
    assert found.found == {"power": 2, "gap": 2}


def test_units_are_merged_and_each_join_keeps_an_equal_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "KEYS_MAX", 4)
    monkeypatch.setattr(keys, "_SHARE_MIN", 1)
    unit = Unit(SETTINGS, 0, {DATA: 0})
    apply(unit, [*speeds(a=5, b=4), record(9, "torque", BASE_MS, 1.0, "z")])
    one = add_keys(NOTHING, SETTINGS, 0, unit.held_by_key())
    other = Unit(SETTINGS, 0, {DATA: 0})
    apply(other, speeds(c=9, d=1))
    both = add_keys(one, SETTINGS, 1, other.held_by_key())
    assert [(key.unit, key.thing, key.operator) for key in both.keys] == [
        (1, "c", "gap"),
        (1, "c", "power"),
        (0, "a", "gap"),
        (0, "a", "power"),
    ]
    assert both.found == {"power": 5, "gap": 4}


def test_questions_are_answered_from_what_is_known_and_only_if_it_is_complete() -> None:
    whole = read(speeds(a=5, b=4, ab=1), number=3)
    answer = whole.select(Selection(operator="power"), 2)
    assert answer is not None
    assert ([key.thing for key in answer.keys], answer.found) == (["a", "b"], 3)
    answer = whole.select(Selection(3, "", "B"), 9)
    assert answer is not None
    assert [(key.thing, key.operator) for key in answer.keys] == [
        ("b", "gap"),
        ("b", "power"),
        ("ab", "gap"),
        ("ab", "power"),
    ]
    assert (answer.found, [one.unit for one in answer.units]) == (4, [3])
    elsewhere = whole.select(Selection(4), 9)
    assert elsewhere is not None
    assert (elsewhere.keys, elsewhere.found, elsewhere.units) == ([], 0, [])
    # A unit that took too long among others has more time alone.
    slow = whole._replace(units=[UnitRead(3, None, keys.TOO_LATE), UnitRead(4, None, "damaged")])
    assert slow.select(Selection(unit=3), 9) is None
    assert slow.select(Selection(unit=4), 9) is not None
    assert slow._replace(units=slow.units[:1]).select(Selection(unit=3), 9) is not None
    part = whole._replace(found={"power": 9, "gap": 3})
    first = part.select(Selection(), 1)
    assert first is not None
    assert (len(first.keys), first.found) == (1, 12)
    assert part.select(Selection(thing="a"), 9) is None
    assert part.select(Selection(unit=3), 9) is None
    assert part.select(Selection(operator="gap", thing="a"), 9) is not None
