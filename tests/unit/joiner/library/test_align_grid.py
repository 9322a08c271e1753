"""Does `align` give the rows of a grid, in every kind of table, and say what is wrong with what it cannot use?"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from joiner import ArgumentError, align, column, grid

AT = "at"
SPEED = pd.DataFrame({"machine": ["mill", "mill", "lathe"], AT: [5, 25, 12], "rpm": [100.0, 200.0, 7.0]})
MODE = pd.DataFrame({"machine": ["lathe", "mill", "lathe"], AT: [31, 12, 8], "mode": ["c", "b", "a"]})


def to_arrays(frame: pd.DataFrame) -> Any:
    return {name: frame[name].to_numpy() for name in frame}


KINDS: dict[str, Any] = {
    "arrays": to_arrays,
    "pandas": lambda frame: frame,
    "polars": pl.from_pandas,
    "arrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
}


def as_lists(table: Any) -> dict[str, list[Any]]:
    frame = table.to_pandas() if isinstance(table, pl.DataFrame | pa.Table) else pd.DataFrame(table)
    return {name: frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in frame}


@pytest.mark.parametrize("kind", KINDS)
def test_a_grid_has_a_row_for_each_tick_between_the_first_and_the_last_row_of_a_key(kind: str) -> None:
    make = KINDS[kind]
    columns = {"rpm": column(make(SPEED), rule="linear"), "mode": column(make(MODE), rule="next")}
    assert as_lists(align(grid(10), columns, time=AT, by="machine")) == {
        "machine": ["mill", "mill", "lathe", "lathe", "lathe"],
        AT: [10, 20, 10, 20, 30],
        "rpm": [125.0, 175.0, None, None, None],
        "mode": ["b", None, "c", "c", "c"],
    }


@pytest.mark.parametrize("kind", KINDS)
def test_times_keep_their_type(kind: str) -> None:
    make = KINDS[kind]
    for times in ("datetime64[ms]", "datetime64[ns]") + (
        ("datetime64[us, Europe/Berlin]",) if kind != "arrays" else ()
    ):
        naive = pd.Series(pd.to_datetime(["2024-03-31T00:59:59.950", "2024-03-31T01:00:00.130"]))
        at = (naive.dt.tz_localize("UTC") if "Berlin" in times else naive).astype(times)
        table = make(pd.DataFrame({AT: at, "v": [0.0, 180.0]}))
        rows = align(grid("50ms"), {"v": column(table, rule="linear")}, time=AT)
        assert rows[AT].dtype == table[AT].dtype if kind != "arrow" else rows[AT].type == table[AT].type
        assert as_lists(rows)["v"] == [0.0, 50.0, 100.0, 150.0]
        found = pd.Series(as_lists(rows)[AT]).astype(times)
        assert found.diff().dropna().eq(pd.Timedelta("50ms")).all()
        assert found.iloc[0] == at.iloc[0]


def test_origin_and_largest_gap_are_those_of_the_definition() -> None:
    table = pd.DataFrame({AT: [-7, 1, 30], "v": [1, 2, 3]})
    assert align(grid(10, origin=1003), {"v": column(table)}, time=AT).to_dict("list") == {
        AT: [-7, 3, 13, 23],
        "v": [1, 2, 2, 2],
    }
    assert align(grid(10, origin=3, max_gap=28), {"v": column(table)}, time=AT)[AT].tolist() == [-7]
    assert align(grid(4, origin=-2, max_gap=28), {"v": column(table)}, time=AT)[AT].tolist() == [-6, -2, 30]


def test_the_origin_may_be_a_datetime() -> None:
    table = pd.DataFrame({AT: pd.to_datetime(["2024-01-01T00:00:00Z", "2024-01-01T02:00:00Z"]), "v": [1, 2]})
    rows = align(grid("1h", origin=datetime(2020, 5, 5, 5, 30, tzinfo=UTC)), {"v": column(table)}, time=AT)
    assert rows[AT].dt.strftime("%H:%M").tolist() == ["00:30", "01:30"]


@pytest.mark.parametrize("rule", ["previous", "linear"])
def test_a_grid_gives_what_pandas_reindexes_and_interpolates(rule: str) -> None:
    draw = np.random.default_rng(3)
    frames = []
    for machine in ("mill", "lathe"):
        times = np.sort(draw.choice(5_000_000, 400, replace=False))
        frames.append(
            pd.DataFrame({AT: pd.to_datetime(times * 1000), "machine": machine, "v": draw.integers(0, 1000, 400) / 8})
        )
    table = pd.concat(frames).sort_values(AT)
    found = align(grid("7ms"), {"v": column(table, rule=rule)}, time=AT, by="machine")
    for machine, rows in found.groupby("machine"):
        of_machine = table[table.machine == machine].set_index(AT)["v"]
        first, last = of_machine.index[0].ceil("7ms"), of_machine.index[-1].floor("7ms")
        ticks = pd.date_range(first, last, freq="7ms")
        assert rows[AT].tolist() == ticks.tolist()
        if rule == "previous":
            wanted = of_machine.reindex(ticks, method="ffill")
        else:
            wanted = of_machine.reindex(of_machine.index.union(ticks)).interpolate("time").loc[ticks]
        np.testing.assert_allclose(rows["v"].to_numpy(), wanted.to_numpy(), rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_without_keys_counts_for_every_key(kind: str) -> None:
    make = KINDS[kind]
    hall = make(pd.DataFrame({AT: [0, 11, 90], "celsius": [20.0, 21.0, 22.0]}))
    columns = {"celsius": column(hall, by=())}
    rows = as_lists(align(make(SPEED), columns, time=AT, by="machine"))
    assert rows["celsius"] == [20.0, 21.0, 21.0]
    # It has no part in which keys there are and when they begin and end.
    rows = as_lists(align(grid(10), {**columns, "rpm": column(make(SPEED))}, time=AT, by="machine"))
    assert rows == {
        "machine": ["mill", "mill"],
        AT: [10, 20],
        "celsius": [20.0, 21.0],
        "rpm": [100.0, 100.0],
    }


def test_a_row_without_a_value_may_be_left_out() -> None:
    rows = align(grid(10), {"rpm": column(SPEED, rule="linear", tolerance=5, on_missing="drop")}, time=AT, by="machine")
    assert rows.empty
    assert rows.columns.tolist() == ["machine", AT, "rpm"]


@pytest.mark.parametrize("kind", KINDS)
def test_tables_without_rows_give_no_ticks(kind: str) -> None:
    make = KINDS[kind]
    rows = align(grid(10), {"rpm": column(make(SPEED[:0])), "mode": column(make(MODE[:0]))}, time=AT, by="machine")
    assert as_lists(rows) == {"machine": [], AT: [], "rpm": [], "mode": []}


def test_integer_times_at_the_ends_of_int64_do_not_overflow() -> None:
    ends = {AT: np.array([-(2**63), 2**63 - 1]), "v": np.array([1, 2])}
    rows = align(grid(2**62, origin=5), {"v": column(ends)}, time=AT)
    assert rows[AT].tolist() == [5 - 2**63, 5 - 2**62, 5, 5 + 2**62]


DATED = SPEED.assign(at=pd.to_datetime(SPEED[AT]))
ORIGIN_WITH_ZONE = r"origin = .*: expected datetimes without a time zone, as in columns\['v'\], but got datetimes with"


@pytest.mark.parametrize(
    ("of", "columns", "text"),
    [
        (grid(0), {"v": column(SPEED, "rpm")}, "every = 0 must be above 0"),
        (grid("1s"), {"v": column(SPEED, "rpm")}, "every = '1s' is a duration, but the times are integers"),
        (grid(5), {"v": column(DATED, "rpm")}, "every must be a duration such as .*, because the times are datetimes"),
        (grid("5ns", origin=datetime(2024, 1, 1, tzinfo=UTC)), {"v": column(DATED, "rpm")}, ORIGIN_WITH_ZONE),
        (grid(1, ticks_max=19), {"v": column(SPEED, "rpm")}, "more than ticks_max = 19 ticks"),
        (grid(1), {"v": column(SPEED, "rpm"), "w": column(DATED, "rpm")}, "contains integers, but columns"),
        (grid(1), {"v": column(SPEED, "rpm", by=())}, "at least one table must have key columns"),
        (grid(1), {"v": column(SPEED, "rpm", by=["machine", "rpm"])}, "must be empty, or have as many columns"),
        (grid(1), {AT: column(SPEED, "rpm")}, "the driver already has a column 'at'"),
        (
            grid("1us"),
            {"v": column(DATED.assign(at=DATED[AT].astype("datetime64[ms]")), "rpm")},
            r"every = '1us': columns\['v'\]\['at'\] cannot hold all ticks, because it is datetime64\[ms\]",
        ),
        (
            grid("1s", origin=np.datetime64("2024-01-01T00:00:00.000001")),
            {"v": column(DATED.assign(at=DATED[AT].astype("datetime64[ms]")), "rpm")},
            r"^origin = .*000001'\): columns\['v'\]\['at'\] cannot hold all ticks",
        ),
        (grid("1s", origin=np.datetime64("NaT")), {"v": column(DATED, "rpm")}, "origin = NaT is not a time"),
        (
            grid(1),
            {"v": column(SPEED, "rpm"), "w": column(SPEED.assign(machine=1), "rpm")},
            r"by: columns\['v'\]\['machine'\] contains strings, but columns\['w'\]\['machine'\] contains integers",
        ),
    ],
)
def test_what_cannot_be_a_grid_is_named(of: Any, columns: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        align(of, columns, time=AT, by="machine")


@pytest.mark.parametrize("by", [["machine", "machine"], ["machine", AT]])
def test_time_and_keys_of_a_grid_have_names_of_their_own(by: list[str]) -> None:
    with pytest.raises(ArgumentError, match=f"grid has two columns named '{by[1]}'"):
        align(grid(5), {"v": column(SPEED, "rpm")}, time=AT, by=by)


@pytest.mark.parametrize("unit", ["M", "Y"])
def test_times_in_units_without_a_length_in_ns_are_refused(unit: str) -> None:
    table = {AT: np.array([1, 4], f"datetime64[{unit}]"), "v": np.array([1, 2])}
    with pytest.raises(ArgumentError, match=rf"columns\['v'\]\['at'\] must be in one of .*, not datetime64\[{unit}\]"):
        align(grid("1d"), {"v": column(table)}, time=AT)


@pytest.mark.parametrize("ticks_max", [0, True, 1.5, 2**63])
def test_the_largest_number_of_ticks_is_checked(ticks_max: Any) -> None:
    with pytest.raises(ArgumentError, match="ticks_max must be an integer from 1"):
        grid("1s", ticks_max=ticks_max)
