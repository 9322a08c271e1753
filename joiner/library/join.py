"""`join`: joins two whole tables in one call, each row with its neighbours in the other table.

Tables are pandas or polars frames, Arrow tables, or mappings of column names to numpy arrays. pandas, polars and
pyarrow are optional: each is imported only when a table needs it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from joiner.core.arguments import DURATION_MAX_NS, SIDES, check_choice
from joiner.core.engine import LocalStreamBuffer
from joiner.core.errors import ArgumentError
from joiner.library.rows import ORDERS, Rows
from joiner.library.sides import Side, column_names, key_tables, keys_of
from joiner.library.tables.kind import NO_ROW, Kind
from joiner.library.tables.reading import read_tables
from joiner.library.times import duration_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_Records: TypeAlias = "tuple[Ints, Ints, Ints]"
"""Keys, times and positions, shape (n,) each."""

_PART_RECORDS: Final = 10_000
"""Approximate number of left and right records joined in one step. A key with more records is not split."""


def join(  # noqa: PLR0913 - the options of the join, by name only
    left: Any,
    right: Any,
    *,
    time: str | tuple[str, str] | None = None,
    by: str | Sequence[str] = (),
    left_by: str | Sequence[str] = (),
    right_by: str | Sequence[str] = (),
    tolerance: object = None,
    direction: str = "both",
    driver: str = "both",
    emit_unmatched: str = "none",
    order: str = "key",
    suffixes: tuple[str, str] = ("_left", "_right"),
    on: str | tuple[str, str] | None = None,
) -> Any:
    """Return all pairs of rows with equal keys in which one row is the previous or next neighbour of the other.

    Each pair is returned once. The result is the union, without duplicates, of four `pandas.merge_asof` calls (backward
    and forward, from either side). Rows may be in any order. Of two rows with equal times in a table, the one further
    down is treated as later.

    Args:
        left: a pandas DataFrame; a polars DataFrame or LazyFrame (which is collected); a `pyarrow.Table` or any object
            that has ``__arrow_c_stream__``, such as a record batch reader or a DuckDB relation (which is read to the
            end); or a mapping of column names to arrays of shape (n,).
        right: the table to join with ``left``. A table of a different kind is converted to the kind of ``left``, which
            requires pyarrow. A mapping can only be joined with another mapping.
        time: the name of the event time column, or (left, right) if the names differ. The column contains datetimes, or
            integers in any unit.
        by: the key columns, if they have the same names in both tables. By default all rows have the same key.
        left_by: the key columns of ``left``, if their names differ from those in ``right``.
        right_by: the key columns of ``right``, in the order of ``left_by``.
        tolerance: how far apart in time the two rows of a pair may be; None means no limit. It must be an integer if
            the times are integers, otherwise a duration (``"20ms"``, ``"1.5 seconds"``, `datetime.timedelta`,
            `numpy.timedelta64`, `pandas.Timedelta`).
        direction: which neighbours a row looks for; see `LocalStreamBuffer`.
        driver: the side whose rows look for neighbours; see `LocalStreamBuffer`. ``direction="backward",
            driver="left"`` is the as-of join.
        emit_unmatched: ``"left"``, ``"right"`` or ``"both"`` to include the rows of these tables that are in no pair.
            In those rows, the other table's columns contain missing values.
        order: the order of the result. ``"key"``: rows are grouped by key and sorted by left time, then by right time,
            within each key; unmatched rows come last. ``"left"``: rows follow the order of ``left``, and the pairs of
            one left row are sorted by right time; unmatched right rows come last. ``"time"``: rows are sorted by left
            time, then by right time, across all keys; the time of an unmatched row is used for both.
        suffixes: the suffixes (left, right) for column names that occur in both tables.
        on: the former name of ``time``, accepted for one release with a `DeprecationWarning`.

    Returns:
        A table of the same kind as ``left`` (a `pyarrow.Table` if ``left`` is any other Arrow object). It contains the
        key columns, named as in ``left``, then the other columns of ``left``, then those of ``right``. A pandas frame
        gets a new index, but with ``order="left"`` and no unmatched right rows it keeps the labels of the left rows.

        With ``emit_unmatched``, values may be missing, and columns are converted so that no other value changes: arrays
        become masked arrays, and pandas integers and booleans get nullable dtypes (``"Int64"``, ``"boolean"``) if their
        side may be missing. A key column that is int64 on one side and uint64 on the other becomes Python integers
        (Int128 in polars, decimal128 in Arrow), because no narrower type can hold both.

    Raises:
        ArgumentError: if an argument is invalid. The message names the argument and, where it matters, the column and
            the row.
        ImportError: if a table needs pyarrow and it is not installed. The message names the extra to install.

    >>> import numpy as np
    >>> speed = {"machine": np.array([7, 7]), "at": np.array([10, 30]), "rpm": np.array([900.0, 950.0])}
    >>> torque = {"machine": np.array([7]), "at": np.array([20]), "nm": np.array([4.5])}
    >>> joined = join(speed, torque, time="at", by="machine")
    >>> list(zip(joined["at_left"].tolist(), joined["at_right"].tolist(), joined["nm"].tolist()))
    [(10, 20, 4.5), (30, 20, 4.5)]

    """
    check_choice("order", order, ORDERS)
    kind, left, right = read_tables(left, right)
    times, names = _time_columns(time, on), _keys_by_side(by, left_by, right_by)
    sides = [Side("left", left, times[0], names[0]), Side("right", right, times[1], names[1])]
    for side in sides:
        side.check_columns(kind)
    stamps = [side.times(kind) for side in sides]
    if stamps[0].what != stamps[1].what:
        raise ArgumentError(
            f"time: left contains {stamps[0].what}, but right contains {stamps[1].what}; convert one of them"
        )
    keys = keys_of(kind, sides, [len(at.ns) for at in stamps])
    make_buffer = partial(
        LocalStreamBuffer,
        tolerance_ns=None if tolerance is None else duration_of("tolerance", tolerance, stamps[0].what),
        lateness_ns=DURATION_MAX_NS,
        direction=direction,
        driver=driver,
        emit_unmatched=emit_unmatched,
    )
    times_by_side = stamps[0].ns, stamps[1].ns
    left_rows, right_rows, left_unmatched, right_unmatched = _join_parts(make_buffer, keys, times_by_side)
    if emit_unmatched != "none":
        left_rows = np.concatenate([left_rows, np.sort(left_unmatched), np.full_like(right_unmatched, NO_ROW)])
        right_rows = np.concatenate([right_rows, np.full_like(left_unmatched, NO_ROW), np.sort(right_unmatched)])
    rows = Rows(left_rows, right_rows, len(times_by_side[0]), emit_unmatched).ordered(order, times_by_side)
    joined = _assembled(kind, sides, rows, suffixes)
    has_labels = order == "left" and not rows.may_lack_left
    return kind.with_labels(joined, left, rows.left) if has_labels else joined


def _time_columns(time: Any, on: Any) -> tuple[str, ...]:
    """Return the names of the left and right time columns."""
    if on is not None:
        if time is not None:
            raise ArgumentError("on is the former name of time; pass only time")
        warnings.warn("join: on was renamed to time and will be removed in the next release", DeprecationWarning, 3)
        time = on
    if time is None:
        raise ArgumentError("time is required: pass the name of the event time column, or (left, right)")
    names = (time, time) if isinstance(time, str) else time
    if not isinstance(names, tuple | list) or len(names) != len(SIDES):
        raise ArgumentError(f"time must be a column name or a pair of names (left, right), not {time!r}")
    return tuple(names)


def _keys_by_side(
    by: str | Sequence[str], left_by: str | Sequence[str], right_by: str | Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the key columns of the left and right tables."""
    of_both, left, right = map(column_names, ("by", "left_by", "right_by"), (by, left_by, right_by))
    if of_both and (left or right):
        raise ArgumentError("by already names the key columns of both tables; pass either by, or left_by and right_by")
    if len(left) != len(right):
        raise ArgumentError(
            f"left_by = {left_by!r} and right_by = {right_by!r} must name the same number of columns, in the same order"
        )
    for name, names in (("by", of_both), ("left_by", left), ("right_by", right)):
        if len(set(names)) < len(names):
            raise ArgumentError(f"{name} = {names!r} names a column twice")
    return (left, right) if left else (of_both, of_both)


