"""`AlignBuffer`: a row for each record of a driver, with the values of other streams at its time.

As with `LocalStreamBuffer`, what has come out depends only on the records and watermarks consumed from each stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from joiner.alignment.pending_rows import PendingRows
from joiner.alignment.relations import HELD_COLUMNS, Answers, Input, RelationBuffer, relation_of
from joiner.alignment.rules import ColumnRule
from joiner.core import snapshot
from joiner.core.arguments import check_duration, check_identity, check_records, check_rising, check_watermarks
from joiner.core.compiled import compile_declared
from joiner.core.engine import LocalStreamBuffer
from joiner.core.errors import ArgumentError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joiner.core.arguments import Records
    from joiner.core.engine import Step

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

DRIVER: Final = "driver"


@dataclass(frozen=True)
class AlignedRows:
    """The result of one step. Arrays have shape (n,), with a different n for each group below.

    Attributes:
        seq, key, ts_ns: the driver records whose rows came out, ordered by (key, time, position); int64.
        values: by column, the value in each of these rows; float64, NaN where it is missing.
        is_missing: by column, where the value is missing; bool. (A stream may contain NaN itself.)
        dropped_seq: driver records whose rows were left out, because a column with ``on_missing="drop"`` has no value.
        late_seq: by stream (``"driver"``, or the name of a column), records below the frontier of their stream.
        duplicate_seq: by stream, records with the key, time and identity of an earlier one.

    """

    seq: Ints
    key: Ints
    ts_ns: Ints
    values: dict[str, Floats]
    is_missing: dict[str, Flags]
    dropped_seq: Ints
    late_seq: dict[str, Ints]
    duplicate_seq: dict[str, Ints]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.seq)

    def __repr__(self) -> str:
        late, duplicates = (sum(map(len, by.values())) for by in (self.late_seq, self.duplicate_seq))
        dropped = len(self.dropped_seq)
        return f"AlignedRows(rows={len(self)}, dropped={dropped}, late={late}, duplicates={duplicates})"


class AlignBuffer:
    """Aligns streams incrementally: one row for each driver record, as soon as all of its columns are certain.

    A row is final. A stream that is silent holds up only the rows of its own keys, until a record or a watermark
    shows how far it has come.

    Args:
        columns: the rule of each column, by name.
        lateness_ns: how far a driver record may be behind the largest time of its key before it is late.
        watermark_scope: as in `LocalStreamBuffer`, for all streams.

    Raises:
        ArgumentError: naming the option and its permitted values.

    >>> import numpy as np
    >>> def column(*values): return np.array(values, dtype=np.int64)
    >>> buffer = AlignBuffer({"speed": ColumnRule(rule="linear")})
    >>> torque = (column(7, 7), column(10, 20), column(0, 1))      # keys, times in ns, log positions
    >>> speed = (column(7, 7), column(5, 15), column(0, 1))
    >>> rows = buffer.push(driver=torque, columns={"speed": (speed, np.array([100.0, 200.0]))})
    >>> list(zip(rows.ts_ns.tolist(), rows.values["speed"].tolist()))
    [(10, 150.0)]

    """

    def __init__(
        self, columns: Mapping[str, ColumnRule], *, lateness_ns: int = 0, watermark_scope: str = "key"
    ) -> None:
        _check_mapping("columns", columns)
        _check_rules(columns)
        self._rules = dict(columns)
        self._options = {"lateness_ns": check_duration("lateness_ns", lateness_ns), "watermark_scope": watermark_scope}
        self._relations = [
            (name, relation_of(direction, rule.tolerance_ns, (lateness_ns, rule.lateness_ns), watermark_scope))
            for name, rule in self._rules.items()
            for direction in rule.directions
        ]
        self._pending = PendingRows(list(self._rules.values()))
        self._positions = {name: _Positions() for name in (DRIVER, *self._rules)}
        self._closed = False

    def push(
        self,
        *,
        driver: Sequence[object] | None = None,
        columns: Mapping[str, tuple[Sequence[object], Floats]] | None = None,
        driver_watermarks: Sequence[object] | None = None,
        column_watermarks: Mapping[str, Sequence[object]] | None = None,
    ) -> AlignedRows:
        """Consume the next records and watermarks of any of the streams. Return the rows that came out.

        Args:
            driver: ``(keys, ts_ns, seq)`` and, optionally, identities, as in `LocalStreamBuffer.push`.
            columns: by name, such records and their values (float64, shape (n,)).
            driver_watermarks: ``(keys, ts_ns, seq)``, as in `LocalStreamBuffer.push`.
            column_watermarks: the same, by name.

        Raises:
            ArgumentError: naming the argument and the index. The buffer is unchanged.

        """
        return self._step(driver, columns or {}, driver_watermarks, column_watermarks or {}, ends=False)

    def close(
        self,
        *,
        driver: Sequence[object] | None = None,
        columns: Mapping[str, tuple[Sequence[object], Floats]] | None = None,
    ) -> AlignedRows:
        """Consume the last records and end all streams. All remaining rows come out.

        Takes the same records and raises the same errors as `push`. Any later `close` or `push` raises
        `ArgumentError`.
        """
        return self._step(driver, columns or {}, None, {}, ends=True)

    def __len__(self) -> int:
        """Return the number of rows that wait for a column."""
        return len(self._pending)

    def __repr__(self) -> str:
        rules = ", ".join(f"{name}: {rule.rule}" for name, rule in self._rules.items())
        return f"<AlignBuffer({rules}) rows={len(self)} records={self.held()}{' closed' if self._closed else ''}>"

    def held(self) -> int:
        """Return the number of records of columns that are held. A ``"linear"`` column holds a record up to twice."""
        return sum(relation.held() for _, relation in self._relations)

    def held_by_stream(self) -> dict[str, int]:
        """Return, by stream, the number of rows that wait and of records held, as `len` and `held` count them."""
        counts = dict.fromkeys((DRIVER, *self._rules), 0)
        for name, relation in self._relations:
            counts[name] += relation.held()
        return counts | {DRIVER: len(self)}

    def held_ts(self, stream: str) -> Ints:
        """Return the times in ns of the rows that wait (``"driver"``) or of a column's records, shape (n,)."""
        if stream == DRIVER:
            return self._pending.ts()
        return np.concatenate([relation.held_ts() for name, relation in self._relations if name == stream])

    def held_by_key(self) -> tuple[Ints, Ints]:
        """Return the keys with records, ascending, and how many each has in all buffers together; shape (k,) each."""
        parts = [relation.held_by_key() for _, relation in self._relations]
        keys, number = np.unique(np.concatenate([keys for keys, _ in parts]), return_inverse=True)
        counts = np.zeros(len(keys), dtype=np.int64)
        np.add.at(counts, number, np.concatenate([counts for _, counts in parts]))
        return keys, counts

    def known_keys(self) -> Ints:
        """Return the keys, ascending, that have records or a frontier of their own, as `LocalStreamBuffer` does."""
        return np.unique(np.concatenate([relation.known_keys() for _, relation in self._relations]))

    def frontier_ns(self, keys: Sequence[int] | Ints) -> dict[str, Ints]:
        """Return the frontiers of each stream for ``keys``, as `LocalStreamBuffer.frontier_ns` does."""
        found = {DRIVER: self._relations[0][1].frontier_ns(keys)[0]}
        return found | {name: relation.frontier_ns(keys)[1] for name, relation in self._relations}

    def snapshot(self) -> bytes:
        """Serialize the options and the whole state for `restore`."""
        table = self._pending.rows()
        header: dict[str, Any] = {
            "kind": _KIND,
            "columns": {name: asdict(rule) for name, rule in self._rules.items()},
            "options": self._options,
            "positions": {name: asdict(one) for name, one in self._positions.items()},
            "closed": self._closed,
            "pending": len(table),
        }
        columns = {f"pending.{number}": column for number, column in enumerate(table)}
        for number, (_, relation) in enumerate(self._relations):
            packed, held = relation.save()
            columns[f"{number}.buffer"] = _as_column(packed)
            columns |= {f"{number}.{column}": values for column, values in enumerate(held)}
            header[f"{number}.bytes"] = len(packed)
        return snapshot.pack(header, columns)

    @classmethod
    def restore(cls, data: bytes) -> Self:
        """Create a buffer from a snapshot.

        Raises `SnapshotError`, or `NewerSnapshotError` if a newer release wrote the snapshot.
        """
        header, columns = snapshot.unpack(data, _KIND)
        restored = cls({name: ColumnRule(**rule) for name, rule in header["columns"].items()}, **header["options"])
        restored._pending.load(np.stack([columns[f"pending.{number}"] for number in range(header["pending"])]))
        restored._relations = [
            (
                name,
                RelationBuffer(
                    LocalStreamBuffer.restore(_as_bytes(columns[f"{number}.buffer"], header[f"{number}.bytes"])),
                    np.stack([columns[f"{number}.{column}"] for column in range(HELD_COLUMNS)]),
                ),
            )
            for number, (name, _) in enumerate(restored._relations)
        ]
        restored._positions = {name: _Positions(**one) for name, one in header["positions"].items()}
        restored._closed = header["closed"]
        return restored

    def _step(
        self,
        driver: Sequence[object] | None,
        columns: Mapping[str, tuple[Sequence[object], Floats]],
        driver_watermarks: Sequence[object] | None,
        column_watermarks: Mapping[str, Sequence[object]],
        *,
        ends: bool,
    ) -> AlignedRows:
        if self._closed:
            message = f"{'close' if ends else 'push'} after close: all streams have ended"
            raise ArgumentError(message)
        for what, given in (("columns", columns), ("column_watermarks", column_watermarks)):
            _check_mapping(what, given)
            if unknown := [name for name in given if name not in self._rules]:
                message = f"{what}: there is no column {unknown[0]!r}; there are {', '.join(map(repr, self._rules))}"
                raise ArgumentError(message)
        inputs = {DRIVER: Input(driver, driver_watermarks)}
        values: dict[str, Floats] = {}
        for name in self._rules:
            records, values[name] = _pair_of(name, columns.get(name, (None, _NO_VALUES)))
            inputs[name] = Input(records, column_watermarks.get(name))
        checked = {name: self._positions[name].check(name, given) for name, given in inputs.items()}
        values = {name: _check_values(name, values[name], checked[name][0]) for name in self._rules}
        # From here on, nothing raises.
        self._positions = {name: positions for name, (_, positions) in checked.items()}
        self._closed = ends
        answers, steps = [], {}
        for name, relation in self._relations:
            answer, steps[name] = relation.push(inputs[DRIVER], inputs[name], values[name].view(np.int64), ends=ends)
            answers.append(answer)
        return self._rows(checked[DRIVER][0], answers, steps)

    def _rows(self, driver: Records, answers: list[Answers], steps: Mapping[str, Step]) -> AlignedRows:
        of_driver = next(iter(steps.values()))
        late_seq = {DRIVER: of_driver.left_late_seq} | {name: step.right_late_seq for name, step in steps.items()}
        duplicates = {name: step.right_duplicate_seq for name, step in steps.items()}
        duplicate_seq = {DRIVER: of_driver.left_duplicate_seq} | duplicates
        if len(driver.seq):
            left_out = np.concatenate((late_seq[DRIVER], duplicate_seq[DRIVER]))
            accepted = driver.without(driver.seq.searchsorted(left_out))
            self._pending.add(accepted.key, accepted.ts, accepted.seq)
        rows = self._pending.answer(answers)
        drops = np.array([rule.on_missing == "drop" for rule in self._rules.values()])
        is_dropped = rows.is_missing[drops].any(axis=0)
        at = (~is_dropped).nonzero()[0]
        return AlignedRows(
            rows.seq[at],
            rows.key[at],
            rows.ts[at],
            {name: rows.values[column][at] for column, name in enumerate(self._rules)},
            {name: rows.is_missing[column][at] for column, name in enumerate(self._rules)},
            np.sort(rows.seq[is_dropped]),
            late_seq,
            duplicate_seq,
        )


