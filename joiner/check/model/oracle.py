"""The neighbour join as a newcomer would write it down: nested loops over two lists, nothing clever.

This is the executable form of the definition (docs/semantics.md). It answers one question: which pairs must
have been emitted, neither less nor more, once exactly these entries of the two streams have been read? It
knows no batches, no interleaving, no buffer and no clock, because the answer depends on none of them. It is
slow (the square of its input) on purpose: `joiner.check.model.expected` computes the same quickly, the engine does
it while the records arrive, and both are held against this file.

All times are int nanoseconds. It imports nothing, so that nothing can be wrong but what stands here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

ALL_KEYS: Final = -1
"""The key of a watermark that covers every key."""

NOTHING_YET: Final = -(1 << 70)
"""The frontier of a key that nothing has been promised of: below every time."""

ENDED: Final = 1 << 70
"""The frontier of every key once its stream has ended: above every time."""


class Rec(NamedTuple):
    """A record of one stream. ``event`` is the id by which a redelivered record is known; None: never one."""

    key: int
    ts: int
    seq: int
    event: str | None = None


class Watermark(NamedTuple):
    """The promise that the stream sends nothing below ``ts`` any more, for one key or for `ALL_KEYS`."""

    key: int
    ts: int
    seq: int


class Stream:
    """One stream, read entry by entry: what was accepted, what was late, what was a duplicate, its
    frontiers.
    """

    def __init__(self, entries: Sequence[Rec | Watermark], lateness_ns: int, *, watermark_scope: str = "key") -> None:
        """Read ``entries``, which are in the order of the log: their ``seq`` rises.

        ``watermark_scope``: a record tells how far the stream is for its "key", or for the whole "partition".
        """
        self.accepted: list[Rec] = []
        self.late: list[Rec] = []
        self.duplicates: list[Rec] = []
        self._promised: dict[int, int] = {}
        self._by_partition = watermark_scope == "partition"
        for entry in entries:
            self._read(entry, lateness_ns)

    def frontier(self, key: int) -> int:
        """What comes later for ``key`` has at least this time: its own promise or the one for all keys."""
        return max(self._promised.get(key, NOTHING_YET), self._promised.get(ALL_KEYS, NOTHING_YET))

    def _read(self, entry: Rec | Watermark, lateness_ns: int) -> None:
        if isinstance(entry, Watermark):
            self._promise(entry.key, entry.ts)
        elif entry.ts < self.frontier(entry.key):
            self.late.append(entry)
        elif entry.event is not None and any(_is_twin(entry, known) for known in self.accepted):
            self.duplicates.append(entry)
        else:
            self.accepted.append(entry)
            self._promise(ALL_KEYS if self._by_partition else entry.key, entry.ts - lateness_ns)

    def _promise(self, key: int, ts: int) -> None:
        self._promised[key] = max(self._promised.get(key, NOTHING_YET), ts)


class Answer(NamedTuple):
    """What must have been emitted: ``pairs`` of (left seq, right seq), and what became of each stream's
    records.
    """

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
    """What must have been emitted when ``left`` and ``right`` have been read, and nothing more of either.

    ``lateness_ns`` is one value for both streams or (left, right). ``driver``: whose records look for neighbours,
    left, right or both. ``direction``: which ones they look for: backward (prev), forward (next), both, or the
    nearest of the two. ``closed``: both streams have ended, so nothing that could still come leaves a relation open.
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
    """Which accepted records, by seq, are in no pair and get into none however the streams go on.

    ``options`` as those of `join`. It is tried: with nothing more of the other stream, and with one more record of it
    at each moment that could be the best one. More records only compete for the neighbours.
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
    """Whether one more record of the other stream gets into a pair with ``record``."""
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
    """Each record with its neighbours in the other stream that no continuation could take away any more.

    prev, the last at or before the record's time: certain once the other stream cannot send that time again.
    next, the first at or after it: certain once the other stream cannot send an earlier one, or if the times
    are equal (one that comes later with the same time stands behind it).
    """
    for record in records:
        frontier = ENDED if closed else other.frontier(record.key)
        previous, following = _neighbours(record, other)
        if previous is not None and direction != "forward" and frontier > record.ts:
            yield record, previous
        if following is not None and direction != "backward" and following.ts <= max(frontier, record.ts):
            yield record, following


def _certain_nearest(records: list[Rec], other: Stream, _direction: str, *, closed: bool) -> Iterator[tuple[Rec, Rec]]:
    """Each record with the nearer of its neighbours, prev where they are equally near, once nothing nearer can come.

    What comes has at least the frontier's time. So prev is certain once that is above the record's time and not
    nearer than prev is; next, if it is nearer than prev, once the other stream cannot send an earlier one.
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
    """The last record of the other stream at or before the record's time, and the first at or after it."""
    same_key = [s for s in other.accepted if s.key == record.key]
    before = [s for s in same_key if s.ts <= record.ts]
    after = [s for s in same_key if s.ts >= record.ts]
    return max(before, key=_order, default=None), min(after, key=_order, default=None)


def _order(record: Rec) -> tuple[int, int]:
    return record.ts, record.seq


def _is_twin(record: Rec, known: Rec) -> bool:
    return (record.key, record.ts, record.event) == (known.key, known.ts, known.event)


def ordinals(accepted: Sequence[Rec]) -> dict[int, int]:
    """By seq: how many accepted records of the same stream, key and time stand before this one."""
    return {
        record.seq: sum(
            1 for other in accepted if (other.key, other.ts) == (record.key, record.ts) and other.seq < record.seq
        )
        for record in accepted
    }
