"""What is written for a pair: its result with time and identity, or a dead letter."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest

from broker.times import UNIT_NS
from broker.wire.records import Record, encode
from joiner.functions import BUILT_IN, load_function
from joiner.runtime.settings import replica_settings
from joiner.runtime.task.decoding.intake import records_of
from joiner.runtime.task.emit import Emitter, Pairs, Things, mean_time
from joiner.runtime.task.payloads import Rows
from tests.unit.joiner.runtime.joiner_inputs import POWER, make_settings


def rows(results: list[float], times_ns: list[int], first_seq: int) -> Rows:
    seq = np.arange(first_seq, first_seq + len(results))
    records = [Record("a", "q", at, result, f"id {result}") for result, at in zip(results, times_ns, strict=True)]
    columns = records_of(seq, np.array(times_ns, dtype=np.int64), records)
    return Rows(seq, np.zeros_like(seq), columns.ts_ns, columns.result, columns.shown)


def results(
    function: str,
    values: list[tuple[float, float]],
    ties: list[tuple[int, int]] | None = None,
    times: Any = None,
    replica: int = 0,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the results and the dead letters, decoded from JSON. Pair n has the offsets n and 100 + n."""
    given = make_settings({**POWER, "function": function}, events={"time_unit": "ns"}, application={"replicas": 2})
    settings = replica_settings(given, replica)
    count = len(values)
    ordinals = np.array(ties or [(0, 0)] * count, dtype=np.int64).reshape(count, 2)
    times = times or [(0, 0)] * count
    pairs = Pairs(
        rows([left for left, _ in values], [at for at, _ in times], 0),
        rows([right for _, right in values], [at for _, at in times], 100),
        Things(["a"], np.zeros(count, dtype=np.int64)),
        ordinals[:, 0],
        ordinals[:, 1],
    )
    joined, failed = Emitter(settings, settings.join[0], 4).results(pairs)
    return [json.loads(value) for value in joined.values.each()], [json.loads(encode(one)) for one in failed]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("product", [6.0, -1.0]),
        ("difference", [-1.0, 2.0]),
        ("mean", [2.5, 0.0]),
        ("both", [{"left": 2.0, "right": 3.0}, {"left": 1.0, "right": -1.0}]),
        ("joiner.functions:spindle_power", [2 * np.pi / 60 * 6, -2 * np.pi / 60]),
    ],
)
def test_the_built_in_functions_give_what_they_say(function: str, expected: list[Any]) -> None:
    joined, failed = results(function, [(2.0, 3.0), (1.0, -1.0)])
    assert [one["result"] for one in joined] == [
        pytest.approx(value) if isinstance(value, float) else value for value in expected
    ]
    assert failed == []


def test_a_result_carries_its_identity_and_both_sides() -> None:
    (one,), _ = results("product", [(2.0, 3.0)], times=[(10, 13)])
    assert one == {
        "thing": "a",
        "quantity": "p",
        "phenomenonTime": 11.5,
        "result": 6.0,
        "id": "power:4:0:100",
        "left": {"quantity": "q", "phenomenonTime": 10, "result": 2.0, "id": "id 2.0"},
        "right": {"quantity": "q", "phenomenonTime": 13, "result": 3.0, "id": "id 3.0"},
    }


def test_a_tie_is_named_only_where_there_is_one() -> None:
    joined, _ = results("product", [(1.0, 1.0)] * 3, [(0, 0), (2, 0), (0, 1)])
    assert [one.get("tie") for one in joined] == [None, "2-0", "0-1"]


