"""Does the record-by-record join give the same pairs as the array join, and hold no record longer than the buffer?"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import joiner.library.records
from joiner import ALL_KEYS, ArgumentError, LocalStreamBuffer, RecordJoin

SIDES = ("left", "right")

# Side, key, time; the index in the list identifies the record.
RECORDS = st.lists(
    st.tuples(st.sampled_from(["left", "right"]), st.sampled_from("abc"), st.integers(0, 20)), max_size=30
)
OPTIONS = st.fixed_dictionaries(
    {"lateness_ns": st.integers(0, 5), "tolerance_ns": st.none() | st.integers(0, 5)},
    optional={
        "direction": st.sampled_from(["backward", "nearest"]),
        "driver": st.sampled_from(["left", "right"]),
        "watermark_scope": st.just("partition"),
        "emit_unmatched": st.sampled_from(["left", "right", "both"]),
    },
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=RECORDS, options=OPTIONS)
def test_record_by_record_the_same_pairs_come_at_the_same_calls(
    monkeypatch: pytest.MonkeyPatch, records: list[tuple[str, str, int]], options: dict[str, Any]
) -> None:
    late: list[int] = []
    unmatched: list[int] = []
    monkeypatch.setattr(joiner.library.records, "_KEYS_MIN", 1)  # searches for idle keys as often as possible
    join: RecordJoin[int, int, tuple[int, int]] = RecordJoin(
        lambda left, right: (left, right),
        time=lambda number: records[number][2],
        key=lambda number: records[number][1],
        on_late=late.append,
        on_unmatched=unmatched.append,
        **options,
    )
    buffer = LocalStreamBuffer(**options)
    late_there: list[int] = []
    unmatched_there: list[int] = []
    for number, (side, key, ts) in enumerate(records):
        found = join.left(number) if side == "left" else join.right(number)
        columns = np.array(["abc".index(key)]), np.array([ts]), np.array([number])
        step = buffer.push(left=columns) if side == "left" else buffer.push(right=columns)
        late_there += [*step.left_late_seq.tolist(), *step.right_late_seq.tolist()]
        unmatched_there += [*step.left_unmatched_seq.tolist(), *step.right_unmatched_seq.tolist()]
        assert unmatched == unmatched_there
        # The two assign key numbers in different orders.
        assert sorted(found) == sorted(zip(step.left_seq.tolist(), step.right_seq.tolist(), strict=True))
        assert len(join) == len(buffer) == sum(map(len, join._held.values()))  # noqa: SLF001 - the records kept
    step = buffer.close()
    assert sorted(join.close()) == sorted(zip(step.left_seq.tolist(), step.right_seq.tolist(), strict=True))
    unmatched_there += [*step.left_unmatched_seq.tolist(), *step.right_unmatched_seq.tolist()]
    assert unmatched == unmatched_there
    assert late == late_there
    assert len(join) == 0


START = datetime(2026, 1, 1)  # noqa: DTZ001 - naive on purpose
FACES: dict[str, tuple[Callable[[int], Any], Callable[[int], Any]]] = {
    # A time and a duration, each from its number.
    "integers": (int, int),
    "numpy integers": (np.int32, np.int16),
    "naive": (lambda at: START + timedelta(seconds=at), lambda length: timedelta(seconds=length)),
    "aware": (
        lambda at: (START.replace(tzinfo=UTC) + timedelta(seconds=at)).astimezone(timezone(timedelta(hours=at % 5))),
        lambda length: f"{length}s",
    ),
    "pandas": (lambda at: pd.Timestamp(START) + pd.Timedelta(at, "ns"), lambda length: pd.Timedelta(length, "ns")),
    "numpy": (lambda at: np.datetime64(at, "ms"), lambda length: f"{length} ms"),
}
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["left", "right"]),
        st.sampled_from(["record", "record", "record", "watermark", "watermark of all", "restore"]),
        st.sampled_from("abc"),
        st.integers(0, 20),
    ),
    max_size=30,
)


@pytest.mark.parametrize("face", FACES)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    events=EVENTS,
    tolerance=st.none() | st.integers(0, 5),
    lateness=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    scope=st.sampled_from(["key", "partition"]),
)
def test_times_of_any_kind_watermarks_and_restores_give_the_pairs_of_the_buffer(
    monkeypatch: pytest.MonkeyPatch,
    face: str,
    events: list[tuple[str, str, str, int]],
    tolerance: int | None,
    lateness: tuple[int, int],
    scope: str,
) -> None:
    monkeypatch.setattr(joiner.library.records, "_KEYS_MIN", 1)
    time, duration = FACES[face]
    reported: dict[str, list[int]] = {"late": [], "unmatched": []}
    functions: dict[str, Any] = {
        "time": lambda number: time(events[number][3]),
        "key": lambda number: events[number][2],
        "on_late": reported["late"].append,
        "on_unmatched": reported["unmatched"].append,
    }
    options: dict[str, Any] = {"watermark_scope": scope, "emit_unmatched": "both"}
    join: RecordJoin[int, int, tuple[int, int]] = RecordJoin(
        lambda *pair: pair,
        **functions,
        **options,
        tolerance=None if tolerance is None else duration(tolerance),
        lateness=tuple(map(duration, lateness)),
    )
    buffer = LocalStreamBuffer(tolerance_ns=tolerance, lateness_ns=lateness, **options)
    for number, (side, what, key, ts) in enumerate(events):
        if what == "restore":
            snapshot = pickle.loads(pickle.dumps(join.snapshot()))  # noqa: S301 - written by this test
            join = RecordJoin.restore(snapshot, lambda *pair: pair, **functions)
            continue
        columns = [np.array([value]) for value in ("abc".index(key), ts, number)]
        if what == "record":
            found = getattr(join, side)(number)
            step = buffer.push(**{side: columns})
        else:
            columns[0] = np.array([ALL_KEYS]) if what == "watermark of all" else columns[0]
            of_key = {} if what == "watermark of all" else {"key": key}
            found = getattr(join, f"{side}_watermark")(time(ts), **of_key)
            step = buffer.push(**{f"{side}_watermarks": columns})
        assert sorted(found) == sorted(zip(step.left_seq.tolist(), step.right_seq.tolist(), strict=True))
        for name, numbers in reported.items():
            expected = [seq for of_side in SIDES for seq in getattr(step, f"{of_side}_{name}_seq").tolist()]
            assert numbers == expected
            numbers.clear()
    step = buffer.close()
    assert sorted(join.close()) == sorted(zip(step.left_seq.tolist(), step.right_seq.tolist(), strict=True))


def test_what_has_no_partner_is_told_where_that_is_asked_for() -> None:
    unmatched: list[tuple[str, int]] = []
    join: RecordJoin[Any, Any, object] = RecordJoin(
        lambda left, right: (left, right),
        time=lambda record: record[1],
        on_unmatched=unmatched.append,
        emit_unmatched="left",
        tolerance_ns=5,
    )
    assert join.left(("l", 10)) == []
    assert join.right(("r", 13)) == [(("l", 10), ("r", 13))]
    assert join.left(("l", 20)) == []
    assert unmatched == []
    assert join.right(("r", 100)) == []
    assert unmatched == [("l", 20)]
    assert join.left(("l", 200)) == []
    assert join.close() == []
    assert unmatched == [("l", 20), ("l", 200)], "right records are not requested"


@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_asking_for_what_has_no_partner_without_saying_where_to_is_refused(side: str) -> None:
    with pytest.raises(ArgumentError, match=f"emit_unmatched = '{side}' requires on_unmatched"):
        RecordJoin(lambda left, right: (left, right), time=lambda record: record, emit_unmatched=side)


def test_keys_of_which_nothing_is_held_are_forgotten_where_the_whole_stream_tells_how_far_it_is() -> None:
    join: RecordJoin[int, int, object] = RecordJoin(
        lambda left, right: (left, right),
        time=lambda record: record,
        key=lambda record: f"order {record}",
        watermark_scope="partition",
        tolerance_ns=5,
    )
    for number in range(5000):
        assert join.left(number) == []
        assert join.right(number) == [(number, number)]
    assert len(join._keys) < 200  # noqa: SLF001 - not observable through the public interface


def test_a_key_is_not_forgotten_while_its_records_may_be_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joiner.library.records, "_KEYS_MIN", 1)
    late: list[tuple[str, int]] = []
    join: RecordJoin[Any, Any, object] = RecordJoin(
        lambda left, right: (left, right),
        time=lambda record: record[1],
        key=lambda record: record[0],
        on_late=late.append,
    )
    for key in "abcdefgh":
        join.left((key, 10))
        join.right((key, 10))
    join.left(("a", 5))
    assert late == [("a", 5)]


def test_what_the_function_raises_goes_to_the_caller_and_the_join_goes_on() -> None:
    join: RecordJoin[int, int, int] = RecordJoin(lambda left, right: left // right, time=lambda _record: 10)
    assert join.left(8) == []
    with pytest.raises(ZeroDivisionError):
        join.right(0)
    assert join.right(2) == [4]


def test_a_record_whose_time_is_none_is_not_taken() -> None:
    join: RecordJoin[float, float, object] = RecordJoin(lambda left, right: (left, right), time=lambda record: record)
    with pytest.raises(ArgumentError, match=r"left: time\(record\) = 1.5 must be an integer or a datetime"):
        join.left(1.5)
    assert len(join) == 0
    assert join.left(1) == []
