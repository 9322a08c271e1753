"""From pairs to results: the joining function is applied to whole batches, what fails goes to the dead letters."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from broker.times import UNIT_NS, mean_text
from broker.wire import Joined, Record, Rejected, Side, encode, pair_ids, reject
from joiner.functions import NUMBER_KINDS, Columns, JoinFunction, load_function
from joiner.run.payloads import Rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from joiner.run.settings import JoinerSettings, JoinSettings

    Ints = NDArray[np.int64]


class Pairs(NamedTuple):
    """n pairs of one join: the records, their things, and the engine's ordinals (int64, shape (n,))."""

    left: Rows
    right: Rows
    things: list[str]
    left_ordinal: Ints
    right_ordinal: Ints

    def only(self, at: int) -> Pairs:
        """One of them."""
        here = slice(at, at + 1)
        left, right = self.left.part(at, at + 1), self.right.part(at, at + 1)
        return Pairs(left, right, self.things[here], self.left_ordinal[here], self.right_ordinal[here])


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
        means = mean_times(pairs.left.ts_ns, pairs.right.ts_ns, self._time_unit)
        values, reasons = _evaluate(self._function, pairs)
        joined = list(
            map(
                Joined,
                pairs.things,
                repeat(self._join.output),
                means,
                values,
                pair_ids(self._join.name, self._unit, pairs.left.seq.tolist(), pairs.right.seq.tolist()),
                pairs.left.shown.tolist(),
                pairs.right.shown.tolist(),
                _ties(pairs.left_ordinal, pairs.right_ordinal),
            )
        )
        if not reasons:
            return joined, []
        failed = [self._dead_letter(joined[at], reason) for at, reason in sorted(reasons.items())]
        return [one for at, one in enumerate(joined) if at not in reasons], failed

    def _dead_letter(self, pair: Joined, reason: str) -> Rejected:
        left, right = (encode(record_of(pair.thing, side)) for side in (pair.left, pair.right))
        value = b'{"left":' + left + b',"right":' + right + b"}"
        why = f"the joining function {self._join.function} of join {self._join.name!r}: {reason}"
        return reject(value, why, source=self._source, topic=self._topic, partition=self._unit, identity=pair.id)


def record_of(thing: str, side: Side) -> Record:
    """The record that a side of a result shows."""
    return Record(thing, side.quantity, side.phenomenonTime, side.result, side.id)


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


def _evaluate(function: JoinFunction, pairs: Pairs) -> tuple[list[float] | list[dict[str, float]], dict[int, str]]:
    """The values by position, and by position the reasons of those that have none.

    A function that raises on a batch is asked again for each pair, so that one bad pair costs only itself. It gets
    new columns each time: it may have altered those that it was given.
    """
    count = len(pairs.things)
    try:
        values = _call(function, _columns(pairs.left, pairs.things), _columns(pairs.right, pairs.things))
    except BaseException as error:  # noqa: BLE001 - a user's function may raise anything, SystemExit too; signals come otherwise
        if count == 1:
            return [np.nan], {0: f"{type(error).__name__}: {error}"}
        return _evaluate_singly(function, pairs)
    finite = np.isfinite(values) if values.ndim == 1 else np.isfinite(values).all(axis=1)
    reasons = {
        at: f"the value is {values[at].tolist()}, not a finite number" for at in np.flatnonzero(~finite).tolist()
    }
    if values.ndim == 1:
        return values.tolist(), reasons
    return [{"left": left, "right": right} for left, right in values.tolist()], reasons


def _evaluate_singly(
    function: JoinFunction, pairs: Pairs
) -> tuple[list[float] | list[dict[str, float]], dict[int, str]]:
    values: list[object] = []
    reasons = {}
    for at in range(len(pairs.things)):
        value, why = _evaluate(function, pairs.only(at))
        values.append(value[0])
        if why:
            reasons[at] = why[0]
    return values, reasons  # type: ignore[return-value] # numbers or pairs of them, as the function gives


def _columns(rows: Rows, things: list[str]) -> Columns:
    return Columns(rows.result.copy(), rows.ts_ns.copy(), list(things), [one.id for one in rows.shown])


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
