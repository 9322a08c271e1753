"""From pairs to results: the joining function is applied to whole batches, what fails goes to the dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from broker.times import UNIT_NS, mean_text
from broker.wire import Joined, Record, Rejected, Side, encode, pair_id, reject
from joiner.functions import NUMBER_KINDS, Columns, JoinFunction, load_function

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joiner.run.settings import JoinerSettings, JoinSettings

    Ints = NDArray[np.int64]


class HeldRecord(NamedTuple):
    """A record with its event time in ns, as the unit keeps it while the engine holds it."""

    ts_ns: int
    record: Record


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
        values, reasons = _evaluate(self._function, pairs.left, pairs.right)
        joined, failed = [], []
        ties = (pairs.left_ordinal + pairs.right_ordinal).tolist()
        seqs = zip(pairs.left_seq.tolist(), pairs.right_seq.tolist(), strict=True)
        for at, ((left_seq, right_seq), left, right) in enumerate(zip(seqs, pairs.left, pairs.right, strict=True)):
            identity = pair_id(self._join.name, self._unit, left_seq, right_seq)
            if at in reasons:
                failed.append(self._dead_letter(identity, reasons[at], left, right))
                continue
            tie = f"{pairs.left_ordinal[at]}-{pairs.right_ordinal[at]}" if ties[at] else ""
            joined.append(self._joined(identity, left, right, values[at], tie))
        return joined, failed

    def _joined(
        self, identity: str, left: HeldRecord, right: HeldRecord, value: float | list[float], tie: str
    ) -> Joined:
        result = {"left": value[0], "right": value[1]} if isinstance(value, list) else value
        return Joined(
            left.record.thing,
            self._join.output,
            mean_time(left.ts_ns, right.ts_ns, self._time_unit),
            result,
            identity,
            _side(left.record),
            _side(right.record),
            tie,
        )

    def _dead_letter(self, identity: str, reason: str, left: HeldRecord, right: HeldRecord) -> Rejected:
        value = b'{"left":' + encode(left.record) + b',"right":' + encode(right.record) + b"}"
        why = f"the joining function {self._join.function} of join {self._join.name!r}: {reason}"
        return reject(value, why, source=self._source, topic=self._topic, partition=self._unit, identity=identity)


def mean_time(left_ns: int, right_ns: int, unit: str) -> int | msgspec.Raw:
    """The mean of two times in ``unit``, exact: an integer, or the text of a decimal."""
    whole, rest = divmod(left_ns + right_ns, 2 * UNIT_NS[unit])
    return msgspec.Raw(mean_text(left_ns, right_ns, unit).encode()) if rest else whole


def _side(record: Record) -> Side:
    return Side(record.quantity, record.phenomenonTime, record.result, record.id)


def _columns(held: Sequence[HeldRecord]) -> Columns:
    return Columns(
        np.array([one.record.result for one in held], dtype=np.float64),
        np.array([one.ts_ns for one in held], dtype=np.int64),
        [one.record.thing for one in held],
        [one.record.id for one in held],
    )


def _evaluate(
    function: JoinFunction, left: Sequence[HeldRecord], right: Sequence[HeldRecord]
) -> tuple[list[float] | list[list[float]], dict[int, str]]:
    """The values by position, and by position the reasons of those that have none.

    A function that raises on a batch is asked again for each pair, so that one bad pair costs only itself. It gets
    new columns each time: it may have altered those that it was given.
    """
    count = len(left)
    try:
        values = _call(function, _columns(left), _columns(right))
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
        value, why = _evaluate(function, left[at : at + 1], right[at : at + 1])
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
