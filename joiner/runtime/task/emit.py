"""Turns pairs into results by applying the joining function in batches. A failed pair becomes a dead letter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from broker.kafka.replicas import shared_name
from broker.times import UNIT_NS, mean_text
from broker.wire.bulk import JoinedColumns, Pieces, encode_joined, position_pieces
from broker.wire.columns import StringColumn, glue
from broker.wire.records import (
    Record,
    Rejected,
    Side,
    decode_sides,
    encode,
    encode_lines,
    pair_id,
    position_text,
    reject,
)
from joiner import functions
from joiner.functions import Columns, JoinFunction, call_function, load_function, place_of, reason_of
from joiner.runtime.task.batch import Batch
from joiner.runtime.task.function_failures import Failures
from joiner.runtime.task.payloads import Rows, with_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joiner.operators import JoinSettings
    from joiner.runtime.settings import JoinerSettings

    Ints = NDArray[np.int64]


class Things(NamedTuple):
    """The thing names of n records: the distinct names, and each record's index into them (int64, shape (n,))."""

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

    def __init__(
        self, settings: JoinerSettings, join: JoinSettings, unit: int, encode_pairs: EncodePairs | None = None
    ) -> None:
        """``encode_pairs``: encodes results that are not written as JSON."""
        self._join = join
        self._encode_pairs = encode_pairs
        self._has_rows = settings.topics.has_rows
        self._quantities = settings.selection(join.left)["quantity"], settings.selection(join.right)["quantity"]
        self._unit = unit
        self._source = settings.application.shared_name
        # Replicas write the same content, so a dead letter does not name the topic of one of them.
        self._topic = shared_name(settings.topics.out, settings.application.replica)
        self._time_unit = settings.events.time_unit
        self._has_sides = settings.application.results == "full"
        self._function = load_function(join.function)
        self.needs_strings = self._has_sides or not _is_built_in(self._function)
        """Whether `results` needs the strings of all records, or only those of pairs that fail."""
        self.failures: Failures | None = None
        """The failures of the joining function in the last call of `results`, or None if there were none."""

    def results(self, pairs: Pairs, with_strings: Callable[[], Pairs] | None = None) -> tuple[Batch, list[Rejected]]:
        """Return the results of the pairs, in order, and dead letters for the pairs for which the function failed.

        ``with_strings`` returns the same pairs with their strings, if ``pairs`` has none.
        """
        is_short = self._has_rows
        if is_short and not _is_built_in(self._function):
            pairs, is_short = self._shown(pairs), False
        values, reasons = evaluate(partial(_values_of, self._function, pairs), len(pairs))
        failed = []
        self.failures = None
        if reasons:
            which = np.array(sorted(reasons), dtype=np.int64)
            complete = pairs if self.needs_strings or with_strings is None else with_strings()
            wrong = complete.take(which)
            failed = self._dead_letters(self._shown(wrong) if is_short else wrong, reasons)
            if complete is not pairs:
                pairs = complete
            self.failures = Failures.of(len(failed), *reasons[int(which[0])])
            which = np.setdiff1d(np.arange(len(pairs)), which)
            pairs, values = pairs.take(which), values.take(which, axis=0)
        if self._encode_pairs is not None:
            return self._encode_pairs(pairs, values), failed
        return self._as_json(self._shown(pairs) if is_short and self._has_sides else pairs, values), failed

    def _shown(self, pairs: Pairs) -> Pairs:
        """Return pairs with their records converted from the short form to the form in results."""
        left, right = (
            with_json(rows, quantity, self._time_unit)
            for rows, quantity in zip((pairs.left, pairs.right), self._quantities, strict=True)
        )
        return Pairs(left, right, pairs.things, pairs.left_ordinal, pairs.right_ordinal)

    def _as_json(self, pairs: Pairs, values: NDArray[np.float64]) -> Batch:
        numbers = values.tolist()
        results = numbers if values.ndim == 1 else [{"left": left, "right": right} for left, right in numbers]
        columns = JoinedColumns(
            pairs.things.texts(),
            mean_times(pairs.left.ts_ns, pairs.right.ts_ns, self._time_unit),
            StringColumn.of_lines(encode_lines(results)),
            position_pieces(pairs.left.seq, has_rows=self._has_rows),
            position_pieces(pairs.right.seq, has_rows=self._has_rows),
            (pairs.left.shown, pairs.right.shown) if self._has_sides else None,
            pairs.left_ordinal,
            pairs.right_ordinal,
        )
        written = encode_joined(columns, self._join.output, self._join.name, self._unit)
        return Batch(pairs.things.keys(), written)

    def _dead_letters(self, pairs: Pairs, reasons: dict[int, Reason]) -> list[Rejected]:
        texts = [reasons[at].text for at in sorted(reasons)]
        lefts, rights = (
            [position_text(seq, has_rows=self._has_rows) for seq in rows.seq.tolist()]
            for rows in (pairs.left, pairs.right)
        )
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
                identity=pair_id(self._join.name, self._unit, left_at, right_at),
            )
            for left, right, left_at, right_at, reason in zip(*records, lefts, rights, texts, strict=True)
        ]


