"""Is the result of a row what the align's function returns, and a row for which it fails a dead letter?"""

from __future__ import annotations

import json
from typing import Any

import pytest

from joiner.runtime.settings import replica_settings
from joiner.runtime.task.effects import Effects
from joiner.runtime.task.function_failures import Failures, counts_with
from joiner.runtime.task.unit import Unit
from tests.unit.joiner.runtime.joiner_inputs import BASE_MS, DATA, apply, lines, record
from tests.unit.joiner.runtime.task.test_unit_align import SPINDLE, rows_of, seeded_messages, settings_of
from tests.unit.joiner.runtime.task.test_unit_grid import TABLE

FUNCTIONS = "tests.unit.joiner.joining_functions:"
OF_ROW = f"{FUNCTIONS}of_row"
AT_DRIVER: dict[str, Any] = {"name": "a", "driver": "torque", "columns": {"speed": {"tolerance": "5ms"}}}
ON_GRID: dict[str, Any] = {"name": "g", "grid": {"every": "10ms"}, "columns": {"speed": {"tolerance": "5ms"}}}
VARIANTS = [
    SPINDLE | {"function": OF_ROW},
    SPINDLE | {"function": f"{FUNCTIONS}of_row_and_driver"},
    TABLE | {"watermark_scope": "partition", "function": OF_ROW},
]


def speeds(*values: float) -> list[Any]:
    """Return speeds every 10 ms, each 2 ms before a torque, except that the second speed is too old for its torque."""
    return [
        one
        for n, value in enumerate(values)
        for one in (
            record(2 * n, "speed", BASE_MS + 10 * n - (7 if n == 1 else 2), value),
            record(2 * n + 1, "torque", BASE_MS + 10 * n, 100.0 + n),
        )
    ]


def apply_to(align: dict[str, Any], *values: float) -> tuple[Unit, Effects]:
    unit = Unit(settings_of(align), 0, {DATA: 0})
    return unit, apply(unit, speeds(*values))


def test_the_result_is_what_the_function_returns_for_the_columns_of_the_row() -> None:
    _, effects = apply_to(AT_DRIVER | {"function": OF_ROW}, 1.5, 2.5, 3.5, 4.5)
    assert [(row["result"], row["values"]["speed"]) for row in rows_of(effects)] == [(1.5, 1.5), (3.5, 3.5)]


def test_a_function_gets_the_value_of_the_driver_and_may_spoil_its_columns() -> None:
    _, effects = apply_to(AT_DRIVER | {"function": f"{FUNCTIONS}of_row_and_driver"}, 1.5, 2.5, 3.5, 4.5)
    assert [(row["result"], row["values"]["speed"]) for row in rows_of(effects)] == [
        (100.0, 1.5),
        (102.0, None),
        (102.0, 3.5),
    ]
    assert [row["phenomenonTime"] for row in rows_of(effects)] == [BASE_MS + 10 * n for n in range(3)]


def test_with_a_grid_a_function_gets_times_and_things_and_no_driver() -> None:
    _, effects = apply_to(ON_GRID | {"function": f"{FUNCTIONS}seconds_of_row"}, 1.5, 2.5, 3.5, 4.5)
    assert [(row["phenomenonTime"], row["result"]) for row in rows_of(effects)] == [
        (BASE_MS + 10 * n, (BASE_MS + 10 * n) / 1e3 + 1) for n in range(3)
    ]


def test_replicas_write_the_same_dead_letters() -> None:
    shared = settings_of(AT_DRIVER | {"function": OF_ROW}, application={"replicas": 3})
    written = [
        apply(Unit(replica_settings(shared, number), 0, {DATA: 0}), speeds(13.0, 2.5, 3.5)).rejected
        for number in range(3)
    ]
    assert written[0] == written[1] == written[2]
    assert written[0]


