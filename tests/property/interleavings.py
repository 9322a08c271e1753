"""Random streams (keys, ties, disorder, watermarks) and random ways to feed them to the engine (batches, restores)."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from joiner import LocalStreamBuffer, Step
from joiner.check.model.oracle import ALL_KEYS, Rec, Watermark
from joiner.core.arguments import DIRECTIONS, DRIVERS, WATERMARK_SCOPES


@dataclass(frozen=True)
class Options:
    """The join options that the engine and the oracle have in common."""

    tolerance_ns: int | None
    lateness_ns: tuple[int, int]
    direction: str = "both"
    driver: str = "both"
    watermark_scope: str = "key"


@dataclass(frozen=True)
class Feed:
    """Two streams, and how to feed them. Each cut: the left and right entries fed so far, and whether to restore."""

    left: list[Rec | Watermark]
    right: list[Rec | Watermark]
    cuts: list[tuple[int, int, bool]]


def options() -> st.SearchStrategy[Options]:
    """Generate options in which tolerance and lateness are about as large as the times."""
    lateness = st.integers(0, 6)
    return st.builds(
        Options,
        st.none() | st.integers(0, 8),
        st.tuples(lateness, lateness),
        st.sampled_from(DIRECTIONS),
        st.sampled_from(DRIVERS),
        st.sampled_from(WATERMARK_SCOPES),
    )


@st.composite
def streams(draw: st.DrawFn, *, identified: bool) -> list[Rec | Watermark]:
    """Generate a stream of up to 24 entries with few keys and times, and with gaps between positions."""
    keys = draw(st.integers(1, 3))
    entries: list[Rec | Watermark] = []
    seq = draw(st.integers(0, 3))
    drift = draw(st.integers(0, 2))
    for position in range(draw(st.integers(0, 24))):
        ts = draw(st.integers(0, 12)) + position * drift
        if draw(st.integers(0, 7)) == 0:
            entries.append(Watermark(draw(st.sampled_from([ALL_KEYS, *range(keys)])), ts, seq))
        else:
            event = draw(st.sampled_from("abc")) if identified else None
            entries.append(Rec(draw(st.integers(0, keys - 1)), ts, seq, event))
        seq += draw(st.integers(1, 3))
    return entries


@st.composite
def feeds(draw: st.DrawFn) -> Feed:
    """Generate two streams with random interleaving, batches and restores."""
    left, right = (draw(streams(identified=draw(st.booleans()))) for _ in range(2))
    cuts, at = [], (0, 0)
    while at != (len(left), len(right)):
        step = draw(st.tuples(st.integers(0, 6), st.integers(0, 6)))
        at = (min(at[0] + step[0], len(left)), min(at[1] + step[1], len(right)))
        cuts.append((*at, draw(st.integers(0, 4)) == 0))
    return Feed(left, right, cuts)


def columns(entries: list[Rec | Watermark]) -> tuple[tuple[np.ndarray, ...] | None, tuple[np.ndarray, ...] | None]:
    """Return the records and the watermarks of a part of a stream, as arguments for the engine."""
    records = [entry for entry in entries if isinstance(entry, Rec)]
    watermarks = [entry for entry in entries if isinstance(entry, Watermark)]
    record_columns = _columns([(r.key, r.ts, r.seq) for r in records])
    if record_columns is not None and records[0].event is not None:
        identity = np.array([_identity(str(r.event)) for r in records], dtype=np.int64)
        record_columns = (*record_columns, identity)
    return record_columns, _columns([(m.key, m.ts, m.seq) for m in watermarks])


def _identity(event: str) -> int:
    return int.from_bytes(event.encode(), "little", signed=True)


def push(buffer: LocalStreamBuffer, left: list[Rec | Watermark], right: list[Rec | Watermark]) -> Step:
    """Feed a part of each stream to the engine."""
    left_records, left_watermarks = columns(left)
    right_records, right_watermarks = columns(right)
    return buffer.push(
        left=left_records, right=right_records, left_watermarks=left_watermarks, right_watermarks=right_watermarks
    )


def pairs(step: Step) -> list[tuple[int, int]]:
    """Return the pairs of a step as (left seq, right seq)."""
    return list(zip(step.left_seq.tolist(), step.right_seq.tolist(), strict=True))


def _columns(rows: list[tuple[int, int, int]]) -> tuple[np.ndarray, ...] | None:
    if not rows:
        return None
    return tuple(np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))


def seeded(seed: int) -> tuple[Feed, Options]:
    """Generate a feed and options from a seed: much faster than Hypothesis, but without shrinking."""
    chance = random.Random(seed)
    chosen = Options(
        chance.choice([None, None, 0, 3, 8]),
        (chance.choice([0, 0, 4, 12]), chance.choice([0, 0, 4, 12])),
        chance.choice(DIRECTIONS),
        chance.choice(DRIVERS),
        chance.choice(WATERMARK_SCOPES),
    )
    left, right = (_seeded_stream(chance, identified=chance.random() < 0.3) for _ in range(2))
    cuts, at, largest = [], (0, 0), chance.choice([1, 2, 8])
    while at != (len(left), len(right)):
        at = (
            min(at[0] + chance.randint(0, largest), len(left)),
            min(at[1] + chance.randint(0, largest), len(right)),
        )
        cuts.append((*at, chance.random() < 0.1))
    return Feed(left, right, cuts), chosen


def _seeded_stream(chance: random.Random, *, identified: bool) -> list[Rec | Watermark]:
    entries: list[Rec | Watermark] = []
    keys, drift, spread = chance.choice([1, 1, 2]), chance.choice([0, 1, 3]), chance.choice([1, 4, 16])
    seq = 0
    for position in range(chance.randint(0, 20)):
        ts = position * drift + chance.randint(0, spread)
        seq += chance.randint(1, 2)
        if chance.random() < 0.08:
            entries.append(Watermark(chance.choice([ALL_KEYS, *range(keys)]), ts, seq))
        else:
            entries.append(Rec(chance.randrange(keys), ts, seq, chance.choice("ab") if identified else None))
    return entries
