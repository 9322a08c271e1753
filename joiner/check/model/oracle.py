"""The neighbour join in its simplest form: nested loops over two lists.

This is the definition in docs/semantics.md as executable code. Given the entries read from each stream, it computes
exactly the pairs that must have been emitted by then. It has no batches, interleaving, buffer or clock, because the
result does not depend on them. It is deliberately simple, and quadratic. `joiner.check.model.expected` computes the
same result fast, the engine computes it incrementally, and tests compare both with this module.

All times are int nanoseconds. The module imports nothing else from the project.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

ALL_KEYS: Final = -1
"""The key of a watermark that covers every key."""

NOTHING_YET: Final = -(1 << 70)
"""The frontier of a key that has had no record or watermark yet: below every time."""

ENDED: Final = 1 << 70
"""The frontier of every key once its stream has ended: above every time."""


class Rec(NamedTuple):
    """A record of one stream. ``event``: the id that identifies duplicates, or None if it cannot be a duplicate."""

    key: int
    ts: int
    seq: int
    event: str | None = None


class Watermark(NamedTuple):
    """A watermark: no record of its key (or of any key, for `ALL_KEYS`) with a time below ``ts`` will follow."""

    key: int
    ts: int
    seq: int


class Stream:
    """One stream: its accepted, late and duplicate records, and its frontiers."""

    def __init__(self, entries: Sequence[Rec | Watermark], lateness_ns: int, *, watermark_scope: str = "key") -> None:
        """Read ``entries``, which must be in log order (by increasing ``seq``).

        ``watermark_scope``: whether a record advances the frontier of its "key" or of the whole "partition".
        """
        self.accepted: list[Rec] = []
        self.late: list[Rec] = []
        self.duplicates: list[Rec] = []
        self._promised: dict[int, int] = {}
        self._by_partition = watermark_scope == "partition"
        for entry in entries:
            self._read(entry, lateness_ns)

    def frontier(self, key: int) -> int:
        """Return the time below which a record of ``key`` is late.

        This is the frontier of the key or that of all keys, whichever is larger.
        """
        return max(self._promised.get(key, NOTHING_YET), self._promised.get(ALL_KEYS, NOTHING_YET))

    def _read(self, entry: Rec | Watermark, lateness_ns: int) -> None:
        if isinstance(entry, Watermark):
            self._promise(entry.key, entry.ts)
        elif entry.ts < self.frontier(entry.key):
            self.late.append(entry)
        elif entry.event is not None and any(_is_duplicate(entry, known) for known in self.accepted):
            self.duplicates.append(entry)
        else:
            self.accepted.append(entry)
            self._promise(ALL_KEYS if self._by_partition else entry.key, entry.ts - lateness_ns)

    def _promise(self, key: int, ts: int) -> None:
        self._promised[key] = max(self._promised.get(key, NOTHING_YET), ts)


class Answer(NamedTuple):
    """The pairs (left seq, right seq) that must have been emitted, and the two streams."""

    pairs: set[tuple[int, int]]
    left: Stream
    right: Stream


def join(
    left: Sequence[Rec | Watermark],
    right: Sequence[Rec | Watermark],
    *,
    tolerance_ns: int | None = None,
    lateness_ns: int | tuple[int, int] = 0,
    direction: str = "both",
    driver: str = "both",
    watermark_scope: str = "key",
    closed: bool = False,
) -> Answer:
    """Return exactly the pairs that must have been emitted after reading ``left`` and ``right``.

    ``lateness_ns``: one value for both streams, or (left, right). ``driver``: the side whose records look for
    neighbours: "left", "right" or "both". ``direction``: which neighbours they look for: "backward" (prev), "forward"
    (next), "both", or the "nearest" of the two. ``closed``: whether both streams have ended, which makes all neighbours
    certain.
    """
    left_lateness_ns, right_lateness_ns = lateness_ns if isinstance(lateness_ns, tuple) else (lateness_ns, lateness_ns)
    r_stream = Stream(left, left_lateness_ns, watermark_scope=watermark_scope)
    s_stream = Stream(right, right_lateness_ns, watermark_scope=watermark_scope)
    certain = _certain_nearest if direction == "nearest" else _certain_neighbours
    related: list[tuple[Rec, Rec]] = []
    if driver != "right":
        related += [(r, s) for r, s in certain(r_stream.accepted, s_stream, direction, closed=closed)]
    if driver != "left":
        related += [(r, s) for s, r in certain(s_stream.accepted, r_stream, direction, closed=closed)]
    pairs = {(r.seq, s.seq) for r, s in related if tolerance_ns is None or abs(r.ts - s.ts) <= tolerance_ns}
    return Answer(pairs, r_stream, s_stream)


def unmatched(
    left: Sequence[Rec | Watermark], right: Sequence[Rec | Watermark], *, closed: bool = False, **options: Any
) -> tuple[set[int], set[int]]:
    """Return, by side, the seqs of accepted records that are in no pair and that no further input could pair.

    ``options``: see `join`. It is enough to try two kinds of further input: no record in the other stream, and a single
    record at each time that might be the best. Additional records would only compete for the same neighbours.
    """
    now, ended = join(left, right, **options), join(left, right, closed=True, **options)
    found: tuple[set[int], set[int]] = (set(), set())
    for side, (own, other) in enumerate(((now.left, now.right), (now.right, now.left))):
        paired = {pair[side] for pair in ended.pairs}
        for record in own.accepted:
            if record.seq not in paired and (closed or not _can_be_paired(record, side, left, right, other, options)):
                found[side].add(record.seq)
    return found


def _can_be_paired(
    record: Rec,
    side: int,
    left: Sequence[Rec | Watermark],
    right: Sequence[Rec | Watermark],
    other: Stream,
    options: Any,
) -> bool:
    """Return whether ``record`` could become part of a pair if one more record arrived in the other stream."""
    frontier = other.frontier(record.key)
    for ts in {max(frontier, record.ts), record.ts, record.ts - 1}:
        if ts >= frontier:
            more = [Rec(record.key, ts, 1 << 62)]
            streams = ([*left, *more], right) if side else (left, [*right, *more])
            if any(pair[side] == record.seq for pair in join(*streams, closed=True, **options).pairs):
                return True
    return False


def _certain_neighbours(
    records: list[Rec], other: Stream, direction: str, *, closed: bool
) -> Iterator[tuple[Rec, Rec]]:
    """Yield each record with each of its neighbours in the other stream that no further input can change.

    prev, the last record at or before the record's time, is certain once the other stream can no longer send a record
    with that time. next, the first record at or after it, is certain once the other stream can no longer send an
    earlier one, or if the two times are equal, because another record with that time would have a later position.
    """
    for record in records:
        frontier = ENDED if closed else other.frontier(record.key)
        previous, following = _neighbours(record, other)
        if previous is not None and direction != "forward" and frontier > record.ts:
            yield record, previous
        if following is not None and direction != "backward" and following.ts <= max(frontier, record.ts):
            yield record, following


def _certain_nearest(records: list[Rec], other: Stream, _direction: str, *, closed: bool) -> Iterator[tuple[Rec, Rec]]:
    """Yield each record with its nearest neighbour, once no nearer record can follow. prev wins at equal distances.

    Future records are at or above the frontier, so prev is certain once the frontier is above the record's time and at
    least as far from it as prev. If next is nearer than prev, it is certain once no earlier record can follow in the
    other stream.
    """
    for record in records:
        frontier = ENDED if closed else other.frontier(record.key)
        previous, following = _neighbours(record, other)
        if previous is not None and (following is None or record.ts - previous.ts <= following.ts - record.ts):
            is_known = following is not None and following.ts <= frontier
            if frontier > record.ts and (frontier - record.ts >= record.ts - previous.ts or is_known):
                yield record, previous
        elif following is not None and following.ts <= frontier:
            yield record, following


def _neighbours(record: Rec, other: Stream) -> tuple[Rec | None, Rec | None]:
    """Return the last record of the other stream at or before the record's time, and the first at or after it."""
    same_key = [s for s in other.accepted if s.key == record.key]
    before = [s for s in same_key if s.ts <= record.ts]
    after = [s for s in same_key if s.ts >= record.ts]
    return max(before, key=_order, default=None), min(after, key=_order, default=None)


def _order(record: Rec) -> tuple[int, int]:
    return record.ts, record.seq


def _is_duplicate(record: Rec, known: Rec) -> bool:
    return (record.key, record.ts, record.event) == (known.key, known.ts, known.event)


def ordinals(accepted: Sequence[Rec]) -> dict[int, int]:
    """Return, for each seq, how many accepted records have the same key and time and a lower seq."""
    return {
        record.seq: sum(
            1 for other in accepted if (other.key, other.ts) == (record.key, record.ts) and other.seq < record.seq
        )
        for record in accepted
    }
