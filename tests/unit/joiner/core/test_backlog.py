"""Are records of the side that is ahead moved to the backlog, and back when a step needs them?"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from joiner import LocalStreamBuffer

KEYS = 8
AHEAD = 40_000
BATCH = 500

Columns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def part(begin: int, end: int, shift: int = 0) -> Columns:
    at = np.arange(begin, end)
    return at % KEYS, (at // KEYS) * 10 + shift, at


def pushed_ahead() -> LocalStreamBuffer:
    buffer = LocalStreamBuffer()
    for begin in range(0, AHEAD, BATCH):
        buffer.push(right=part(begin, begin + BATCH, shift=5))
    return buffer


def in_the_table(buffer: LocalStreamBuffer) -> int:
    return buffer._held.in_tables()  # noqa: SLF001 - not observable through the public interface


@pytest.mark.parametrize("batch", [1, 7, BATCH, AHEAD], ids="the other side arrives in batches of {}".format)
def test_what_waited_meets_its_neighbours(batch: int) -> None:
    buffer = pushed_ahead()
    emitted: list[tuple[int, int]] = []
    for begin in range(0, min(AHEAD, 100 * batch), batch):
        step = buffer.push(left=part(begin, begin + batch))
        emitted += zip(step.left_seq.tolist(), step.right_seq.tolist(), strict=True)
    lefts = min(AHEAD, 100 * batch)
    # Each left record lies between two right records of its key. The previous neighbour of a key's last left record
    # is still open.
    expected = {(at, at) for at in range(lefts)} | {(at, at - KEYS) for at in range(KEYS, lefts)}
    step = buffer.close()
    rest = set(zip(step.left_seq.tolist(), step.right_seq.tolist(), strict=True))
    assert len(emitted) == len(set(emitted))
    assert set(emitted) <= expected
    assert set(emitted) | rest >= expected


def test_a_step_has_little_to_look_at_however_long_the_backlog_is() -> None:
    buffer = pushed_ahead()
    assert len(buffer) == AHEAD
    assert in_the_table(buffer) < AHEAD / 4
    for begin in range(0, 10 * BATCH, BATCH):
        buffer.push(left=part(begin, begin + BATCH))
        assert in_the_table(buffer) < AHEAD / 4


def test_what_waits_is_held_and_told_and_saved() -> None:
    buffer = pushed_ahead()
    keys, count = buffer.held_by_key()
    assert (keys.tolist(), count.tolist()) == (list(range(KEYS)), [AHEAD // KEYS] * KEYS)
    assert buffer.held_seq()[1].tolist() == list(range(AHEAD))
    again = LocalStreamBuffer.restore(buffer.snapshot())
    assert len(again) == AHEAD
    for one in (buffer, again):
        one.push(left=part(0, BATCH))
    steps = [one.close(left=part(BATCH, AHEAD)) for one in (buffer, again)]
    for name, column in vars(steps[0]).items():
        assert np.array_equal(np.sort(column), np.sort(getattr(steps[1], name))), name
    assert not len(buffer)


def test_a_watermark_wakes_what_waits_and_a_tolerance_lets_it_go() -> None:
    buffer = LocalStreamBuffer(tolerance_ns=10)
    for begin in range(0, AHEAD, BATCH):
        buffer.push(right=part(begin, begin + BATCH, shift=5))
    last_ns = (AHEAD // KEYS) * 10
    watermark = np.array([-1]), np.array([last_ns]), np.array([0])
    buffer.push(left_watermarks=watermark)
    assert len(buffer) == KEYS, "the last record of each key is held, because a record within the tolerance may follow"


def test_what_is_held_of_each_key_is_told_also_where_all_of_a_key_has_gone() -> None:
    buffer = LocalStreamBuffer(tolerance_ns=10)
    for begin in range(0, AHEAD, BATCH):
        buffer.push(right=part(begin, begin + BATCH, shift=5))
    last = np.array([KEYS - 1]), np.array([10 * AHEAD]), np.array([AHEAD])
    buffer.push(left_watermarks=last, right_watermarks=last)
    keys, count = buffer.held_by_key()
    assert (keys.tolist(), count.tolist()) == (list(range(KEYS - 1)), [AHEAD // KEYS] * (KEYS - 1))
