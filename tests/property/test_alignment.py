"""Aligned rows come out as the definition says, for every rule, interleaving, cut and restore."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joiner.alignment.buffer import AlignBuffer, AlignedRows
from joiner.alignment.driver_rows import DRIVER
from joiner.alignment.rules import RULES, ColumnRule
from joiner.check.model import aligned, oracle
from joiner.check.model import expected as fast
from joiner.check.model.expected_rows import certain_rows
from joiner.check.model.oracle import Rec, Stream, Watermark
from joiner.core.arguments import WATERMARK_SCOPES
from tests.property.interleavings import columns, streams

Entries = list[Rec | Watermark]


@dataclass(frozen=True)
class Case:
    """A driver, its columns, and how to feed them: after each cut, how many entries of each stream have been fed."""

    driver: Entries
    columns: list[aligned.Column]
    lateness_ns: int
    watermark_scope: str
    cuts: list[tuple[list[int], bool]]


VALUES = st.integers(-20, 20).map(float) | st.floats(-1e6, 1e6)


@st.composite
def column_of(draw: st.DrawFn) -> aligned.Column:
    entries = draw(streams(identified=draw(st.booleans())))
    rule = draw(st.sampled_from(RULES))
    return aligned.Column(
        entries,
        {entry.seq: draw(VALUES) for entry in entries},
        rule,
        draw(st.none() | st.integers(0, 10)),
        draw(st.none() | st.just(360.0)) if rule == "linear" else None,
        draw(st.sampled_from(["null", "drop"])),
        draw(st.integers(0, 6)),
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    driver = draw(streams(identified=draw(st.booleans())))
    found = draw(st.lists(column_of(), min_size=1, max_size=3))
    sizes = [len(driver), *(len(one.entries) for one in found)]
    at, cuts = [0] * len(sizes), []
    while at != sizes:
        at = [min(one + draw(st.integers(0, 9)), size) for one, size in zip(at, sizes, strict=True)]
        cuts.append((at, draw(st.integers(0, 4)) == 0))
    return Case(driver, found, draw(st.integers(0, 6)), draw(st.sampled_from(WATERMARK_SCOPES)), cuts)


def rules_of(columns_of_case: list[aligned.Column]) -> dict[str, ColumnRule]:
    return {
        f"c{number}": ColumnRule(
            rule=one.rule,
            tolerance_ns=one.tolerance_ns,
            period=one.period,
            on_missing=one.on_missing,
            lateness_ns=one.lateness_ns,
        )
        for number, one in enumerate(columns_of_case)
    }


def buffer_of(case: Case) -> AlignBuffer:
    return AlignBuffer(rules_of(case.columns), lateness_ns=case.lateness_ns, watermark_scope=case.watermark_scope)


def push(buffer: AlignBuffer, case: Case, begin: list[int], end: list[int]) -> AlignedRows:
    """Feed the entries between two cuts."""
    records, watermarks = columns(case.driver[begin[0] : end[0]])
    of_columns: dict[str, Any] = {}
    column_watermarks: dict[str, Any] = {}
    for number, one in enumerate(case.columns):
        part = list(one.entries[begin[number + 1] : end[number + 1]])
        of_column, of_watermarks = columns(part)
        values = np.array([one.values[entry.seq] for entry in part if isinstance(entry, Rec)], dtype=np.float64)
        if of_column is not None:
            of_columns[f"c{number}"] = of_column, values
        if of_watermarks is not None:
            column_watermarks[f"c{number}"] = of_watermarks
    return buffer.push(
        driver=records, columns=of_columns, driver_watermarks=watermarks, column_watermarks=column_watermarks
    )


def rows_of(found: AlignedRows) -> dict[int, tuple[float | None, ...]]:
    """Return the rows by the driver's position, and check that each comes once and in order."""
    rows: dict[int, tuple[float | None, ...]] = {}
    order = list(zip(found.key.tolist(), found.ts_ns.tolist(), found.seq.tolist(), strict=True))
    assert order == sorted(order)
    for at, seq in enumerate(found.seq.tolist()):
        assert seq not in rows
        rows[seq] = tuple(
            None if found.is_missing[name][at] else float(found.values[name][at]) for name in found.values
        )
        assert all(math.isnan(found.values[name][at]) for name in found.values if found.is_missing[name][at])
    return rows


def assert_equal(found: dict[int, tuple[float | None, ...]], wanted: dict[int, tuple[float | None, ...]]) -> None:
    assert found.keys() == wanted.keys()
    for seq, row in found.items():
        for value, expected in zip(row, wanted[seq], strict=True):
            assert (value is None) == (expected is None)
            # The definition computes with fractions, the product with floats. Angles may differ by a whole turn.
            assert value is None or expected is None or is_close(value, expected)


def is_close(value: float, expected: float) -> bool:
    return math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-9) or abs(abs(value - expected) - 360.0) < 1e-6


def wanted_of(case: Case, at: list[int], *, closed: bool = False) -> tuple[dict[int, Any], set[int]]:
    parts = [one._replace(entries=one.entries[:count]) for one, count in zip(case.columns, at[1:], strict=True)]
    return aligned.align(
        case.driver[: at[0]],
        parts,
        lateness_ns=case.lateness_ns,
        watermark_scope=case.watermark_scope,
        closed=closed,
    )


