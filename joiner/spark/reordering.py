"""`ReorderedJoin`: the neighbour join of rows without an arrival order, micro-batch by micro-batch. No Spark here.

`LocalStreamBuffer` orders equal times by position in a log. Rows of a DataFrame have none: how they are cut into
micro-batches, and how they lie in one, is chance. What decides between rows of equal key and time is what they hold
(`Side.order`), so a row that comes later may stand before one that came earlier.

**The rule.** The frontier ``F`` of a side and key is the larger of its largest time minus the lateness, and the
watermark; it promises that nothing below it comes any more. A row waits until the frontier of its own side lies
*strictly above* its time. Then it is settled: it goes to the buffer, together with all others that became settled,
in the order of time and content, and behind them goes ``F`` as a watermark. What has come out is the answer of the
buffer to all settled rows in their final order.

**Why this is right.** (1) *Order.* When a row of time ``t`` is settled, ``F > t``, so every row of its key and time has
come, and all of them are settled in this same step: their order is final, and positions given now are those of the
batch. Rows settled earlier lie below the earlier frontier, which no row settled later is below. So positions
rise in the order of (time, content), as in the sorted whole. (2) *Nothing too early.* A pair comes out when the buffer
holds it certain over the settled rows and the promise ``F``; every continuation keeps that promise, because rows that
would break it are late and left out, and waiting rows lie at ``F`` or above. (3) *Nothing is forgotten.* The buffer's
answer is a function of the settled rows and ``F`` alone, and both only grow; once ``F`` has passed all rows, all are
settled. (4) *Cuts do not matter.* ``F`` after some rows is a maximum over them, which rows are settled follows
from it, and no row within the lateness is late in any cut: rows of one micro-batch are judged by what came before it.

The price is that a pair waits until *both* rows are settled, where a log would give it as soon as one relation is.
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
from joiner.spark.rows import NOBODY, Side

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_WAITS: Final = -1
"""The position of a row that is not settled yet."""

_OPTIONS: Final = ("tolerance", "lateness", "has_watermark", "direction", "driver", "emit_unmatched", "buckets")

_LENGTHS: Final = struct.Struct("<5Q")


@dataclass(frozen=True)
class Rules:
    """What is joined, and how. Durations in the unit of the times: microseconds, or that of integer times.

    ``lateness`` of a side: None where only the watermark tells how far it is. ``has_watermark``: whether a side
    promises what the watermark says. ``buckets``: how many such joins share the keys; told to find a changed number.
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
        """An empty buffer for these rules. It gets its rows in order and how far a side is as watermarks."""
        return LocalStreamBuffer(
            tolerance_ns=self.tolerance,
            direction=self.direction,
            driver=self.driver,
            emit_unmatched=self.emit_unmatched,
        )

    def emits_unmatched(self, side: int) -> bool:
        """Whether rows of the left (0) or right (1) that are in no pair are told."""
        return self.emit_unmatched in {"both", self.sides[side].name}

    def fingerprint(self) -> dict[str, Any]:
        """What must not change while a state lives, by name; JSON-able. Columns are told by their places."""
        named = {field: getattr(self, field) for field in _OPTIONS}
        for side in self.sides:
            named |= {f"{side.name} {what}": getattr(side, what) for what in ("by", "time", "order", "others")}
        plain: dict[str, Any] = json.loads(json.dumps(named))
        return plain

    def check_same(self, earlier: dict[str, Any]) -> None:
        """Raises `ArgumentError` where a state was made under other rules."""
        now = self.fingerprint()
        other = [
            f"{name} was {earlier.get(name)}, is now {now[name]}" for name in now if now[name] != earlier.get(name)
        ]
        if other:
            raise ArgumentError(
                f"the checkpoint belongs to another neighbour_join: {'; '.join(other)}. Take the old options, or begin "
                "with a new checkpoint folder"
            )


