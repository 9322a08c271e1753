"""Are the settings of aligns read, refused with the reason, and part of the fingerprint?"""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from broker.settings import SettingsError, load_settings
from joiner.operators import COLUMNS_MAX, ColumnSettings
from joiner.runtime.model import semantic_differences
from joiner.runtime.settings import JoinerSettings
from tests.unit.joiner.runtime.joiner_inputs import changed, fingerprint

BASE: dict[str, Any] = {
    "application": {"name": "app"},
    "join": [{"name": "power", "left": "l", "right": "r", "output": "o"}],
    "align": [{"name": "spindle", "driver": "torque", "columns": {"speed": {"rule": "linear"}, "mode": {}}}],
}


COLUMN = ("align", 0, "columns", "speed")
GRID = ("align", 0, "grid")
ON_GRID = changed(BASE, ("align", 0), {"name": "g", "grid": {"every": "100ms"}, "columns": {"speed": {}, "mode": {}}})


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        (("align", 0, "driver"), "mode", "a record may be both in the driver and in the column 'mode'"),
        (("align", 0, "driver"), {"topic": "machine.data"}, "in the column 'speed'"),
        (("align", 0, "driver"), {"topic": "machine.out"}, "'machine.out' is both read and written"),
        (("align", 0, "name"), "power", "a join and an align have the name 'power'"),
        (("align", 0, "name"), "o", "a join and an align have the output 'o'"),
        (("align",), 2 * BASE["align"], "two aligns have the name 'spindle'"),
        (("align", 0, "name"), "a:b", "align.0.name"),
        (("align", 0, "driver"), {}, "specify a quantity, a topic, or both"),
        (("align", 0, "columns"), {}, "align.0.columns"),
        (("align", 0, "columns"), {f"c{n}": {} for n in range(COLUMNS_MAX + 1)}, "align.0.columns"),
        (("align", 0, "lateness"), ["1s", "1s"], "expected a duration with a unit"),
        (("align", 0, "watermark_scope"), "all", "align.0.watermark_scope"),
        (("align", 0, "surprise"), 1, "align.0.surprise"),
        ((*COLUMN, "rule"), "last", "align.0.columns.speed.rule"),
        ((*COLUMN, "tolerance"), 5, "expected a duration with a unit"),
        ((*COLUMN, "on_missing"), "skip", "align.0.columns.speed.on_missing"),
        ((*COLUMN, "period"), 0, "align.0.columns.speed.period"),
        ((*COLUMN, "period"), float("inf"), "align.0.columns.speed.period"),
        ((*COLUMN, "stream"), "torque", "in the column 'speed'"),
        ((*COLUMN, "surprise"), 1, "align.0.columns.speed.surprise"),
        (("align", 0, "columns", "mode", "period"), 360, "period is an option of the rule 'linear', not of 'previous'"),
        *(
            (("align", 0, "columns", name), {}, "cannot be the name of a column")
            for name in ("driver", "result", "time", "join", "thing", "quantity", "half", "tie")
        ),
        (("align", 0, "columns", "a b"), {}, "must be 1 to 100 characters"),
        (("application", "results"), "arrow", "aligned rows are written as JSON"),
    ],
)
def test_a_setting_of_an_align_that_cannot_be_used_is_named(path: tuple[Any, ...], value: Any, what: str) -> None:
    with pytest.raises(ValidationError) as refused:
        JoinerSettings.model_validate(changed(BASE, path, value))
    assert what in str(refused.value)


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        (GRID, None, "align.0: Value error, specify a driver or a grid [type="),
        (("align", 0, "driver"), "torque", "specify a driver or a grid, but not both"),
        (GRID, {}, "align.0.grid.every"),
        (GRID, "100ms", "align.0.grid"),
        (GRID, {"every": 100}, "expected a duration with a unit"),
        (GRID, {"every": "0"}, "every (in ns) must be at least 1"),
        (GRID, {"every": "1s", "more": 1}, "align.0.grid.more"),
        (GRID, {"every": "1s", "origin": 7}, "expected an ISO-8601 time such as 2024-05-01T00:00:00Z"),
        (GRID, {"every": "1s", "origin": "2024-05-01T00:00:00"}, "has no offset from UTC"),
        (GRID, {"every": "1s", "origin": datetime(2024, 5, 1)}, "has no offset from UTC"),  # noqa: DTZ001 - as in TOML
        (GRID, {"every": "1s", "origin": date(2024, 5, 1)}, "expected an ISO-8601 time"),
        (GRID, {"every": "1ns", "origin": "1700-01-01T00:00:00Z"}, "tick numbers would exceed int64"),
        (GRID, {"every": "1ms", "max_gap": "101s"}, "so a single record could add more than 100,000 rows"),
        (("align", 0, "lateness"), "1s", "with a grid, set the lateness of each column"),
        (("align", 0, "columns", "grid"), {}, "'grid' cannot be the name of a column of a grid"),
        (("align", 0, "result"), "other", "result: there is no column 'other'; the columns are 'speed', 'mode'"),
        (("align", 0, "result"), "mode", "add on_missing = 'drop' to the column 'mode'"),
        (("align", 0, "function"), "product", "align.0.function"),
    ],
)
def test_a_setting_of_a_grid_that_cannot_be_used_is_named(path: tuple[Any, ...], value: Any, what: str) -> None:
    with pytest.raises(ValidationError) as refused:
        JoinerSettings.model_validate(changed(ON_GRID, path, value))
    assert what in str(refused.value).replace("\n  ", ": ")


