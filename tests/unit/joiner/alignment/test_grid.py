"""Does a buffer with a grid refuse invalid arguments unchanged, and keep to its limits?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from joiner import AlignBuffer, ArgumentError, ColumnRule, Grid
from joiner.core.arguments import TIME_MAX_NS, TIME_MIN_NS

YEAR_NS = 365 * 86_400 * 10**9


def records(*times: int, start: int = 0, key: int = 0) -> Any:
    """Records of one key at these times, with their number as value."""
    places = start + np.arange(len(times))
    return (np.full(len(times), key), np.array(times, dtype=np.int64), places), places.astype(np.float64)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"every_ns": 0}, "every_ns must be at least 1"),
        ({"every_ns": -5}, "every_ns = -5 is outside"),
        ({"every_ns": 1.5}, "every_ns must be an integer number of nanoseconds"),
        ({"every_ns": 2**63}, "every_ns = .* is outside"),
        ({"every_ns": None}, "every_ns must be an integer number of nanoseconds, not None"),
        ({"every_ns": 5, "origin_ns": "now"}, "origin_ns must be an integer number of nanoseconds, not 'now'"),
        ({"every_ns": 5, "origin_ns": True}, "origin_ns must be an integer"),
        ({"every_ns": 5, "origin_ns": TIME_MAX_NS + 1}, "origin_ns = .* is outside the years 1678 to 2261"),
        ({"every_ns": 1, "origin_ns": TIME_MIN_NS}, "tick numbers would exceed int64"),
        ({"every_ns": 1, "origin_ns": TIME_MAX_NS}, "tick numbers would exceed int64"),
        ({"every_ns": 5, "max_gap_ns": -1}, "max_gap_ns = -1 is outside"),
        ({"every_ns": 5, "ticks_max": 0}, "ticks_max must be an integer from 1 to"),
        ({"every_ns": 5, "ticks_max": 1e6}, "ticks_max must be an integer from 1 to"),
    ],
)
def test_an_invalid_grid_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        Grid(**options)


def test_a_buffer_with_a_grid_has_no_driver() -> None:
    rules, grid = {"v": ColumnRule()}, Grid(every_ns=5)
    with pytest.raises(ArgumentError, match="grid must be a Grid, not int"):
        AlignBuffer(rules, grid=5)  # type: ignore[arg-type] # what is tested
    with pytest.raises(ArgumentError, match="lateness_ns is the lateness of a driver stream"):
        AlignBuffer(rules, grid=grid, lateness_ns=5)
    with pytest.raises(ArgumentError, match="watermark_scope must be one of 'key', 'partition', not 'all'"):
        AlignBuffer(rules, grid=grid, watermark_scope="all")
    buffer = AlignBuffer(rules, grid=grid)
    before = buffer.snapshot()
    for name in ("driver", "driver_watermarks"):
        with pytest.raises(ArgumentError, match="a buffer with a grid accepts no driver records or watermarks"):
            buffer.push(**{name: records(1)[0]}, columns={"v": records(1, 2)})
    assert buffer.snapshot() == before


@pytest.mark.parametrize("rule", ["previous", "next", "nearest", "linear"])
def test_ticks_at_the_ends_of_time_do_not_overflow(rule: str) -> None:
    for every, origin in ((2**62, -5), (2**63 - 1, 7), (5 * 10**18, TIME_MIN_NS), (3 * 10**18, TIME_MAX_NS)):
        buffer = AlignBuffer({"v": ColumnRule(rule=rule)}, grid=Grid(every_ns=every, origin_ns=origin))
        found = [
            buffer.push(columns={"v": records(TIME_MIN_NS)}),
            buffer.push(columns={"v": records(TIME_MAX_NS, start=1)}),
            buffer.close(),
        ]
        first = -((origin - TIME_MIN_NS) // every)
        wanted = range(first, (TIME_MAX_NS - origin) // every + 1)
        assert [tick for rows in found for tick in rows.seq.tolist()] == list(wanted)
        assert [ts for rows in found for ts in rows.ts_ns.tolist()] == [origin + tick * every for tick in wanted]


def test_a_record_after_a_year_brings_no_more_ticks_than_permitted() -> None:
    grid = Grid(every_ns=10**9)
    buffer = AlignBuffer({"v": ColumnRule()}, grid=grid)
    buffer.push(columns={"v": records(0, key=3)})
    before = buffer.snapshot()
    with pytest.raises(
        ArgumentError, match=r"more than ticks_max = 1000000 ticks\. Key 3 .* from 0 ns .* last record is at 31536"
    ):
        buffer.push(columns={"v": records(YEAR_NS, start=1, key=3)})
    assert buffer.snapshot() == before
    assert len(buffer.push(columns={"v": records(10 * 10**9, start=1, key=3)})) == 10
    grid = Grid(every_ns=10**9, max_gap_ns=60 * 10**9)
    buffer = AlignBuffer({"v": ColumnRule()}, grid=grid)
    found = buffer.close(columns={"v": records(0, 2 * 10**9, YEAR_NS, YEAR_NS + 10**9)})
    assert found.seq.tolist() == [0, 1, 2, YEAR_NS // 10**9, YEAR_NS // 10**9 + 1]


def test_a_step_with_too_many_ticks_can_be_taken_after_a_restore_with_more_of_them() -> None:
    buffer = AlignBuffer({"v": ColumnRule()}, grid=Grid(every_ns=10, ticks_max=5))
    buffer.push(columns={"v": records(0)})
    with pytest.raises(ArgumentError, match="Restore a snapshot with a larger ticks_max"):
        buffer.close(columns={"v": records(100, start=1)})
    with pytest.raises(ArgumentError, match="ticks_max must be an integer from 1"):
        AlignBuffer.restore(buffer.snapshot(), ticks_max=0)
    buffer = AlignBuffer.restore(buffer.snapshot(), ticks_max=11)
    buffer = AlignBuffer.restore(buffer.snapshot())
    assert buffer.close(columns={"v": records(100, start=1)}).seq.tolist() == list(range(11))
    with pytest.raises(ArgumentError, match="ticks_max is an option of a grid"):
        AlignBuffer.restore(AlignBuffer({"v": ColumnRule()}).snapshot(), ticks_max=5)


def test_a_step_with_more_ticks_than_memory_changes_nothing() -> None:
    buffer = AlignBuffer({"v": ColumnRule()}, grid=Grid(every_ns=1, ticks_max=2**63 - 1))
    buffer.push(columns={"v": records(0)})
    before = buffer.snapshot()
    with pytest.raises(ValueError, match="array is too big"):
        buffer.close(columns={"v": records(2**61, start=1)})
    assert buffer.snapshot() == before
    assert len(buffer.close(columns={"v": records(5, start=1)})) == 6


def test_a_silent_column_holds_up_the_ticks_of_its_own_keys_alone() -> None:
    buffer = AlignBuffer({"a": ColumnRule(), "b": ColumnRule()}, grid=Grid(every_ns=10))
    for key in (0, 1):
        assert len(buffer.push(columns={"a": records(0, 35, start=2 * key, key=key)})) == 0
    assert buffer.push(columns={"b": records(35, key=1)}).key.tolist() == [1, 1, 1, 1]
    watermark = np.array([0]), np.array([21]), np.array([9])
    found = buffer.push(column_watermarks={"b": watermark})
    assert (found.key.tolist(), found.seq.tolist()) == ([0, 0, 0], [0, 1, 2])
    assert found.is_missing["b"].all()


def test_a_watermark_makes_no_ticks() -> None:
    buffer = AlignBuffer({"v": ColumnRule()}, grid=Grid(every_ns=10))
    watermark = np.array([-1]), np.array([YEAR_NS]), np.array([1])
    found = buffer.push(columns={"v": records(0)}, column_watermarks={"v": watermark})
    assert found.seq.tolist() == [0]
    assert len(buffer.close()) == 0


# A list that is searched from its end for each record would take an hour in each of the next two tests.
MANY = 1_000_000


def test_duplicates_are_found_among_many_records_of_one_time() -> None:
    buffer = AlignBuffer({"v": ColumnRule()}, grid=Grid(every_ns=10))
    keys, places = np.zeros(MANY, np.int64), np.arange(MANY)
    identity = places // 2
    for begin in (0, MANY):
        found = buffer.push(columns={"v": ((keys, keys, begin + places, identity), places.astype(np.float64))})
        wanted = places[1::2] if begin == 0 else begin + places
        assert np.array_equal(found.duplicate_seq["v"], wanted)
    assert buffer.held() == MANY // 2
    assert buffer.close().values["v"].tolist() == [MANY - 2.0]


def test_records_may_arrive_in_the_reverse_order_of_their_times() -> None:
    buffer = AlignBuffer({"v": ColumnRule(lateness_ns=10 * MANY)}, grid=Grid(every_ns=10))
    times = 10 * np.arange(MANY)[::-1]
    for begin, part in ((0, times[::2]), (MANY, times[1::2])):
        keys, places = np.zeros(len(part), np.int64), begin + np.arange(len(part))
        assert len(buffer.push(columns={"v": ((keys, part, places), part.astype(np.float64))})) == 0
    found = buffer.close()
    assert np.array_equal(found.ts_ns, times[::-1])
    assert np.array_equal(found.values["v"], times[::-1])
