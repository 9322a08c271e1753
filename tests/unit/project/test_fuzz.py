"""Runs a few thousand cases of hostile input, and checks that the fuzzer detects planted faults.

`make fuzz` runs a million cases.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest

from connector.formats.events import Parsed, Parser
from tests.fuzz import play as playing
from tests.fuzz.mutation import Mutator
from tests.fuzz.play import Tally, play, play_all
from tests.fuzz.targets import TARGETS, Target

CASES = 2_600


@cache
def played() -> Tally:
    return play(1, range(CASES))


@pytest.mark.slow
def test_hostile_input_is_a_value_or_a_clear_error() -> None:
    tally = played()
    assert tally.findings == []
    assert tally.cases == CASES
    names = {target.name for target in TARGETS}
    assert {outcome.partition(": ")[0] for outcome in tally.outcomes} == names


def test_good_input_comes_through_as_well() -> None:
    """Otherwise a reader that refuses everything would pass."""
    good = {
        *("events from MQTT: records", "records of the data topic: records", "state records: restored"),
        *("control records: heard", "results: point", "lines of the simulator: event", "settings files: settings"),
        *("aligned rows: point", "start records: start record"),
        "Protobuf messages: records in bulk",
        *("MQTT messages in other formats: records", "MQTT messages in other formats: dead letters and records"),
    }
    assert good <= set(played().outcomes)


def test_a_case_is_the_same_each_time() -> None:
    def made() -> list[Any]:
        return [TARGETS[number % 8].make(Mutator(random.Random(f"5 {number}"))) for number in range(50)]

    assert made() == made()


def test_blocks_in_processes_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "_BLOCK", 200)
    tallies = list(play_all(3, range(450), jobs=2))
    assert [tally.cases for tally in tallies] == [200, 200, 50]
    assert [finding for tally in tallies for finding in tally.findings] == []


def test_a_quantity_that_vanishes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = Parser.parse

    def wrong(self: Parser, payload: bytes) -> Parsed:
        parsed = parse(self, payload)
        return parsed._replace(records=parsed.records[:1])

    monkeypatch.setattr(Parser, "parse", wrong)
    (first, *_) = play(1, range(260)).findings
    assert first.startswith("--seed 1 --case ")


def for_ever(_case: object) -> str:
    while True:
        pass


def too_much(_case: object) -> str:
    raise MemoryError


@pytest.mark.parametrize(("run", "told"), [(for_ever, "TooLong"), (too_much, "MemoryError")])
def test_what_takes_too_much_is_found(monkeypatch: pytest.MonkeyPatch, run: Any, told: str) -> None:
    monkeypatch.setattr(playing, "CPU_S", 0.05)
    target = Target("planted", lambda mutator: mutator.data(b"x"), run)
    (finding,) = play(1, range(1), [target]).findings
    assert told in finding