def test_a_function_excludes_a_result_and_keeps_the_fingerprint() -> None:
    function = "joiner.functions:spindle_power"
    for base in (BASE, ON_GRID):
        assert fingerprint(changed(base, ("align", 0, "function"), function)) == fingerprint(base)
    with pytest.raises(ValidationError, match="result and function are mutually exclusive"):
        JoinerSettings.model_validate(
            changed(changed(ON_GRID, ("align", 0, "function"), function), ("align", 0, "result"), "speed")
        )


def test_a_function_that_cannot_be_loaded_is_told_with_the_other_mistakes(tmp_path: Path) -> None:
    file = tmp_path / "lsb.toml"
    file.write_text(
        "[[align]]\nname = 'a'\ndriver = 'x'\nlateness = '1x'\nfunction = 'no_such:f'\n[align.columns]\ny = {}\n"
    )
    with pytest.raises(SettingsError) as refused:
        load_settings(JoinerSettings, file)
    assert "align.0.lateness: expected a duration with a unit" in str(refused.value)
    assert "align 'a': the function 'no_such:f' cannot be loaded: there is no module 'no_such'" in str(refused.value)


def test_the_result_of_a_driver_is_not_an_option() -> None:
    with pytest.raises(ValidationError, match="result is an option of a grid"):
        JoinerSettings.model_validate(changed(BASE, ("align", 0, "result"), "speed"))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (GRID, {"every": "200ms"}),
        (GRID, {"every": "100ms", "origin": "1970-01-01T00:00:00.05Z"}),
        (GRID, {"every": "100ms", "max_gap": "1s"}),
        (("align", 0, "watermark_scope"), "partition"),
        (("align", 0, "columns", "mode"), {"on_missing": "drop"}),
    ],
)
def test_what_determines_the_rows_of_a_grid_changes_the_fingerprint(path: tuple[Any, ...], value: Any) -> None:
    assert fingerprint(changed(ON_GRID, path, value)) != fingerprint(ON_GRID)


def test_the_same_grid_in_other_words_and_another_result_keep_the_fingerprint() -> None:
    origin = datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    spelled = {"every": "0.1s", "origin": origin, "max_gap": "100s"}
    assert fingerprint(changed(ON_GRID, GRID, spelled)) == fingerprint(ON_GRID)
    dropping = changed(ON_GRID, ("align", 0, "columns", "mode"), {"on_missing": "drop"})
    assert fingerprint(changed(dropping, ("align", 0, "result"), "mode")) == fingerprint(dropping)


def test_an_align_with_a_driver_has_the_fingerprint_that_it_had_before_there_were_grids() -> None:
    assert fingerprint(BASE) == "7ddec1d5f5467e677c5bf35dadd2e161562ecfee311f679a353fe07c2c4e902f"


