"""`ReorderedJoin`: the neighbour join of rows that arrive in micro-batches and in no particular order.

`LocalStreamBuffer` orders records with equal times by their log positions. The rows of a DataFrame have no such
positions: how they are split into micro-batches, and their order within a micro-batch, are arbitrary. Rows with equal
key and time are therefore ordered by their content (`Side.order`), so a row may precede one that arrived before it.
This module does not depend on Spark.

**Rule.** Each side has a frontier ``F`` for each key: the watermark, or the largest time seen minus the lateness,
whichever is larger. Rows below ``F`` are late. A row is held until ``F`` is *strictly above* its time; then it is
final. The rows that have become final in a step are pushed to the buffer, ordered by time and content, followed by
``F`` as a watermark. The output of the join is the output of the buffer.

**Correctness.** (1) *Order.* When a row with time ``t`` becomes final, ``F > t``. All accepted rows with its key and
time have therefore arrived, and they become final in the same step. Their order can no longer change, and it is the
order they have among all rows. Rows that became final in an earlier step are below the earlier frontier, and later rows
are not. So positions increase in the order of (time, content). (2) *No premature output.* The buffer emits a pair when
it is certain, given the final rows and ``F``. No further input can violate ``F``: rows below it are late and not
joined, and rows that are held are at or above it. (3) *Completeness.* The output depends only on the final rows and on
``F``, and both only grow. Once ``F`` has passed all rows, all are final. (4) *Independence of batches.* ``F`` is a
maximum over rows, and it alone determines which rows are final. However the input is divided into micro-batches, a row
within the lateness is never late, because the rows of a micro-batch are compared only with the frontiers before it.

The price is latency. A pair is emitted only once *both* of its rows are final, whereas the join of Kafka records emits
it as soon as it is certain that one record is a neighbour of the other.
"""

from __future__ import annotations

import itertools
import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import pyarrow as pa

from joiner.core import snapshot
from joiner.core.arguments import ALL_KEYS, TIME_MIN_NS
from joiner.core.engine import LocalStreamBuffer, Step
from joiner.core.errors import ArgumentError
from joiner.core.frontier import NEVER
from joiner.spark import rows as arrow
from joiner.spark.rows import NO_ROW, Side

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_NOT_FINAL: Final = -1
"""The position of a row that is not yet final."""

_OPTIONS: Final = ("tolerance", "lateness", "has_watermark", "direction", "driver", "emit_unmatched", "buckets")

_LENGTHS: Final = struct.Struct("<5Q")


@dataclass(frozen=True)
class Rules:
    """The options of a join. Durations are in microseconds, or in the unit of the times if these are integers.

    Two options are given for each side. ``lateness``: None if only the watermark advances the side's frontier.
    ``has_watermark``: whether the watermark advances the side's frontier. ``buckets`` is stored with the state, to
    detect that the number has changed.
    """

    sides: tuple[Side, Side]
    tolerance: int | None
    lateness: tuple[int | None, int | None]
    has_watermark: tuple[bool, bool]
    direction: str
    driver: str
    emit_unmatched: str

    buckets: int

    def buffer(self) -> LocalStreamBuffer:
        """Create an empty buffer for these options. Its input must be in order, with the frontiers as watermarks."""
        return LocalStreamBuffer(
            tolerance_ns=self.tolerance,
            direction=self.direction,
            driver=self.driver,
            emit_unmatched=self.emit_unmatched,
        )

    def emits_unmatched(self, side: int) -> bool:
        """Return whether unmatched rows of a side (0 left, 1 right) are emitted."""
        return self.emit_unmatched in {"both", self.sides[side].name}

    def fingerprint(self) -> dict[str, Any]:
        """Return the options that must not change while a stored state is in use, as JSON values by name.

        Columns are identified by their positions.
        """
        named = {field: getattr(self, field) for field in _OPTIONS}
        for side in self.sides:
            named |= {f"{side.name} {what}": getattr(side, what) for what in ("by", "time", "order", "others")}
        plain: dict[str, Any] = json.loads(json.dumps(named))
        return plain

    def check_same(self, earlier: dict[str, Any]) -> None:
        """Raise `ArgumentError` if the options differ from ``earlier``, the fingerprint stored in a checkpoint."""
        now = self.fingerprint()
        changes = [
            f"{name} was {earlier.get(name)}, is now {now[name]}" for name in now if now[name] != earlier.get(name)
        ]
        if changes:
            raise ArgumentError(
                f"the checkpoint was written by a neighbour_join with other options: {'; '.join(changes)}. Restore "
                "those options, or start with a new checkpoint folder"
            )


