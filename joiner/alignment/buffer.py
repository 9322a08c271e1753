"""`AlignBuffer`: a row for each record of a driver or tick of a grid, with the values of other streams at its time.

As with `LocalStreamBuffer`, the rows emitted so far depend only on the records and watermarks consumed from each
stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from joiner.alignment.driver_rows import DRIVER, DriverRows
from joiner.alignment.grid import Grid
from joiner.alignment.grid_rows import GridRows
from joiner.alignment.relations import Input
from joiner.alignment.rules import ColumnRule
from joiner.core import snapshot
from joiner.core.arguments import (
    WATERMARK_SCOPES,
    check_choice,
    check_duration,
    check_identity,
    check_records,
    check_rising,
    check_watermarks,
)
from joiner.core.compiled import compile_declared
from joiner.core.errors import ArgumentError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joiner.alignment.driver_rows import StepRows
    from joiner.core.arguments import Records

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class AlignedRows:
    """The result of one step. Arrays have shape (n,), with a different n for each group below.

    Attributes:
        seq, key, ts_ns: for each row, the log position, key and time (ns) of its driver record; int64. With a grid,
            ``seq`` is the tick number, which identifies the row together with the key. The rows are ordered by (key,
            time, position).
        values: for each column, the value in each of these rows; float64, NaN where missing.
        is_missing: for each column, whether the value is missing; bool. (NaN alone is ambiguous, because a stream may
            contain NaN.)
        dropped_seq: the log positions of driver records whose rows were left out, because a column with
            ``on_missing="drop"`` has no value; ascending. Always empty with a grid.
        late_seq: for each stream (a column name, or ``"driver"`` if there is a driver), the log positions of records
            that were below their stream's frontier when they arrived.
        duplicate_seq: for each stream, the log positions of records with the key, time and identity of an earlier one.

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
    """Aligns streams incrementally: one row for each driver record or tick, as soon as all of its columns are certain.

    An emitted row is never revised. If a stream is silent for a key, only that key's rows wait for a record or a
    watermark to advance the stream's frontier.

    Args:
        columns: the rule of each column, by name.
        grid: the times of the rows. If given, the buffer has no driver, and accepts no driver records or watermarks.
        lateness_ns: the lateness of the driver, as in `LocalStreamBuffer`. Must be 0 with a grid, because each column
            has its own lateness (`ColumnRule`).
        watermark_scope: as in `LocalStreamBuffer`, for all streams.

    Raises:
        ArgumentError: if an option is invalid. The message names the option and says why.

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
        self,
        columns: Mapping[str, ColumnRule],
        *,
        grid: Grid | None = None,
        lateness_ns: int = 0,
        watermark_scope: str = "key",
    ) -> None:
        _check_mapping("columns", columns)
        _check_rules(columns)
        compile_declared("joiner.alignment")
        self._rules = dict(columns)
        self._grid = grid
        self._options = {"lateness_ns": check_duration("lateness_ns", lateness_ns), "watermark_scope": watermark_scope}
        self._rows: DriverRows | GridRows
        if grid is None:
            self._rows = DriverRows(self._rules, lateness_ns=lateness_ns, watermark_scope=watermark_scope)
        else:
            _check_grid(grid, lateness_ns, watermark_scope)
            self._rows = GridRows(self._rules, grid, watermark_scope=watermark_scope)
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
        """Consume the next records and watermarks from any of the streams. Return the rows that have become certain.

        Args:
            driver: ``(keys, ts_ns, seq)`` and, optionally, identities, as in `LocalStreamBuffer.push`.
            columns: for each column name, a pair of such records and their values (float64, shape (n,)).
            driver_watermarks: ``(keys, ts_ns, seq)``, as in `LocalStreamBuffer.push`.
            column_watermarks: the same for the columns, by name.

        Raises:
            ArgumentError: if an argument is invalid, if the step has too many ticks, or if the buffer is closed. The
                message names the argument and, if a single value is invalid, its index. The buffer is unchanged.
            MemoryError, ValueError: if the permitted number of ticks does not fit in memory. The buffer is unchanged.

        """
        return self._step(driver, columns or {}, driver_watermarks, column_watermarks or {}, ends=False)

    def close(
        self,
        *,
        driver: Sequence[object] | None = None,
        columns: Mapping[str, tuple[Sequence[object], Floats]] | None = None,
    ) -> AlignedRows:
        """Consume the last records and end all streams. Return all remaining rows.

        Takes the same records and raises the same errors as `push`. Any later `close` or `push` raises
        `ArgumentError`.
        """
        return self._step(driver, columns or {}, None, {}, ends=True)

    def __len__(self) -> int:
        """Return the number of rows waiting for a column's value. Ticks are not stored, so they are not included."""
        return len(self._rows)

    def __repr__(self) -> str:
        rules = ", ".join(f"{name}: {rule.rule}" for name, rule in self._rules.items())
        return f"<AlignBuffer({rules}) rows={len(self)} records={self.held()}{' closed' if self._closed else ''}>"

    def held(self) -> int:
        """Return the number of column records currently held."""
        return self._rows.held()

    @property
    def driver_rows(self) -> DriverRows:
        """The driver's rows, for inspecting what they hold. Raises `ArgumentError` if the buffer has a grid."""
        if not isinstance(self._rows, DriverRows):
            message = "the buffer has a grid and no driver"
            raise ArgumentError(message)
        return self._rows

    @property
    def grid_rows(self) -> GridRows:
        """The grid's rows, for inspecting what they hold. Raises `ArgumentError` if the buffer has a driver."""
        if not isinstance(self._rows, GridRows):
            message = "the buffer has a driver and no grid"
            raise ArgumentError(message)
        return self._rows

    def bounds_ns(self, keys: Ints) -> tuple[Ints, int]:
        """Return a lower bound on the times of each key's future rows, and one that applies to all unused keys.

        ``keys`` must be ascending. The bounds of the keys have shape (k,). All bounds are int64, in ns. A bound is the
        smallest int64 until it is known, and never decreases.
        """
        return self._rows.bounds_ns(keys)

    def snapshot(self) -> bytes:
        """Serialize the options and the whole state for `restore`."""
        of_rows, columns = self._rows.save()
        header: dict[str, Any] = {
            "kind": _KIND,
            "columns": {name: asdict(rule) for name, rule in self._rules.items()},
            "grid": None if self._grid is None else asdict(self._grid),
            "options": self._options,
            "positions": {name: asdict(one) for name, one in self._positions.items()},
            "closed": self._closed,
        }
        return snapshot.pack(header | of_rows, columns)

    @classmethod
    def restore(cls, data: bytes, *, ticks_max: int | None = None) -> Self:
        """Create a buffer from a snapshot.

        ``ticks_max``: the maximum number of ticks in one step, which replaces the original grid's limit.

        Raises `SnapshotError` if the snapshot cannot be restored (`NewerSnapshotError` if a newer release wrote it),
        and `ArgumentError` if ``ticks_max`` is invalid, or is given for a buffer without a grid.
        """
        header, columns = snapshot.unpack(data, _KIND)
        rules = {name: ColumnRule(**rule) for name, rule in header["columns"].items()}
        grid = None if header["grid"] is None else Grid(**header["grid"])
        if ticks_max is not None:
            if grid is None:
                message = "ticks_max is an option of a grid, and the buffer in the snapshot has none"
                raise ArgumentError(message)
            grid = replace(grid, ticks_max=ticks_max)
        restored = cls(rules, grid=grid, **header["options"])
        restored._rows.load(header, columns)
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
                known = ", ".join(map(repr, self._rules))
                raise ArgumentError(f"{what}: there is no column {unknown[0]!r}; the columns are {known}")
        if self._grid is not None and (driver is not None or driver_watermarks is not None):
            message = "a buffer with a grid accepts no driver records or watermarks"
            raise ArgumentError(message)
        checked = {DRIVER: self._positions[DRIVER].check(DRIVER, driver, driver_watermarks)}
        values: dict[str, Floats] = {}
        for name in self._rules:
            records, of_records = _pair_of(name, columns.get(name, (None, _NO_VALUES)))
            checked[name] = self._positions[name].check(name, records, column_watermarks.get(name))
            values[name] = _check_values(name, of_records, checked[name][0].records)
        found = self._rows.push({name: given for name, (given, _) in checked.items()}, values, ends=ends)
        self._positions = {name: positions for name, (_, positions) in checked.items()}
        self._closed = ends
        return self._aligned(found)

    def _aligned(self, found: StepRows) -> AlignedRows:
        rows = found.rows
        drops = np.array([rule.on_missing == "drop" for rule in self._rules.values()])
        is_dropped = rows.is_missing[drops].any(axis=0)
        at = (~is_dropped).nonzero()[0]
        return AlignedRows(
            rows.seq[at],
            rows.key[at],
            rows.ts[at],
            {name: rows.values[column][at] for column, name in enumerate(self._rules)},
            {name: rows.is_missing[column][at] for column, name in enumerate(self._rules)},
            np.sort(rows.seq[is_dropped]) if self._grid is None else _NO_POSITIONS,
            found.late_seq,
            found.duplicate_seq,
        )


