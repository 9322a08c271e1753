"""Which units are served in which turn, and with what input?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joiner.runtime.kafka.batches.messages import Read
from joiner.runtime.runners.input import PendingInput
from joiner.runtime.task.decoding.messages import Messages

DATA = "data"


def messages(first: int, *values: bytes | None) -> Messages:
    return Messages.of(range(first, first + len(values)), [7] * len(values), values)


def read(by_unit: dict[int, Messages], ends: dict[int, int] | None = None) -> Read:
    batches = {unit: {DATA: part} for unit, part in by_unit.items()}
    return Read(batches, {unit: {DATA: end} for unit, end in (ends or {}).items()}, [])


@pytest.mark.parametrize(("units", "turns"), [(0, 1), (1, 1), (2, 2), (4, 4), (5, 4), (64, 4)])
def test_there_are_no_more_turns_than_units(units: int, turns: int) -> None:
    assert PendingInput().turns(units) == turns


@given(st.integers(1, 20), st.integers(1, 6))
def test_each_unit_is_served_once_per_interval(units: int, turns_max: int) -> None:
    pending = PendingInput(turns_max)
    for _ in range(3):
        served = [unit for _ in range(pending.turns(units)) for unit in pending.begin_turn(range(units), 1_000)]
        assert set(served) == set(range(units))
        assert len(served) < units + pending.turns(units)


def test_a_new_unit_is_served_next_and_a_dropped_one_is_new_again() -> None:
    pending = PendingInput(2)
    assert [pending.begin_turn([1, 2], 1_000) for _ in range(3)] == [[1], [2], [1]]
    assert pending.begin_turn([1, 2, 5], 1_000) == [5, 2]
    pending.drop(5)
    assert pending.begin_turn([1, 5], 1_000) == [5]
    assert pending.begin_turn([], 1_000) == []


def test_a_unit_whose_share_of_a_full_batch_has_arrived_does_not_wait() -> None:
    pending = PendingInput(4)
    pending.add(read({3: messages(0, b"a"), 4: messages(0, b"a", b"b")}), range(5))
    assert pending.begin_turn(range(1, 5), 8) == [1, 4]
    pending.take(4)
    pending.add(read({3: messages(1, b"b")}), range(5))
    assert pending.begin_turn(range(1, 5), 8) == [2, 3]


def test_a_unit_does_not_wait_with_more_records_than_its_share_of_a_batch_that_is_limited() -> None:
    pending = PendingInput(4)
    for turn in range(8):
        # Every read has as many records as the limit allows, all of one unit.
        pending.add(read({3: messages(8 * turn, *[b"a"] * 8)}), range(4))
        assert 3 in pending.begin_turn(range(4), 8)
        assert len(pending.take(3).batches[DATA]) == 8


def test_parts_are_joined_in_order_and_taken_once() -> None:
    pending = PendingInput()
    pending.add(read({0: messages(4, b"a", None)}, {0: 6}), [0])
    pending.add(read({0: messages(9, b"c")}, {0: 10}), [0])
    batches, ends = pending.take(0)
    assert ends == {DATA: 10}
    assert batches[DATA].values() == [b"a", None, b"c"]
    np.testing.assert_array_equal(batches[DATA].offset, [4, 5, 9])
    np.testing.assert_array_equal(batches[DATA].append_ms, [7, 7, 7])
    assert pending.take(0) == ({}, {})


def test_input_of_units_that_are_not_running_is_discarded() -> None:
    pending = PendingInput()
    pending.add(read({0: messages(0, b"a"), 1: messages(0, b"a")}, {0: 1, 1: 1}), [0])
    assert pending.take(1) == ({}, {})
    pending.drop(0)
    assert pending.take(0) == ({}, {})


@given(st.lists(st.lists(st.none() | st.binary(max_size=3), min_size=1, max_size=4), min_size=1, max_size=4))
def test_concat_is_the_inverse_of_part(values: list[list[bytes | None]]) -> None:
    whole = messages(0, *(value for part in values for value in part))
    begins = np.cumsum([0, *map(len, values)]).tolist()
    parts = [whole.part(begin, begin + len(part)) for begin, part in zip(begins, values, strict=False)]
    assert Messages.concat(parts).values() == whole.values()
    np.testing.assert_array_equal(Messages.concat(parts).offset, whole.offset)
