"""Watermarks for a silent quantity are based on the event times of its thing, never on the clock alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connector.watermarks import DueWatermark, SilenceWatch

MS = 10**6
IDLE_NS = 1_000 * MS
DAY_NS = 86_400 * 10**9
WALL_NS = 1_600_000_000 * 10**9


def watch(scopes_max: int = 100) -> SilenceWatch:
    return SilenceWatch(idle_after_ns=IDLE_NS, max_future_skew_ns=DAY_NS, unit_ns=MS, scopes_max=scopes_max)


def see(of: SilenceWatch, quantity: str, time_ms: int, now_ms: int, thing: str = "T") -> None:
    of.observe(thing, quantity, time_ms * MS, now_ns=now_ms * MS, wall_ns=WALL_NS)


def test_a_quantity_that_is_silent_while_its_thing_sends_gets_a_watermark_behind_the_things_time() -> None:
    silent = watch()
    see(silent, "torque", 10_000, now_ms=0)
    see(silent, "speed", 15_000, now_ms=900)
    assert silent.due(999 * MS) == []
    assert silent.due(1_000 * MS) == [DueWatermark("T", "torque", 14_000 * MS)]


def test_a_thing_that_is_silent_as_a_whole_gets_no_watermark() -> None:
    silent = watch()
    see(silent, "torque", 10_000, now_ms=0)
    see(silent, "speed", 15_000, now_ms=0)
    assert silent.due(5_000 * MS) == []


def test_another_thing_moves_no_watermark() -> None:
    silent = watch()
    see(silent, "torque", 10_000, now_ms=0)
    see(silent, "torque", 99_000, now_ms=1_900, thing="U")
    assert silent.due(2_000 * MS) == []


def test_a_watermark_is_not_repeated_and_rises_with_the_thing() -> None:
    silent = watch()
    see(silent, "torque", 10_000, now_ms=0)
    see(silent, "speed", 15_000, now_ms=1_500)
    (watermark,) = silent.due(2_000 * MS)
    silent.written(watermark)
    assert silent.due(2_000 * MS) == []
    see(silent, "speed", 15_001, now_ms=2_100)
    assert silent.due(2_200 * MS) == [DueWatermark("T", "torque", 14_001 * MS)]


def test_a_watermark_that_was_not_written_stays_due() -> None:
    silent = watch()
    see(silent, "torque", 10_000, now_ms=0)
    see(silent, "speed", 15_000, now_ms=1_500)
    assert silent.due(2_000 * MS) == silent.due(2_000 * MS) != []


def test_a_watermark_that_would_not_pass_the_quantitys_own_time_is_not_due() -> None:
    silent = watch()
    see(silent, "torque", 10_000, now_ms=0)
    see(silent, "speed", 11_000, now_ms=1_500)
    assert silent.due(2_000 * MS) == []
    see(silent, "speed", 11_001, now_ms=1_600)
    assert silent.due(2_000 * MS) == [DueWatermark("T", "torque", 10_001 * MS)]


def test_a_quantity_that_sends_again_is_no_longer_silent() -> None:
    silent = watch()
    see(silent, "torque", 10_000, now_ms=0)
    see(silent, "speed", 15_000, now_ms=1_500)
    see(silent, "torque", 12_000, now_ms=1_600)
    assert silent.due(2_000 * MS) == []


def test_times_that_jump_back_move_no_watermark_back() -> None:
    silent = watch()
    see(silent, "torque", 10_000, now_ms=0)
    see(silent, "speed", 15_000, now_ms=1_400)
    see(silent, "speed", 2_000, now_ms=1_500)
    assert silent.due(2_000 * MS) == [DueWatermark("T", "torque", 14_000 * MS)]


def test_one_event_of_the_far_future_moves_no_watermark() -> None:
    silent = watch()
    see(silent, "torque", 10_000, now_ms=0)
    see(silent, "speed", 15_000, now_ms=1_500)
    see(silent, "speed", 7_258_118_400_000, now_ms=1_600)
    assert silent.due(2_000 * MS) == [DueWatermark("T", "torque", 14_000 * MS)]


def test_a_watermark_is_rounded_down_to_the_unit_also_before_1970() -> None:
    silent = watch()
    silent.observe("T", "torque", -20_000 * MS, now_ns=0, wall_ns=WALL_NS)
    silent.observe("T", "speed", -10_000 * MS - 1, now_ns=IDLE_NS, wall_ns=WALL_NS)
    assert silent.due(IDLE_NS) == [DueWatermark("T", "torque", -11_001 * MS)]


def test_beyond_the_limit_new_scopes_go_unwatched_and_old_ones_go_on() -> None:
    silent = watch(scopes_max=2)
    see(silent, "torque", 10_000, now_ms=0)
    see(silent, "speed", 10_000, now_ms=0)
    assert silent.is_full
    see(silent, "load", 10_000, now_ms=0)
    see(silent, "torque", 1, now_ms=0, thing="U")
    see(silent, "speed", 15_000, now_ms=1_500)
    assert silent.due(2_000 * MS) == [DueWatermark("T", "torque", 14_000 * MS)]


STEPS = st.lists(
    st.tuples(st.sampled_from("TU"), st.sampled_from("abc"), st.integers(0, 20_000), st.integers(0, 800)),
    max_size=60,
)


@given(STEPS)
def test_watermarks_of_a_scope_rise_and_stay_behind_their_thing(steps: list[tuple[str, str, int, int]]) -> None:
    silent = watch()
    now_ms = 0
    time_max: dict[str, int] = {}
    own_max: dict[tuple[str, str], int] = {}
    watermarks: dict[tuple[str, str], int] = {}
    for thing, quantity, time_ms, pause_ms in steps:
        now_ms += pause_ms
        see(silent, quantity, time_ms, now_ms, thing)
        time_max[thing] = max(time_max.get(thing, 0), time_ms)
        own_max[thing, quantity] = max(own_max.get((thing, quantity), 0), time_ms)
        for watermark in silent.due(now_ms * MS):
            scope = watermark.thing, watermark.quantity
            assert watermark.time_ns <= time_max[watermark.thing] * MS - IDLE_NS
            assert watermark.time_ns > own_max[scope] * MS
            assert watermark.time_ns > watermarks.get(scope, -1)
            watermarks[scope] = watermark.time_ns
            silent.written(watermark)