@dataclass(frozen=True)
class _Positions:
    """State to check a stream's next input against: the last position, and whether its records have identities."""

    last_seq: int | None = None
    has_identities: bool | None = None

    def check(
        self, name: str, records: Sequence[object] | None, watermarks: Sequence[object] | None
    ) -> tuple[Input, _Positions]:
        """Validate the next input of the stream ``name``. Return it, and the state to check later input against.

        Raises `ArgumentError` if the input is invalid.
        """
        found = Input(check_records(name, records), check_watermarks(f"{name}_watermarks", watermarks))
        last_seq = check_rising(name, *found, self.last_seq)
        return found, _Positions(last_seq, check_identity(f"{name}: identities", found.records, self.has_identities))


def _check_mapping(what: str, given: object) -> None:
    if not isinstance(given, Mapping):
        message = f"{what} must be a mapping whose keys are column names, not {type(given).__qualname__}"
        raise ArgumentError(message)


def _check_rules(columns: Mapping[Any, Any]) -> None:
    if not columns:
        message = "columns must contain at least one column"
        raise ArgumentError(message)
    if DRIVER in columns:
        message = f"columns: {DRIVER!r} is the name of the driver; choose another name"
        raise ArgumentError(message)
    for name, rule in columns.items():
        # Names must be strings, because a snapshot stores them as JSON, which cannot restore any other type.
        if not isinstance(name, str):
            message = f"columns: the name {name!r} must be a str"
            raise ArgumentError(message)
        if not isinstance(rule, ColumnRule):
            message = f"columns[{name!r}] must be a ColumnRule, not {type(rule).__qualname__}"
            raise ArgumentError(message)


def _check_grid(grid: object, lateness_ns: int, watermark_scope: str) -> None:
    if not isinstance(grid, Grid):
        message = f"grid must be a Grid, not {type(grid).__qualname__}"
        raise ArgumentError(message)
    if lateness_ns:
        message = "lateness_ns is the lateness of a driver stream; with a grid, set the lateness_ns of each column"
        raise ArgumentError(message)
    check_choice("watermark_scope", watermark_scope, WATERMARK_SCOPES)


def _pair_of(name: str, given: Any) -> tuple[Any, Any]:
    """Split a column's input into its records and values. Raises `ArgumentError` if it is not a pair."""
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
_NO_POSITIONS: Final = np.empty(0, dtype=np.int64)
