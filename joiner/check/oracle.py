"""The neighbour join as a newcomer would write it down: nested loops over two lists, nothing clever.

This is the executable form of the definition (docs/semantics.md). It answers one question: which pairs must
have been emitted, neither less nor more, once exactly these entries of the two streams have been read? It
knows no batches, no interleaving, no buffer and no clock, because the answer depends on none of them. It is
slow (the square of its input) on purpose: `joiner.check.expected` computes the same quickly, the engine does
it while the records arrive, and both are held against this file.

All times are int nanoseconds. It imports nothing, so that nothing can be wrong but what stands here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ALL_KEYS: Final = -1
"""The key of a mark that covers every key."""

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


class Mark(NamedTuple):
    """The promise that the stream sends nothing below ``ts`` any more, for one key or for `ALL_KEYS`."""

    key: int
    ts: int
    seq: int


class Stream:
    """One stream, read entry by entry: what was accepted, what was late, what was a duplicate, its
    frontiers.
    """

    def __init__(self, entries: Sequence[Rec | Mark], lateness_ns: int) -> None:
        """Read ``entries``, which are in the order of the log: their ``seq`` rises."""
        self.accepted: list[Rec] = []
        self.late: list[Rec] = []
        self.duplicates: list[Rec] = []
        self._promised: dict[int, int] = {}
        for entry in entries:
            self._read(entry, lateness_ns)

    def frontier(self, key: int) -> int:
        """What comes later for ``key`` has at least this time: its own promise or the one for all keys."""
        return max(self._promised.get(key, NOTHING_YET), self._promised.get(ALL_KEYS, NOTHING_YET))

    def _read(self, entry: Rec | Mark, lateness_ns: int) -> None:
        if isinstance(entry, Mark):
            self._promise(entry.key, entry.ts)
        elif entry.ts < self.frontier(entry.key):
            self.late.append(entry)
        elif entry.event is not None and any(_is_twin(entry, known) for known in self.accepted):
            self.duplicates.append(entry)
        else:
            self.accepted.append(entry)
            self._promise(entry.key, entry.ts - lateness_ns)

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
    left: Sequence[Rec | Mark],
    right: Sequence[Rec | Mark],
    *,
    tolerance_ns: int | None = None,
    lateness_ns: int | tuple[int, int] = 0,
    closed: bool = False,
) -> Answer:
    """What must have been emitted when ``left`` and ``right`` have been read, and nothing more of either.

    ``lateness_ns`` is one value for both streams or (left, right). ``closed``: both streams have ended, so
    nothing that could still come leaves a relation open.
    """
    left_lateness_ns, right_lateness_ns = lateness_ns if isinstance(lateness_ns, tuple) else (lateness_ns, lateness_ns)
    r_stream, s_stream = Stream(left, left_lateness_ns), Stream(right, right_lateness_ns)
    related = [(r, s) for r, s in _certain_neighbours(r_stream.accepted, s_stream, closed=closed)]
    related += [(r, s) for s, r in _certain_neighbours(s_stream.accepted, r_stream, closed=closed)]
    pairs = {(r.seq, s.seq) for r, s in related if tolerance_ns is None or abs(r.ts - s.ts) <= tolerance_ns}
    return Answer(pairs, r_stream, s_stream)


def _certain_neighbours(records: list[Rec], other: Stream, *, closed: bool) -> Iterator[tuple[Rec, Rec]]:
    """Each record with its neighbours in the other stream that no continuation could take away any more.

    prev, the last at or before the record's time: certain once the other stream cannot send that time again.
    next, the first at or after it: certain once the other stream cannot send an earlier one, or if the times
    are equal (one that comes later with the same time stands behind it).
    """
    for record in records:
        frontier = ENDED if closed else other.frontier(record.key)
        before = [s for s in other.accepted if s.key == record.key and s.ts <= record.ts]
        after = [s for s in other.accepted if s.key == record.key and s.ts >= record.ts]
        if before and frontier > record.ts:
            yield record, max(before, key=_order)
        if after:
            following = min(after, key=_order)
            if following.ts <= frontier or following.ts == record.ts:
                yield record, following


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
