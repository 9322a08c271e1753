"""`align` gives the rows of the definition, for every rule and kind of table, and those of pandas and polars."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joiner import AlignBuffer, ColumnRule, Grid, align, column, grid
from joiner.alignment.rules import RULES
from joiner.check.model import aligned
from joiner.check.model.oracle import Rec

Table = dict[str, Any]


def same(table: Table) -> Any:
    return table


def to_pandas(table: Table) -> Any:
    return pd.DataFrame(table, index=range(100, 100 + len(table["at"])))


KINDS = {"arrays": same, "pandas": to_pandas, "polars": pl.DataFrame, "arrow": pa.table}


@st.composite
def tables(draw: st.DrawFn, value: str) -> Table:
    rows = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(-3, 12), st.floats(-1e6, 1e6)), max_size=20))
    if draw(st.booleans()):
        rows.sort(key=lambda row: row[1])
    keys, times, values = zip(*rows, strict=True) if rows else ((), (), ())
    return {
        "machine": np.array(keys, dtype=np.int64),
        "at": np.array(times, dtype=np.int64),
        value: np.array(values, dtype=np.float64),
    }


rules = st.tuples(
    st.sampled_from(RULES), st.none() | st.integers(0, 12), st.booleans(), st.sampled_from(["null", "drop"])
)


def wanted_rows(driver: Table, others: list[Table], chosen: list[Any]) -> dict[int, tuple[float | None, ...]]:
    """Return the rows of the definition by place in the driver. Tables have no late rows."""

    def entries(table: Table) -> list[Any]:
        # In time order, with the place as position among equal times.
        places = np.argsort(table["at"], kind="stable").tolist()
        return [Rec(int(table["machine"][at]), int(table["at"][at]), seq) for seq, at in enumerate(places)]

    columns = []
    for table, (rule, tolerance, is_angle, on_missing) in zip(others, chosen, strict=True):
        places = np.argsort(table["at"], kind="stable")
        values = dict(enumerate(table["value"][places].tolist()))
        period = 360.0 if is_angle and rule == "linear" else None
        columns.append(aligned.Column(entries(table), values, rule, tolerance, period, on_missing))
    rows, _ = aligned.align(entries(driver), columns, closed=True)
    places = np.argsort(driver["at"], kind="stable").tolist()
    return {places[seq]: row for seq, row in rows.items()}


def columns_of(kind: Any, others: list[Table], chosen: list[Any]) -> dict[str, Any]:
    return {
        f"c{number}": column(
            kind(table),
            rule=rule,
            tolerance=tolerance,
            period=360.0 if is_angle and rule == "linear" else None,
            on_missing=on_missing,
        )
        for number, (table, (rule, tolerance, is_angle, on_missing)) in enumerate(zip(others, chosen, strict=True))
    }


def rules_of(chosen: list[Any]) -> dict[str, ColumnRule]:
    return {
        f"c{number}": ColumnRule(
            rule=rule,
            tolerance_ns=tolerance,
            period=360.0 if is_angle and rule == "linear" else None,
            on_missing=on_missing,
        )
        for number, (rule, tolerance, is_angle, on_missing) in enumerate(chosen)
    }


def as_lists(table: Any, name: str) -> list[float | None]:
    if isinstance(table, pd.DataFrame):
        return [None if math.isnan(value) else value for value in table[name].tolist()]
    to_list = {pa.Table: "to_pylist", pl.DataFrame: "to_list", dict: "tolist"}[type(table)]
    values: list[float | None] = getattr(table[name], to_list)()
    return values


@pytest.mark.parametrize("name", KINDS)
@given(tables("place"), st.lists(st.tuples(tables("value"), rules), min_size=1, max_size=3))
def test_rows_are_those_of_the_definition(name: str, driver: Table, given_columns: list[tuple[Table, Any]]) -> None:
    others, chosen = [table for table, _ in given_columns], [rule for _, rule in given_columns]
    driver["place"] = np.arange(len(driver["at"]))
    found = align(KINDS[name](driver), columns_of(KINDS[name], others, chosen), time="at", by="machine")
    wanted = wanted_rows(driver, others, chosen)
    assert as_lists(found, "place") == sorted(wanted)
    for number in range(len(others)):
        for place, value in zip(sorted(wanted), as_lists(found, f"c{number}"), strict=True):
            expected = wanted[place][number]
            assert (value is None) == (expected is None)
            if value is not None and expected is not None:
                is_turned = abs(abs(value - expected) - 360.0) < 1e-6
                assert is_turned or math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-9)


@given(tables("place"), st.lists(st.tuples(tables("value"), rules), min_size=1, max_size=3))
def test_rows_are_those_of_the_buffer_to_the_last_bit(driver: Table, given_columns: list[tuple[Table, Any]]) -> None:
    others, chosen = [table for table, _ in given_columns], [rule for _, rule in given_columns]
    driver["place"] = np.arange(len(driver["at"]))
    found = align(driver, columns_of(same, others, chosen), time="at", by="machine")
    ordered = [{name: of[name][np.argsort(of["at"], kind="stable")] for name in of} for of in (driver, *others)]
    buffer = AlignBuffer(rules_of(chosen))

    def records(of: Table) -> tuple[Any, ...]:
        return of["machine"], of["at"], np.arange(len(of["at"]))

    rows = buffer.close(
        driver=records(ordered[0]),
        columns={f"c{number}": (records(of), of["value"]) for number, of in enumerate(ordered[1:])},
    )
    at = np.argsort(ordered[0]["place"][rows.seq], kind="stable")
    assert ordered[0]["place"][rows.seq][at].tolist() == found["place"].tolist()
    for number in range(len(others)):
        name = f"c{number}"
        assert np.ma.getmaskarray(found[name]).tolist() == rows.is_missing[name][at].tolist()
        assert found[name].filled(np.nan).tobytes() == rows.values[name][at].tobytes()


@given(
    st.lists(st.tuples(tables("value"), rules), min_size=1, max_size=3),
    st.integers(1, 6),
    st.integers(-20, 20),
    st.none() | st.integers(0, 9),
)
def test_rows_of_a_grid_are_those_of_the_buffer_to_the_last_bit(
    given_columns: list[tuple[Table, Any]], every: int, origin: int, max_gap: int | None
) -> None:
    others, chosen = [table for table, _ in given_columns], [rule for _, rule in given_columns]
    of_table = grid(every, origin=origin, max_gap=max_gap)
    found = align(of_table, columns_of(same, others, chosen), time="at", by="machine")
    buffer = AlignBuffer(rules_of(chosen), grid=Grid(every_ns=every, origin_ns=origin, max_gap_ns=max_gap))
    rows = buffer.close(columns={f"c{number}": in_order(of) for number, of in enumerate(others)})
    # A table has its keys in the order in which they first appear.
    keys = np.concatenate([of["machine"] for of in others])
    assert found["machine"].tolist() == [
        key for key in dict.fromkeys(keys.tolist()) for _ in range((rows.key == key).sum())
    ]
    at = np.argsort(found["machine"], kind="stable")
    assert found["machine"][at].tolist() == rows.key.tolist()
    assert found["at"][at].tolist() == rows.ts_ns.tolist()
    for name in rows.values:
        assert np.ma.getmaskarray(found[name])[at].tolist() == rows.is_missing[name].tolist()
        assert found[name].filled(np.nan)[at].tobytes() == rows.values[name].tobytes()


def in_order(of: Table) -> tuple[Any, ...]:
    """Return a table as the records and values of a stream, in time order."""
    order = np.argsort(of["at"], kind="stable")
    return (of["machine"][order], of["at"][order], np.arange(len(order))), of["value"][order]


def many(seed: int, rows: int, begin_ns: int = 1_600_000_000_000_000_000) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    # Distinct times: pandas' nearest prefers the next row at equal distances, and the last of equal rows.
    times = np.sort(draw.choice(50 * rows, rows, replace=False)) * 2 + seed % 2
    return pd.DataFrame(
        {
            "at": pd.to_datetime(times * 1000 + begin_ns),
            "machine": draw.choice(["mill", "lathe", "saw"], rows),
            "value": draw.integers(0, 1000, rows) / 8,
        }
    )


@pytest.mark.parametrize(("rule", "direction"), [("previous", "backward"), ("next", "forward"), ("nearest", "nearest")])
def test_a_large_table_gives_the_rows_of_merge_asof(rule: str, direction: str) -> None:
    driver, other = many(0, 5000).rename(columns={"value": "torque"}), many(1, 4000)
    tolerance = pd.Timedelta("30us")
    found = align(driver, {"speed": column(other, rule=rule, tolerance=tolerance)}, time="at", by="machine")
    wanted = pd.merge_asof(driver, other, on="at", by="machine", direction=direction, tolerance=tolerance)
    pd.testing.assert_frame_equal(found, wanted.rename(columns={"value": "speed"}))


def test_a_large_table_gives_the_values_that_pandas_interpolates_by_time() -> None:
    # pandas interpolates with times as floats, which are exact only near 1970.
    driver, other = many(0, 3000, 0).rename(columns={"value": "torque"}), many(1, 3000, 0)
    found = align(driver, {"speed": column(other, rule="linear")}, time="at", by="machine")
    for machine, rows in found.groupby("machine"):
        of_machine = other[other.machine == machine].set_index("at")["value"]
        whole = of_machine.reindex(of_machine.index.union(rows["at"])).interpolate("time", limit_area="inside")
        np.testing.assert_allclose(rows["speed"].to_numpy(), whole.loc[rows["at"]].to_numpy(), rtol=1e-12)


def test_polars_joins_the_same_rows() -> None:
    driver, other = pl.from_pandas(many(0, 3000)).rename({"value": "torque"}), pl.from_pandas(many(1, 3000))
    found = align(driver, {"speed": column(other)}, time="at", by="machine")
    wanted = driver.join_asof(other, on="at", by="machine", strategy="backward").rename({"value": "speed"})
    assert found.equals(wanted)
