"""`Reordering`: takes rows that arrive in micro-batches, in no particular order, and passes them on in order.

The buffers of the core order records with equal times by their log positions. The rows of a DataFrame have no such
positions: how they are split into micro-batches, and their order within a micro-batch, are arbitrary. Rows with equal
key and time are therefore ordered by their content (`Side.order`), so a row may precede one that arrived before it.
This module does not depend on Spark.

**Rule.** Each side has a frontier ``F`` for each key: the watermark, or the largest time seen minus the lateness,
whichever is larger. Rows below ``F`` are late. A row is held until ``F`` is *strictly above* its time; then it is
final. The rows that have become final in a step are passed on to the buffer, ordered by time and content, followed by
``F`` as a watermark. The output of the operator is the output of the buffer. If the order of a side's rows does not
matter to the buffer (`SideRules.keeps_order`), they are passed on at once: whether they are late is known when they
arrive.

**Correctness.** (1) *Order.* When a row with time ``t`` becomes final, ``F > t``. All accepted rows with its key and
time have therefore arrived, and they become final in the same step. Their order can no longer change, and it is the
order they have among all rows. Rows that became final in an earlier step are below the earlier frontier, and later rows
are not. Positions therefore follow (time, content) order. (2) *No premature output.* The buffer emits what is
certain, given the final rows and ``F``. No further input can violate ``F``: rows below it are late and not used, and
held rows are at or above it. (3) *Completeness.* The output depends only on the final rows and on ``F``, and
both only grow. Once ``F`` has passed all rows, all are final. (4) *Independence of batches.* ``F`` is a maximum over
rows, and it alone determines which rows are final. However the input is divided into micro-batches, a row within the
lateness is never late, because the rows of a micro-batch are compared only with the frontiers before it.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa

from joiner.core import snapshot
from joiner.core.arguments import ALL_KEYS, TIME_MIN_NS
from joiner.core.errors import ArgumentError
from joiner.core.frontier import NEVER
from joiner.spark import rows as arrow
from joiner.spark.rows import NO_ROW, Side

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

NOT_PASSED_ON: Final = -1
"""The position of a row that has not been passed on to the buffer yet."""

_LENGTH: Final = struct.Struct("<Q")


@dataclass
class HeldRows:
    """One side's rows that the operator still needs.

    All columns have one entry per row, shape (n,). ``seq``: the position of the row among those passed on to the
    buffer, or `NOT_PASSED_ON`.
    """

    table: pa.Table
    key: Ints
    time: Ints
    seq: Ints

    def and_new(self, table: pa.Table, key: Ints, time: Ints) -> HeldRows:
        """Return the rows, followed by new ones."""
        return HeldRows(
            pa.concat_tables([self.table, table]),
            np.concatenate([self.key, key]),
            np.concatenate([self.time, time]),
            np.concatenate([self.seq, np.full_like(key, NOT_PASSED_ON)]),
        )

    def only(self, which: NDArray[np.bool_]) -> HeldRows:
        """Return the rows for which ``which`` is true, shape (n,)."""
        return HeldRows(self.table.filter(which), self.key[which], self.time[which], self.seq[which])

    def rows_of(self, seq: Ints) -> Ints:
        """Return, for each position in ``seq``, the index of the row at that position."""
        # Most positions are recent and close together, so a lookup table is faster than a search.
        base = int(self.seq.max(initial=0)) - 2 * len(self.seq)
        recent = (self.seq > base).nonzero()[0]
        place = np.full(2 * len(self.seq) + 1, NO_ROW)
        place[self.seq[recent] - base] = recent
        found = place[np.maximum(seq - base, 0)]
        earlier = (seq <= base).nonzero()[0]
        if len(earlier):
            by_seq = np.argsort(self.seq, kind="stable")
            found[earlier] = by_seq[np.searchsorted(self.seq, seq[earlier], sorter=by_seq)]
        return found


@dataclass(frozen=True)
class Outcome:
    """The result of a step: a table of result rows, and the number of late rows on each side."""

    table: pa.Table
    late: tuple[int, ...]


class Reordered(Protocol):
    """An operator for all keys of a bucket, whose input comes from a `Reordering`."""

    def step(self, *tables: pa.Table | None, watermark: int) -> Outcome:
        """Process the rows of a micro-batch, one table for each side, then the watermark."""
        ...

    def wakes_at(self) -> int | None:
        """Return the lowest watermark that could produce output without new rows, or None if none could."""
        ...

    def snapshot(self) -> bytes:
        """Serialize the whole state."""
        ...


@dataclass(frozen=True)
class SideRules:
    """How rows of each side become final.

    Durations are in microseconds, or in the unit of the times if these are integers. Apart from ``keys``, all have one
    entry per side. ``keys``: the types in which keys are compared. ``lateness``: None if only the watermark advances
    the side's frontier. ``has_watermark``: whether the watermark advances the side's frontier. ``keeps_order``: whether
    the order of the side's rows matters, so that they are passed on only once they are final.
    """

    sides: tuple[Side, ...]
    keys: pa.Schema
    lateness: tuple[int | None, ...]
    has_watermark: tuple[bool, ...]
    keeps_order: tuple[bool, ...]


@dataclass(frozen=True)
class Passed:
    """What a side passes on to the buffer in a step.

    ``rows``: the indices of the rows among those held. ``records``: their keys, times and positions. ``watermarks``:
    the keys, times and positions of the watermarks that follow them. ``incomplete``: new rows without a key or a time.
    """

    rows: Ints
    records: tuple[Ints, Ints, Ints]
    watermarks: tuple[Ints, Ints, Ints]
    incomplete: pa.Table


class Reordering:
    """The held rows of all keys of a bucket. The module's docstring states its rule and proves it correct."""

    def __init__(self, rules: SideRules) -> None:
        nothing = np.empty(0, dtype=np.int64)
        self._rules = rules
        self.held = [HeldRows(side.schema.empty_table(), nothing, nothing, nothing) for side in rules.sides]
        # The keys seen so far. `_numbers[i]` is the number by which the buffer knows the key in row i of `_keys`.
        self._keys = rules.keys.empty_table()
        self._numbers = nothing
        self._next_seq = [0] * len(rules.sides)
        self.watermark = NEVER

    def add(
        self,
        tables: Sequence[pa.Table | None],
        watermark: int,
        frontiers: Callable[[Ints], Sequence[Ints]],
        *,
        ends: bool = False,
    ) -> tuple[list[Passed], tuple[int, ...]]:
        """Hold the rows of a micro-batch, one table for each side, then advance the watermark.

        Returns what each side passes on, and the number of late rows on each side. ``frontiers``: returns, for key
        numbers, each side's frontiers in the buffer. ``ends``: whether all streams have ended. Raises `ArgumentError`
        if rows do not have the declared columns, or have invalid times.
        """
        sides = self._rules.sides
        given = [*tables, *[None] * (len(sides) - len(tables))]
        declared = [
            side.schema.empty_table() if table is None else arrow.as_declared(table, side)
            for table, side in zip(given, sides, strict=True)
        ]
        complete = [arrow.complete(table, side) for table, side in zip(declared, sides, strict=True)]
        incomplete = [table.filter(~which) for table, which in zip(declared, complete, strict=True)]
        late, own = self._hold(
            [table.filter(which) for table, which in zip(declared, complete, strict=True)], frontiers
        )
        self.watermark = max(self.watermark, watermark)
        passed = [
            Passed(*self._pass_on(at, own[at], frontiers, ends=ends), table) for at, table in enumerate(incomplete)
        ]
        return passed, late

    def _hold(
        self, tables: list[pa.Table], frontiers: Callable[[Ints], Sequence[Ints]]
    ) -> tuple[tuple[int, ...], list[Ints]]:
        """Add the new rows that are not late to the held rows.

        Return the number of late rows on each side, and for each side the frontiers that follow from its new rows, by
        key number.
        """
        numbers = np.split(self._numbered(tables), np.cumsum([table.num_rows for table in tables])[:-1])
        late, own = [], []
        for at, (table, side, key) in enumerate(zip(tables, self._rules.sides, numbers, strict=True)):
            time = arrow.times(table, side)
            accepted = time >= frontiers(key)[at]
            late.append(len(accepted) - int(accepted.sum()))
            self.held[at] = self.held[at].and_new(table.filter(accepted), key[accepted], time[accepted])
            frontier = np.full(self._numbers.max(initial=-1) + 1, NEVER)
            lateness = self._rules.lateness[at]
            if lateness is not None:
                np.maximum.at(frontier, key[accepted], _less(time[accepted], lateness))
            own.append(frontier)
        return tuple(late), own

    def _numbered(self, tables: list[pa.Table]) -> Ints:
        """Return a key number for every row of all tables. New keys get the smallest numbers that are free."""
        sides = self._rules.sides
        if not sides[0].by:
            self._numbers = np.zeros(1, dtype=np.int64)
            return np.zeros(sum(table.num_rows for table in tables), dtype=np.int64)
        new = [arrow.keys_of(table, side).cast(self._rules.keys) for table, side in zip(tables, sides, strict=True)]
        known = len(self._numbers)
        keys = pa.concat_tables([self._keys, *new])
        codes = arrow.codes(keys)
        _, first = np.unique(codes, return_index=True)
        free = np.setdiff1d(np.arange(len(first)), self._numbers)[: len(first) - known]
        self._keys = keys.take(first)
        self._numbers = np.concatenate([self._numbers, free])
        return self._numbers[codes[known:]]

    def _pass_on(
        self, at: int, own: Ints, frontiers: Callable[[Ints], Sequence[Ints]], *, ends: bool
    ) -> tuple[Ints, tuple[Ints, Ints, Ints], tuple[Ints, Ints, Ints]]:
        """Return the rows of a side that have become final, as in `Passed`. ``own``: the frontiers by key number."""
        held, side = self.held[at], self._rules.sides[at]
        watermark = self.watermark if self._rules.has_watermark[at] else NEVER
        is_new = held.seq == NOT_PASSED_ON
        if self._rules.keeps_order[at] and not ends:
            is_new &= held.time < np.maximum(np.maximum(frontiers(held.key)[at], own[held.key]), watermark)
        rows = np.flatnonzero(is_new)
        rows = rows[arrow.ordered(held.table.take(rows), held.key[rows], held.time[rows], side)]
        held.seq[rows] = self._next_seq[at] + np.arange(len(rows))
        keys = np.flatnonzero(own >= TIME_MIN_NS)
        times = own[keys]
        if watermark >= TIME_MIN_NS:
            keys, times = np.append(keys, ALL_KEYS), np.append(times, watermark)
        first = self._next_seq[at] + len(rows)
        self._next_seq[at] = first + len(keys)
        return rows, (held.key[rows], held.time[rows], held.seq[rows]), (keys, times, first + np.arange(len(keys)))

    def forget(self, known_keys: Ints) -> None:
        """Remove the keys that have no held rows and are not among ``known_keys``, the keys of the buffer."""
        live = np.unique(np.concatenate([known_keys, *(held.key for held in self.held)]))
        stays = np.isin(self._numbers, live)
        if not stays.all() and self._rules.sides[0].by:
            self._keys, self._numbers = self._keys.filter(stays), self._numbers[stays]

    def save(self, rules: dict[str, Any], buffer: bytes) -> bytes:
        """Serialize the state, with the fingerprint of an operator's rules and a snapshot of its buffer."""
        header = {"rules": rules, "next_seq": self._next_seq, "watermark": self.watermark}
        columns = {"numbers": self._numbers}
        for side, held in zip(self._rules.sides, self.held, strict=True):
            columns |= {f"{side.name}.key": held.key, f"{side.name}.time": held.time, f"{side.name}.seq": held.seq}
        # Each micro-batch leaves a chunk of its own, and a chunk takes several times as much space as a row.
        tables = [table.combine_chunks() for table in (self._keys, *(held.table for held in self.held))]
        return _joined([snapshot.pack(header, columns), buffer, *map(arrow.to_bytes, tables)])

    def load(self, data: bytes, operator: str, rules: dict[str, Any]) -> bytes:
        """Restore the state that `save` returned. Return the snapshot of the buffer.

        Raises `ArgumentError` if the state was saved with a fingerprint other than ``rules``.
        """
        parts = _split(data)
        header, columns = snapshot.unpack(parts[0])
        _check_same(operator, header["rules"], rules)
        self._keys = arrow.from_bytes(parts[2])
        self._numbers = columns["numbers"]
        self.held = [
            HeldRows(
                arrow.as_declared(arrow.from_bytes(part), side),
                *(columns[f"{side.name}.{name}"] for name in ("key", "time", "seq")),
            )
            for side, part in zip(self._rules.sides, parts[3:], strict=True)
        ]
        self._next_seq, self.watermark = header["next_seq"], header["watermark"]
        return parts[1]


