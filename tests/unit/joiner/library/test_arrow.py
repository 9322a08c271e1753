"""What `joiner.join` does with Arrow tables, and with tables of two kinds."""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime, timedelta
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from joiner import ArgumentError, join

SPEED = {"machine": ["a", "a", "b"], "at": [10, 30, 5], "rpm": [1, 2, 3]}
TORQUE = {"machine": ["a", "c"], "at": [20, 1], "nm": [1.5, 2.5]}
JOINED = [
    {"machine": "a", "at_left": 10, "rpm": 1, "at_right": 20, "nm": 1.5},
    {"machine": "a", "at_left": 30, "rpm": 2, "at_right": 20, "nm": 1.5},
]
TEXTS = (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()))


def relation(table: dict[str, Any]) -> Any:
    return duckdb.from_arrow(pa.table(table))


def reader(table: dict[str, Any]) -> Any:
    return pa.table(table).to_reader(max_chunksize=1)


@pytest.mark.parametrize("kind", [pa.table, pa.record_batch, reader, relation])
def test_arrow_objects_of_any_kind_give_an_arrow_table(kind: Any) -> None:
    joined = join(kind(SPEED), kind(TORQUE), time="at", by="machine")
    assert isinstance(joined, pa.Table)
    assert joined.to_pylist() == JOINED


def test_types_stay_and_missing_values_are_nulls() -> None:
    joined = join(pa.table(SPEED), pa.table(TORQUE), time="at", by="machine", emit_unmatched="both")
    assert joined.schema.types == [pa.string(), pa.int64(), pa.int64(), pa.int64(), pa.float64()]
    assert joined["machine"].to_pylist() == ["a", "a", "b", "c"]
    assert joined["rpm"].to_pylist() == [1, 2, 3, None]
    assert joined["at_right"].to_pylist() == [20, 20, None, 1]


@pytest.mark.parametrize("unmatched", ["none", "both"])
@pytest.mark.parametrize("right", TEXTS)
@pytest.mark.parametrize("left", TEXTS)
def test_texts_are_equal_however_arrow_keeps_them(left: pa.DataType, right: pa.DataType, unmatched: str) -> None:
    one = pa.table({"key": pa.array(["a", "b", "c"]).cast(left), "at": [1, 2, 3]})
    other = pa.table({"key": pa.array(["b", "a", "d"]).cast(right), "at": [2, 1, 4]})
    joined = join(one, other, time="at", by="key", emit_unmatched=unmatched)
    assert sorted(joined["key"].to_pylist()) == ["a", "b", "c", "d"][: 2 if unmatched == "none" else 4]


def test_integers_with_and_without_a_sign_are_the_same_key_only_if_they_are_equal() -> None:
    left = pa.table({"key": pa.array([2**53 + 1, 7, -1], pa.int64()), "at": [1, 2, 3]})
    right = pa.table({"key": pa.array([2**53, 7, 2**64 - 1], pa.uint64()), "at": [1, 2, 3]})
    assert join(left, right, time="at", by="key")["key"].to_pylist() == [7]
    every = join(left, right, time="at", by="key", emit_unmatched="both")
    assert every["key"].to_pylist() == [7, 2**53 + 1, -1, 2**53, 2**64 - 1]


@pytest.mark.parametrize("keys", [[0.5, -0.0, 1.0], [True, False, True], [b"a", b"b", b"c"], [date(2026, 1, 1)] * 3])
def test_keys_may_have_any_type_that_can_be_compared(keys: list[Any]) -> None:
    for unmatched in ("none", "both"):
        tables = [pa.table({"key": pa.chunked_array([keys[:1], keys[1:]]), "at": [1, 2, 3]}) for _ in "lr"]
        joined = join(*tables, time="at", by="key", tolerance=0, emit_unmatched=unmatched)
        assert sorted(joined["key"].to_pylist()) == sorted(keys)


@pytest.mark.parametrize("rows", [(0, 0), (0, 1), (1, 0)])
def test_tables_without_rows_are_joined_like_all_others(rows: tuple[int, int]) -> None:
    tables = [pa.table({"key": ["a"], "at": [1], "x": [7]}).slice(0, count) for count in rows]
    assert join(*tables, time="at", by="key").num_rows == 0
    assert join(*tables, time="at", by="key", emit_unmatched="both").num_rows == sum(rows)


def test_times_of_all_types_are_brought_together() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    behind = pa.array([noon - timedelta(microseconds=1)], pa.timestamp("us", "Europe/Berlin"))
    tables = pa.table({"at": pa.array([noon], pa.timestamp("ms", "UTC"))}), pa.table({"at": behind})
    assert join(*tables, time="at", tolerance="1 us").num_rows == 1
    days = pa.table({"at": pa.array([date(2026, 1, 1)])}), pa.table({"at": pa.array([datetime(2026, 1, 2)])})  # noqa: DTZ001 - naive on purpose
    assert join(*days, time="at", tolerance="1 day").num_rows == 1