@dataclass(frozen=True)
class _Positions:
    """What is known of a stream so far: its last position, and whether its records have identities."""

    last_seq: int | None = None
    has_identities: bool | None = None

    def check(self, name: str, given: Input) -> tuple[Records, _Positions]:
        """Validate the next input of the stream ``name``. Return its records, and what is known after them."""
        records = check_records(name, given.records)
        watermarks = check_watermarks(f"{name} watermarks", given.watermarks)
        last_seq = check_rising(name, records, watermarks, self.last_seq)
        return records, _Positions(last_seq, check_identity(f"{name}: identities", records, self.has_identities))


def _check_mapping(what: str, given: object) -> None:
    if not isinstance(given, Mapping):
        message = f"{what} must be a mapping by the names of columns, not {type(given).__qualname__}"
        raise ArgumentError(message)


def _check_rules(columns: Mapping[Any, Any]) -> None:
    if not columns:
        message = "columns must contain at least one column"
        raise ArgumentError(message)
    if DRIVER in columns:
        message = f"columns: {DRIVER!r} is the name of the driver; choose another name"
        raise ArgumentError(message)
    for name, rule in columns.items():
        # A snapshot stores the names as JSON, in which only text stays what it is.
        if not isinstance(name, str):
            message = f"columns: the name {name!r} must be a str"
            raise ArgumentError(message)
        if not isinstance(rule, ColumnRule):
            message = f"columns[{name!r}] must be a ColumnRule, not {type(rule).__qualname__}"
            raise ArgumentError(message)


