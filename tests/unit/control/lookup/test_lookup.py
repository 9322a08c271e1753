"""Is as little read as possible, and are the frontiers those of the keys that were read?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from control.facts.lookup import lookup
from control.facts.lookup.keys import Key, KeysRead, Selection, StreamOfKey, UnitRead
from control.facts.lookup.leads import leads_of
from control.facts.lookup.lookup import Lookup
from control.facts.lookup.records import Frontiers, Searched, StreamRecords, Subject, ThingRecords
from control.facts.lookup.replicas import ReplicasRead
from control.facts.lookup.unit_state import AsOf
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import DATA, GAP, POWER, make_settings

SETTINGS = make_settings(POWER, GAP, partitions=2)
AS_OF = AsOf("checkpoint", {DATA: 7}, 1_000)


def key(unit: int, thing: str, held: int, operator: str = "power") -> Key:
    streams = {"left": StreamOfKey("speed", held, 70), "right": StreamOfKey("torque", 0, None)}
    return Key(unit, operator, "join", thing, held, streams, [])


class Kafka:
    """What is read: in unit 0 the things ``a`` and ``ab``, in unit 1 ``b``. ``asked``: what was read so far."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.is_complete = True
        self.clock = ManualClock()
        self.takes_s = 0.0
        """How long it takes to read records."""

    def read_keys(self, _settings: Any, _clock: Any, units: Iterable[int], thing: str, _deadline: Any) -> KeysRead:
        self.asked.append((*units, thing))
        found = [one for one in (key(0, "a", 3), key(1, "b", 2), key(0, "ab", 1)) if one.unit in units]
        found = [one for one in found if thing in one.thing]
        counts = {"power": len(found) + (not self.is_complete), "gap": 0}
        return KeysRead(found, counts, [UnitRead(unit, AS_OF) for unit in units])

    def read_records(self, subject: Subject, _clock: Any, limit: int, _deadline: Any) -> ThingRecords:
        self.asked.append((subject.join.name, subject.thing, limit))
        self.clock.sleep(self.takes_s)
        nothing = Searched(0, 0, is_cut=False)
        left, right = (StreamRecords(subject.name(side), DATA, [], nothing) for side in ("left", "right"))
        return ThingRecords(subject.join.name, subject.thing, 0, AS_OF, left, right, [], nothing)

    def read_replicas(self, settings: Any, _clock: Any, _deadline: Any) -> ReplicasRead:
        self.asked.append((settings.application.name,))
        return ReplicasRead(1, leads_of([], 2), None)


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    made = Kafka()
    monkeypatch.setattr(lookup, "read_keys", made.read_keys)
    monkeypatch.setattr(lookup, "read_records", made.read_records)
    monkeypatch.setattr(lookup, "read_replicas", made.read_replicas)
    return made


@pytest.fixture
def asking(kafka: Kafka) -> Iterator[Lookup]:
    made = Lookup(SETTINGS, kafka.clock)
    yield made
    made.stop()


def things(asking: Lookup, *wanted: Any, limit: int = 9) -> list[str]:
    return [one.thing for one in asyncio.run(asking.keys(Selection(*wanted), limit)).keys]


def test_what_is_known_of_all_units_answers_every_other_question(asking: Lookup, kafka: Kafka) -> None:
    assert things(asking) == ["a", "b", "ab"]
    assert things(asking, limit=1) == ["a"]
    assert things(asking, 1) == ["b"]
    assert things(asking, None, "", "A") == ["a", "ab"]
    assert things(asking, 0, "power", "b") == ["ab"]
    assert things(asking, None, "gap") == []
    assert kafka.asked == [(0, 1, "")]


def test_what_is_not_known_completely_is_read_for_each_question(asking: Lookup, kafka: Kafka) -> None:
    kafka.is_complete = False
    assert things(asking) == ["a", "b", "ab"]
    assert things(asking, 1) == ["b"]
    assert things(asking, 1, "power") == ["b"]
    assert things(asking, None, "", "ab") == ["ab"]
    assert things(asking, None, "power", "ab") == ["ab"]
    assert kafka.asked == [(0, 1, ""), (1, ""), (0, 1, "ab")]


def test_records_have_the_frontiers_of_the_keys_if_these_were_read_lately(asking: Lookup, kafka: Kafka) -> None:
    power, gap = SETTINGS.join
    name = next(name for name in map(str, range(99)) if Subject(SETTINGS, power, name).unit == 0)
    assert asyncio.run(asking.records(power, name, 5)).frontiers is None
    known = KeysRead([key(0, name, 3)], {"power": 1, "gap": 0}, [UnitRead(0, AS_OF)])
    asking._readings.submit(("keys", None, ""), lambda _deadline: known).result(30)  # noqa: SLF001 - what was read
    assert asyncio.run(asking.records(power, name, 5)).frontiers == Frontiers(70, None, AS_OF)
    assert asyncio.run(asking.records(gap, name, 5)).frontiers is None
    assert kafka.asked == [("power", name, 5), ("gap", name, 5)], "the records were read once"


def test_keys_that_are_forgotten_while_the_records_are_read_still_give_the_frontiers(
    asking: Lookup, kafka: Kafka
) -> None:
    power, _ = SETTINGS.join
    name = next(name for name in map(str, range(99)) if Subject(SETTINGS, power, name).unit == 0)
    known = KeysRead([key(0, name, 3)], {"power": 1, "gap": 0}, [UnitRead(0, AS_OF)])
    asking._readings.submit(("keys", None, ""), lambda _deadline: known).result(30)  # noqa: SLF001 - what was read
    kafka.takes_s = 19.0
    assert asyncio.run(asking.records(power, name, 5)).frontiers == Frontiers(70, None, AS_OF)
    assert asyncio.run(asking.records(power, name, 6)).frontiers is None


def test_who_was_first_is_read_once_for_all_who_ask_within_some_seconds(asking: Lookup, kafka: Kafka) -> None:
    for _ in range(3):
        assert asyncio.run(asking.replicas()).partitions == 1
    assert kafka.asked == [("lsb",)]
    kafka.clock.now_s += 4.0
    asyncio.run(asking.replicas())
    assert kafka.asked == [("lsb",)] * 2
