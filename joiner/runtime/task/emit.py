"""Turns pairs into results by applying the joining function in batches. A failed pair becomes a dead letter."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from broker.times import UNIT_NS, mean_text
from broker.wire.bulk import JoinedColumns, encode_joined
from broker.wire.columns import StringColumn, glue
from broker.wire.records import Record, Rejected, Side, decode_sides, encode, encode_lines, pair_id, reject
from joiner import functions
from joiner.functions import Columns, JoinFunction, call_function, load_function, place_of, reason_of
from joiner.runtime.task.batch import Batch
from joiner.runtime.task.function_failures import Failures
from joiner.runtime.task.payloads import Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joiner.runtime.settings import JoinerSettings, JoinSettings

    Ints = NDArray[np.int64]


class Things(NamedTuple):
    """The things of n records: the distinct names, and each record's index into them (int64, shape (n,))."""

    names: list[str]
    number: Ints

    def texts(self) -> StringColumn:
        """Return the name of each record's thing, as JSON."""
        return StringColumn.of([encode(name) for name in self.names]).take(self.number)

    def each(self) -> list[str]:
        """Return the name of each record's thing."""
        return [self.names[number] for number in self.number.tolist()]

    def keys(self) -> StringColumn:
        """Return the name of each record's thing, as the key of a Kafka message."""
        return StringColumn.of([name.encode() for name in self.names]).take(self.number)


class Pairs(NamedTuple):
    """n pairs of one join: their records and things, and the engine's ordinals (int64, shape (n,))."""

    left: Rows
    right: Rows
    things: Things
    left_ordinal: Ints
    right_ordinal: Ints

    def __len__(self) -> int:
        return len(self.left_ordinal)

    def take(self, which: Ints) -> Pairs:
        """Return the pairs at these indices."""
        return Pairs(
            self.left.take(which),
            self.right.take(which),
            self.things._replace(number=self.things.number.take(which)),
            self.left_ordinal.take(which),
            self.right_ordinal.take(which),
        )


class Emitter:
    """Turns the pairs of one join in one unit into results."""

    def __init__(self, settings: JoinerSettings, join: JoinSettings, unit: int) -> None:
        self._join = join
        self._unit = unit
        self._source = settings.application.name
        self._topic = settings.topics.out
        self._time_unit = settings.events.time_unit
        self._is_compact = settings.application.results == "compact"
        self._function = load_function(join.function)
        self.failures: Failures | None = None
        """The pairs of the last `results` whose joining function failed."""

    def results(self, pairs: Pairs) -> tuple[Batch, list[Rejected]]:
        """Return one result for each pair, in order, or a dead letter if the joining function failed for it."""
        values, reasons = _evaluate(self._function, pairs)
        failed = []
        self.failures = None
        if reasons:
            which = np.array(sorted(reasons), dtype=np.int64)
            failed = self._dead_letters(pairs.take(which), [reasons[at].text for at in which.tolist()])
            self.failures = Failures.of(len(failed), *reasons[int(which[0])])
            which = np.setdiff1d(np.arange(len(pairs)), which)
            pairs, values = pairs.take(which), [values[at] for at in which.tolist()]
        columns = JoinedColumns(
            pairs.things.texts(),
            mean_times(pairs.left.ts_ns, pairs.right.ts_ns, self._time_unit),
            StringColumn.of_lines(encode_lines(values)),
            pairs.left.seq,
            pairs.right.seq,
            None if self._is_compact else (pairs.left.shown, pairs.right.shown),
            pairs.left_ordinal,
            pairs.right_ordinal,
        )
        written = encode_joined(columns, self._join.output, self._join.name, self._unit)
        return Batch(pairs.things.keys(), written), failed

    def _dead_letters(self, pairs: Pairs, reasons: list[str]) -> list[Rejected]:
        records = (
            [encode(record_of(thing, side)) for thing, side in zip(pairs.things.each(), sides_of(rows), strict=True)]
            for rows in (pairs.left, pairs.right)
        )
        return [
            reject(
                b'{"left":' + left + b',"right":' + right + b"}",
                f"the joining function {self._join.function} of join {self._join.name!r}: {reason}",
                source=self._source,
                topic=self._topic,
                partition=self._unit,
                identity=pair_id(self._join.name, self._unit, left_seq, right_seq),
            )
            for left, right, left_seq, right_seq, reason in zip(
                *records, pairs.left.seq.tolist(), pairs.right.seq.tolist(), reasons, strict=True
            )
        ]


