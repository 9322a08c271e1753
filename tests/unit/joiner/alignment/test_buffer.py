"""Does an `AlignBuffer` refuse invalid arguments unchanged, and is the arithmetic what docs/alignment.md states?"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joiner import AlignBuffer, ArgumentError, ColumnRule, LocalStreamBuffer, SnapshotError
from joiner.alignment.interpolation import interpolate


def column(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def floats(*values: float) -> Any:
    return np.array(values, dtype=np.float64)


def filled() -> AlignBuffer:
    buffer = AlignBuffer({"speed": ColumnRule(), "angle": ColumnRule(rule="linear", lateness_ns=5)})
    buffer.push(
        driver=(column(0), column(10), column(4)), columns={"speed": ((column(0), column(9), column(7)), floats(1))}
    )
    return buffer


RECORD = column(0), column(20), column(9)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"driver": (column(0), column(1))}, "driver must be"),
        ({"driver": (column(0), column(20), column(4))}, r"driver seq\[0\] = 4 must be greater than 4"),
        ({"driver": (*RECORD, column(1))}, "driver: identities must be present in every batch"),
        (
            {"columns": {"torque": (RECORD, floats(1))}},
            "columns: there is no column 'torque'; the columns are 'speed', 'angle'",
        ),
        ({"column_watermarks": {"torque": RECORD}}, "column_watermarks: there is no column 'torque'"),
        (
            {"columns": {"speed": (RECORD, floats(1, 2))}},
            r"values of speed must be float64 of shape \(1,\), .* shape \(2,\)",
        ),
        ({"columns": {"speed": (RECORD, column(1))}}, "values of speed must be float64 .* not int64"),
        (
            {"columns": {"speed": ((column(-1), column(1), column(9)), floats(1))}},
            r"speed keys\[0\] = -1 is out of range",
        ),
        ({"driver_watermarks": (column(-2), column(1), column(9))}, r"driver_watermarks keys\[0\] = -2"),
        ({"column_watermarks": {"angle": (column(-2), column(1), column(9))}}, r"angle_watermarks keys\[0\] = -2"),
        (
            {"columns": {"speed": (RECORD, floats(1))}, "column_watermarks": {"speed": RECORD}},
            r"speed_watermarks seq\[0\] = 9 is also the position of a record",
        ),
        ({"columns": {"speed": RECORD}}, r"columns\['speed'\] must be a tuple \(records, values\)"),
        ({"columns": {"speed": None}}, r"columns\['speed'\] must be a tuple \(records, values\)"),
        ({"columns": [(RECORD, floats(1))]}, "columns must be a mapping whose keys are column names, not list"),
        ({"column_watermarks": RECORD}, "column_watermarks must be a mapping whose keys are column names, not tuple"),
        ({"columns": {"speed": (RECORD, floats(1)), 1: (RECORD, floats(1)), "u": RECORD}}, "there is no column"),
        (
            # Only the last column is wrong; nothing of the others may have been consumed.
            {"driver": RECORD, "columns": {"speed": (RECORD, floats(1)), "angle": (RECORD, floats())}},
            "values of angle must be",
        ),
    ],
)
def test_an_invalid_argument_is_named_and_changes_nothing(arguments: dict[str, Any], text: str) -> None:
    buffer = filled()
    before = buffer.snapshot()
    with pytest.raises(ArgumentError, match=text):
        buffer.push(**arguments)
    assert buffer.snapshot() == before


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rule": "mean"}, "rule must be one of 'previous', 'next', 'nearest', 'linear', not 'mean'"),
        ({"on_missing": "zero"}, "on_missing must be one of 'null', 'drop'"),
        ({"tolerance_ns": 1.5}, "tolerance_ns must be an integer number of nanoseconds"),
        ({"lateness_ns": -1}, "lateness_ns = -1 is outside"),
        ({"period": 360.0}, "period is an option of rule \"linear\", not of 'previous'"),
        ({"rule": "linear", "period": 0}, "period must be a positive finite number, not 0"),
        ({"rule": "linear", "period": math.nan}, "period must be a positive finite number"),
        ({"rule": "linear", "period": math.inf}, "period must be a positive finite number"),
        ({"rule": "linear", "period": "360"}, "period must be a positive finite number"),
        ({"rule": "linear", "period": True}, "period must be a positive finite number"),
        ({"rule": "linear", "period": 10**400}, "period must be a positive finite number"),
    ],
)
def test_an_invalid_rule_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        ColumnRule(**options)


def test_a_buffer_needs_a_column_and_refuses_what_it_cannot_tell_apart() -> None:
    with pytest.raises(ArgumentError, match="at least one column"):
        AlignBuffer({})
    with pytest.raises(ArgumentError, match="'driver' is the name of the driver"):
        AlignBuffer({"driver": ColumnRule()})
    with pytest.raises(ArgumentError, match=r"columns\['speed'\] must be a ColumnRule, not str"):
        AlignBuffer({"speed": "linear"})  # type: ignore[dict-item] # what is tested
    with pytest.raises(ArgumentError, match="columns: the name 1 must be a str"):
        AlignBuffer({1: ColumnRule()})  # type: ignore[dict-item] # what is tested
    with pytest.raises(ArgumentError, match="columns must be a mapping whose keys are column names, not list"):
        AlignBuffer([ColumnRule()])  # type: ignore[arg-type] # what is tested
    with pytest.raises(ArgumentError, match="watermark_scope must be one of"):
        AlignBuffer({"speed": ColumnRule()}, watermark_scope="all")
    with pytest.raises(ArgumentError, match="lateness_ns = -1"):
        AlignBuffer({"speed": ColumnRule()}, lateness_ns=-1)


def test_a_closed_buffer_stays_closed() -> None:
    buffer = filled()
    assert len(buffer.close()) == 1
    for call in (buffer.push, buffer.close, AlignBuffer.restore(buffer.snapshot()).push):
        with pytest.raises(ArgumentError, match="after close: all streams have ended"):
            call()


@pytest.mark.parametrize("period", [360, np.int64(360), np.float32(360), Fraction(360)])
def test_a_period_may_be_any_number_and_outlives_a_restore(period: Any) -> None:
    buffer = AlignBuffer({"angle": ColumnRule(rule="linear", period=period)})
    ends = (column(0, 0), column(0, 10), column(0, 1)), floats(350, 20)
    restored = AlignBuffer.restore(buffer.snapshot())
    found = restored.close(driver=(column(0), column(5), column(0)), columns={"angle": ends})
    assert found.values["angle"].tolist() == [5.0]


def test_snapshots_of_the_two_buffers_are_told_apart() -> None:
    with pytest.raises(SnapshotError, match="a different kind of buffer: AlignBuffer, not LocalStreamBuffer"):
        LocalStreamBuffer.restore(AlignBuffer({"speed": ColumnRule()}).snapshot())
    with pytest.raises(SnapshotError, match="a different kind of buffer: LocalStreamBuffer, not AlignBuffer"):
        AlignBuffer.restore(LocalStreamBuffer().snapshot())
    with pytest.raises(SnapshotError, match=r"not a snapshot as returned by AlignBuffer.snapshot\(\)"):
        AlignBuffer.restore(b"")
    with pytest.raises(SnapshotError, match=r"not a snapshot as returned by LocalStreamBuffer.snapshot\(\)"):
        LocalStreamBuffer.restore(b"")
    with pytest.raises(SnapshotError, match="damaged"):
        AlignBuffer.restore(filled().snapshot()[:-1] + b"\0")


def test_the_reprs_say_what_is_held() -> None:
    buffer = filled()
    assert repr(buffer) == "<AlignBuffer(speed: previous, angle: linear) rows=1 records=1>"
    assert repr(buffer.close()) == "AlignedRows(rows=1, dropped=0, late=0, duplicates=0)"
    assert repr(buffer).endswith(" closed>")


def test_rows_at_the_ends_of_time_do_not_overflow() -> None:
    first, last = -9_214_560_000_000_000_000, 9_214_646_399_999_999_999
    buffer = AlignBuffer({"speed": ColumnRule(rule="linear"), "near": ColumnRule(rule="nearest")})
    ends = (column(0, 0), column(first, last), column(0, 1)), floats(0, 1)
    found = buffer.close(driver=(column(0), column(0), column(0)), columns={"speed": ends, "near": ends})
    assert found.values["speed"].tolist() == [pytest.approx(0.5, abs=1e-4)]
    assert found.values["near"].tolist() == [0.0]
    buffer = AlignBuffer({"speed": ColumnRule(rule="linear", tolerance_ns=2**63 - 1)})
    assert buffer.close(driver=(column(0), column(0), column(0)), columns={"speed": ends}).is_missing["speed"].all()


def value_at(at: int, t0: int, v0: float, t1: int, v1: float, period: float = 0.0) -> float:
    return float(interpolate(column(at), column(t0), floats(v0), column(t1), floats(v1), period)[0])


VALUES = st.floats(allow_nan=False, allow_infinity=False)


@given(st.integers(0, 2**40), st.integers(1, 2**40), st.integers(1, 2**40), VALUES, VALUES)
def test_a_value_lies_between_its_neighbours_close_to_the_exact_one(
    begin: int, before: int, after: int, v0: float, v1: float
) -> None:
    found = value_at(begin + before, begin, v0, begin + before + after, v1)
    assert min(v0, v1) <= found <= max(v0, v1)
    exact = Fraction(v0) + Fraction(before, before + after) * (Fraction(v1) - Fraction(v0))
    assert abs(Fraction(found) - exact) <= 4 * Fraction(2) ** -52 * Fraction(max(abs(v0), abs(v1), 1.0))


@given(st.integers(0, 9), VALUES, VALUES, st.floats(1e-3, 1e6))
def test_an_angle_is_within_its_period(at: int, v0: float, v1: float, period: float) -> None:
    assert 0 <= value_at(at, 0, v0, 9, v1, period) < period


@pytest.mark.parametrize(
    ("v0", "v1", "wanted"),
    [(350, 20, 5), (20, 350, 5), (0, 180, 90), (180, 0, 270), (10, 10, 10), (-10, 730, 0), (90, 100, 95)],
)
def test_angles_take_the_shorter_way_and_forwards_if_both_are_equally_long(v0: float, v1: float, wanted: float) -> None:
    assert value_at(5, 0, v0, 10, v1, 360.0) == wanted


def test_an_angle_beyond_the_largest_float_is_reduced() -> None:
    assert value_at(9, 0, 1.2e308, 10, 0.3e308, 1.7e308) == pytest.approx(0.22e308, rel=1e-12)


def test_what_is_not_a_number_stays_that_and_infinities_do_not_surprise() -> None:
    assert math.isnan(value_at(5, 0, math.nan, 10, 1.0))
    assert math.isnan(value_at(5, 0, 1.0, 10, math.nan))
    assert value_at(5, 0, 1.0, 10, math.inf) == math.inf
    assert math.isnan(value_at(5, 0, -math.inf, 10, math.inf))
    assert value_at(5, 0, -1.7e308, 10, 1.7e308) == 0.0
    assert value_at(0, 0, 1.0, 10, math.nan) == 1.0
