"""`join`: the neighbour join of two whole tables, in one call.

Tables are pandas or polars frames, or mappings of names to numpy arrays. pandas and polars are not required: which of
them is used is told by the tables that come in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from joiner.core.arguments import DURATION_MAX_NS, TIME_MAX_NS, TIME_MIN_NS
from joiner.core.engine import LocalStreamBuffer
from joiner.core.errors import ArgumentError
from joiner.library.durations import duration_ns
from joiner.library.tables import ANYTHING, NOBODY, Kind, kind_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Array = NDArray[Any]

_Records: TypeAlias = "tuple[Ints, Ints, Ints]"
"""Keys, times, positions."""

_PART_RECORDS: Final = 10_000
"""Of both sides, that are joined at once; more where a single key has more."""


def join(  # noqa: PLR0913 - the options of the join, by name only
    left: Any,
    right: Any,
    *,
    on: str | tuple[str, str],
    by: str | Sequence[str] = (),
    tolerance: object = None,
    direction: str = "both",
    driver: str = "both",
    emit_unmatched: str = "none",
    suffixes: tuple[str, str] = ("_left", "_right"),
) -> Any:
    """All pairs of rows of one key in which one is the previous or the next neighbour of the other, each pair once.

    What `pandas.merge_asof` gives in four calls (backward and forward, from either side), without doubles. Rows may be
    in any order; of rows with equal times, the one that stands later is the later one.

    Args:
        left: a pandas or polars frame, or a mapping of column names to arrays of shape (n,).
        right: another one of the same kind.
        on: the column of event times, of one name or (left, right): integers of any unit, or datetimes.
        by: the columns of the key, in both tables; none: all rows have one key.
        tolerance: pairs whose times are farther apart are left out: an integer where times are integers, else a
            duration (``"10 seconds"``, `datetime.timedelta`, `numpy.timedelta64`, `pandas.Timedelta`).
        direction: see `LocalStreamBuffer`; ``driver`` too. ``direction="backward", driver="left"`` is the as-of join.
        driver: whose rows look for neighbours.
        emit_unmatched: ``"left"``, ``"right"`` or ``"both"``: rows of these that are in no pair come too, behind the
            pairs, with nothing on the other side.
        suffixes: for names that both tables have.

    Returns:
        A table of the same kind: the columns of the key, the others of ``left``, the others of ``right``. Its
        rows are grouped by key, and of one key in the order of left, then right time. Arrays are masked ones
        where ``emit_unmatched`` leaves something out; integers of 64 bits in a key, on one side with a sign and on the
        other without, are then Python's own (in polars Int128), for nothing narrower holds all of both.

    Raises:
        ArgumentError: naming the table, the column and the row.

    >>> import numpy as np
    >>> speed = {"machine": np.array([7, 7]), "at": np.array([10, 30]), "rpm": np.array([900.0, 950.0])}
    >>> torque = {"machine": np.array([7]), "at": np.array([20]), "nm": np.array([4.5])}
    >>> joined = join(speed, torque, on="at", by="machine")
    >>> list(zip(joined["at_left"].tolist(), joined["at_right"].tolist(), joined["nm"].tolist()))
    [(10, 20, 4.5), (30, 20, 4.5)]

    """
    kind = kind_of(left, right)
    names = [by] if isinstance(by, str) else list(by)
    times = (on, on) if isinstance(on, str) else tuple(on)
    sides = [_Side("left", left, times[0], names), _Side("right", right, times[1], names)]
    for side in sides:
        side.check_columns(kind)
    stamps = [side.times(kind) for side in sides]
    if stamps[0].is_datetime != stamps[1].is_datetime or stamps[0].has_zone != stamps[1].has_zone:
        raise ArgumentError(f"on: the times of left are {stamps[0].what}, those of right {stamps[1].what}")
    keys = _keys(kind, sides, [len(at.ns) for at in stamps])
    make_buffer = partial(
        LocalStreamBuffer,
        tolerance_ns=_tolerance(tolerance, stamps[0]),
        lateness_ns=DURATION_MAX_NS,
        direction=direction,
        driver=driver,
        emit_unmatched=emit_unmatched,
    )
    left_seq, right_seq, alone, other = _found(make_buffer, keys, (stamps[0].ns, stamps[1].ns))
    if emit_unmatched != "none":
        left_seq = np.concatenate([left_seq, np.sort(alone), np.full_like(other, NOBODY)])
        right_seq = np.concatenate([right_seq, np.full_like(alone, NOBODY), np.sort(other)])
    rows = _Rows(left_seq, right_seq, len(stamps[0].ns), may_lack=emit_unmatched != "none")
    return _assembled(kind, sides, rows, suffixes)


def _found(
    make_buffer: Callable[[], LocalStreamBuffer], keys: tuple[Ints, Ints], times: tuple[Ints, Ints]
) -> tuple[Ints, ...]:
    """The positions of the left and the right records of all pairs, and of the unmatched ones of either side."""
    found = []
    for left, right in _parts(keys, times):
        step = make_buffer().close(left=left, right=right)
        of_step = step.left_seq, step.right_seq, step.left_unmatched_seq, step.right_unmatched_seq
        # Copies, so that the memory of the step is there for the next one.
        found.append([positions.copy() for positions in of_step])
    return tuple(np.concatenate(positions) for positions in zip(*found, strict=True))


def _parts(keys: tuple[Ints, Ints], times: tuple[Ints, Ints]) -> Iterator[tuple[_Records, _Records]]:
    """The records of both sides, some keys after the others: so many at once that memory is used again and again."""
    keys_end = max(int(key.max(initial=0)) for key in keys) + 1
    counts = [np.bincount(key, minlength=keys_end) for key in keys]
    _, part_of_key = np.unique(((counts[0] + counts[1]).cumsum() - 1) // _PART_RECORDS, return_inverse=True)
    last = int(part_of_key.max())
    positions = []
    for key in keys:
        part = part_of_key.take(key)
        # Numbers of 16 bits are sorted by counting.
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
    """Event times in ns, or in whatever unit integers have."""

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
    """Which rows of both tables stand beside each other; `NOBODY` may be among them where ``may_lack``.

    ``lefts``: how many rows the left table has.
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
    on: str
    by: list[str]

    def check_columns(self, kind: Kind) -> None:
        there = kind.names(self.table)
        for column in (self.on, *self.by):
            if column not in there:
                raise ArgumentError(f"{self.name} has no column {column!r}; it has {', '.join(map(repr, there))}")
            lacking = np.flatnonzero(kind.lacks(self.table, column))
            if len(lacking):
                raise ArgumentError(
                    f"{self.name}[{column!r}] has no value in row {lacking[0]} (and {len(lacking)} rows in all): "
                    "leave such rows out, they are nobody's neighbour"
                )

    def times(self, kind: Kind) -> _Times:
        values, has_zone = kind.column(self.table, self.on)
        if values.dtype.kind == "M":
            return _Times(_in_ns(f"{self.name}[{self.on!r}]", values), is_datetime=True, has_zone=has_zone)
        if values.dtype.kind not in "iu" or (values.dtype == np.uint64):
            raise ArgumentError(
                f"{self.name}[{self.on!r}] must hold integers or datetimes, not {values.dtype}: times that are not "
                "exact have no certain neighbours"
            )
        return _Times(values.astype(np.int64), is_datetime=False, has_zone=False)

    def others(self, kind: Kind) -> list[str]:
        return [name for name in kind.names(self.table) if name not in self.by]


