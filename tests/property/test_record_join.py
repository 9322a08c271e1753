"""Is the join record by record that of the arrays, and does it keep no record longer than the buffer does?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joiner import ArgumentError, LocalStreamBuffer, RecordJoin

# Side, key, time; the place in the list tells the record.
RECORDS = st.lists(
    st.tuples(st.sampled_from(["left", "right"]), st.sampled_from("abc"), st.integers(0, 20)), max_size=30
)
OPTIONS = st.fixed_dictionaries(
    {"lateness_ns": st.integers(0, 5), "tolerance_ns": st.none() | st.integers(0, 5)},
    optional={"direction": st.sampled_from(["backward", "nearest"]), "driver": st.sampled_from(["left", "right"])},
)


@settings(max_examples=200, deadline=None)
@given(records=RECORDS, options=OPTIONS)
def test_record_by_record_the_same_pairs_come_at_the_same_calls(
    records: list[tuple[str, str, int]], options: dict[str, Any]
) -> None:
    late: list[int] = []
    join: RecordJoin[int, int, tuple[int, int]] = RecordJoin(
        lambda left, right: (left, right),
        time=lambda number: records[number][2],
        key=lambda number: records[number][1],
        on_late=late.append,
        **options,
    )
    buffer = LocalStreamBuffer(**options)
    late_there: list[int] = []
    for number, (side, key, ts) in enumerate(records):
        found = join.left(number) if side == "left" else join.right(number)
        columns = np.array(["abc".index(key)]), np.array([ts]), np.array([number])
        step = buffer.push(left=columns) if side == "left" else buffer.push(right=columns)
        late_there += [*step.left_late_seq.tolist(), *step.right_late_seq.tolist()]
        # By key numbers, which the two give in another order.
        assert sorted(found) == sorted(zip(step.left_seq.tolist(), step.right_seq.tolist(), strict=True))
        assert len(join) == len(buffer) == sum(map(len, join._held.values()))  # noqa: SLF001 - the records kept
    step = buffer.close()
    assert sorted(join.close()) == sorted(zip(step.left_seq.tolist(), step.right_seq.tolist(), strict=True))
    assert late == late_there
    assert len(join) == 0


def test_what_the_function_raises_goes_to_the_caller_and_the_join_goes_on() -> None:
    join: RecordJoin[int, int, int] = RecordJoin(lambda left, right: left // right, time=lambda _record: 10)
    assert join.left(8) == []
    with pytest.raises(ZeroDivisionError):
        join.right(0)
    assert join.right(2) == [4]


def test_a_record_whose_time_is_none_is_not_taken() -> None:
    join: RecordJoin[float, float, object] = RecordJoin(lambda left, right: (left, right), time=lambda record: record)
    with pytest.raises(ArgumentError, match="left ts_ns must have dtype int64, not float64"):
        join.left(1.5)
    assert len(join) == 0
    assert join.left(1) == []
