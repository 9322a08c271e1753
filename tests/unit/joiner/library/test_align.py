"""Does `align` keep what it is given, and say what is wrong with what it cannot use?"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from joiner import ArgumentError, LocalStreamBuffer, align, column
from joiner.core import compiled

TORQUE = pd.DataFrame({"machine": ["mill", "lathe", "mill"], "at": [20, 21, 10], "nm": [5, 6, 4]}, index=[7, 8, 9])
SPEED = pd.DataFrame({"machine": ["mill", "mill"], "at": [5, 15], "rpm": [100, 200]})


def test_the_driver_keeps_its_rows_their_order_and_their_index() -> None:
    rows = align(TORQUE, {"speed": column(SPEED, rule="linear")}, time="at", by="machine")
    assert rows.index.tolist() == [7, 8, 9]
    assert rows.columns.tolist() == ["machine", "at", "nm", "speed"]
    assert rows["nm"].tolist() == [5, 6, 4]
    assert rows["speed"].isna().tolist() == [True, True, False]
    assert rows["speed"].tolist()[2] == 150.0
    left = align(TORQUE, {"speed": column(SPEED, rule="linear", on_missing="drop")}, time="at", by="machine")
    assert left.index.tolist() == [9]


def test_integers_booleans_and_words_stay_what_they_are() -> None:
    speed = SPEED.assign(rpm=[2**62 + 1, 200], is_on=[True, False], mode=["slow", "fast"])
    columns = {name: column(speed, name) for name in ("rpm", "is_on", "mode")}
    rows = align(TORQUE, columns, time="at", by="machine")
    assert rows.dtypes[["rpm", "is_on"]].astype(str).tolist() == ["Int64", "boolean"]
    assert rows["rpm"].tolist()[2] == 2**62 + 1
    assert rows["mode"].tolist()[::2] == ["fast", "slow"]
    polars = align(pl.from_pandas(TORQUE), {"rpm": column(pl.from_pandas(speed), "rpm")}, time="at", by="machine")
    assert polars["rpm"].to_list() == [200, None, 2**62 + 1]
    arrow = align(pa.table(pl.from_pandas(TORQUE)), {"rpm": column(speed)}, time="at", by="machine")
    assert arrow["rpm"].to_pylist() == [200, None, 2**62 + 1]


def test_times_and_keys_may_have_other_names_in_a_column_s_table() -> None:
    speed = SPEED.rename(columns={"machine": "thing", "at": "when"})
    rows = align(TORQUE, {"speed": column(speed, time="when", by="thing")}, time="at", by="machine")
    assert rows["speed"].tolist()[0] == 200


def test_a_value_without_a_number_is_missing() -> None:
    speed = SPEED.assign(rpm=pd.array([100, None], dtype="Int64"))
    for rule in ("linear", "previous"):
        columns = {"speed": column(speed, rule=rule, on_missing="drop")}
        assert align(TORQUE.iloc[[0]], columns, time="at", by="machine").empty


KINDS = {"arrays": lambda table: table, "pandas": pd.DataFrame, "polars": pl.DataFrame, "arrow": pa.table}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", ["previous", "next", "nearest", "linear"])
def test_nan_is_a_missing_value_in_every_kind_of_table(kind: str, rule: str) -> None:
    make = KINDS[kind]
    driver, other = make({"at": np.array([1, 2])}), make({"at": np.array([1, 2]), "v": np.array([1.0, np.nan])})
    rows = align(driver, {"v": column(other, rule=rule)}, time="at")
    left = align(driver, {"v": column(other, rule=rule, on_missing="drop")}, time="at")
    assert len(left["v"]) == 1
    values = rows["v"].to_pylist() if kind == "arrow" else list(rows["v"].tolist() if kind == "arrays" else rows["v"])
    assert values[0] == 1.0
    assert np.isnan(values[1]) if kind == "pandas" else values[1] is None


@pytest.mark.parametrize("rule", ["previous", "next", "nearest", "linear"])
def test_a_masked_value_of_an_array_is_missing(rule: str) -> None:
    ones = np.ma.masked_array([1, 7, 3], mask=[False, True, False])
    other = {"at": np.array([1, 2, 3]), "v": ones}
    rows = align({"at": np.array([1, 2, 3])}, {"v": column(other, rule=rule)}, time="at")
    assert rows["v"].tolist() == [1, None, 3]


def test_the_result_can_be_the_driver_of_another_call() -> None:
    first, other = {"at": np.array([0, 2])}, {"at": np.array([1, 2]), "v": np.array([1, 2])}
    rows = align(align(first, {"a": column(other)}, time="at"), {"b": column(other)}, time="at")
    assert rows["a"].tolist() == rows["b"].tolist() == [None, 2]


def test_a_masked_time_is_named() -> None:
    times = np.ma.masked_array([1, 2], mask=[False, True])
    with pytest.raises(ArgumentError, match=r"driver\['at'\] has no value in row 1"):
        align({"at": times}, {"v": column({"at": np.array([1]), "v": np.array([1])})}, time="at")


def test_a_stream_may_be_driver_and_column_at_once() -> None:
    batch = pa.record_batch({"at": [10, 20], "v": [1, 2]})
    stream = pa.RecordBatchReader.from_batches(batch.schema, [batch])
    rows = align(stream, {"a": column(stream, "v"), "b": column(stream, "v")}, time="at")
    assert rows["a"].to_pylist() == rows["b"].to_pylist() == [1, 2]


def test_no_loop_waits_for_its_first_call_to_be_compiled() -> None:
    align(TORQUE, {"speed": column(SPEED, "rpm")}, time="at", by="machine")
    LocalStreamBuffer()
    assert not any(compiled._declared.values())  # noqa: SLF001 - it has no effect that a caller sees


@pytest.mark.parametrize("rule", ["previous", "next", "nearest", "linear"])
def test_arrays_may_be_views_with_gaps(rule: str) -> None:
    wide = np.arange(12).reshape(6, 2)
    rows = align({"at": wide[:, 0]}, {"v": column({"at": wide[:, 0], "v": wide[:, 1]}, rule=rule)}, time="at")
    assert rows["v"].tolist() == wide[:, 1].tolist()


def test_a_driver_that_can_be_read_only_once_is_read_once() -> None:
    class Once:
        """A stream of Arrow batches."""

        def __init__(self) -> None:
            self._stream: Any = pa.RecordBatchReader.from_batches(
                pa.schema({"at": pa.int64()}), iter([pa.record_batch({"at": [10, 20]})])
            )

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            stream, self._stream = self._stream, None
            return stream.__arrow_c_stream__(requested_schema)

    speed = pa.table({"at": [5, 15], "rpm": [1.0, 2.0]})
    rows = align(Once(), {"a": column(speed), "b": column(speed, rule="linear")}, time="at")
    assert rows["a"].to_pylist() == [1.0, 2.0]
    assert rows["b"].to_pylist() == [1.5, None]


def test_tables_without_rows_give_no_values() -> None:
    empty = {"at": np.array([], dtype=np.int64), "rpm": np.array([], dtype=np.float64)}
    for rule in ("previous", "linear"):
        rows = align({"at": np.array([1, 2])}, {"speed": column(empty, rule=rule)}, time="at")
        assert np.ma.getmaskarray(rows["speed"]).all()
        assert len(align(empty, {"speed": column(empty, "rpm", rule=rule)}, time="at")["speed"]) == 0


TWICE = SPEED.set_axis(["at", "rpm", "rpm"], axis="columns")
DATED = TORQUE.assign(at=pd.to_datetime(TORQUE["at"]))


@pytest.mark.parametrize(
    ("driver", "columns", "text"),
    [
        (TORQUE, {}, "columns must contain at least one column"),
        (TORQUE, [column(SPEED)], r"columns must be a mapping .* such as {'speed': column\(...\)}, not list"),
        (TORQUE, column(SPEED), "columns must be a mapping .* not TableColumn"),
        (pl.from_pandas(TORQUE), {"speed": column(TWICE)}, r"columns\['speed'\] has two columns named 'rpm'; rename"),
        (pa.table(TORQUE), {"speed": column(TWICE)}, r"columns\['speed'\] has two columns named 'rpm'; rename"),
        (TORQUE, {"speed": SPEED}, r"columns\['speed'\] must be a column\(...\), not DataFrame"),
        (TORQUE, {"nm": column(SPEED)}, "the driver already has a column 'nm'; choose another name"),
        (TORQUE, {"speed": column([1, 2])}, r"columns\['speed'\] must be a pandas .*, not builtins.list"),
        (
            TORQUE,
            {"speed": column({"at": np.array([1])})},
            r"driver is pandas.DataFrame, but columns\['speed'\] is builtins.dict",
        ),
        (
            TORQUE,
            {"speed": column(SPEED, "rps")},
            r"columns\['speed'\] has no column 'rps'; it has 'machine', 'at', 'rpm'",
        ),
        (TORQUE, {"speed": column(SPEED.assign(more=1))}, r"specify the column .*, as in column\(table, 'rpm'\)"),
        (TORQUE, {"speed": column(SPEED, time="when")}, r"columns\['speed'\] has no column 'when'"),
        (
            TORQUE,
            {"speed": column(SPEED, by=["machine", "at"])},
            r"columns\['speed'\]: by = \['machine', 'at'\] must be empty, or have as many columns as .*machine",
        ),
        (
            TORQUE,
            {"speed": column(SPEED, tolerance="1s")},
            r"columns\['speed'\]: tolerance = '1s' is a duration, but the times",
        ),
        (DATED, {"speed": column(SPEED)}, "driver contains datetimes without a time zone, but .* contains integers"),
        (TORQUE, {"mode": column(SPEED.assign(rpm="fast"), rule="linear")}, "must contain numbers for rule 'linear'"),
        (TORQUE, {"mode": column(SPEED.assign(rpm=True), rule="linear")}, "must contain numbers for rule 'linear'"),
        (TORQUE, {"mode": column(SPEED.assign(rpm=Decimal(1)), rule="linear")}, "not Decimal; convert the column to"),
        (TORQUE.drop(columns="at"), {"speed": column(SPEED)}, "driver has no column 'at'"),
        (TORQUE.assign(machine=[1, 2, 3]), {"speed": column(SPEED)}, r"by: driver\['machine'\] contains integers"),
    ],
)
def test_what_cannot_be_used_is_named(driver: Any, columns: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        align(driver, columns, time="at", by="machine")


def test_a_duration_is_a_tolerance_of_datetimes() -> None:
    speed = SPEED.assign(at=pd.to_datetime(SPEED["at"]))
    for tolerance in ("5ns", np.timedelta64(5, "ns"), pd.Timedelta("5ns")):
        rows = align(DATED, {"speed": column(speed, tolerance=tolerance)}, time="at", by="machine")
        assert rows["speed"].isna().tolist() == [False, True, False]
    with pytest.raises(ArgumentError, match=r"tolerance must be a duration .* because the times are datetimes"):
        align(DATED, {"speed": column(speed, tolerance=5)}, time="at", by="machine")