def _in_ns(what: str, values: Array) -> Ints:
    """Datetimes of any unit; those that ns cannot hold are refused."""
    low, high = (np.datetime64(bound, "ns").astype("datetime64[D]") for bound in (TIME_MIN_NS, TIME_MAX_NS))
    days = values.astype("datetime64[D]")
    outside = np.flatnonzero((days < low) | (days > high))
    if len(outside):
        raise ArgumentError(f"{what} = {values[outside[0]]} in row {outside[0]} is outside the years 1678 to 2261")
    return values.astype("datetime64[ns]").view(np.int64)


def _tolerance(value: Any, times: _Times) -> int | None:
    if value is None or not times.is_datetime:
        # An integer, or refused with the name of the option by the buffer.
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
            f"tolerance = {value!r}: a duration is needed where times are datetimes, such as '10 seconds' or "
            "datetime.timedelta(seconds=10)"
        )
    return int(np.timedelta64(value).astype("timedelta64[ns]").astype(np.int64))


def _keys(kind: Kind, sides: list[_Side], counts: list[int]) -> tuple[Ints, Ints]:
    """The keys of the left and of the right rows, of which there are so many, as small integers."""
    names = sides[0].by
    for name in names:
        types = [kind.key_type(side.table, name) for side in sides]
        if types[0] != types[1] and ANYTHING not in types:
            raise ArgumentError(f"by: left[{name!r}] holds {types[0]}, right[{name!r}] {types[1]}; cast one of them")
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
    every = [*left.by, *new[0], *new[1]]
    twice = sorted({name for name in every if every.count(name) > 1})
    if twice:
        raise ArgumentError(f"suffixes = {suffixes!r}: the result would have two columns {twice[0]!r}; choose others")
    parts = [
        (kind.take(left.table, others[0], rows.left, may_lack=rows.may_lack), new[0]),
        (kind.take(right.table, others[1], rows.right, may_lack=rows.may_lack), new[1]),
    ]
    if left.by and not rows.may_lack:
        parts.insert(0, (kind.take(left.table, left.by, rows.left, may_lack=False), left.by))
    elif left.by:
        # Of the left row, or of the right one where there is no left one.
        of_both = kind.stacked(left.table, right.table, left.by)
        at = np.where(rows.left != NOBODY, rows.left, rows.lefts + rows.right)
        parts.insert(0, (kind.take(of_both, left.by, at, may_lack=False), left.by))
    return kind.beside(parts)