@dataclass
class _Held:
    """The rows of one side that are waiting or may still get a neighbour: columns of shape (n,), beside their table.

    ``seq``: the row's position in the stream of settled rows, or `_WAITS`.
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
            np.concatenate([self.seq, np.full_like(key, _WAITS)]),
        )

    def only(self, which: NDArray[np.bool_]) -> _Held:
        return _Held(self.table.filter(which), self.key[which], self.time[which], self.seq[which])

    def rows_of(self, seq: Ints) -> Ints:
        """Where the rows of these positions stand."""
        # Most of what is asked for came lately, and lies densely: a table finds it quicker than a search.
        base = int(self.seq.max(initial=0)) - 2 * len(self.seq)
        lately = (self.seq > base).nonzero()[0]
        place = np.full(2 * len(self.seq) + 1, NOBODY)
        place[self.seq[lately] - base] = lately
        found = place[np.maximum(seq - base, 0)]
        earlier = (seq <= base).nonzero()[0]
        if len(earlier):
            by_seq = np.argsort(self.seq, kind="stable")
            found[earlier] = by_seq[np.searchsorted(self.seq, seq[earlier], sorter=by_seq)]
        return found


@dataclass(frozen=True)
class Outcome:
    """What one step brought forth: the rows of the result, and how many rows of each side came too late."""

    table: pa.Table
    late: tuple[int, int]


class ReorderedJoin:
    """The neighbour join of all keys of a bucket; see the module's text for the rule and why it is right."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._buffer = rules.buffer()
        nothing = np.empty(0, dtype=np.int64)
        self._held = [_Held(side.schema.empty_table(), nothing, nothing, nothing) for side in rules.sides]
        # Row i of the keys has the number i of the numbers, by which the buffer knows it.
        self._keys = arrow.keys_of(self._held[0].table, rules.sides[0])
        self._numbers = nothing
        self._next_seq = [0, 0]
        self._watermark = NEVER

    def step(
        self, left: pa.Table | None = None, right: pa.Table | None = None, *, watermark: int = NEVER, ends: bool = False
    ) -> Outcome:
        """Take the rows of a micro-batch, then the watermark; ``ends``: nothing comes any more on either side.

        Rows are judged by what was known before this step, since within a micro-batch none came before another.
        Raises `ArgumentError` for rows that cannot be used.
        """
        given = [
            side.schema.empty_table() if table is None else arrow.as_declared(table, side)
            for table, side in zip((left, right), self._rules.sides, strict=True)
        ]
        whole = [arrow.complete(table, side) for table, side in zip(given, self._rules.sides, strict=True)]
        lacking = [table.filter(~fine) for table, fine in zip(given, whole, strict=True)]
        late, own = self._take([table.filter(fine) for table, fine in zip(given, whole, strict=True)])
        self._watermark = max(self._watermark, watermark)
        step = self._settle(own, ends=ends)
        tables = [self._joined(step), self._alone(lacking)]
        self._forget(step)
        return Outcome(pa.concat_tables(tables), late)

    def wakes_at(self) -> int | None:
        """The least watermark beyond the last one at which rows can come out without any row coming in; None: none."""
        rules = self._rules
        time = np.concatenate([held.time for held in self._held])
        if not len(time):
            return None
        if rules.direction == "nearest" or (rules.tolerance is not None and rules.emit_unmatched != "none"):
            # Also moments between and behind the times of rows count.
            reach = (rules.tolerance or 0) + (int(time.max() - time.min()) if rules.direction == "nearest" else 0)
            return self._watermark + 1 if int(time.max()) + reach >= self._watermark else None
        ahead = time[time >= self._watermark]
        if not len(ahead):
            return None
        if rules.emit_unmatched != "none":
            # A row is unmatched as soon as the other side has reached the one behind it, which takes all that comes.
            return max(int(ahead.min()), self._watermark + 1)
        return int(ahead.min()) + 1

    def _take(self, tables: list[pa.Table]) -> tuple[tuple[int, int], list[Ints]]:
        """Hold new rows but the late ones; returns how many these were, and what each key's own rows promise."""
        numbers = np.split(self._numbered(tables), [tables[0].num_rows])
        late, own = [], []
        for at, (table, side, key) in enumerate(zip(tables, self._rules.sides, numbers, strict=True)):
            time = arrow.times(table, side)
            fine = time >= self._buffer.frontier_ns(key)[at]
            late.append(len(fine) - int(fine.sum()))
            self._held[at] = self._held[at].and_new(table.filter(fine), key[fine], time[fine])
            promised = np.full(self._numbers.max(initial=-1) + 1, NEVER)
            lateness = self._rules.lateness[at]
            if lateness is not None:
                np.maximum.at(promised, key[fine], _less(time[fine], lateness))
            own.append(promised)
        return (late[0], late[1]), own

    def _numbered(self, tables: list[pa.Table]) -> Ints:
        """The numbers of the keys of the rows of both tables; those of new keys are the smallest that are free."""
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

    def _settle(self, own: list[Ints], *, ends: bool) -> Step:
        """Push what the frontiers have passed, and behind it the frontiers themselves."""
        records: dict[str, Any] = {}
        watermarks: dict[str, Any] = {}
        for at, (held, side) in enumerate(zip(self._held, self._rules.sides, strict=True)):
            watermark = self._watermark if self._rules.has_watermark[at] else NEVER
            frontier = np.maximum(np.maximum(self._buffer.frontier_ns(held.key)[at], own[at][held.key]), watermark)
            ready = np.flatnonzero((held.seq == _WAITS) & ((held.time < frontier) | ends))
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
        alone, other = left.rows_of(step.left_unmatched_seq), right.rows_of(step.right_unmatched_seq)
        return arrow.beside(
            (left.table, right.table),
            self._rules.sides,
            np.concatenate([left.rows_of(step.left_seq), alone, np.full_like(other, NOBODY)]),
            np.concatenate([right.rows_of(step.right_seq), np.full_like(alone, NOBODY), other]),
        )

    def _alone(self, tables: list[pa.Table]) -> pa.Table:
        """The rows without a key or a time, where unmatched ones are told."""
        left, right = (
            np.arange(table.num_rows if self._rules.emits_unmatched(at) else 0) for at, table in enumerate(tables)
        )
        nobody = np.full_like(left, NOBODY), np.full_like(right, NOBODY)
        rows = np.concatenate([left, nobody[1]]), np.concatenate([nobody[0], right])
        return arrow.beside((tables[0], tables[1]), self._rules.sides, *rows)

    def _forget(self, step: Step) -> None:
        """Let go of rows that the buffer has let go of, and of keys of which nothing is known."""
        for at, released in enumerate((step.left_released_seq, step.right_released_seq)):
            if len(released):
                self._held[at] = self._held[at].only(~np.isin(self._held[at].seq, released))
        live = np.unique(np.concatenate([self._buffer.known_keys(), *(held.key for held in self._held)]))
        stays = np.isin(self._numbers, live)
        if not stays.all() and self._rules.sides[0].by:
            self._keys, self._numbers = self._keys.filter(stays), self._numbers[stays]

    def snapshot(self) -> bytes:
        """The whole state, for `restore` with the same rules."""
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
        """The join of a snapshot. Raises `ArgumentError` where it was made under other rules, saying which differ."""
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
    """The join of two whole tables; the columns of the result have places, no names."""
    return ReorderedJoin(rules).step(left, right, ends=True).table


def _less(time: Ints, duration_ns: int) -> Ints:
    """``time - duration_ns``, held at the least int64 where it would fall below."""
    return np.where(time < NEVER + duration_ns, NEVER, time - duration_ns)
