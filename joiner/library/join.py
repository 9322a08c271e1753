"""`join`: the neighbour join of two whole tables in one call.

Tables are pandas or polars DataFrames, or mappings of column names to numpy arrays. pandas and polars are optional:
each is imported only when a table of its kind is passed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from joiner.core.arguments import DURATION_MAX_NS, SIDES, TIME_MAX_NS, TIME_MIN_NS
from joiner.core.engine import LocalStreamBuffer
from joiner.core.errors import ArgumentError
from joiner.library.durations import duration_ns
from joiner.library.tables import ANYTHING, NO_ROW, Kind, kind_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Array = NDArray[Any]

_Records: TypeAlias = "tuple[Ints, Ints, Ints]"
"""Keys, times and positions, shape (n,) each."""

_PART_RECORDS: Final = 10_000
"""How many records of both sides are joined at a time. Only a single key with more records exceeds it."""


def join(  # noqa: PLR0913 - the options of the join, by name only
    left: Any,
    right: Any,
    *,
    time: str | tuple[str, str] | None = None,
    by: str | Sequence[str] = (),
    tolerance: object = None,
    direction: str = "both",
    driver: str = "both",
    emit_unmatched: str = "none",
    suffixes: tuple[str, str] = ("_left", "_right"),
    on: str | tuple[str, str] | None = None,
) -> Any:
    """Return all pairs of rows with equal keys in which one row is the previous or next neighbour of the other.

    Each pair is returned once. The result is the union, without duplicates, of four `pandas.merge_asof` calls (backward
    and forward, from either side). Rows may be in any order. If rows have equal times, the one further down counts as
    later.

    Args:
        left: a pandas or polars DataFrame, or a mapping of column names to arrays of shape (n,).
        right: another table of the same kind.
        time: the column of event times, as one name or (left, right). It contains integers in any unit, or datetimes.
        by: the key columns, which both tables must have. By default all rows have the same key.
        tolerance: how far apart in time the two rows of a pair may be; None means no limit. It is an integer if the
            times are integers, otherwise a duration (``"10 seconds"``, `datetime.timedelta`, `numpy.timedelta64`,
            `pandas.Timedelta`).
        direction: which neighbours a row looks for; see `LocalStreamBuffer`.
        driver: whose rows look for neighbours; see `LocalStreamBuffer`. ``direction="backward", driver="left"`` is the
            as-of join.
        emit_unmatched: ``"left"``, ``"right"`` or ``"both"``, to append the rows of that side (or of both) that are in
            no pair, with missing values for the other side.
        suffixes: appended to the names of columns that both tables have.
        on: the former name of ``time``, accepted for one release with a `DeprecationWarning`.

    Returns:
        A table of the same kind with the key columns, the other columns of ``left``, and those of ``right``. Rows are
        grouped by key and, within a key, sorted by left time, then by right time. With ``emit_unmatched``, arrays are
        masked, and a key column that is int64 on one side and uint64 on the other becomes Python integers (in polars
        Int128), because no narrower type can hold both.

    Raises:
        ArgumentError: naming the table, the column and the row.

    >>> import numpy as np
    >>> speed = {"machine": np.array([7, 7]), "at": np.array([10, 30]), "rpm": np.array([900.0, 950.0])}
    >>> torque = {"machine": np.array([7]), "at": np.array([20]), "nm": np.array([4.5])}
    >>> joined = join(speed, torque, time="at", by="machine")
    >>> list(zip(joined["at_left"].tolist(), joined["at_right"].tolist(), joined["nm"].tolist()))
    [(10, 20, 4.5), (30, 20, 4.5)]

    """
    kind = kind_of(left, right)
    names = [by] if isinstance(by, str) else list(by)
    times = _time_columns(time, on)
    sides = [_Side("left", left, times[0], names), _Side("right", right, times[1], names)]
    for side in sides:
        side.check_columns(kind)
    stamps = [side.times(kind) for side in sides]
    if stamps[0].is_datetime != stamps[1].is_datetime or stamps[0].has_zone != stamps[1].has_zone:
        raise ArgumentError(f"time: left has {stamps[0].what}, right has {stamps[1].what}; convert one of them")
    keys = _keys(kind, sides, [len(at.ns) for at in stamps])
    make_buffer = partial(
        LocalStreamBuffer,
        tolerance_ns=_tolerance(tolerance, stamps[0]),
        lateness_ns=DURATION_MAX_NS,
        direction=direction,
        driver=driver,
        emit_unmatched=emit_unmatched,
    )
    left_seq, right_seq, left_unmatched, right_unmatched = _join_parts(make_buffer, keys, (stamps[0].ns, stamps[1].ns))
    if emit_unmatched != "none":
        left_seq = np.concatenate([left_seq, np.sort(left_unmatched), np.full_like(right_unmatched, NO_ROW)])
        right_seq = np.concatenate([right_seq, np.full_like(left_unmatched, NO_ROW), np.sort(right_unmatched)])
    rows = _Rows(left_seq, right_seq, len(stamps[0].ns), may_lack=emit_unmatched != "none")
    return _assembled(kind, sides, rows, suffixes)


def _time_columns(time: str | tuple[str, str] | None, on: str | tuple[str, str] | None) -> tuple[str, ...]:
    """Return the names of the left and the right time column."""
    if on is not None:
        if time is not None:
            raise ArgumentError("on is the former name of time; pass only time")
        warnings.warn("join: on is now called time; the next release will not accept on", DeprecationWarning, 3)
        time = on
    if time is None:
        raise ArgumentError("time is required: the column of event times, one name or (left, right)")
    names = (time, time) if isinstance(time, str) else tuple(time)
    if len(names) != len(SIDES):
        raise ArgumentError(f"time must be one column name or (left, right), not {time!r}")
    return names


def _join_parts(
    make_buffer: Callable[[], LocalStreamBuffer], keys: tuple[Ints, Ints], times: tuple[Ints, Ints]
) -> tuple[Ints, ...]:
    """Return the positions of the left and right records of all pairs, and of the left and right unmatched records."""
    found = []
    for left, right in _parts(keys, times):
        step = make_buffer().close(left=left, right=right)
        of_step = step.left_seq, step.right_seq, step.left_unmatched_seq, step.right_unmatched_seq
        # Copy the positions, so that the next step can reuse this step's memory.
        found.append([positions.copy() for positions in of_step])
    return tuple(np.concatenate(positions) for positions in zip(*found, strict=True))


def _parts(keys: tuple[Ints, Ints], times: tuple[Ints, Ints]) -> Iterator[tuple[_Records, _Records]]:
    """Yield the records of both sides in parts that do not split a key, small enough for their memory to be reused."""
    keys_end = max(int(key.max(initial=0)) for key in keys) + 1
    counts = [np.bincount(key, minlength=keys_end) for key in keys]
    _, part_of_key = np.unique(((counts[0] + counts[1]).cumsum() - 1) // _PART_RECORDS, return_inverse=True)
    last = int(part_of_key.max())
    positions = []
    for key in keys:
        part = part_of_key.take(key)
        # numpy sorts 16-bit integers by radix sort.
        order = (part.astype(np.uint16) if last <= np.iinfo(np.uint16).max else part).argsort(kind="stable")
        positions.append(np.split(order, np.bincount(part, minlength=last + 1).cumsum()[:-1]))
    for number in range(last + 1):
        left, right = (
            (key.take(at[number]), ts.take(at[number]), at[number])
            for key, ts, at in zip(keys, times, positions, strict=True)
        )
        yield left, right


@dataclass(frozen=True)
class _Times:
    """Event times in ns, or in the unit of integer times; shape (n,)."""

    ns: Ints
    is_datetime: bool
    has_zone: bool

    @property
    def what(self) -> str:
        if not self.is_datetime:
            return "integers"
        return "datetimes with a time zone" if self.has_zone else "datetimes without a time zone"


@dataclass(frozen=True)
class _Rows:
    """For each row of the result, the index of its left and of its right row, shape (n,) each.

    ``lefts``: how many rows the left table has. ``may_lack``: whether the indices may contain `NO_ROW`.
    """

    left: Ints
    right: Ints
    lefts: int
    may_lack: bool


@dataclass(frozen=True)
class _Side:
    """One of the two tables."""

    name: str
    table: Any
    time: str
    by: list[str]

    def check_columns(self, kind: Kind) -> None:
        columns = kind.names(self.table)
        for column in (self.time, *self.by):
            if column not in columns:
                raise ArgumentError(f"{self.name} has no column {column!r}; it has {', '.join(map(repr, columns))}")
            missing = np.flatnonzero(kind.lacks(self.table, column))
            if len(missing):
                raise ArgumentError(
                    f"{self.name}[{column!r}] has no value in row {missing[0]} ({len(missing)} such rows in total); "
                    "drop these rows, because they cannot have neighbours"
                )

    def times(self, kind: Kind) -> _Times:
        values, has_zone = kind.column(self.table, self.time)
        if values.dtype.kind == "M":
            return _Times(_in_ns(f"{self.name}[{self.time!r}]", values), is_datetime=True, has_zone=has_zone)
        if values.dtype.kind not in "iu" or (values.dtype == np.uint64):
            raise ArgumentError(
                f"{self.name}[{self.time!r}] must contain integers that fit int64, or datetimes, not {values.dtype}; "
                "convert the column"
            )
        return _Times(values.astype(np.int64), is_datetime=False, has_zone=False)

    def others(self, kind: Kind) -> list[str]:
        return [name for name in kind.names(self.table) if name not in self.by]


def _in_ns(what: str, values: Array) -> Ints:
    """Convert datetimes of any unit to ns. Raises `ArgumentError` for a time outside the years 1678 to 2261."""
    low, high = (np.datetime64(bound, "ns").astype("datetime64[D]") for bound in (TIME_MIN_NS, TIME_MAX_NS))
    days = values.astype("datetime64[D]")
    outside = np.flatnonzero((days < low) | (days > high))
    if len(outside):
        raise ArgumentError(f"{what} = {values[outside[0]]} in row {outside[0]} is outside the years 1678 to 2261")
    return values.astype("datetime64[ns]").view(np.int64)


def _tolerance(value: Any, times: _Times) -> int | None:
    if value is None or not times.is_datetime:
        # The buffer checks that the tolerance is an integer.
        return value  # type: ignore[no-any-return] # see above
    if isinstance(value, str):
        try:
            return duration_ns(value)
        except ValueError as error:
            raise ArgumentError(f"tolerance = {value!r}: {error}") from error
    if hasattr(value, "to_timedelta64"):
        value = value.to_timedelta64()
    if not isinstance(value, timedelta | np.timedelta64):
        raise ArgumentError(
            f"tolerance must be a duration if times are datetimes, such as '10 seconds' or "
            f"datetime.timedelta(seconds=10), not {value!r}"
        )
    return int(np.timedelta64(value).astype("timedelta64[ns]").astype(np.int64))


def _keys(kind: Kind, sides: list[_Side], counts: list[int]) -> tuple[Ints, Ints]:
    """Return the keys of the left and right rows as small integers. ``counts``: the number of rows by side."""
    names = sides[0].by
    for name in names:
        types = [kind.key_type(side.table, name) for side in sides]
        if types[0] != types[1] and ANYTHING not in types:
            raise ArgumentError(f"by: left[{name!r}] contains {types[0]}, right[{name!r}] {types[1]}; cast one of them")
    left, right = (side.table for side in sides)
    codes = kind.codes(left, right, names) if names else np.zeros(sum(counts), dtype=np.int64)
    return codes[: counts[0]], codes[counts[0] :]


def _assembled(kind: Kind, sides: list[_Side], rows: _Rows, suffixes: tuple[str, str]) -> Any:
    left, right = sides
    others = left.others(kind), right.others(kind)
    shared = set(others[0]) & set(others[1])
    new = [
        [name + suffix if name in shared else name for name in names]
        for names, suffix in zip(others, suffixes, strict=True)
    ]
    columns = [*left.by, *new[0], *new[1]]
    duplicates = sorted({name for name in columns if columns.count(name) > 1})
    if duplicates:
        raise ArgumentError(
            f"suffixes = {suffixes!r}: the result would have two columns named {duplicates[0]!r}; choose other suffixes"
        )
    parts = [
        (kind.take(left.table, others[0], rows.left, may_lack=rows.may_lack), new[0]),
        (kind.take(right.table, others[1], rows.right, may_lack=rows.may_lack), new[1]),
    ]
    if left.by and not rows.may_lack:
        parts.insert(0, (kind.take(left.table, left.by, rows.left, may_lack=False), left.by))
    elif left.by:
        # Take the key from the left row, or from the right row if there is no left one.
        of_both = kind.stacked(left.table, right.table, left.by)
        at = np.where(rows.left != NO_ROW, rows.left, rows.lefts + rows.right)
        parts.insert(0, (kind.take(of_both, left.by, at, may_lack=False), left.by))
    return kind.beside(parts)
