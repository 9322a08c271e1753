"""Are the results of one join for one thing found in messages of each format, and joined to the records shown?"""

from __future__ import annotations

import json
from typing import Any

import pytest

from control.facts.lookup import pairs
from control.facts.lookup.pairs import Pair, ResultsOf, between, results_in
from joiner.runtime.task.unit import Unit
from tests.unit.joiner.runtime.arrow_inputs import settings_of
from tests.unit.joiner.runtime.joiner_inputs import BASE_MS, DATA, POWER, apply, record

WANTED = ResultsOf("power", 0, "a")
OTHERS = [
    None,
    b"",
    b"{",
    b"power:0:",
    b'{"power:0:": 1}',
    b'{"mark": 5}',
    b"[" * 5_000,
    b"\xff\xff\xff\xffpower:0:",
    json.dumps({"thing": "a", "quantity": "q", "phenomenonTime": 1, "result": "power:0:", "id": "x"}).encode(),
]


def written(results: str, function: str = "product") -> list[bytes]:
    """Return what a unit writes for two things, each with two pairs, and for another join."""
    other = POWER | {"name": "power2", "output": "q"}
    settings = settings_of("json", POWER | {"function": function}, other, results=results)
    unit = Unit(settings, 0, {DATA: 0})
    sent = [
        record(at, quantity, BASE_MS + at, float(at + 1), thing)
        for at, (quantity, thing) in enumerate(
            [("speed", "a"), ("torque", "a"), ("speed", "b"), ("torque", "b"), ("speed", "a"), ("speed", "b")]
        )
    ]
    messages = apply(unit, sent).messages(settings.topics)[settings.topics.out]
    return [value for _, value in messages.each()]


@pytest.mark.parametrize("results", ["full", "compact", "arrow"])
def test_results_are_found_in_each_format(results: str) -> None:
    found = [pair for value in written(results) for pair in results_in(value, WANTED)]
    assert found == [Pair("0", "1", 2.0), Pair("4", "1", 10.0)]


@pytest.mark.parametrize("results", ["full", "compact", "arrow"])
def test_a_result_may_be_both_values(results: str) -> None:
    found = [pair for value in written(results, "both") for pair in results_in(value, WANTED)]
    assert [pair.result for pair in found] == [{"left": 1.0, "right": 2.0}, {"left": 5.0, "right": 2.0}]


@pytest.mark.parametrize("results", ["full", "arrow"])
def test_results_of_others_are_not_found(results: str) -> None:
    for wanted in (WANTED._replace(thing="c"), WANTED._replace(unit=1), WANTED._replace(join="powe")):
        assert [pair for value in written(results) for pair in results_in(value, wanted)] == []


@pytest.mark.parametrize("value", OTHERS, ids=range(len(OTHERS)))
def test_other_messages_have_no_results(value: Any) -> None:
    assert list(results_in(value, WANTED)) == []


def test_pairs_of_records_that_are_shown_are_kept_once() -> None:
    given = [Pair("1", "2", 1.0), Pair("1", "4", 2.0), Pair("3", "4", 3.0), Pair("5", "6", 4.0), Pair("1", "2", 1.0)]
    assert between(given, ["1"], []) == given[:2]
    assert between(given, ["3"], ["4"]) == given[1:3]
    assert between(given, ["9"], ["1"]) == []


def test_only_the_last_pairs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "PAIRS_MAX", 3)
    given = [Pair("1", str(right), 0.0) for right in range(5)]
    assert between(given, ["1"], []) == given[2:]
