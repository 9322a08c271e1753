"""Validates a buffer's options, and each batch of input columns before it changes the buffer's state."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np

from joiner.core.compiled import COUNT, GIVEN, compiled
from joiner.core.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

ALL_KEYS: Final = -1
"""The key of a watermark that covers every key."""

KEY_MAX: Final = 2**24 - 1
"""The largest key. State is kept in arrays indexed by key, so number keys from 0 without gaps."""

TIME_MIN_NS: Final = -9_214_560_000_000_000_000
"""1678-01-01T00:00:00Z in ns since the epoch. NaT, the smallest int64, is below it and therefore invalid."""

TIME_MAX_NS: Final = 9_214_646_399_999_999_999
"""The last nanosecond of the year 2261, in ns since the epoch."""

DURATION_MAX_NS: Final = 2**63 - 1

SIDES: Final = ("left", "right")
DRIVERS: Final = ("both", *SIDES)
WATERMARK_SCOPES: Final = ("key", "partition")
UNMATCHED: Final = ("none", *SIDES, "both")


class NeighbourSpec(NamedTuple):
    """Which neighbours each record of one side looks for. ``nearest``: only the nearer of the two."""

    prev: bool
    next: bool
    nearest: bool = False


_DIRECTIONS: Final = {
    "both": NeighbourSpec(prev=True, next=True),
    "backward": NeighbourSpec(prev=True, next=False),
    "forward": NeighbourSpec(prev=False, next=True),
    "nearest": NeighbourSpec(prev=True, next=True, nearest=True),
}
_NO_NEIGHBOUR: Final = NeighbourSpec(prev=False, next=False)

DIRECTIONS: Final = tuple(_DIRECTIONS)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The validated options of a `LocalStreamBuffer`, whose docstring explains them.

    ``lateness_ns`` accepts a single value and is stored as (left, right). Raises `ArgumentError` for an invalid option.
    """

    tolerance_ns: int | None = None
    lateness_ns: int | tuple[int, ...] = (0, 0)
    direction: str = "both"
    driver: str = "both"
    watermark_scope: str = "key"
    emit_unmatched: str = "none"

    def __post_init__(self) -> None:
        for name, known in (
            ("direction", DIRECTIONS),
            ("driver", DRIVERS),
            ("watermark_scope", WATERMARK_SCOPES),
            ("emit_unmatched", UNMATCHED),
        ):
            check_choice(name, getattr(self, name), known)
        if self.tolerance_ns is not None:
            object.__setattr__(self, "tolerance_ns", check_duration("tolerance_ns", self.tolerance_ns))
        given = self.lateness_ns
        sides = tuple(given) if isinstance(given, (tuple, list)) else (given, given)
        if len(sides) != len(SIDES):
            message = f"lateness_ns must be one value or (left, right), not {len(sides)} values"
            raise ArgumentError(message)
        checked = tuple(
            check_duration(f"lateness_ns ({name})", value) for name, value in zip(SIDES, sides, strict=True)
        )
        object.__setattr__(self, "lateness_ns", checked)

    @property
    def lateness_by_side_ns(self) -> tuple[int, int]:
        """The lateness of the left and right streams, in ns."""
        left, right = self.lateness_ns  # type: ignore[misc] # a tuple since `__post_init__`
        return left, right

    @property
    def tolerance(self) -> np.uint64:
        """The tolerance in ns. Without one, the largest uint64, since no two times can be further apart."""
        return np.uint64(2**64 - 1 if self.tolerance_ns is None else self.tolerance_ns)

    @property
    def neighbour_specs(self) -> tuple[NeighbourSpec, NeighbourSpec]:
        """For each side (left, right), the neighbours that its records look for."""
        spec = _DIRECTIONS[self.direction]
        return (_NO_NEIGHBOUR if self.driver == "right" else spec), (_NO_NEIGHBOUR if self.driver == "left" else spec)

    @property
    def emits_unmatched(self) -> tuple[bool, bool]:
        """For each side (left, right), whether its unmatched records are emitted."""
        return self.emit_unmatched in {"left", "both"}, self.emit_unmatched in {"right", "both"}

    def changed(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, by name."""
        defaults = asdict(type(self)())
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}

    def to_json(self) -> dict[str, Any]:
        """Return the options for a snapshot's header. ``watermark_scope`` is stored under its old name ``progress``."""
        return {
            "tolerance_ns": self.tolerance_ns,
            "direction": self.direction,
            "driver": self.driver,
            "progress": self.watermark_scope,
            "emit_unmatched": self.emit_unmatched,
            "lateness_ns": self.lateness_ns,
        }

    @classmethod
    def from_json(cls, header: dict[str, Any]) -> Self:
        """Create options from a header written by `to_json`. Other fields in the header are ignored."""
        return cls(
            tolerance_ns=header["tolerance_ns"],
            lateness_ns=tuple(header["lateness_ns"]),
            direction=header["direction"],
            driver=header["driver"],
            watermark_scope=header["progress"],
            emit_unmatched=header["emit_unmatched"],
        )


class Records(NamedTuple):
    """Records of one stream in log order: keys, event times in ns, log positions and identities, shape (n,) each.

    Two records in a stream with the same key, time and identity represent one event that was delivered twice.
    ``identity`` is None if the source provides no identities. In that case, no record is treated as a duplicate.
    """

    key: Ints
    ts: Ints
    seq: Ints
    identity: Ints | None

    def without(self, indices: Ints) -> Records:
        """Return all records except those at ``indices``."""
        if not len(indices):
            return self
        stays = np.ones(len(self.key), dtype=bool)
        stays[indices] = False
        identity = None if self.identity is None else self.identity[stays]
        return Records(self.key[stays], self.ts[stays], self.seq[stays], identity)


class Watermarks(NamedTuple):
    """Watermarks of one stream in log order: keys (or `ALL_KEYS`), times in ns and log positions, shape (n,) each."""

    key: Ints
    ts: Ints
    seq: Ints


def check_records(name: str, columns: Sequence[object] | None) -> Records:
    """Validate ``(keys, ts_ns, seq)`` or ``(keys, ts_ns, seq, identity)``, int64 arrays of shape (n,).

    None means no records. ``name``: the name of the argument, for error messages. Raises an `ArgumentError` that names
    the column and, if a single value is invalid, its index.
    """
    if columns is None:
        return _NO_RECORDS
    with_identity = 4
    key, ts, seq, *identity = _columns(name, columns, (with_identity - 1, with_identity))
    _check_range(f"{name} keys", key, 0, KEY_MAX, "keys must be from 0 to 2**24 - 1; number them without gaps")
    _check_range(f"{name} ts_ns", ts, TIME_MIN_NS, TIME_MAX_NS, _TIMES)
    return Records(key, ts, seq, identity[0] if identity else None)


def check_watermarks(name: str, columns: Sequence[object] | None) -> Watermarks:
    """Validate ``(keys, ts_ns, seq)``, int64 arrays of shape (n,), where a key may be `ALL_KEYS`.

    None means no watermarks. ``name``: the name of the argument, for error messages. Raises an `ArgumentError` that
    names the column and, if a single value is invalid, its index.
    """
    if columns is None:
        return _NO_WATERMARKS
    key, ts, seq = _columns(name, columns, (3,))
    _check_range(f"{name} keys", key, ALL_KEYS, KEY_MAX, "keys must be ALL_KEYS (-1), or from 0 to 2**24 - 1")
    _check_range(f"{name} ts_ns", ts, TIME_MIN_NS, TIME_MAX_NS, _TIMES)
    return Watermarks(key, ts, seq)


def check_rising(name: str, records: Records, watermarks: Watermarks, last_seq: int | None) -> int | None:
    """Check that the log positions of a stream's records and watermarks are strictly increasing. Return the last one.

    ``last_seq``: the last position in the previous batches, or None if there were none. It is returned if this batch is
    empty. Raises an `ArgumentError` that names the column and the index.
    """
    for what, seq in ((f"{name} seq", records.seq), (f"{name}_watermarks seq", watermarks.seq)):
        if not len(seq):
            continue
        if last_seq is not None and seq[0] <= last_seq:
            message = f"{what}[0] = {seq[0]} must be greater than {last_seq}, the last position of this stream"
            raise ArgumentError(message)
        _check_rising_within(what, seq)
    if len(records.seq) and len(watermarks.seq):
        at = np.searchsorted(records.seq, watermarks.seq)
        shared = np.flatnonzero(records.seq[np.minimum(at, len(records.seq) - 1)] == watermarks.seq)
        if len(shared):
            message = (
                f"{name}_watermarks seq[{shared[0]}] = {watermarks.seq[shared[0]]} is also the position of a record: "
                "records and watermarks of a stream share one sequence of positions"
            )
            raise ArgumentError(message)
    lasts = [int(seq[-1]) for seq in (records.seq, watermarks.seq) if len(seq)]
    return max(lasts) if lasts else last_seq


def check_identities(batches: Sequence[Records], known: Sequence[bool | None]) -> list[bool | None]:
    """Return, for each side, whether its records have identities, or None if it has had no records yet.

    Raises `ArgumentError` if a side has identities in only some batches, because a duplicate could then not be
    distinguished from a different record with the same time.
    """
    return [
        check_identity(f"{name} identity", batch, has_identity)
        for name, batch, has_identity in zip(SIDES, batches, known, strict=True)
    ]


def check_identity(what: str, batch: Records, known: bool | None) -> bool | None:  # noqa: FBT001 - a state, not an option
    """Like `check_identities`, but for one stream. ``what``: how error messages refer to the identities."""
    if not len(batch.key):
        return known
    has_identity = batch.identity is not None
    if known not in {None, has_identity}:
        message = f"{what} must be present in every batch of a stream, or in none"
        raise ArgumentError(message)
    return has_identity


def check_choice(name: str, value: object, known: Sequence[str]) -> None:
    """Raise `ArgumentError` unless ``value`` is one of ``known``."""
    if value not in known:
        message = f"{name} must be one of {', '.join(map(repr, known))}, not {value!r}"
        raise ArgumentError(message)


def check_duration(name: str, value: object) -> int:
    """Return a duration in ns as an int. Raises `ArgumentError` unless it is an integer from 0 to 2**63 - 1."""
    if isinstance(value, (bool, float)) or not isinstance(value, (int, np.integer)):
        message = f"{name} must be an integer number of nanoseconds, not {value!r}"
        raise ArgumentError(message)
    if not 0 <= value <= DURATION_MAX_NS:
        message = f"{name} = {value} is outside the range from 0 to 2**63 - 1 nanoseconds"
        raise ArgumentError(message)
    return int(value)


_NONE: Final = np.empty(0, dtype=np.int64)
_NO_RECORDS: Final = Records(_NONE, _NONE, _NONE, None)
_NO_WATERMARKS: Final = Watermarks(_NONE, _NONE, _NONE)


def _columns(name: str, columns: Sequence[object], counts: tuple[int, ...]) -> list[Ints]:
    if len(columns) not in counts:
        expected = "(keys, ts_ns, seq)" + (" or (keys, ts_ns, seq, identity)" if len(counts) > 1 else "")
        message = f"{name} must be {expected}, not {len(columns)} columns"
        raise ArgumentError(message)
    names = ("keys", "ts_ns", "seq", "identity")
    arrays = [_int64(f"{name} {names[i]}", column) for i, column in enumerate(columns)]
    for i, array in enumerate(arrays):
        if len(array) != len(arrays[0]):
            message = f"{name} {names[i]} has {len(array)} values, but {name} keys has {len(arrays[0])}"
            raise ArgumentError(message)
    return arrays


def _int64(name: str, column: object) -> Ints:
    array = np.asarray(column)
    if array.ndim != 1:
        message = f"{name} must have one dimension, not {array.ndim}"
        raise ArgumentError(message)
    if not len(array):
        return _NONE
    if array.dtype != np.int64:
        message = f"{name} must have dtype int64, not {array.dtype} (the value at index 0 is {array[0]!r})"
        raise ArgumentError(message)
    return np.ascontiguousarray(array)


_TIMES: Final = "times must be ns since the epoch, in the years 1678 to 2261, and not NaT"


def _check_range(name: str, values: Ints, low: int, high: int, hint: str) -> None:
    at = _find_outside(values, low, high)
    if at < len(values):
        message = f"{name}[{at}] = {values[at]} is out of range: {hint}"
        raise ArgumentError(message)


@compiled(COUNT, GIVEN, COUNT, COUNT)
def _find_outside(values: Ints, low: int, high: int) -> int:
    """Return the index of the first value outside the range, or the array's length if there is none."""
    for at in range(len(values)):
        if not low <= values[at] <= high:
            return at
    return len(values)


def _check_rising_within(name: str, seq: Ints) -> None:
    at = _find_not_rising(seq)
    if at < len(seq):
        message = f"{name}[{at}] = {seq[at]} must be greater than {seq[at - 1]}, the position before it"
        raise ArgumentError(message)


@compiled(COUNT, GIVEN)
def _find_not_rising(values: Ints) -> int:
    """Return the index of the first value not greater than its predecessor, or the array's length if there is none."""
    for at in range(1, len(values)):
        if values[at] <= values[at - 1]:
            return at
    return len(values)
