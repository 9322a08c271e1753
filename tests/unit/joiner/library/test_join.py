"""The arguments that `joiner.join` accepts and refuses, and the type of its result."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from joiner import ArgumentError, join
from joiner.library.durations import duration_ns

SPEED = pd.DataFrame({"machine": ["a", "a", "b"], "at": pd.to_datetime([10, 30, 5], unit="s"), "value": [1, 2, 3]})
TORQUE = pd.DataFrame({"machine": ["a", "c"], "at": pd.to_datetime([20, 1], unit="s"), "value": [1.5, 2.5]})


def test_the_result_has_the_key_then_both_tables_with_suffixes_for_names_that_both_have() -> None:
    joined = join(SPEED, TORQUE.rename(columns={"at": "when"}), time=("at", "when"), by="machine")
    assert list(joined.columns) == ["machine", "at", "value_left", "when", "value_right"]
    assert joined["value_left"].tolist() == [1, 2]
    assert joined["value_right"].tolist() == [1.5, 1.5]
    assert joined["value_left"].dtype == np.int64
    assert joined.index.tolist() == [0, 1]


def test_rows_without_a_partner_come_behind_the_pairs_with_their_key() -> None:
    joined = join(pl.from_pandas(SPEED), pl.from_pandas(TORQUE), time="at", by="machine", emit_unmatched="both")
    assert joined["machine"].to_list() == ["a", "a", "b", "c"]
    assert joined["value_left"].to_list() == [1, 2, 3, None]
    assert joined["value_right"].to_list() == [1.5, 1.5, None, 2.5]


@pytest.mark.parametrize(
    "tolerance", [timedelta(seconds=9), np.timedelta64(9_999, "ms"), pd.Timedelta("9.5s"), "9.999s"]
)
def test_what_is_farther_apart_than_a_tolerance_of_any_kind_is_no_pair(tolerance: object) -> None:
    for tables in ((SPEED, TORQUE), (pl.from_pandas(SPEED), pl.from_pandas(TORQUE))):
        assert len(join(*tables, time="at", by="machine", tolerance=tolerance)) == 0
        assert len(join(*tables, time="at", by="machine", tolerance=timedelta(seconds=10))) == 2


def test_without_a_key_all_rows_are_neighbours() -> None:
    joined = join({"at": np.array([10, 30])}, {"at": np.array([20])}, time="at")
    assert {name: column.tolist() for name, column in joined.items()} == {"at_left": [10, 30], "at_right": [20, 20]}


def test_units_of_time_and_zones_are_brought_together() -> None:
    noon, behind = pd.to_datetime(["2026-01-01T12:00"]), pd.to_datetime(["2026-01-01T11:00:00.000000001"])
    of_pandas = (
        pd.DataFrame({"at": noon.tz_localize("Europe/Berlin").as_unit("s")}),
        pd.DataFrame({"at": behind.tz_localize("UTC")}),
    )
    of_polars = (
        pl.DataFrame({"at": noon.to_numpy()}).select(
            pl.col("at").cast(pl.Datetime("ms", "Europe/Berlin")) - timedelta(hours=1)
        ),
        pl.DataFrame({"at": behind.to_numpy()}).select(pl.col("at").cast(pl.Datetime("ns", "UTC"))),
    )
    for tables in (of_pandas, of_polars):
        assert len(join(*tables, time="at", tolerance=timedelta(microseconds=1))) == 1


@pytest.mark.parametrize("kind", [dict, pd.DataFrame, pl.DataFrame])
def test_integers_with_and_without_a_sign_are_the_same_key_only_if_they_are_equal(kind: Any) -> None:
    left = kind({"key": np.array([2**53 + 1, 7, -1], np.int64), "at": np.array([1, 2, 3])})
    right = kind({"key": np.array([2**53, 7, 2**64 - 1], np.uint64), "at": np.array([1, 2, 3])})
    assert list(join(left, right, time="at", by="key")["key"]) == [7]
    every = join(left, right, time="at", by="key", emit_unmatched="both")
    assert list(every["key"]) == [7, 2**53 + 1, -1, 2**53, 2**64 - 1]


@pytest.mark.parametrize("kind", [dict, pd.DataFrame, pl.DataFrame])
def test_so_they_are_in_keys_of_several_columns(kind: Any) -> None:
    one = np.array([1, 1, 2])
    left = kind({"a": one, "b": np.array([2**53 + 1, 7, 7], np.int64), "at": np.array([1, 2, 3])})
    right = kind({"a": one, "b": np.array([2**53, 7, 8], np.uint64), "at": np.array([1, 2, 3])})
    joined = join(left, right, time="at", by=["a", "b"])
    assert (list(joined["a"]), list(joined["b"])) == ([1], [7])


@pytest.mark.parametrize("types", [("Int64", "Int64"), ("Int64", "UInt64"), ("int64", "Int32")])
def test_keys_may_be_integers_of_the_kind_that_may_lack(types: tuple[str, str]) -> None:
    sides = [
        pd.DataFrame({"key": pd.array([1, far], dtype=kind), "at": [1, 2]})
        for kind, far in zip(types, (2**31 - 1, 5), strict=True)
    ]
    assert join(*sides, time="at", by="key")["key"].tolist() == [1]


@pytest.mark.parametrize("kind", [dict, pd.DataFrame, pl.DataFrame])
def test_keys_may_lie_far_apart(kind: Any) -> None:
    keys = np.array([-(2**62), 0, 10**9, 2**62])
    one, other = (kind({"key": keys[::step], "at": np.arange(4)}) for step in (1, -1))
    assert sorted(join(one, other, time="at", by="key")["key"]) == keys.tolist()


@pytest.mark.parametrize("kind", [dict, pd.DataFrame, pl.DataFrame])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint64])
def test_keys_may_use_the_whole_range_of_a_small_type(kind: Any, dtype: Any) -> None:
    keys = np.concatenate([np.arange(256) + max(np.iinfo(dtype).min, -128)] * 2).astype(dtype)
    one, other = (kind({"key": keys, "at": np.arange(len(keys)) + phase}) for phase in (0, 1))
    joined = join(one, other, time="at", by="key", direction="forward", driver="left")
    assert sorted(joined["key"]) == sorted(keys)


@pytest.mark.parametrize("kind", [dict, pd.DataFrame, pl.DataFrame])
def test_tables_without_rows_are_joined_like_all_others(kind: Any) -> None:
    empty = kind({"key": np.empty(0, np.int64), "at": np.empty(0, np.int64), "x": np.empty(0, np.int64)})
    one = kind({"key": np.array([1]), "at": np.array([1]), "x": np.array([7])})
    for tables in ((empty, empty), (empty, one), (one, empty)):
        assert len(join(*tables, time="at", by="key")["key"]) == 0
        unmatched = join(*tables, time="at", by="key", emit_unmatched="both")
        assert len(unmatched["key"]) == sum(len(table["key"]) for table in tables)


@pytest.mark.parametrize("unmatched", ["none", "both"])
@pytest.mark.parametrize("kind", [dict, pd.DataFrame, pl.DataFrame])
def test_key_columns_with_different_names_are_joined_as_if_the_right_ones_were_renamed(
    kind: Any, unmatched: str
) -> None:
    left = {"a": np.array([1, 1, 2]), "b": np.array([5, 6, 5]), "at": np.array([1, 2, 3])}
    right = {"c": np.array([1, 3, 2]), "d": np.array([5, 6, 5]), "at": np.array([4, 5, 6])}
    renamed = {{"c": "a", "d": "b"}.get(name, name): column for name, column in right.items()}
    for left_by, right_by in (("a", "c"), (["a", "b"], ("c", "d"))):
        found = join(kind(left), kind(right), time="at", left_by=left_by, right_by=right_by, emit_unmatched=unmatched)
        # With one key, the other column of the right table keeps its name.
        one = kind(renamed if len(left_by) > 1 else {"a": right["c"], "d": right["d"], "at": right["at"]})
        expected = join(kind(left), one, time="at", by=left_by, emit_unmatched=unmatched)
        assert list(found) == list(expected) if kind is dict else list(found.columns) == list(expected.columns)
        for name in ["a", "b", "at_left", "at_right"]:
            assert str(found[name]) == str(expected[name])


@pytest.mark.parametrize("kind", [dict, pd.DataFrame, pl.DataFrame])
def test_another_column_named_like_the_key_on_the_left_gets_the_suffix(kind: Any) -> None:
    left = kind({"key": np.array([1]), "at": np.array([1])})
    right = kind({"number": np.array([1]), "key": np.array([7]), "when": np.array([2])})
    joined = join(left, right, time=("at", "when"), left_by="key", right_by="number")
    names = list(joined) if kind is dict else list(joined.columns)
    assert names == ["key", "at", "key_right", "when"]
    assert [list(joined[name]) for name in names] == [[1], [1], [7], [2]]


VALUES: dict[str, Any] = {
    "int64": [2**53 + 1, 7],
    "uint64": [2**64 - 1, 7],
    "int8": [-128, 7],
    "bool": [True, False],
    "float32": [0.5, 1.5],
    "Int16": [1, None],
    "boolean": [True, None],
    "string": ["a", "b"],
    "object": ["a", "b"],
    "category": ["a", "b"],
    "datetime64[ns, UTC]": pd.to_datetime(["2026-01-01", "2026-01-02"], utc=True),
    "timedelta64[s]": pd.to_timedelta([1, 2], unit="s"),
}
NULLABLE = {"int64": "Int64", "uint64": "UInt64", "int8": "Int8", "bool": "boolean"}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", VALUES)
def test_values_beside_missing_ones_keep_their_type_in_pandas(dtype: str, side: str) -> None:
    values = pd.Series(VALUES[dtype], dtype=dtype)
    full = pd.DataFrame({"at": [1, 2], "value": values})
    other = pd.DataFrame({"at": [1, 2, 9]})
    tables = (full, other) if side == "left" else (other, full)
    unmatched = "right" if side == "left" else "left"
    joined = join(*tables, time="at", tolerance=0, emit_unmatched=unmatched)["value"]
    assert joined.dtype == NULLABLE.get(dtype, dtype)
    assert joined.isna().tolist() == [*values.isna(), True]
    present = joined[:2].dropna()
    assert present.tolist() == values.dropna().tolist()


def test_in_pandas_the_type_depends_on_the_options_alone() -> None:
    tables = pd.DataFrame({"at": [1], "x": [1]}), pd.DataFrame({"at": [1], "y": [1]})
    for unmatched, x, y in (
        ("none", "int64", "int64"),
        ("left", "int64", "Int64"),
        ("right", "Int64", "int64"),
        ("both", "Int64", "Int64"),
    ):
        joined = join(*tables, time="at", emit_unmatched=unmatched)
        assert (str(joined["x"].dtype), str(joined["y"].dtype)) == (x, y)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(pl.Int64, 2**53 + 1), (pl.UInt8, 7), (pl.Boolean, True), (pl.Categorical, "a"), (pl.Enum(["a"]), "a")],
)
def test_in_polars_every_type_stays(dtype: Any, value: object) -> None:
    right = pl.DataFrame({"at": [1], "value": pl.Series([value]).cast(dtype)})
    joined = join(pl.DataFrame({"at": [1, 9]}), right, time="at", tolerance=0, emit_unmatched="left")
    assert joined["value"].dtype == right["value"].dtype
    assert joined["value"].to_list() == [right["value"][0], None]


def test_masked_values_of_arrays_stay_masked() -> None:
    values = np.ma.masked_array([7, 8], mask=[True, False])
    left = {"at": np.array([1, 3]), "a": values}
    for emit_unmatched in ("none", "both"):
        rows = join(left, {"at": np.array([2]), "b": np.array([5])}, time="at", emit_unmatched=emit_unmatched)
        assert rows["a"].tolist() == [None, 8]


def test_arrays_are_masked_and_keep_their_type() -> None:
    right = {"at": np.array([1]), "value": np.array([2**53 + 1])}
    joined = join({"at": np.array([1, 9])}, right, time="at", tolerance=0, emit_unmatched="left")
    assert joined["value"].dtype == np.int64
    assert joined["value"].tolist() == [2**53 + 1, None]


ORDERED = pd.DataFrame({"key": ["b", "a", "a"], "at": [30, 50, 10], "x": [0, 1, 2]}, index=["p", "q", "r"])
OTHERS = pd.DataFrame({"key": ["a", "b", "c", "b"], "at": [20, 25, 5, 40], "y": [0, 1, 2, 3]})
PAIRS_BY_ORDER = {
    # Left and right row of each row of the result.
    "key": [(0, 1), (0, 3), (2, 0), (1, 0), (None, 2)],
    "left": [(0, 1), (0, 3), (1, 0), (2, 0), (None, 2)],
    "time": [(None, 2), (2, 0), (0, 1), (0, 3), (1, 0)],
}


@pytest.mark.parametrize("kind", [None, pl.from_pandas])
@pytest.mark.parametrize("order", PAIRS_BY_ORDER)
def test_rows_come_by_key_by_left_row_or_by_time(order: str, kind: Any) -> None:
    tables = [kind(table) if kind else table for table in (ORDERED, OTHERS)]
    joined = join(*tables, time="at", by="key", emit_unmatched="both", order=order)
    rows = [[None if pd.isna(value) else value for value in joined[name].to_list()] for name in "xy"]
    assert list(zip(*rows, strict=True)) == PAIRS_BY_ORDER[order]


def test_an_unmatched_left_row_stays_in_its_place_and_counts_by_its_time() -> None:
    tables = pd.DataFrame({"at": [30, 10, 20], "x": [0, 1, 2]}), pd.DataFrame({"at": [10, 30]})
    for order, expected in (("key", [1, 0, 2]), ("left", [0, 1, 2]), ("time", [1, 2, 0])):
        joined = join(*tables, time="at", tolerance=0, emit_unmatched="left", order=order)
        assert joined["x"].tolist() == expected


@pytest.mark.parametrize("unmatched", ["none", "left"])
def test_in_the_order_of_the_left_table_its_labels_are_kept(unmatched: str) -> None:
    joined = join(ORDERED, OTHERS, time="at", by="key", order="left", emit_unmatched=unmatched)
    assert joined.index.tolist() == ["p", "p", "q", "r"]
    as_of: dict[str, Any] = {"direction": "backward", "driver": "left", "order": "left", "emit_unmatched": "left"}
    one_to_one = join(ORDERED.set_index("x", append=True), OTHERS, time="at", by="key", **as_of)
    assert one_to_one.index.tolist() == [("p", 0), ("q", 1), ("r", 2)]
    assert ORDERED.index.tolist() == ["p", "q", "r"]


@pytest.mark.parametrize("options", [{}, {"order": "time"}, {"order": "left", "emit_unmatched": "right"}])
def test_otherwise_rows_are_numbered(options: dict[str, Any]) -> None:
    joined = join(ORDERED, OTHERS, time="at", by="key", **options)
    assert joined.index.tolist() == list(range(len(joined)))


def test_the_former_name_of_the_time_column_is_accepted_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="join: on was renamed to time") as given:
        joined = join(SPEED, TORQUE, on="at", by="machine")
    assert given[0].filename == __file__, "the warning points to the caller"
    pd.testing.assert_frame_equal(joined, join(SPEED, TORQUE, time="at", by="machine"))


def test_columns_of_pandas_may_have_names_that_are_not_strings() -> None:
    frame = pd.DataFrame({0: [1, 2], 1: [5, 6]})
    joined = join(frame, frame, time=(0, 0), by=[1])  # type: ignore[arg-type, list-item] # pandas allows any name
    assert {name: column.tolist() for name, column in joined.items()} == {
        1: [5, 6],
        "0_left": [1, 2],
        "0_right": [1, 2],
    }


def test_the_tables_that_come_in_stay_as_they_are() -> None:
    before = SPEED.copy(), TORQUE.copy()
    join(SPEED, TORQUE, time="at", by="machine", emit_unmatched="both")
    pd.testing.assert_frame_equal(SPEED, before[0])
    pd.testing.assert_frame_equal(TORQUE, before[1])


def column(values: list[Any], name: str = "at") -> pd.DataFrame:
    return pd.DataFrame({name: values})


FINE = column([1, 2])
DATES = column([np.datetime64("2026-01-01", "s")])
REFUSED: list[tuple[Any, Any, dict[str, Any], str]] = [
    (FINE, FINE, {"time": "when"}, "left has no column 'when'; it has 'at'"),
    (FINE, column([1], "t"), {"time": "at"}, "right has no column 'at'; it has 't'"),
    (FINE, FINE, {"time": "at", "by": "key"}, "left has no column 'key'"),
    (
        FINE,
        column([1.5]),
        {"time": "at"},
        r"right\['at'\] must contain datetimes, or integers that fit in int64, not float64",
    ),
    (
        FINE,
        column(["x"]),
        {"time": "at"},
        r"right\['at'\] must contain datetimes, or integers that fit in int64, not object",
    ),
    (column([1, None]).astype("Int64"), FINE, {"time": "at"}, r"left\['at'\] has no value in row 1"),
    (column([pd.NaT]), DATES, {"time": "at"}, r"left\['at'\] has no value in row 0"),
    (pl.DataFrame({"at": [1, None]}), pl.DataFrame({"at": [1]}), {"time": "at"}, r"left\['at'\] has no value in row 1"),
    ({"at": np.array([np.datetime64("NaT")])}, {"at": np.array([1])}, {"time": "at"}, r"no value in row 0"),
    (
        FINE,
        DATES,
        {"time": "at"},
        "left contains integers, but right contains datetimes without a time zone; convert one",
    ),
    (
        DATES,
        column([pd.Timestamp("2026-01-01", tz="UTC")]),
        {"time": "at"},
        "right contains datetimes with a time zone",
    ),
    (
        {"at": np.array(["2026-01-01", "1600-01-01"], "datetime64[s]")},
        {"at": np.array(["2026-01-01"], "datetime64[s]")},
        {"time": "at"},
        "1600-01-01T00:00:00 in row 1 is outside the years 1678 to 2261",
    ),
    (DATES, DATES, {"time": "at", "tolerance": 5}, "tolerance must be a duration .*, not 5"),
    *(
        (FINE, FINE, {"time": "at", "tolerance": value}, "tolerance = .* is a duration, but the times are integers")
        for value in (timedelta(1), "20ms", np.timedelta64(1, "s"), pd.Timedelta("1s"))
    ),
    (FINE, FINE, {"time": "at", "tolerance": 1.5}, "tolerance must be an integer in the unit of the times, not 1.5"),
    (FINE, FINE, {"time": "at", "tolerance": True}, "tolerance must be an integer in the unit of the times, not True"),
    (FINE, FINE, {"time": "at", "tolerance": -1}, r"tolerance = -1 is outside the range from 0 to 2\*\*63 - 1$"),
    (DATES, DATES, {"time": "at", "tolerance": timedelta(-1)}, "tolerance = .* is outside the range .* nanoseconds"),
    (DATES, DATES, {"time": "at", "tolerance": timedelta(days=200_000)}, "tolerance = .* is outside .* nanoseconds"),
    (DATES, DATES, {"time": "at", "tolerance": "200000 days"}, "tolerance = '200000 days' is outside .* nanoseconds"),
    (DATES, DATES, {"time": "at", "tolerance": np.timedelta64(200_000, "D")}, "tolerance = .* is outside .* nanosec"),
    (DATES, DATES, {"time": "at", "tolerance": np.timedelta64(1, "M")}, "tolerance must be in one of the units ns, us"),
    (DATES, DATES, {"time": "at", "tolerance": np.timedelta64("NaT", "s")}, "tolerance = NaT is not a duration"),
    (FINE, FINE, {"time": "at", "direction": "up"}, "direction must be one of 'both', .*, not 'up'"),
    (FINE, FINE, {"time": "at", "suffixes": ("", "")}, "the result would have two columns named 'at'"),
    (FINE, {"at": [1]}, {"time": "at"}, "left is pandas.DataFrame, but right is builtins.dict; convert one"),
    ([1], [2], {"time": "at"}, "left must be a pandas or polars DataFrame, .*, not builtins.list"),
    (pd.Series([1]), pd.Series([1]), {"time": "at"}, "left must be .*, not pandas.Series"),
    (
        {"at": np.array([1]), "x": np.array([1, 2])},
        {"at": np.array([1])},
        {"time": "at"},
        "the columns of a mapping must be one-dimensional and of equal length",
    ),
    (
        pd.DataFrame({"at": [1], "key": [1]}),
        pd.DataFrame({"at": [1], "key": ["1"]}),
        {"time": "at", "by": "key"},
        r"left\['key'\] contains integers, but right\['key'\] contains strings; cast one",
    ),
    (
        DATES,
        DATES,
        {"time": "at", "tolerance": "5"},
        "tolerance = '5': a duration must consist of numbers followed by units, such as '10 seconds'",
    ),
    (DATES, DATES, {"time": "at", "tolerance": "1s " * 34}, "a duration must not be longer than 100 characters"),
    (DATES, DATES, {"time": "at", "tolerance": "2 fortnights"}, "unknown unit 'fortnights'"),
    (FINE, FINE, {"time": 5}, r"time must be a column name or a pair of names \(left, right\), not 5"),
    (FINE, FINE, {"time": "at", "by": 5}, "by must be a column name or a list of column names, not 5"),
    (FINE, FINE, {"time": "at", "right_by": 5}, "right_by must be a column name or a list of column names, not 5"),
    (FINE, FINE, {"time": "at", "suffixes": None}, r"suffixes must be \(left, right\), not None"),
    (FINE, FINE, {"time": "at", "suffixes": ("_l",)}, r"suffixes must be \(left, right\), not \('_l',\)"),
    *(
        (kind({"at": np.array([1]), "key": np.array([np.nan])}),) * 2
        + ({"time": "at", "by": "key"}, r"left\['key'\] has no value in row 0")
        for kind in (dict, pd.DataFrame, pl.DataFrame, pa.table)
    ),
    (FINE, FINE, {"time": "at", "order": "right"}, "order must be one of 'key', 'left', 'time', not 'right'"),
    (FINE, FINE, {}, "time is required: pass the name of the event time column"),
    (FINE, FINE, {"time": ("at", "at", "at")}, "time must be a column name or a pair"),
    (
        pd.DataFrame({"at": [1], "key": [1]}),
        pd.DataFrame({"at": [1], "name": ["1"]}),
        {"time": "at", "left_by": "key", "right_by": "name"},
        r"left\['key'\] contains integers, but right\['name'\] contains strings; cast one",
    ),
    (FINE, FINE, {"time": "at", "left_by": "at", "right_by": "key"}, "right has no column 'key'"),
    (FINE, FINE, {"time": "at", "by": "at", "left_by": "at"}, "pass either by, or left_by and right_by"),
    (FINE, FINE, {"time": "at", "left_by": "at"}, r"left_by = 'at' and right_by = \(\) must name the same number"),
    (FINE, FINE, {"time": "at", "by": ["at", "at"]}, "by = .* names a column twice"),
    (FINE, FINE, {"time": "at", "on": "at"}, "on is the former name of time"),
]


@pytest.mark.parametrize(("left", "right", "options", "message"), REFUSED)
def test_what_cannot_be_joined_is_refused_with_table_column_and_row(
    left: Any, right: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        join(left, right, **options)


PANDAS_TEXTS = ("object", "string", "category")
POLARS_TEXTS = (pl.String(), pl.Categorical(), pl.Enum(["a", "b"]))


@pytest.mark.parametrize("unmatched", ["none", "both"])
@pytest.mark.parametrize("right", PANDAS_TEXTS)
@pytest.mark.parametrize("left", PANDAS_TEXTS)
def test_texts_are_equal_however_pandas_keeps_them(left: str, right: str, unmatched: str) -> None:
    def table(dtype: str, at: int) -> pd.DataFrame:
        return pd.DataFrame({"key": pd.Series(["a", "b"], dtype=dtype), "at": [at, at + 1]})

    joined = join(table(left, 10), table(right, 20), time="at", by="key", emit_unmatched=unmatched)
    assert joined["key"].tolist() == ["a", "b"]
    assert (joined["at_right"] - joined["at_left"]).tolist() == [10, 10]


@pytest.mark.parametrize("unmatched", ["none", "both"])
@pytest.mark.parametrize("right", POLARS_TEXTS)
@pytest.mark.parametrize("left", POLARS_TEXTS)
def test_texts_are_equal_however_polars_keeps_them(left: Any, right: Any, unmatched: str) -> None:
    def table(dtype: Any, at: int) -> pl.DataFrame:
        return pl.DataFrame({"key": pl.Series(["a", "b"], dtype=dtype), "at": [at, at + 1]})

    joined = join(table(left, 10), table(right, 20), time="at", by="key", emit_unmatched=unmatched)
    assert joined["key"].to_list() == ["a", "b"]


@pytest.mark.parametrize("key", [[1, 2], ["1", 2]])
def test_objects_are_compared_by_their_values(key: list[object]) -> None:
    left = pd.DataFrame({"key": pd.Series(key, dtype="object"), "at": [1, 2]})
    joined = join(left, pd.DataFrame({"key": [1, 2], "at": [3, 4]}), time="at", by="key")
    assert joined["at_left"].tolist() == [1, 2][key[0] == "1" :]


@pytest.mark.parametrize(
    "text", ["1s", "1 second", "1000ms", "0.5s 500 ms", " 1 S ", "1000000 us", "999.9999999 ms 100 ns"]
)
def test_a_tolerance_may_be_text(text: str) -> None:
    frame = pd.DataFrame({"at": pd.to_datetime([0, 10**9, 2 * 10**9 + 1])})
    joined = join(frame, frame, time="at", tolerance=text)
    assert len(joined) == len(join(frame, frame, time="at", tolerance=timedelta(seconds=1)))


@pytest.mark.parametrize("text", ["1s", "10 seconds", "1.5 min", "2h", "1 day 2h", "250ms", "3 µs", "7ns", "1hr"])
def test_durations_are_those_of_pandas(text: str) -> None:
    assert duration_ns(text) == pd.Timedelta(text).value