def _joined(parts: Sequence[bytes]) -> bytes:
    """Return the lengths of the parts, followed by the parts."""
    return struct.pack(f"<{len(parts)}Q", *map(len, parts)) + b"".join(parts)


def _split(data: bytes) -> list[bytes]:
    """Return the parts that `_joined` joined. Their number is not stored: it is known once the lengths add up."""
    lengths: list[int] = []
    while _LENGTH.size * len(lengths) + sum(lengths) < len(data):
        lengths += _LENGTH.unpack_from(data, _LENGTH.size * len(lengths))
    ends = np.cumsum([_LENGTH.size * len(lengths), *lengths])
    return [data[start:end] for start, end in itertools.pairwise(ends)]


def _check_same(operator: str, earlier: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise `ArgumentError` if the options differ from ``earlier``, the fingerprint stored in a checkpoint."""
    names = dict.fromkeys([*now, *earlier])
    changes = [
        f"{name} was {earlier.get(name)}, is now {now.get(name)}"
        for name in names
        if now.get(name) != earlier.get(name)
    ]
    if changes:
        raise ArgumentError(
            f"the checkpoint was written by a call to {operator} with different options: {'; '.join(changes)}. Restore "
            "those options, or start with a new checkpoint folder"
        )


def _less(time: Ints, duration_ns: int) -> Ints:
    """Return ``time - duration_ns``, but at least the smallest int64."""
    return np.where(time < NEVER + duration_ns, NEVER, time - duration_ns)