def _join_parts(
    make_buffer: Callable[[], LocalStreamBuffer], keys: tuple[Ints, Ints], times: tuple[Ints, Ints]
) -> tuple[Ints, ...]:
    """Join all records. Return the positions of both records in each pair, and of each side's unmatched records."""
    found = []
    for left, right in _parts(keys, times):
        step = make_buffer().close(left=left, right=right)
        of_step = step.left_seq, step.right_seq, step.left_unmatched_seq, step.right_unmatched_seq
        # Copy the positions, so that the next step can reuse this step's memory.
        found.append([positions.copy() for positions in of_step])
    return tuple(np.concatenate(positions) for positions in zip(*found, strict=True))


def _parts(keys: tuple[Ints, Ints], times: tuple[Ints, Ints]) -> Iterator[tuple[_Records, _Records]]:
    """Yield the records of both sides in parts small enough for memory to be reused. No key is split across parts."""
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


def _assembled(kind: Kind, sides: list[Side], rows: Rows, suffixes: Any) -> Any:
    left, right = sides
    if not isinstance(suffixes, tuple | list) or len(suffixes) != len(SIDES):
        raise ArgumentError(f"suffixes must be (left, right), not {suffixes!r}")
    others = left.others(kind), right.others(kind)
    shared = set(others[0]) & set(others[1])
    # A key column keeps its name even if the right table also has a different column of that name.
    shared_by_side = shared, shared | (set(left.by) & set(others[1]))
    new = [
        [f"{name}{suffix}" if name in shared else name for name in names]
        for names, suffix, shared in zip(others, suffixes, shared_by_side, strict=True)
    ]
    columns = [*left.by, *new[0], *new[1]]
    duplicates = sorted({name for name in columns if columns.count(name) > 1})
    if duplicates:
        raise ArgumentError(
            f"suffixes = {suffixes!r}: the result would have two columns named {duplicates[0]!r}; choose other suffixes"
        )
    may_lack = rows.may_lack_left or rows.may_lack_right
    sources = [
        kind.nullable(kind.select(side.table, names, names)) if may_lack_here else side.table
        for side, names, may_lack_here in zip(sides, others, (rows.may_lack_left, rows.may_lack_right), strict=True)
    ]
    parts = [
        (kind.take(sources[0], others[0], rows.left, may_lack=may_lack), new[0]),
        (kind.take(sources[1], others[1], rows.right, may_lack=may_lack), new[1]),
    ]
    if left.by and not may_lack:
        parts.insert(0, (kind.take(left.table, left.by, rows.left, may_lack=False), left.by))
    elif left.by:
        # Take the key from the left row, or from the right row if there is no left one.
        of_both = kind.stacked(*key_tables(kind, sides))
        at = np.where(rows.left != NO_ROW, rows.left, rows.lefts + rows.right)
        parts.insert(0, (kind.take(of_both, left.by, at, may_lack=False), left.by))
    return kind.beside(parts)
