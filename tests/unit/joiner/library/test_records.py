"""The times, durations, watermarks and snapshots that `joiner.RecordJoin` accepts and refuses."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest

import joiner.library.records
from joiner import ArgumentError, RecordJoin, SnapshotError

NOON = datetime(2026, 1, 1, 12)  # noqa: DTZ001 - naive on purpose
AS_OF: dict[str, Any] = {"direction": "backward", "driver": "left"}
BERLIN = ZoneInfo("Europe/Berlin")


def pairing(**options: Any) -> RecordJoin[Any, Any, tuple[Any, Any]]:
    """Return a join of records that are their own time."""
    return RecordJoin(lambda left, right: (left, right), time=lambda record: record, **options)


def test_times_with_a_zone_are_points_in_time() -> None:
    join = pairing(tolerance="1s")
    twice = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)
    join.left(twice)
    # The clock is set back by an hour in between.
    assert join.right(twice.replace(fold=1)) == []
    assert join.left(datetime(2026, 10, 25, 1, 30, tzinfo=UTC)) == [
        (twice.replace(fold=1).astimezone(UTC), twice.replace(fold=1))
    ]


def test_times_without_a_zone_are_compared_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    join = pairing(tolerance=timedelta(hours=1))
    join.left(datetime(2026, 3, 29, 1, 30))  # noqa: DTZ001 - naive on purpose
    # Berlin has no hour between 02:00 and 03:00 on this day.
    assert join.right(datetime(2026, 3, 29, 3, 30)) == []  # noqa: DTZ001 - naive on purpose
    assert join.close() == []


def test_microseconds_and_nanoseconds_count() -> None:
    join = pairing(tolerance="1ns")
    stamps = [pd.Timestamp(NOON) + pd.Timedelta(ns, "ns") for ns in (0, 1, 3)]
    join.left(stamps[0])
    assert join.right(stamps[2]) == []
    assert len(pairing().left(NOON)) == 0
    join = pairing(tolerance="1us")
    join.left(NOON)
    assert join.right(NOON + timedelta(microseconds=1)) != []


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (1, NOON, r"right: time\(record\) = .*: expected integers, as in earlier calls, but got datetimes without"),
        (
            NOON,
            NOON.replace(tzinfo=UTC),
            "expected datetimes without a time zone, as in earlier calls, but got datetimes with a time zone",
        ),
        (NOON, 1, "= 1: expected datetimes without a time zone, as in earlier calls, but got integers"),
        (1, 1.5, "= 1.5 must be an integer or a datetime"),
        (1, True, "= True must be an integer or a datetime"),
        (1, None, "= None must be an integer or a datetime"),
        (NOON, NOON.date(), "must be an integer or a datetime"),
        (NOON, pd.NaT, "= NaT is not a time"),
        (NOON, np.datetime64("NaT"), "= NaT is not a time"),
        (NOON, NOON.replace(year=1), "is outside the years 1678 to 2261"),
        (NOON, np.datetime64("1600-01-01"), r"datetime64\('1600-01-01'\) is outside the years 1678 to 2261"),
        (1, 2**63, r"is outside the years 1678 to 2261 \(an integer counts nanoseconds since 1970\)"),
    ],
)
def test_a_time_that_does_not_fit_is_refused_and_changes_nothing(first: Any, second: Any, message: str) -> None:
    join = pairing()
    join.left(first)
    with pytest.raises(ArgumentError, match=message):
        join.right(second)
    with pytest.raises(ArgumentError, match=message.replace(r"right: time\(record\)", "right_watermark: time")):
        join.right_watermark(second)
    assert join.right(first) == [(first, first)]


def test_a_refused_first_time_does_not_decide_the_kind() -> None:
    join = pairing(tolerance="1s")
    with pytest.raises(ArgumentError, match="= 5: expected a datetime, because tolerance or lateness is a duration"):
        join.left(5)
    assert join.left(NOON) == []
    join = pairing(lateness=5)
    with pytest.raises(ArgumentError, match="expected an integer, because tolerance or lateness is an integer"):
        join.left(NOON)
    assert join.left(5) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tolerance": "5"}, "tolerance = '5': a duration must consist of numbers followed by units"),
        ({"tolerance": "5 fortnights"}, "tolerance = '5 fortnights': unknown unit"),
        ({"tolerance": 1.5}, "tolerance must be an integer in the unit of the times, not 1.5"),
        ({"tolerance": -1}, "tolerance = -1 is outside"),
        ({"lateness": ("1s", "x")}, "lateness = 'x': a duration must consist"),
        ({"lateness": ("1s", 1)}, "or all be integers, not tolerance = None and lateness = .'1s', 1"),
        ({"lateness": "1s", "tolerance": 1}, "or all be integers, not tolerance = 1 and lateness = '1s'"),
        ({"lateness": ("1s",) * 3}, "must be one value or .left, right., not 3 values"),
        ({"lateness": "1s", "lateness_ns": 1}, "lateness and lateness_ns are the same option"),
    ],
)
def test_durations_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        pairing(**options)


def test_options_in_nanoseconds_go_with_datetimes() -> None:
    join = pairing(tolerance_ns=10**9)
    join.left(NOON)
    assert len(join.right(NOON + timedelta(seconds=1))) == 1


def test_a_watermark_makes_pairs_certain_and_records_below_it_late() -> None:
    late: list[Any] = []
    join = RecordJoin[Any, Any, Any](
        lambda left, right: (left, right),
        time=lambda record: record[1],
        key=lambda record: record[0],
        on_late=late.append,
        **AS_OF,
    )
    assert join.left(("a", 10)) + join.left(("b", 10)) + join.right(("a", 5)) + join.right(("b", 5)) == []
    assert join.right_watermark(11, key="a") == [(("a", 10), ("a", 5))]
    assert join.right_watermark(12) == [(("b", 10), ("b", 5))]
    assert join.left_watermark(20) == []
    assert join.right(("c", 11)) == []
    assert late == [("c", 11)]


def test_a_key_may_equal_the_number_that_stands_for_all_keys() -> None:
    join = RecordJoin[Any, Any, Any](
        lambda left, right: (left, right), time=lambda record: record[1], key=lambda record: record[0], **AS_OF
    )
    for key in (-1, 0):
        join.left((key, 10))
        join.right((key, 5))
    assert join.right_watermark(11, key=-1) == [((-1, 10), (-1, 5))]


def test_a_snapshot_is_taken_of_everything_and_does_not_follow_the_join() -> None:
    join = pairing(tolerance="1h", emit_unmatched="left", on_unmatched=print)
    join.left(NOON)
    before = join.snapshot()
    join.right(NOON)
    unmatched: list[Any] = []
    functions: dict[str, Any] = {"time": lambda record: record, "on_unmatched": unmatched.append}
    restored: RecordJoin[Any, Any, Any] = RecordJoin.restore(before, lambda left, right: (left, right), **functions)
    assert len(restored) == 1
    with pytest.raises(ArgumentError, match="expected datetimes without a time zone, as in earlier calls"):
        restored.right(NOON.replace(tzinfo=UTC))
    with pytest.raises(ArgumentError, match="expected a datetime, because tolerance or lateness"):
        restored.right(5)
    assert restored.right(NOON + timedelta(hours=2)) == []
    assert restored.close() == []
    assert unmatched == [NOON]
    closed: RecordJoin[Any, Any, Any] = RecordJoin.restore(
        restored.snapshot(), lambda left, right: (left, right), **functions
    )
    with pytest.raises(ArgumentError, match="push after close"):
        closed.left(NOON)


def test_numbers_of_forgotten_keys_are_free_after_a_restore_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joiner.library.records, "_KEYS_MIN", 9)
    functions: dict[str, Any] = {"time": lambda record: record[1], "key": lambda record: record[0]}
    join = RecordJoin[Any, Any, Any](
        lambda left, right: (left, right), **functions, watermark_scope="partition", tolerance=5
    )
    for number in range(7):
        join.left((f"old {number}", 10))
    for key in "abc":
        join.left((key, 100))
    # Nothing can pair the old records any more, so that the next new key frees their numbers.
    join.right_watermark(100)
    join.left(("new", 100))
    assert join._free, "the old keys are forgotten"  # noqa: SLF001 - not observable through the public interface
    restored: RecordJoin[Any, Any, Any] = RecordJoin.restore(join.snapshot(), lambda *pair: pair, **functions)
    for number in range(8):
        assert restored.right((f"new {number}", 100)) == []
    for key in ("a", "b", "c", "new"):
        assert restored.right((key, 100)) == [((key, 100), (key, 100))]


def test_what_is_no_snapshot_is_refused() -> None:
    join = pairing()
    join.left(1)
    good = join.snapshot()
    for wrong, message in (
        (pickle.dumps(good), r"expected a snapshot as returned by RecordJoin.snapshot\(\)"),
        ({}, "expected a snapshot as returned by RecordJoin"),
        ({**good, "version": 2}, r"the snapshot was created by a newer release \(version 2\)"),
        ({**good, "left": []}, "the snapshot is damaged: its records do not match those held by its buffer"),
        ({name: value for name, value in good.items() if name != "keys"}, "the snapshot of a RecordJoin lacks 'keys'"),
        ({**good, "buffer": b"x"}, "snapshot"),
    ):
        with pytest.raises(SnapshotError, match=message):
            RecordJoin.restore(wrong, lambda left, right: (left, right), time=lambda record: record)
    asking = pairing(emit_unmatched="left", on_unmatched=print).snapshot()
    with pytest.raises(ArgumentError, match="emit_unmatched = 'left' requires on_unmatched"):
        RecordJoin.restore(asking, lambda left, right: (left, right), time=lambda record: record)