@pytest.mark.parametrize(
    ("function", "bad", "reason"),
    [
        ("tests.unit.joiner.joining_functions:fails_at_13", (13.0, 1.0), "RuntimeError: unlucky"),
        ("tests.unit.joiner.joining_functions:quotient", (0.0, 0.0), "nan, not a finite number"),
        ("tests.unit.joiner.joining_functions:quotient", (-1.0, 0.0), "-inf, not a finite number"),
        ("tests.unit.joiner.joining_functions:two", (1.0, 0.0), "inf], not a finite number"),
        ("product", (1e308, 1e308), "inf, not a finite number"),
    ],
)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_pair_whose_function_fails_costs_only_itself(
    function: str, bad: tuple[float, float], reason: str, at: int
) -> None:
    values = [(4.0, 2.0), (6.0, 3.0)]
    fine, _ = results(function, values)
    values.insert(at, bad)
    joined, (dead_letter,) = results(function, values)
    assert reason in dead_letter["reason"]
    assert function in dead_letter["reason"]
    assert dead_letter["id"] == f"power:4:{at}:{100 + at}"
    assert json.loads(dead_letter["value"])["left"]["result"] == bad[0]
    assert [one["result"] for one in joined] == [one["result"] for one in fine]
    assert [one["id"] for one in joined] == [f"power:4:{n}:{100 + n}" for n in range(3) if n != at]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("wrong_shape", "shape (1, 3) for 1 pairs"),
        ("a_scalar", "shape () for 1 pairs"),
        ("words", "<U3 values, not real numbers"),
        ("complex_numbers", "complex128 values, not real numbers"),
        ("dates", "datetime64[ns] values, not real numbers"),
        ("leaves_the_process", "SystemExit: 0"),
        ("interrupts", "KeyboardInterrupt"),
    ],
)
@pytest.mark.parametrize("count", [1, 3])
def test_a_function_that_gives_no_column_of_numbers_loses_no_pair(name: str, reason: str, count: int) -> None:
    joined, failed = results(f"tests.unit.joiner.joining_functions:{name}", [(1.0, 2.0)] * count)
    assert joined == []
    assert [dead_letter["id"] for dead_letter in failed] == [f"power:4:{n}:{100 + n}" for n in range(count)]
    assert all(reason in dead_letter["reason"] for dead_letter in failed)


def test_a_function_that_alters_what_it_is_given_spoils_no_other_pair() -> None:
    joined, (dead_letter,) = results(
        "tests.unit.joiner.joining_functions:spoils_and_fails_at_13", [(1.0, 2.0), (13.0, 1.0)]
    )
    assert [(one["result"], one["left"]["result"], one["left"]["id"]) for one in joined] == [(20.0, 1.0, "id 1.0")]
    assert json.loads(dead_letter["value"])["left"]["result"] == 13.0


def test_a_function_sees_times_and_things() -> None:
    (one,), _ = results("tests.unit.joiner.joining_functions:seconds_apart", [(1.0, 1.0)], times=[(0, 2 * 10**9)])
    assert one["result"] == 2.0


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nothing", "unknown joining function 'nothing'; use one of product"),
        ("no_such_module:f", "cannot be loaded"),
        ("tests.unit.joiner.joining_functions:missing", "cannot be loaded"),
        ("tests.unit.joiner.joining_functions:NO_FUNCTION", "is not callable"),
    ],
)
def test_a_function_that_cannot_be_had_is_refused_with_what_there_is(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        load_function(name)


def test_the_built_in_names_are_loaded() -> None:
    assert [load_function(name) for name in BUILT_IN] == list(BUILT_IN.values())


@pytest.mark.parametrize("unit", list(UNIT_NS))
@pytest.mark.parametrize(("left", "right"), [(0, 0), (1, 2), (-3, 0), (10**18, 10**18 + 1), (5 * 10**9, 10**9)])
def test_the_time_of_a_result_is_the_exact_mean(left: int, right: int, unit: str) -> None:
    time = mean_time(left, right, unit)
    text = bytes(time).decode() if isinstance(time, msgspec.Raw) else str(time)
    assert Fraction(text) * UNIT_NS[unit] == Fraction(left + right, 2)


def test_replicas_write_the_same_results_and_dead_letters() -> None:
    written = [
        results("tests.unit.joiner.joining_functions:fails_at_13", [(1.0, 2.0), (13.0, 2.0)], replica=replica)
        for replica in (0, 1)
    ]
    assert written[0] == written[1]
    assert written[0][1][0]["topic"] == "machine.out"
