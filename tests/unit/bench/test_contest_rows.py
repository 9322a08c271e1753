"""The contest's workload of aligned rows: its expected results, and how the rows of a contender are judged."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from bench.contest.running.outputs import pairs_of
from bench.contest.workload.expected import compare, expect
from bench.contest.workload.inputs import DRIVER_AND_COLUMNS, ROWS, Workload, make
from joiner.check.model import aligned, oracle
from tests.unit.bench.test_contest import codes, split

if TYPE_CHECKING:
    from collections.abc import Mapping


def test_the_aligned_rows_that_are_expected_are_those_of_the_definition() -> None:
    draw, rows = np.random.default_rng(1), 24
    for _ in range(50):
        time_ms, side = np.sort(draw.integers(0, 20, rows)), draw.integers(0, 4, rows)
        thing = draw.integers(0, 2, rows)
        places = np.zeros(2, dtype=np.int64)
        workload = Workload("tiny", "", ["a", "b"], places, thing, side, time_ms, quantities=DRIVER_AND_COLUMNS)
        records: list[list[oracle.Rec | oracle.Watermark]] = [
            [oracle.Rec(int(thing[row]), int(time_ms[row]), int(row)) for row in np.flatnonzero(side == one)]
            for one in range(4)
        ]
        columns = [aligned.Column(one, {record.seq: record.seq for record in one}) for one in records[1:]]
        wanted, closed = aligned.align(records[0], columns)[0], aligned.align(records[0], columns, closed=True)[0]
        assert expect(workload).pairs.tolist() == codes_of_rows(wanted, rows)
        every = np.union1d(expect(workload).pairs, expect(workload).may_be)
        assert every.tolist() == codes_of_rows(closed, rows)


def codes_of_rows(found: Mapping[int, aligned.Row], rows: int) -> list[int]:
    return codes({(row, int(one)) for row, values in found.items() for one in (row, *values) if one is not None}, rows)


def test_an_aligned_row_is_its_driver_record_and_the_record_of_each_value() -> None:
    row = b'{"id": "rows:0:1", "result": 9.0, "values": {"speed": 4.25, "torque": null, "temperature": 7.75}}'
    assert pairs_of([row]) == [(9, 9, 1), (9, 4, 1), (9, 7, 1)]


@pytest.mark.parametrize("values", [{"torque": 4.25}, {"speed": 4.3}, {"weight": 4.25}])
def test_a_value_of_another_column_or_of_no_record_is_found_out(values: dict[str, float]) -> None:
    expected = expect(make(ROWS, 400))
    left, right = split(expected)
    row = json.dumps({"result": 64.0, "values": values}).encode()
    wrong = np.array(pairs_of([row]))
    is_other = left != 64
    found = compare(expected, np.append(left[is_other], wrong[:, 0]), np.append(right[is_other], wrong[:, 1]))
    assert (found.excess, found.missing, found.double) == (1, 3, 0)
