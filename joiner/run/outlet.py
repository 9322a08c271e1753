"""From pairs to results: the joining function is applied to whole batches, what fails goes to the dead letters."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from broker.times import UNIT_NS, mean_text
from broker.wire import Joined, Record, Rejected, Side, encode, pair_id, reject
from joiner.functions import NUMBER_KINDS, Columns, JoinFunction, load_function

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from joiner.run.settings import JoinerSettings, JoinSettings

    Ints = NDArray[np.int64]


class HeldRecord(msgspec.Struct, frozen=True, gc=False):
    """A record with its event time in ns, as the unit keeps it while the engine holds it, and as results show it."""

    ts_ns: int
    record: Record
    side: Side

    @classmethod
    def of_all(cls, ts_ns: Sequence[int], records: Sequence[Record]) -> list[HeldRecord]:
        """Many at once. The loops are those of ``map``: there is one of these for every record."""
        sides = map(
            Side,
            [record.quantity for record in records],
            [record.phenomenonTime for record in records],
            [record.result for record in records],
            [record.id for record in records],
        )
        return list(map(cls, ts_ns, records, sides))


class Pairs(NamedTuple):
    """n pairs of one join: the records, and the engine's positions and ordinals (int64, shape (n,))."""

    left: list[HeldRecord]
    right: list[HeldRecord]
    left_seq: Ints
    right_seq: Ints
    left_ordinal: Ints
    right_ordinal: Ints


class Outlet:
    """Makes the results of one join in one unit."""

    def __init__(self, settings: JoinerSettings, join: JoinSettings, unit: int) -> None:
        self._join = join
        self._unit = unit
        self._source = settings.application.name
        self._topic = settings.topics.out
        self._time_unit = settings.events.time_unit
        self._function = load_function(join.function)

    def results(self, pairs: Pairs) -> tuple[list[Joined], list[Rejected]]:
        """One result for each pair, in order, and a dead letter for each pair whose function failed."""
        left, right = _columns(pairs.left), _columns(pairs.right)
        # Before the function, which may alter what it is given.
        means = mean_times(left.time_ns, right.time_ns, self._time_unit)
        values, reasons = _evaluate(self._function, pairs.left, pairs.right, (left, right))
        ids = [
            pair_id(self._join.name, self._unit, left_seq, right_seq)
            for left_seq, right_seq in zip(pairs.left_seq.tolist(), pairs.right_seq.tolist(), strict=True)
        ]
        joined = list(
            map(
                Joined,
                [held.record.thing for held in pairs.left],
                repeat(self._join.output),
                means,
                [{"left": value[0], "right": value[1]} if isinstance(value, list) else value for value in values],
                ids,
                [held.side for held in pairs.left],
                [held.side for held in pairs.right],
                _ties(pairs.left_ordinal, pairs.right_ordinal),
            )
        )
        failed = [
            self._dead_letter(ids[at], reason, pairs.left[at], pairs.right[at])
            for at, reason in sorted(reasons.items())
        ]
        return [one for at, one in enumerate(joined) if at not in reasons] if reasons else joined, failed

    def _dead_letter(self, identity: str, reason: str, left: HeldRecord, right: HeldRecord) -> Rejected:
        value = b'{"left":' + encode(left.record) + b',"right":' + encode(right.record) + b"}"
        why = f"the joining function {self._join.function} of join {self._join.name!r}: {reason}"
        return reject(value, why, source=self._source, topic=self._topic, partition=self._unit, identity=identity)


def mean_time(left_ns: int, right_ns: int, unit: str) -> int | msgspec.Raw:
    """The mean of two times in ``unit``, exact: an integer, or the text of a decimal."""
    whole, rest = divmod(left_ns + right_ns, 2 * UNIT_NS[unit])
    return msgspec.Raw(mean_text(left_ns, right_ns, unit).encode()) if rest else whole


def mean_times(left_ns: Ints, right_ns: Ints, unit: str) -> list[int | msgspec.Raw]:
    """As `mean_time`, of n pairs of times."""
    unit_ns = UNIT_NS[unit]
    (left, left_rest), (right, right_rest) = np.divmod(left_ns, unit_ns), np.divmod(right_ns, unit_ns)
    # Rounded down, without the sum, which an int64 may not hold.
    whole = (left & right) + ((left ^ right) >> 1)
    if left_rest.any() or right_rest.any() or (whole < 0).any():
        return [mean_time(one, other, unit) for one, other in zip(left_ns.tolist(), right_ns.tolist(), strict=True)]
    has_half = ((left ^ right) & 1).tolist()
    return [msgspec.Raw(b"%d.5" % mean) if half else mean for mean, half in zip(whole.tolist(), has_half, strict=True)]


def _ties(left_ordinal: Ints, right_ordinal: Ints) -> Iterable[str]:
    """The names of n pairs among those of equal times; empty where there are no such."""
    if not (left_ordinal.any() or right_ordinal.any()):
        return repeat("")
    ordinals = zip(left_ordinal.tolist(), right_ordinal.tolist(), strict=True)
    return [f"{left}-{right}" if left or right else "" for left, right in ordinals]


def _columns(held: Sequence[HeldRecord]) -> Columns:
    return Columns(
        np.array([one.record.result for one in held], dtype=np.float64),
        np.array([one.ts_ns for one in held], dtype=np.int64),
        [one.record.thing for one in held],
        [one.record.id for one in held],
    )


def _evaluate(
    function: JoinFunction,
    left: Sequence[HeldRecord],
    right: Sequence[HeldRecord],
    columns: tuple[Columns, Columns],
) -> tuple[list[float] | list[list[float]], dict[int, str]]:
    """The values by position, and by position the reasons of those that have none.

    A function that raises on a batch is asked again for each pair, so that one bad pair costs only itself. It gets
    new columns each time: it may have altered those that it was given.
    """
    count = len(left)
    try:
        values = _call(function, *columns)
    except BaseException as error:  # noqa: BLE001 - a user's function may raise anything, SystemExit too; signals come otherwise
        if count == 1:
            return [np.nan], {0: f"{type(error).__name__}: {error}"}
        return _evaluate_singly(function, left, right)
    finite = np.isfinite(values) if values.ndim == 1 else np.isfinite(values).all(axis=1)
    reasons = {
        at: f"the value is {values[at].tolist()}, not a finite number" for at in np.flatnonzero(~finite).tolist()
    }
    return values.tolist(), reasons


def _evaluate_singly(
    function: JoinFunction, left: Sequence[HeldRecord], right: Sequence[HeldRecord]
) -> tuple[list[float] | list[list[float]], dict[int, str]]:
    values: list[object] = []
    reasons = {}
    for at in range(len(left)):
        one, other = left[at : at + 1], right[at : at + 1]
        value, why = _evaluate(function, one, other, (_columns(one), _columns(other)))
        values.append(value[0])
        if why:
            reasons[at] = why[0]
    return values, reasons  # type: ignore[return-value] # numbers or pairs of them, as the function gives


def _call(function: JoinFunction, left: Columns, right: Columns) -> NDArray[np.float64]:
    count = len(left.result)
    with np.errstate(all="ignore"):
        given = np.asarray(function(left, right))
        if given.dtype.kind not in NUMBER_KINDS:
            message = f"it gave {given.dtype} values, not real numbers"
            raise TypeError(message)
        values = given.astype(np.float64)
    if values.shape not in {(count,), (count, 2)}:
        message = f"it gave an array of shape {values.shape} for {count} pairs"
        raise ValueError(message)
    return values