@dataclass
class _Held:
    """One side's rows that are not final yet or can still become part of a pair.

    All columns have one entry per row, shape (n,). ``seq``: the position of the row in the stream of final rows, or
    `_NOT_FINAL`.
    """

    table: pa.Table
    key: Ints
    time: Ints
    seq: Ints

    def and_new(self, table: pa.Table, key: Ints, time: Ints) -> _Held:
        return _Held(
            pa.concat_tables([self.table, table]),
            np.concatenate([self.key, key]),
            np.concatenate([self.time, time]),
            np.concatenate([self.seq, np.full_like(key, _NOT_FINAL)]),
        )

    def only(self, which: NDArray[np.bool_]) -> _Held:
        return _Held(self.table.filter(which), self.key[which], self.time[which], self.seq[which])

    def rows_of(self, seq: Ints) -> Ints:
        """Return, for each position in ``seq``, the index of the row that has this position."""
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
    """The result of a step: a table of joined rows, and the number of late rows on each side."""

    table: pa.Table
    late: tuple[int, int]


class ReorderedJoin:
    """The neighbour join for all keys of a bucket. The module's docstring states its rule and proves it correct."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._buffer = rules.buffer()
        nothing = np.empty(0, dtype=np.int64)
        self._held = [_Held(side.schema.empty_table(), nothing, nothing, nothing) for side in rules.sides]
        # The keys seen so far. `_numbers[i]` is the number by which the buffer knows the key in row i of `_keys`.
        self._keys = arrow.keys_of(self._held[0].table, rules.sides[0])
        self._numbers = nothing
        self._next_seq = [0, 0]
        self._watermark = NEVER

    def step(
        self, left: pa.Table | None = None, right: pa.Table | None = None, *, watermark: int = NEVER, ends: bool = False
    ) -> Outcome:
        """Process the rows of a micro-batch, then the watermark. ``ends``: whether both streams have ended.

        Rows below the frontiers of the previous step are late. Rows of the same micro-batch cannot make each other
        late, because they have no order. Raises `ArgumentError` if rows do not have the declared columns, or have
        invalid times.
        """
        declared = [
            side.schema.empty_table() if table is None else arrow.as_declared(table, side)
            for table, side in zip((left, right), self._rules.sides, strict=True)
        ]
        complete = [arrow.complete(table, side) for table, side in zip(declared, self._rules.sides, strict=True)]
        incomplete = [table.filter(~which) for table, which in zip(declared, complete, strict=True)]
        late, own = self._hold([table.filter(which) for table, which in zip(declared, complete, strict=True)])
        self._watermark = max(self._watermark, watermark)
        step = self._push_final(own, ends=ends)
        tables = [self._joined(step), self._incomplete(incomplete)]
        self._evict(step)
        return Outcome(pa.concat_tables(tables), late)

    def wakes_at(self) -> int | None:
        """Return the lowest watermark that could produce output without new rows, or None if none could."""
        rules = self._rules
        time = np.concatenate([held.time for held in self._held])
        if not len(time):
            return None
        if rules.direction == "nearest" or (rules.tolerance is not None and rules.emit_unmatched != "none"):
            # Output may also be due when the watermark is between the times of two rows, or beyond the last one.
            reach = (rules.tolerance or 0) + (int(time.max() - time.min()) if rules.direction == "nearest" else 0)
            return self._watermark + 1 if int(time.max()) + reach >= self._watermark else None
        ahead = time[time >= self._watermark]
        if not len(ahead):
            return None
        if rules.emit_unmatched != "none":
            # A row becomes unmatched once the other side has reached the next row of its own side, which is then the
            # neighbour instead.
            return max(int(ahead.min()), self._watermark + 1)
        return int(ahead.min()) + 1

    def _hold(self, tables: list[pa.Table]) -> tuple[tuple[int, int], list[Ints]]:
        """Add the new rows that are not late to the held rows.

        Return the number of late rows on each side, and for each side the frontiers that follow from its new rows, by
        key number.
        """
        numbers = np.split(self._numbered(tables), [tables[0].num_rows])
        late, own = [], []
        for at, (table, side, key) in enumerate(zip(tables, self._rules.sides, numbers, strict=True)):
            time = arrow.times(table, side)
            accepted = time >= self._buffer.frontier_ns(key)[at]
            late.append(len(accepted) - int(accepted.sum()))
            self._held[at] = self._held[at].and_new(table.filter(accepted), key[accepted], time[accepted])
            frontier = np.full(self._numbers.max(initial=-1) + 1, NEVER)
            lateness = self._rules.lateness[at]
            if lateness is not None:
                np.maximum.at(frontier, key[accepted], _less(time[accepted], lateness))
            own.append(frontier)
        return (late[0], late[1]), own

    def _numbered(self, tables: list[pa.Table]) -> Ints:
        """Return a key number for every row of both tables. New keys get the smallest numbers that are free."""
        new = [arrow.keys_of(table, side) for table, side in zip(tables, self._rules.sides, strict=True)]
        if not self._rules.sides[0].by:
            self._numbers = np.zeros(1, dtype=np.int64)
            return np.zeros(sum(table.num_rows for table in tables), dtype=np.int64)
        known = len(self._numbers)
        keys = pa.concat_tables([self._keys, *new])
        codes = arrow.codes(keys)
        _, first = np.unique(codes, return_index=True)
        free = np.setdiff1d(np.arange(len(first)), self._numbers)[: len(first) - known]
        self._keys = keys.take(first)
        self._numbers = np.concatenate([self._numbers, free])
        return self._numbers[codes[known:]]

    def _push_final(self, own: list[Ints], *, ends: bool) -> Step:
        """Push the rows that have become final into the buffer, followed by the frontiers as watermarks."""
        records: dict[str, Any] = {}
        watermarks: dict[str, Any] = {}
        for at, (held, side) in enumerate(zip(self._held, self._rules.sides, strict=True)):
            watermark = self._watermark if self._rules.has_watermark[at] else NEVER
            frontier = np.maximum(np.maximum(self._buffer.frontier_ns(held.key)[at], own[at][held.key]), watermark)
            ready = np.flatnonzero((held.seq == _NOT_FINAL) & ((held.time < frontier) | ends))
            ready = ready[arrow.ordered(held.table.take(ready), held.key[ready], held.time[ready], side)]
            held.seq[ready] = self._next_seq[at] + np.arange(len(ready))
            records[side.name] = held.key[ready], held.time[ready], held.seq[ready]
            keys = np.flatnonzero(own[at] >= TIME_MIN_NS)
            times = own[at][keys]
            if watermark >= TIME_MIN_NS:
                keys, times = np.append(keys, ALL_KEYS), np.append(times, watermark)
            first = self._next_seq[at] + len(ready)
            watermarks[f"{side.name}_watermarks"] = keys, times, first + np.arange(len(keys))
            self._next_seq[at] = first + len(keys)
        return self._buffer.close(**records) if ends else self._buffer.push(**records, **watermarks)

    def _joined(self, step: Step) -> pa.Table:
        left, right = self._held
        of_left, of_right = left.rows_of(step.left_unmatched_seq), right.rows_of(step.right_unmatched_seq)
        return arrow.beside(
            (left.table, right.table),
            self._rules.sides,
            np.concatenate([left.rows_of(step.left_seq), of_left, np.full_like(of_right, NO_ROW)]),
            np.concatenate([right.rows_of(step.right_seq), np.full_like(of_left, NO_ROW), of_right]),
        )

    def _incomplete(self, tables: list[pa.Table]) -> pa.Table:
        """Return the rows without a key or a time, for each side whose unmatched rows are emitted."""
        left, right = (
            np.arange(table.num_rows if self._rules.emits_unmatched(at) else 0) for at, table in enumerate(tables)
        )
        no_rows = np.full_like(left, NO_ROW), np.full_like(right, NO_ROW)
        rows = np.concatenate([left, no_rows[1]]), np.concatenate([no_rows[0], right])
        return arrow.beside((tables[0], tables[1]), self._rules.sides, *rows)

    def _evict(self, step: Step) -> None:
        """Remove the rows that the buffer has released, and the keys that neither it nor a held row still uses."""
        for at, released in enumerate((step.left_released_seq, step.right_released_seq)):
            if len(released):
                self._held[at] = self._held[at].only(~np.isin(self._held[at].seq, released))
        live = np.unique(np.concatenate([self._buffer.known_keys(), *(held.key for held in self._held)]))
        stays = np.isin(self._numbers, live)
        if not stays.all() and self._rules.sides[0].by:
            self._keys, self._numbers = self._keys.filter(stays), self._numbers[stays]

    def snapshot(self) -> bytes:
        """Serialize the whole state. `restore` needs the same rules to load it."""
        header = {
            "rules": self._rules.fingerprint(),
            "next_seq": self._next_seq,
            "watermark": self._watermark,
        }
        columns = {"numbers": self._numbers}
        for side, held in zip(self._rules.sides, self._held, strict=True):
            columns |= {f"{side.name}.key": held.key, f"{side.name}.time": held.time, f"{side.name}.seq": held.seq}
        parts = [
            snapshot.pack(header, columns),
            self._buffer.snapshot(),
            *(arrow.to_bytes(table) for table in (self._keys, *(held.table for held in self._held))),
        ]
        return _LENGTHS.pack(*map(len, parts)) + b"".join(parts)

    @classmethod
    def restore(cls, rules: Rules, data: bytes) -> Self:
        """Create a join from a snapshot. Raises `ArgumentError` if the snapshot was taken with different rules."""
        ends = np.cumsum([_LENGTHS.size, *_LENGTHS.unpack_from(data)])
        parts = [data[start:end] for start, end in itertools.pairwise(ends)]
        header, columns = snapshot.unpack(parts[0])
        rules.check_same(header["rules"])
        join = cls(rules)
        join._buffer = LocalStreamBuffer.restore(parts[1])
        join._keys = arrow.from_bytes(parts[2])
        join._numbers = columns["numbers"]
        join._held = [
            _Held(
                arrow.as_declared(arrow.from_bytes(part), side),
                *(columns[f"{side.name}.{name}"] for name in ("key", "time", "seq")),
            )
            for side, part in zip(rules.sides, parts[3:], strict=True)
        ]
        join._next_seq, join._watermark = header["next_seq"], header["watermark"]
        return join


def join_whole(rules: Rules, left: pa.Table, right: pa.Table) -> pa.Table:
    """Join two complete tables. The columns of the result are named by position (``c0``, ``c1``, …)."""
    return ReorderedJoin(rules).step(left, right, ends=True).table


def _less(time: Ints, duration_ns: int) -> Ints:
    """Return ``time - duration_ns``, but at least the smallest int64."""
    return np.where(time < NEVER + duration_ns, NEVER, time - duration_ns)