@pytest.mark.parametrize(
    ("align", "places"), [(AT_DRIVER, ["1", "3"]), (ON_GRID, [f"a:{BASE_MS // 10 + n}" for n in (0, 1)])]
)
def test_a_row_for_which_the_function_fails_is_a_dead_letter_and_the_others_have_results(
    align: dict[str, Any], places: list[str]
) -> None:
    name = align["name"]
    unit, effects = apply_to(align | {"function": OF_ROW}, 13.0, 2.5, 3.5, 4.5, 5.5)
    unlucky, missing = effects.rejected
    assert [one.id for one in effects.rejected] == [f"{name}:0:{place}" for place in places]
    assert unlucky.reason == f"the function {OF_ROW} of align {name!r}: RuntimeError: unlucky"
    assert missing.reason == f"the function {OF_ROW} of align {name!r}: the value is nan, not a finite number"
    assert (unlucky.source, unlucky.topic, unlucky.partition) == ("lsb", "machine.out", 0)
    of_driver = {"driver": 101.0} if align is AT_DRIVER else {}
    shown = {"thing": "a", "quantity": name, "phenomenonTime": BASE_MS + 10, **of_driver, "values": {"speed": None}}
    assert json.loads(missing.value) == shown
    assert list(json.loads(missing.value)) == list(shown)
    rows = rows_of(effects)
    assert [row["result"] for row in rows] == [3.5, 4.5][: len(rows)]
    assert effects.pairs == len(rows) > 0
    assert unit.counts["rows"] == len(rows) + 2
    (failures,) = effects.failed_pairs.values()
    assert (failures.count, failures.of_rows) == (2, True)
    assert "RuntimeError: unlucky" in failures.first
    assert "joining_functions.py line" in failures.first


def test_values_that_are_no_column_fail_for_each_row() -> None:
    _, effects = apply_to(AT_DRIVER | {"function": f"{FUNCTIONS}two_of_row"}, 1.0, 2.0, 3.0)
    assert not rows_of(effects)
    assert {one.reason.partition("': ")[2] for one in effects.rejected} == {
        "it returned an array of shape (1, 2) for 1 rows"
    }


@pytest.mark.parametrize("align", VARIANTS)
def test_batches_restores_and_silent_replays_change_nothing(align: dict[str, Any]) -> None:
    settings, sent = settings_of(align), seeded_messages(5, 150)
    whole = Unit(settings, 0, {DATA: 0})
    effects = apply(whole, sent)
    expected = lines(settings, effects)
    assert rows_of(effects)
    for size in (1, 7, 40):
        unit, parts = Unit(settings, 0, {DATA: 0}), []
        for at in range(0, len(sent), size):
            if at % 3 == 0:
                unit = Unit.restore(settings, 0, unit.snapshot())
            parts.append(apply(unit, sent[at : at + size]))
        assert lines(settings, *parts) == expected
        assert unit.counts == whole.counts
    replayed = Unit(settings, 0, {DATA: 0})
    apply(replayed, sent, silent=True)
    assert replayed.counts["rows"] == whole.counts["rows"]


def test_failed_rows_have_a_count_of_their_own() -> None:
    before = {"pairs": 5, "failed": 1, "power:failed": 1, "rows": 3, "failed_rows": 2, "a:failed": 2}
    failed = {"a": Failures(4, "", of_rows=True), "power": Failures(3, "")}
    assert counts_with({"pairs": 9, "rows": 8}, before, failed) == {
        "pairs": 9,
        "failed": 4,
        "power:failed": 4,
        "rows": 8,
        "failed_rows": 6,
        "a:failed": 6,
    }


def test_rows_for_which_the_function_fails_take_part_in_the_limit_of_batches() -> None:
    grid = {"every": "1ms", "max_gap": "10s"}
    _, effects = apply_to(ON_GRID | {"grid": grid, "function": f"{FUNCTIONS}two_of_row"}, 1.5, 2.5, 3.5, 4.5)
    assert effects.pairs == 0
    assert effects.outcomes == len(effects.rejected) > 20