def sides_of(rows: Rows) -> list[Side]:
    """Return the records in ``rows`` in the form used in results."""
    return decode_sides(glue(rows.shown, b"\n").joined())


def record_of(thing: str, side: Side) -> Record:
    """Return the record contained in one side of a result."""
    return Record(thing, side.quantity, side.phenomenonTime, side.result, side.id)


def mean_time(left_ns: int, right_ns: int, unit: str) -> int | msgspec.Raw:
    """Return the exact mean of two times in ``unit``: an integer, or the text of a decimal."""
    whole, rest = divmod(left_ns + right_ns, 2 * UNIT_NS[unit])
    return msgspec.Raw(mean_text(left_ns, right_ns, unit).encode()) if rest else whole


def mean_times(left_ns: Ints, right_ns: Ints, unit: str) -> Pieces:
    """Return the `mean_time` of n pairs, as columns whose concatenation is each pair's JSON (see `glue`)."""
    unit_ns = UNIT_NS[unit]
    (left, left_rest), (right, right_rest) = np.divmod(left_ns, unit_ns), np.divmod(right_ns, unit_ns)
    # Compute the mean, rounded down, without the sum, which might overflow an int64.
    whole = (left & right) + ((left ^ right) >> 1)
    if left_rest.any() or right_rest.any() or (whole < 0).any():
        means = [mean_time(one, other, unit) for one, other in zip(left_ns.tolist(), right_ns.tolist(), strict=True)]
        return [StringColumn.of_lines(encode_lines(means))]
    has_half = ((left ^ right) & 1).astype(bool)
    return [whole, StringColumn.repeated(b".5", len(whole)).where(has_half)]


EncodePairs = Callable[[Pairs, "NDArray[np.float64]"], Batch]
"""Encodes n pairs and their values, of shape (n,), or (n, 2) with one value per side, as messages."""


class Reason(NamedTuple):
    """Why a pair or a row has no value, and where in the user's code the error was raised."""

    text: str
    place: str = ""


Call = Callable[["Ints | None"], "NDArray[np.float64]"]
"""Calls a function with the pairs or rows at the given indices (None: all), and returns its values.

Each call passes new columns, because the function may have modified those of the previous call.
"""


def evaluate(call: Call, count: int, *, with_place: bool = True) -> tuple[NDArray[np.float64], dict[int, Reason]]:
    """Return the values of ``count`` pairs or rows and, by index, the reason for each that has none.

    The values have shape (n,) or, if the function keeps both sides of a pair, (n, 2).

    A function that raises on a batch is called again for each pair or row, so that one failure does not affect the
    others. ``with_place``: also determine where an error was raised, which takes longer than the call itself.
    """
    try:
        values = call(None)
    except BaseException as error:  # noqa: BLE001 - a user's function may raise anything; signals do not raise
        if count == 1:
            place = place_of(error) if with_place else ""
            return np.full(1, np.nan), {0: Reason(reason_of(error), place)}
        return _evaluate_singly(call, count)
    finite = np.isfinite(values) if values.ndim == 1 else np.isfinite(values).all(axis=1)
    reasons = {
        at: Reason(f"the value is {values[at].tolist()}, not a finite number")
        for at in np.flatnonzero(~finite).tolist()
    }
    return values, reasons


def _evaluate_singly(call: Call, count: int) -> tuple[NDArray[np.float64], dict[int, Reason]]:
    values: list[NDArray[np.float64]] = []
    reasons: dict[int, Reason] = {}
    for at in range(count):
        here = np.array([at])
        value, why = evaluate(lambda _, here=here: call(here), 1, with_place=not reasons)  # type: ignore[misc] # mypy cannot infer its type
        values.append(value)
        if why:
            reasons[at] = why[0]
    if any(value.ndim > 1 for value in values):
        # A failed pair yields only one number, and it is not used.
        values = [value if value.ndim > 1 else np.full((1, 2), np.nan) for value in values]
    return np.concatenate(values), reasons


def _values_of(function: JoinFunction, pairs: Pairs, which: Ints | None) -> NDArray[np.float64]:
    some = pairs if which is None else pairs.take(which)
    return call_function(function, *(_columns(rows, some.things, function) for rows in (some.left, some.right)))


def _is_built_in(function: JoinFunction) -> bool:
    return getattr(function, "__module__", "") == functions.__name__


def _columns(rows: Rows, things: Things, function: JoinFunction) -> Columns:
    result, time_ns = rows.result.copy(), rows.ts_ns.copy()
    if _is_built_in(function):
        # The built-in functions use only numbers, and creating the strings takes longer than everything else.
        return Columns(result, time_ns, (), ())
    return Columns(result, time_ns, things.each(), [side.id for side in sides_of(rows)])