def _pair_of(name: str, given: Any) -> tuple[Any, Any]:
    """Return the records and the values of a column's input."""
    pair = 2
    if not isinstance(given, Sequence) or len(given) != pair:
        shown = f"{type(given).__qualname__}" + (f" of length {len(given)}" if isinstance(given, Sequence) else "")
        message = f"columns[{name!r}] must be a tuple (records, values) with records (keys, ts_ns, seq), not {shown}"
        raise ArgumentError(message)
    return given[0], given[1]


def _check_values(name: str, values: object, records: Records) -> Floats:
    found = np.asarray(values)
    if found.dtype != np.float64 or found.shape != records.seq.shape:
        message = (
            f"the values of {name} must be float64 of shape ({len(records.seq)},), one for each record, not "
            f"{found.dtype} of shape {found.shape}"
        )
        raise ArgumentError(message)
    return np.ascontiguousarray(found)


_KIND: Final = "AlignBuffer"
_NO_VALUES: Final = np.empty(0, dtype=np.float64)


def _as_column(data: bytes) -> Ints:
    """Return bytes as int64, padded with zeros."""
    return np.frombuffer(data + bytes(-len(data) % 8), dtype="<i8")


def _as_bytes(column: Ints, size: int) -> bytes:
    return column.astype("<i8").tobytes()[:size]


compile_declared()
