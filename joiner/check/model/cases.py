"""The built-in cases: small streams that a reader can join by hand, and seeded random ones.

`joiner.check.model.drive` runs the engine over them. Times are small integers; their unit (ns) does not matter.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joiner.check.model.oracle import ALL_KEYS, Rec, Watermark

if TYPE_CHECKING:
    from collections.abc import Sequence

Entry = Rec | Watermark


@dataclass(frozen=True)
class Case:
    """Two streams in log order, and the options of the join.

    ``pairs``: the numbers of certain pairs after both streams have been read and after both have ended, if worked out
    by hand, else None. The engine is compared with the oracle either way.
    """

    name: str
    left: Sequence[Entry]
    right: Sequence[Entry]
    tolerance_ns: int | None = None
    lateness_ns: tuple[int, int] = (0, 0)
    pairs: tuple[int, int] | None = None


def records(*times: int, key: int = 0) -> list[Rec]:
    """Return records with the same key at ``times``. The seq of each is its index."""
    return [Rec(key, ts, seq) for seq, ts in enumerate(times)]


def entries(*given: int | tuple[int, int] | str) -> list[Entry]:
    """Build a stream from a short notation.

    ``3`` is a record with key 0 and time 3, ``(1, 3)`` one with key 1; ``">3"`` is a watermark for all keys, and
    ``"1>3"`` one for key 1.
    """
    made: list[Entry] = []
    for seq, entry in enumerate(given):
        if isinstance(entry, str):
            key, _, ts = entry.partition(">")
            made.append(Watermark(int(key) if key else ALL_KEYS, int(ts), seq))
        elif isinstance(entry, tuple):
            made.append(Rec(entry[0], entry[1], seq))
        else:
            made.append(Rec(0, entry, seq))
    return made


def blocks(length: int, total: int) -> tuple[list[Rec], list[Rec]]:
    """Return ``total`` records at times 0, 1, …, in blocks of ``length`` that alternate between left and right."""
    left = [ts for ts in range(total) if ts // length % 2 == 0]
    right = [ts for ts in range(total) if ts // length % 2 == 1]
    return records(*left), records(*right)


def built_in_cases() -> list[Case]:
    """Return the named cases, simplest first."""
    return [*_ancestor_cases(), *_tie_cases(), *_option_cases(), *_watermark_cases(), *_late_cases()]


def _ancestor_cases() -> list[Case]:
    alternating_left, alternating_right = blocks(1, 100)
    block_left, block_right = blocks(5, 20)
    return [
        Case("no records", [], [], pairs=(0, 0)),
        Case("records of one side only", records(1, 2, 3), [], pairs=(0, 0)),
        Case("100 alternating records", alternating_left, alternating_right, pairs=(99, 99)),
        # Each of the three block boundaries yields 5 next + 5 prev - 1 common = 9 pairs. At the last boundary, the left
        # record 14 is prev of 15..19, and these relations stay open until the left stream passes them. Only the pair
        # with 15 is certain, because 15 is next of 14: 4 pairs remain open.
        Case("blocks of 5, 20 records", block_left, block_right, pairs=(23, 27)),
        Case("blocks of 1,000, 3,000 records", *blocks(1000, 3000), pairs=(2999, 3998)),
    ]


def _tie_cases() -> list[Case]:
    return [
        Case("equal times on both sides", records(1, 2, 3), records(1, 2, 3), pairs=(3, 3)),
        Case("three equal times on each side", records(5, 5, 5), records(5, 5, 5), pairs=(5, 8)),
        Case("ties before, at and after", records(1, 1, 5, 5, 9, 9), records(1, 5, 5, 5, 9)),
        Case("an equal time comes later", entries(4, 4), entries(4, 6, 6)),
        # While F_S = 1, next_R(1) = 2 is certain, but prev_S(2) = 1 is not. The record at 3 makes the latter certain,
        # too. The pair (2, 1) must still be emitted only once.
        Case("R=[2], S=[1], then S=[3]", records(2), records(1, 3), pairs=(2, 2)),
    ]


def _option_cases() -> list[Case]:
    return [
        Case("tolerance 2", records(0, 10, 20), records(1, 13, 18), tolerance_ns=2, pairs=(2, 2)),
        Case("tolerance 0: equal times only", records(1, 2, 4), records(2, 3, 4), tolerance_ns=0, pairs=(2, 2)),
        Case("lateness 3 delays pairs", records(0, 4, 2, 8), records(1, 3, 6, 4), lateness_ns=(3, 3)),
        Case("lateness of one side", records(0, 4, 2, 8), records(1, 3, 6, 9), lateness_ns=(5, 0)),
        Case("lateness and tolerance", records(0, 9, 4, 20), records(8, 5, 6, 30), 3, (5, 3)),
        Case("many keys", *_interlaced_keys(keys=50, each=6)),
    ]


def _interlaced_keys(keys: int, each: int) -> tuple[list[Entry], list[Entry]]:
    left = entries(*((key, 10 * i + key % 7) for i in range(each) for key in range(keys)))
    right = entries(*((key, 10 * i + key % 5) for i in range(each) for key in reversed(range(keys))))
    return left, right


def _watermark_cases() -> list[Case]:
    return [
        Case("a watermark in place of a record", entries(1, 2), entries(0, ">3"), pairs=(2, 2)),
        Case("a watermark at the record's time", entries(1, 2), entries(0, ">2"), pairs=(1, 2)),
        Case(
            "a watermark for one key of two",
            entries((0, 1), (1, 1), (0, 2), (1, 2)),
            entries((0, 0), (1, 0), "1>3"),
            pairs=(3, 4),
        ),
        Case("records below a watermark are late", entries(1, 5), entries(0, ">4", 3, 4, 6)),
        Case("a lower watermark has no effect", entries(1, 5, 7), entries(0, ">4", ">2", 3, 6)),
        Case("a watermark for a new key", entries((3, 2)), entries("3>9", (3, 8), (3, 9)), pairs=(1, 1)),
        Case("watermarks only", entries(">5", "2>9"), entries("0>3", ">1"), pairs=(0, 0)),
    ]


def _late_cases() -> list[Case]:
    return [
        Case("late records are not joined", records(1, 5, 3, 9), records(2, 6, 4, 8)),
        Case("a time at the frontier is not late", records(5, 5, 4), records(5, 5), pairs=(3, 4)),
        Case("all records but the first are late", records(9, 8, 7, 6), records(9, 1, 2), pairs=(1, 1)),
        Case("late for one key only", entries((0, 9), (1, 3), (0, 3)), entries((1, 3), (0, 9), (1, 2))),
        Case("before 1970", records(-9, -5, -1), records(-8, -5, 0), pairs=(5, 5)),
        Case(
            "the earliest and the latest times", records(-(9 * 10**18), 9 * 10**18), records(-(9 * 10**18), 9 * 10**18)
        ),
    ]


def random_case(seed: int) -> Case:
    """Return a small random case: few keys, few times (hence many ties), disorder, lateness, tolerance, watermarks."""
    rng = random.Random(seed)  # noqa: S311 - seeded test data, no secret
    keys, span = rng.randint(1, 4), rng.choice((3, 8, 30))
    disorder, watermark_share = rng.choice((0, 0, 2, 6)), rng.choice((0.0, 0.0, 0.15))
    left, right = (_random_stream(rng, rng.randint(0, 14), keys, span, disorder, watermark_share) for _ in range(2))
    return Case(
        f"random, seed {seed}",
        left,
        right,
        tolerance_ns=rng.choice((None, None, 0, 1, 4)),
        lateness_ns=(rng.choice((0, 0, 1, 5)), rng.choice((0, 0, 1, 5))),
    )


def _random_stream(
    rng: random.Random, length: int, keys: int, span: int, disorder: int, watermark_share: float
) -> list[Entry]:
    seq = rng.randint(0, 3)
    made: list[Entry] = []
    for at in range(length):
        ts = at * span // max(length, 1) + rng.randint(-disorder, disorder)
        if rng.random() < watermark_share:
            made.append(Watermark(rng.choice((ALL_KEYS, rng.randrange(keys))), ts - rng.randint(0, 2), seq))
        else:
            made.append(Rec(rng.randrange(keys), ts, seq))
        seq += rng.choice((1, 1, 1, 2, 5))
    return made


def large_case(seed: int, records_count: int) -> Case:
    """Return a case of ``records_count`` records per side over many keys, too large for the nested loops."""
    rng = random.Random(seed)  # noqa: S311 - seeded test data, no secret
    keys = max(records_count // 50, 1)
    left, right = (_random_stream(rng, records_count, keys, records_count // 2, 40, 0.001) for _ in range(2))
    return Case(f"{records_count:,} records per side", left, right, tolerance_ns=5_000, lateness_ns=(60, 20))
