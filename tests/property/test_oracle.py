"""Does the fast computation of the expected pairs agree with the oracle, and does the oracle obey the join's laws?"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from joiner.check.model import expected, oracle
from joiner.check.model.expected import Judge, certain_pairs
from joiner.check.model.oracle import ALL_KEYS, Rec, Watermark

INT64_MIN, INT64_MAX = np.iinfo(np.int64).min, np.iinfo(np.int64).max
TIMES = st.one_of(st.integers(0, 12), st.integers(0, 12), st.integers(-(9 * 10**18), 9 * 10**18))


@st.composite
def streams(draw: st.DrawFn) -> list[Rec | Watermark]:
    """Generate a stream in log order with few keys and times (hence ties), disorder, watermarks and repeated ids."""
    entries: list[Rec | Watermark] = []
    seq = draw(st.integers(0, 5))
    for _ in range(draw(st.integers(0, 14))):
        ts, key = draw(TIMES), draw(st.integers(0, 2))
        if draw(st.integers(0, 7)) == 0:
            entries.append(Watermark(draw(st.sampled_from((ALL_KEYS, key))), ts, seq))
        else:
            entries.append(Rec(key, ts, seq, draw(st.sampled_from((None, "a", "b")))))
        seq += draw(st.integers(1, 3))
    return entries


def judge_all(judge: Judge, entries: list[Rec | Watermark]) -> Judge:
    for entry in entries:
        if isinstance(entry, Watermark):
            judge.watermark(entry.key, entry.ts)
        else:
            judge.judge(*entry)
    return judge


LATENESS = st.one_of(st.integers(0, 8), st.integers(0, 2**62))
DIRECTIONS = ("both", "backward", "forward", "nearest")
NEAREST = {"tolerance_ns": None, "lateness_ns": 0, "direction": "nearest", "driver": "right", "watermark_scope": "key"}
OPTIONS = st.fixed_dictionaries(
    {
        "tolerance_ns": st.one_of(st.none(), st.integers(0, 6), st.integers(0, 2**63 - 1)),
        "lateness_ns": st.one_of(LATENESS, st.tuples(LATENESS, LATENESS)),
        "direction": st.sampled_from(DIRECTIONS),
        "driver": st.sampled_from(("both", "left", "right")),
        "watermark_scope": st.sampled_from(("key", "partition")),
    }
)


@example(left=[Rec(0, 0, 0)], right=[Rec(0, 2**62, 0)], options=NEAREST, closed=True)
@given(left=streams(), right=streams(), options=OPTIONS, closed=st.booleans())
def test_the_quick_computation_equals_the_nested_loops(
    left: list[Rec | Watermark], right: list[Rec | Watermark], options: dict[str, Any], *, closed: bool
) -> None:
    slow = oracle.join(left, right, **options, closed=closed)
    quick = expected.join(left, right, **options, closed=closed)
    assert quick.pairs == slow.pairs
    assert quick.left_late == {record.seq for record in slow.left.late}
    assert quick.right_late == {record.seq for record in slow.right.late}


@given(left=streams(), right=streams(), options=OPTIONS)
def test_the_quick_search_for_unmatched_records_finds_those_that_trying_finds(
    left: list[Rec | Watermark], right: list[Rec | Watermark], options: dict[str, Any]
) -> None:
    lateness = options["lateness_ns"]
    sides = lateness if isinstance(lateness, tuple) else (lateness, lateness)
    judges = [Judge(lateness_ns, options["watermark_scope"]) for lateness_ns in sides]
    lefts, rights = (judge_all(judge, entries).stream() for judge, entries in zip(judges, (left, right), strict=True))
    how = {name: options[name] for name in ("direction", "driver")}
    assert expected.unmatched(lefts, rights, options["tolerance_ns"], **how) == oracle.unmatched(left, right, **options)


@given(left=streams(), right=streams(), options=OPTIONS, data=st.data())
def test_what_must_have_been_emitted_only_grows(
    left: list[Rec | Watermark], right: list[Rec | Watermark], options: dict[str, Any], data: st.DataObject
) -> None:
    stops = data.draw(st.tuples(st.integers(0, len(left)), st.integers(0, len(right))))
    earlier = oracle.join(left[: stops[0]], right[: stops[1]], **options)
    later = oracle.join(left, right, **options)
    assert earlier.pairs <= later.pairs <= oracle.join(left, right, **options, closed=True).pairs
    assert [r.seq for r in earlier.left.late] == [r.seq for r in later.left.late if r in left[: stops[0]]]


@given(left=streams(), right=streams(), options=OPTIONS, closed=st.booleans())
def test_the_join_is_symmetric(
    left: list[Rec | Watermark], right: list[Rec | Watermark], options: dict[str, Any], *, closed: bool
) -> None:
    lateness, driver = options["lateness_ns"], options["driver"]
    mirrored = {
        "lateness_ns": lateness if isinstance(lateness, int) else lateness[::-1],
        "driver": {"left": "right", "right": "left"}.get(driver, driver),
    }
    there = oracle.join(left, right, **options, closed=closed)
    back = oracle.join(right, left, **(options | mirrored), closed=closed)
    assert there.pairs == {(left_seq, right_seq) for right_seq, left_seq in back.pairs}


@given(left=streams(), right=streams())
def test_the_ordinals_among_equal_times_are_the_same(left: list[Rec | Watermark], right: list[Rec | Watermark]) -> None:
    judges = judge_all(Judge(3), left), judge_all(Judge(0), right)
    pairs = certain_pairs(judges[0].stream(), judges[1].stream(), None, closed=True)
    answer = oracle.join(left, right, lateness_ns=(3, 0), closed=True)
    lefts, rights = oracle.ordinals(answer.left.accepted), oracle.ordinals(answer.right.accepted)
    assert pairs.left_ordinal.tolist() == [lefts[seq] for seq in pairs.left_seq.tolist()]
    assert pairs.right_ordinal.tolist() == [rights[seq] for seq in pairs.right_seq.tolist()]