def test_the_right_table_is_converted_to_the_kind_of_the_left_one() -> None:
    # Float64 would not distinguish these integers.
    right = pa.table({"at": [20], "id": pa.array([2**53 + 1]), "other": pa.array([None], pa.int32())})
    of_pandas = join(pd.DataFrame({"at": [10]}, index=["x"]), right, time="at")
    assert of_pandas["id"].tolist() == [2**53 + 1]
    assert str(of_pandas["other"].dtype) == "Int32"
    assert join(pl.DataFrame({"at": [10]}), right, time="at").row(0) == (10, 20, 2**53 + 1, None)
    of_arrow = join(right, pd.DataFrame({"at": [10]}, index=["x"]), time="at")
    assert of_arrow.column_names == ["at_left", "id", "other", "at_right"], "an index is not a column"


def test_dates_of_arrow_may_be_times_beside_pandas() -> None:
    right = pa.table({"at": pa.array([date(2026, 1, 2)])})
    assert len(join(pd.DataFrame({"at": pd.to_datetime(["2026-01-01"])}), right, time="at", tolerance="1 day")) == 1


@pytest.mark.parametrize(
    ("dtype", "plain"),
    [
        ("timestamp[us, tz=Europe/Berlin][pyarrow]", "datetime64[ns, UTC]"),
        ("timestamp[s][pyarrow]", "datetime64[ns]"),
        ("date32[day][pyarrow]", "datetime64[ns]"),
        ("int32[pyarrow]", "int64"),
    ],
)
def test_columns_of_pandas_may_be_kept_by_arrow(dtype: str, plain: str) -> None:
    days = pd.to_datetime(["2026-01-01", "2026-01-02"], utc="UTC" in plain) if "datetime" in plain else [1, 2]
    expected = pd.DataFrame({"at": pd.Series(days, dtype=plain), "key": [1, 2]})
    frame = expected.astype({"at": dtype, "key": "int8[pyarrow]"})
    for tables in ((frame, frame), (frame, expected), (expected, frame)):
        joined = join(*tables, time="at", by="key", driver="left", direction="backward")
        assert joined["key"].tolist() == [1, 2]
        assert joined["at_left"].dtype == tables[0]["at"].dtype
        assert joined["at_right"].dtype == tables[1]["at"].dtype


REFUSED: list[tuple[Any, Any, dict[str, Any], str]] = [
    (pa.table({"at": [1]}), pa.table({"at": [1.5]}), {}, r"right\['at'\] must contain .* integers .*, not float64"),
    (pa.table({"at": [1]}), pa.table({"at": [1, None]}), {}, r"right\['at'\] has no value in row 1"),
    (pa.table({"at": [1]}), {"at": np.array([1])}, {}, "left is pyarrow.Table, but right is builtins.dict"),
    (pl.Series([1]), pa.table({"at": [1]}), {}, "left is Series, which is not a table"),
    (pa.table({"at": [1]}), pa.chunked_array([[1]]), {}, "right is ChunkedArray, which is not a table"),
    (pa.table({"at": [1]}), 5, {}, "right must be a pandas .*, an Arrow table, another .*, not builtins.int"),
    (pa.Table.from_arrays([pa.array([1])] * 2, ["at", "at"]), pa.table({"at": [1]}), {}, "left has two columns named"),
    (pa.table({"at": [1], "k": [[1]]}), pa.table({"at": [1], "k": [[1]]}), {"by": "k"}, "by: values of type list"),
    (
        pa.table({"at": [1], "k": ["1"]}),
        pa.table({"at": [1], "k": [1]}),
        {"by": "k"},
        r"left\['k'\] contains strings, but right\['k'\] contains integers; cast one",
    ),
]


@pytest.mark.parametrize(("left", "right", "options", "message"), REFUSED)
def test_what_cannot_be_joined_is_refused_with_table_column_and_row(
    left: Any, right: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        join(left, right, time="at", **options)


class Views:
    """An object with an Arrow stream in which strings, and those of its dictionaries, are views."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        frame = pl.DataFrame({"at": [1, 2], "name": ["a", "b"], "level": pl.Series(["x", None], dtype=pl.Categorical)})
        return frame.__arrow_c_stream__(requested_schema)


def test_views_are_taken_and_compared_like_other_strings() -> None:
    for by in ("name", ["name"]):
        joined = join(Views(), Views(), time="at", by=by, tolerance=0, emit_unmatched="both")
        assert joined.select(["name", "level_left", "level_right"]).to_pydict() == {
            "name": ["a", "b"],
            "level_left": ["x", None],
            "level_right": ["x", None],
        }
    with pytest.raises(ArgumentError, match=r"left\['level'\] has no value in row 1"):
        join(Views(), Views(), time="at", by="level")
    strings = pa.table({"at": [1], "level": ["x"]})
    first = pl.DataFrame({"at": [1], "level": ["x"]}).cast({"level": pl.Categorical})
    assert join(strings, first, time="at", by="level").num_rows == 1


def test_one_reader_may_be_both_tables() -> None:
    both = reader(SPEED)
    assert join(both, both, time="at", by="machine", tolerance=0)["rpm_left"].to_pylist() == SPEED["rpm"]


def test_without_pyarrow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"at": [1]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pyarrow is not installed: pip install 'localstreambuffer\[arrow\]'"):
        join(table, table, time="at")