def test_a_grid_reads_its_columns_alone_and_a_long_tick_has_a_gap_within_the_range_of_times() -> None:
    settings = JoinerSettings.model_validate(changed(ON_GRID, GRID, {"every": "36500d"}))
    (align,) = settings.align
    assert list(align.streams) == list(align.lateness_by_stream) == ["speed", "mode"]
    assert align.grid is not None
    assert align.grid.rows_per_record_max == 3


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("align", 0, "name"), "other"),
        (("align", 0, "driver"), "other"),
        (("align", 0, "lateness"), "1s"),
        (("align", 0, "watermark_scope"), "partition"),
        (("align", 0, "columns", "more"), {}),
        ((*COLUMN, "stream"), "other"),
        ((*COLUMN, "rule"), "next"),
        ((*COLUMN, "tolerance"), "1s"),
        ((*COLUMN, "lateness"), "1s"),
        ((*COLUMN, "on_missing"), "drop"),
        ((*COLUMN, "period"), 360.0),
        (("align",), []),
    ],
)
def test_every_setting_of_an_align_changes_the_fingerprint(path: tuple[Any, ...], value: Any) -> None:
    given = changed(BASE, path, value)
    assert fingerprint(given) != fingerprint(BASE)
    then, now = (JoinerSettings.model_validate(one).semantics() for one in (BASE, given))
    assert all(place.startswith("aligns") for place, _, _ in semantic_differences(then, now))
    if path[2:3] == ("columns",):
        assert set(ColumnSettings.model_fields) >= {path[-1]} or path[-1] == "more"


def test_the_same_settings_in_other_words_keep_the_fingerprint() -> None:
    spelled = {"stream": {"topic": "machine.data", "quantity": "speed"}, "rule": "linear", "tolerance": None}
    assert fingerprint(changed(BASE, COLUMN, spelled)) == fingerprint(BASE)
    columns = dict(reversed(BASE["align"][0]["columns"].items()))
    assert fingerprint(changed(BASE, ("align", 0, "columns"), columns)) == fingerprint(BASE)


def test_an_application_without_aligns_has_the_fingerprint_of_the_release_before() -> None:
    assert (
        fingerprint(changed(BASE, ("align",), [])) == "61850580908c3ebfc6be7efc899bf0b4564605efbc5eea54660634fcc6b3c7d8"
    )


def test_an_application_may_have_aligns_alone_and_needs_one_operator() -> None:
    settings = JoinerSettings.model_validate(changed(BASE, ("join",), []))
    assert [one.name for one in settings.operators] == ["spindle"]
    with pytest.raises(ValidationError, match=r"neither a \[\[join\]\] nor an \[\[align\]\]"):
        JoinerSettings.model_validate({})


def test_two_columns_may_read_one_stream_by_different_rules() -> None:
    settings = JoinerSettings.model_validate(
        changed(BASE, ("align", 0, "columns", "next"), {"stream": "mode", "rule": "next"})
    )
    (align,) = settings.align
    assert [stream.quantity for stream in align.streams.values()] == ["torque", "speed", "mode", "mode"]


def test_all_mistakes_of_an_align_are_told_in_one_round(tmp_path: Path) -> None:
    file = tmp_path / "lsb.toml"
    file.write_text(
        "[[align]]\nname = 'a'\ndriver = 'x'\nlateness = '1x'\n"
        "[align.columns.y]\nperiod = 3\n[align.columns.z]\nstream = 'x'\nrule = 'linear'\n"
        "[[align]]\nname = 'a'\ndriver = 'x'\n[align.columns]\ny = {}\n"
    )
    with pytest.raises(SettingsError) as refused:
        load_settings(JoinerSettings, file)
    told = str(refused.value)
    for mistake in (
        "align.0.lateness: expected a duration with a unit",
        "align.0.columns.y: period is an option of the rule 'linear'",
        "two aligns have the name 'a'",
        "align 'a': a record may be both in the driver and in the column 'z'",
    ):
        assert told.count(mistake) == 1, mistake
    assert all(line.startswith(str(file)) for line in told.splitlines())