def sides_of(rows: Rows) -> list[Side]:
    """Return the records of ``rows`` as results contain them."""
    return decode_sides(glue(rows.shown, b"\n").joined())


def record_of(thing: str, side: Side) -> Record:
    """Return the record that a side of a result contains."""
    return Record(thing, side.quantity, side.phenomenonTime, side.result, side.id)


def mean_time(left_ns: int, right_ns: int, unit: str) -> int | msgspec.Raw:
    """Return the exact mean of two times in ``unit``: an integer, or the text of a decimal."""
    whole, rest = divmod(left_ns + right_ns, 2 * UNIT_NS[unit])
    return msgspec.Raw(mean_text(left_ns, right_ns, unit).encode()) if rest else whole


def mean_times(left_ns: Ints, right_ns: Ints, unit: str) -> list[StringColumn | Ints]:
    """Return `mean_time` of n pairs of times, as columns whose rows concatenated are JSON (see `glue`)."""
    unit_ns = UNIT_NS[unit]
    (left, left_rest), (right, right_rest) = np.divmod(left_ns, unit_ns), np.divmod(right_ns, unit_ns)
    # The mean rounded down, without the sum, which may overflow an int64.
    whole = (left & right) + ((left ^ right) >> 1)
    if left_rest.any() or right_rest.any() or (whole < 0).any():
        means = [mean_time(one, other, unit) for one, other in zip(left_ns.tolist(), right_ns.tolist(), strict=True)]
        return [StringColumn.of_lines(encode_lines(means))]
    has_half = ((left ^ right) & 1).astype(bool)
    return [whole, StringColumn.repeated(b".5", len(whole)).where(has_half)]


class _Reason(NamedTuple):
    """Why a pair has no value, and where in the user's program the error was raised."""

    text: str
    place: str = ""


def _evaluate(
    function: JoinFunction, pairs: Pairs, *, with_place: bool = True
) -> tuple[list[float] | list[dict[str, float]], dict[int, _Reason]]:
    """Return the value of each pair, and the reasons, by position, of the pairs that have none.

    A function that raises on a batch is called again for each pair, so that one bad pair does not affect the others. It
    gets fresh columns each time, because the previous call may have modified its own. ``with_place``: also find where
    an error was raised, which takes longer than the call.
    """
    count = len(pairs)
    try:
        columns = (_columns(rows, pairs.things, function) for rows in (pairs.left, pairs.right))
        values = call_function(function, *columns)
    except BaseException as error:  # noqa: BLE001 - a user's function may raise anything, SystemExit too; signals come otherwise
        if count == 1:
            place = place_of(error) if with_place else ""
            return [np.nan], {0: _Reason(reason_of(error), place)}
        return _evaluate_singly(function, pairs)
    finite = np.isfinite(values) if values.ndim == 1 else np.isfinite(values).all(axis=1)
    reasons = {
        at: _Reason(f"the value is {values[at].tolist()}, not a finite number")
        for at in np.flatnonzero(~finite).tolist()
    }
    if values.ndim == 1:
        return values.tolist(), reasons
    return [{"left": left, "right": right} for left, right in values.tolist()], reasons


def _evaluate_singly(
    function: JoinFunction, pairs: Pairs
) -> tuple[list[float] | list[dict[str, float]], dict[int, _Reason]]:
    values: list[object] = []
    reasons: dict[int, _Reason] = {}
    for at in range(len(pairs)):
        value, why = _evaluate(function, pairs.take(np.array([at])), with_place=not reasons)
        values.append(value[0])
        if why:
            reasons[at] = why[0]
    return values, reasons  # type: ignore[return-value] # numbers or pairs of them, as the function gives


def _columns(rows: Rows, things: Things, function: JoinFunction) -> Columns:
    result, time_ns = rows.result.copy(), rows.ts_ns.copy()
    if getattr(function, "__module__", "") == functions.__name__:
        # The built-in functions use only numbers, and creating the strings takes longer than everything else.
        return Columns(result, time_ns, (), ())
    return Columns(result, time_ns, things.each(), [side.id for side in sides_of(rows)])