def seeded_case(seed: int) -> Case:
    """Return a case with more rows than Hypothesis draws, and with every rule in turn."""
    draw = random.Random(seed)

    def entries(count: int) -> Entries:
        found: Entries = []
        for seq in range(count):
            ts = seq // 2 + draw.randint(0, 4)
            is_watermark = draw.random() < 0.1
            key = draw.choice([0, 0, 1])
            found.append(Watermark(key, ts, seq) if is_watermark else Rec(key, ts, seq, draw.choice("abc")))
        return found

    def column(number: int) -> aligned.Column:
        rule = RULES[(seed + number) % len(RULES)]
        of_column = entries(draw.randint(5, 30))
        values = {entry.seq: float(draw.randint(0, 400)) for entry in of_column}
        period = 360.0 if rule == "linear" and draw.random() < 0.5 else None
        tolerance_ns = draw.choice([None, draw.randint(0, 6)])
        return aligned.Column(of_column, values, rule, tolerance_ns, period, "null", draw.randint(0, 4))

    driver, found = entries(30), [column(number) for number in range(2)]
    sizes = [len(driver), *(len(one.entries) for one in found)]
    at, cuts = [0] * len(sizes), []
    while at != sizes:
        at = [min(one + draw.randint(0, 20), size) for one, size in zip(at, sizes, strict=True)]
        cuts.append((at, draw.random() < 0.3))
    return Case(driver, found, draw.randint(0, 4), draw.choice(WATERMARK_SCOPES), cuts)


@pytest.mark.parametrize("block", range(4))
def test_the_same_for_many_seeds(block: int) -> None:
    for seed in range(25 * block, 25 * (block + 1)):
        check_every_step(seeded_case(seed))


@given(cases())
def test_rows_are_those_of_the_definition_after_every_step(case: Case) -> None:
    check_every_step(case)


def check_every_step(case: Case) -> None:
    buffer, out, dropped = buffer_of(case), dict[int, tuple[float | None, ...]](), set[int]()
    begin = [0] * (1 + len(case.columns))
    for end, restores in case.cuts:
        found = push(buffer, case, begin, end)
        rows = rows_of(found)
        assert not rows.keys() & (out.keys() | dropped)
        out |= rows
        dropped |= set(found.dropped_seq.tolist())
        wanted, left_out = wanted_of(case, end)
        assert_equal(out, wanted)
        assert dropped == left_out
        accepted = Stream(case.driver[: end[0]], case.lateness_ns, watermark_scope=case.watermark_scope).accepted
        assert len(buffer) == len(accepted) - len(out) - len(dropped)
        if restores:
            buffer = AlignBuffer.restore(buffer.snapshot())
        begin = end
    found = buffer.close()
    out |= rows_of(found)
    dropped |= set(found.dropped_seq.tolist())
    wanted, left_out = wanted_of(case, [len(case.driver), *(len(one.entries) for one in case.columns)], closed=True)
    assert_equal(out, wanted)
    assert dropped == left_out
    assert len(buffer) == 0
    assert buffer.held() == 0


@given(cases())
def test_the_rows_that_the_tester_expects_are_those_of_the_definition(case: Case) -> None:
    columns_of = [(judged(list(one.entries), one.lateness_ns, case.watermark_scope), one) for one in case.columns]
    found = certain_rows(judged(case.driver, case.lateness_ns, case.watermark_scope), columns_of)
    wanted, left_out = wanted_of(case, [len(case.driver), *(len(one.entries) for one in case.columns)])
    assert {seq: tuple(cell.value for cell in row.cells) for seq, row in found.rows.items()} == wanted
    assert found.left_out == left_out
    accepted = Stream(case.driver, case.lateness_ns, watermark_scope=case.watermark_scope).accepted
    ordinals = oracle.ordinals(accepted)
    assert all(row.ordinal == ordinals[seq] for seq, row in found.rows.items())


def judged(entries: Entries, lateness_ns: int, watermark_scope: str) -> fast.Stream:
    judge = fast.Judge(lateness_ns, watermark_scope)
    for entry in entries:
        if isinstance(entry, Watermark):
            judge.watermark(entry.key, entry.ts)
        else:
            judge.judge(entry.key, entry.ts, entry.seq, entry.event)
    return judge.stream()


@given(cases())
def test_late_and_duplicate_records_are_reported_by_stream(case: Case) -> None:
    buffer = buffer_of(case)
    begin = [0] * (1 + len(case.columns))
    late: dict[str, list[int]] = {}
    duplicates: dict[str, list[int]] = {}
    for end, _ in case.cuts:
        found = push(buffer, case, begin, end)
        for name, seq in found.late_seq.items():
            late.setdefault(name, []).extend(seq.tolist())
        for name, seq in found.duplicate_seq.items():
            duplicates.setdefault(name, []).extend(seq.tolist())
        begin = end
    given_streams = [(DRIVER, case.driver, case.lateness_ns)] + [
        (f"c{number}", list(one.entries), one.lateness_ns) for number, one in enumerate(case.columns)
    ]
    for name, entries, lateness_ns in given_streams:
        stream = Stream(entries, lateness_ns, watermark_scope=case.watermark_scope)
        assert late.get(name, []) == [record.seq for record in stream.late]
        assert duplicates.get(name, []) == [record.seq for record in stream.duplicates]


def test_a_silent_column_holds_up_the_rows_of_its_own_keys_alone_and_memory_stays_small() -> None:
    buffer = AlignBuffer({"speed": ColumnRule()})
    draw = random.Random(7)
    for step in range(400):
        seq = np.array([2 * step, 2 * step + 1])
        keys, ts = np.array([0, 1]), np.array([10 * step, 10 * step])
        speed = (np.array([1]), np.array([10 * step + 1]), np.array([step])), np.array([draw.random()])
        found = buffer.push(driver=(keys, ts, seq), columns={"speed": speed})
        assert set(found.key.tolist()) <= {1}
    assert len(buffer) == 400
    assert buffer.held() <= 2
    found = buffer.push(
        column_watermarks={"speed": (np.array([0]), np.array([4000]), np.array([400]))},
    )
    assert len(found) == 400
    assert found.is_missing["speed"].all()
