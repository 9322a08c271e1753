"""Is a joining function that can never work refused at startup, and one that fails only for made-up pairs accepted?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker.settings import SettingsError
from joiner.cli import main
from joiner.cli.function_probe import MADE_UP, probe_functions, probe_row_functions
from joiner.functions import AlignedColumns, Columns
from joiner.operators import AlignSettings
from tests.unit.joiner.cli.test_main import JOIN, status_of

LIMITS = {"R0815": 3.0}


class Counted:
    """A function that records the number of pairs in each call."""

    def __init__(self, does: Callable[[Columns, Columns], Any]) -> None:
        self.calls: list[int] = []
        self._does = does

    def __call__(self, left: Columns, right: Columns) -> Any:
        self.calls.append(len(left.result))
        return self._does(left, right)


def probe(does: Callable[..., Any]) -> tuple[list[str], list[int]]:
    """Return the warnings, and the number of pairs in each call."""
    counted = Counted(does)
    return probe_functions({"power": "own:f"}, {"power": counted}), counted.calls


def fails(error: BaseException) -> Callable[..., Any]:
    def function(_left: Columns, _right: Columns) -> Any:
        raise error

    return function


def test_a_function_that_works_is_called_once() -> None:
    assert probe(lambda left, right: left.result * right.result) == ([], [3])


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        (lambda left: left.result, "positional argument"),
        (lambda left, right: left * right, "TypeError: can't multiply sequence by non-int of type 'Columns'"),
        (lambda left, right: left.value + right.value, "'Columns' object has no attribute 'value'"),
        (lambda left, _right: left.result.meen(), "has no attribute 'meen'"),
        (lambda _left, _right: no_such_name, "NameError: name 'no_such_name' is not defined"),  # type: ignore[name-defined] # noqa: F821 - intended
        (lambda left, _right: left.result.sum(), "it returned an array of shape () for 1 pairs"),
        (lambda _left, _right: None, "it returned an array of shape () for 1 pairs"),
        (lambda left, _right: [str(value) for value in left.result], "not real numbers"),
        (fails(NotImplementedError("later")), "NotImplementedError: later"),
        (fails(ModuleNotFoundError("No module named 'scipy'")), "No module named 'scipy'"),
    ],
)
def test_what_no_pair_can_change_is_refused_with_its_place(does: Callable[..., Any], reason: str) -> None:
    with pytest.raises(SettingsError) as refused:
        probe_functions({"power": "own:f"}, {"power": does})
    message = str(refused.value)
    assert message.startswith("join 'power': the joining function 'own:f' fails for every pair")
    assert reason in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        (lambda left, _right: [LIMITS[thing] for thing in left.thing], "KeyError: 'made-up'"),
        (lambda left, _right: [LIMITS.get(thing) * 2 for thing in left.thing], "unsupported operand"),  # type: ignore[operator]
        (lambda left, _right: [LIMITS.get(thing).real for thing in left.thing], "'NoneType' object has no"),  # type: ignore[union-attr]
        (fails(ValueError("no such machine")), "ValueError: no such machine"),
        (fails(ZeroDivisionError("division by zero")), "ZeroDivisionError"),
        (fails(SystemExit(3)), "SystemExit: 3"),
        (fails(ValueError("a\nb" + "x" * 1_000_000)), "ValueError: a bxxx"),
    ],
)
def test_what_other_pairs_may_change_is_a_warning_after_two_calls(does: Callable[..., Any], reason: str) -> None:
    (warning,), calls = probe(does)
    assert reason in warning
    assert MADE_UP in warning
    assert len(warning) < 1000
    assert calls == [3, 1]


def test_a_function_for_single_pairs_is_let_through_and_told_that_it_is_slow() -> None:
    (warning,), calls = probe(lambda left, right: [left.result.item() * right.result.item()])
    assert "many times slower" in warning
    assert calls == [3, 1]


def test_a_value_that_is_not_finite_is_no_fault_of_made_up_pairs() -> None:
    assert probe(lambda left, _right: np.full(len(left.result), np.nan)) == ([], [3])


def test_every_function_is_tried_once_however_many_joins_have_it_and_each_mistake_is_told() -> None:
    shared, bad, worse = Counted(lambda left, _: left.result), fails(NameError("a")), fails(NameError("b"))
    names = {"one": "own:f", "two": "own:f", "three": "product", "four": "own:g", "five": "own:h"}
    functions: dict[str, Any] = {"one": shared, "two": shared, "three": None, "four": bad, "five": worse}
    with pytest.raises(SettingsError) as refused:
        probe_functions(names, functions)
    assert [line.split(":")[0] for line in str(refused.value).splitlines()] == ["join 'four'", "join 'five'"]
    assert shared.calls == [3]


def test_ctrl_c_in_a_trial_ends_the_start() -> None:
    with pytest.raises(KeyboardInterrupt):
        probe(fails(KeyboardInterrupt()))


@pytest.mark.parametrize(("command", "status"), [("run", 2), ("spark", 2), ("status", 1)])
def test_a_function_that_cannot_work_is_status_2_for_what_joins_and_not_tried_by_others(
    command: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(main, "leave", sys.exit)
    monkeypatch.setattr(main, "_REACH_S", 0.2)
    monkeypatch.setenv("LSB_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    (tmp_path / "hopeless_join.py").write_text("def f(left, right):\n    return left.value\n", encoding="utf-8")
    (tmp_path / "lsb.toml").write_text(JOIN + 'function = "hopeless_join:f"\n', encoding="utf-8")
    try:
        assert status_of([command]) == status
        assert ("hopeless_join.py line 2: AttributeError" in capsys.readouterr().err) == (status == 2)
    finally:
        sys.modules.pop("hopeless_join", None)


@pytest.mark.parametrize("times", [{"driver": "torque"}, {"grid": {"every": "1s"}}])
def test_a_function_of_rows_is_called_with_all_columns_of_its_align(times: dict[str, Any]) -> None:
    given: list[AlignedColumns] = []

    def function(rows: AlignedColumns) -> Any:
        given.append(rows)
        return rows.values["speed"] + rows.values["mode"]

    align = AlignSettings.model_validate({"name": "a", "columns": {"speed": {}, "mode": {}}, **times})
    assert probe_row_functions([(align, function)]) == []
    (rows,) = given
    assert list(rows.values) == ["speed", "mode"]
    assert (rows.driver is None, list(rows.thing)) == ("grid" in times, [MADE_UP] * 3)


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        (lambda rows: rows.values["speed"][:1], "fails for every row"),
        (lambda rows: rows.speed, "'AlignedColumns' object has no attribute 'speed'; correct it"),
        (lambda left, right: left.result * right.result, "fails for every row"),
    ],
)
def test_a_function_of_rows_that_can_never_work_is_refused(does: Callable[..., Any], reason: str) -> None:
    align = AlignSettings.model_validate({"name": "a", "function": "own:f", "driver": "t", "columns": {"speed": {}}})
    if reason == "fails for every row" and does.__code__.co_argcount == 1:
        assert "works for one row, but fails for a batch of 3" in probe_row_functions([(align, does)])[0]
        return
    with pytest.raises(SettingsError, match="align 'a': the function 'own:f'") as refused:
        probe_row_functions([(align, does)])
    assert reason in str(refused.value)


def test_a_function_of_rows_that_rejects_the_made_up_thing_is_only_warned_of() -> None:
    align = AlignSettings.model_validate({"name": "a", "function": "own:f", "driver": "t", "columns": {"speed": {}}})

    def function(rows: AlignedColumns) -> Any:
        return [LIMITS[thing] for thing in rows.thing]

    (warning,) = probe_row_functions([(align, function)])
    assert "failed for made-up rows: " in warning
    assert "every real row for which it fails becomes a dead letter" in warning
