"""Computes the expected pairs and unmatched records of one join in one unit, and compares results with them.

If the joining function raises for a pair, or returns a value that is not finite, a dead letter is expected instead of a
result. Results of built-in functions must match exactly. Results of other functions may have a relative error of up to
1e-12.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from broker.times import mean_text
from joiner.check.model import expected
from joiner.check.verify.judgement import SIDES
from joiner.functions import BUILT_IN, NUMBER_KINDS, Columns, load_function

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from broker.wire.records import Record
    from joiner.check.found.evidence import Message
    from joiner.check.verify.judgement import SideJudgement, UnitJudgement
    from joiner.operators import JoinSettings

_RELATIVE_ERROR: Final = 1e-12


class FoundRecord(msgspec.Struct, frozen=True):
    """A record, or one side of a pair, as found in an output. The time is kept exactly as written."""

    quantity: str
    phenomenonTime: msgspec.Raw  # noqa: N815 - the wire's own name
    result: float
    id: str
    thing: str | None = None


class FoundJoined(msgspec.Struct, frozen=True):
    """A result in the output topic. Compact results and results in Arrow have neither ``left`` nor ``right``."""

    thing: str
    quantity: str
    phenomenonTime: msgspec.Raw  # noqa: N815 - the wire's own name
    result: float | dict[str, float]
    id: str
    left: FoundRecord | None = None
    right: FoundRecord | None = None
    tie: str = ""


class Certain(NamedTuple):
    """A join's certain pairs in a unit, and the offsets of its unmatched records (left, right)."""

    pairs: expected.Pairs
    unmatched: tuple[set[int], set[int]]


@dataclass
class ExpectedPairs:
    """A join's n permitted pairs in a unit, E(C'), and which of them are required, E(C).

    ``due``: which pairs are required, shape (n,). ``values``: the results, shape (n,) or (n, 2). ``failed``: for which
    pairs the joining function fails, shape (n,). ``unmatched``, ``unmatched_due``: the offsets of the permitted and of
    the required unmatched records, by side.
    """

    join: JoinSettings
    pairs: expected.Pairs
    due: NDArray[np.bool_]
    left: list[Record]
    right: list[Record]
    values: NDArray[np.float64]
    failed: NDArray[np.bool_]
    unmatched: dict[str, set[int]]
    unmatched_due: dict[str, set[int]]


def expect_pairs(
    judgement: UnitJudgement,
    join: JoinSettings,
    sides: Sequence[SideJudgement],
    due: Certain | None,
    before: Certain | None = None,
) -> ExpectedPairs:
    """Return a join's expected output, given the records read so far.

    ``due``: the output that was certain at C, or None if C' = C. ``before``: output that is not expected, because it
    was certain when the unit of a replica was founded.
    """
    left, right = sides
    now = certain_now(join, sides)
    pairs, unmatched = now = now if before is None else _without(now, before)
    lefts, rights = (
        [judgement.records_of(side)[offset] for offset in seqs.tolist()]
        for side, seqs in ((left, pairs.left_seq), (right, pairs.right_seq))
    )
    values = _apply(join.function, _columns(lefts, pairs.left_ts), _columns(rights, pairs.right_ts))
    finite = np.isfinite(values)
    failed: NDArray[np.bool_] = np.logical_not(finite if values.ndim == 1 else finite.all(axis=1))
    return ExpectedPairs(
        join,
        pairs,
        _is_due(pairs, (due or now).pairs),
        lefts,
        rights,
        values,
        failed,
        dict(zip(SIDES, unmatched, strict=True)),
        dict(zip(SIDES, (due or now).unmatched, strict=True)),
    )


def certain_now(join: JoinSettings, sides: Sequence[SideJudgement]) -> Certain:
    """Return a join's certain pairs and unmatched records, given the records read so far."""
    left, right = sides
    streams = left.judge.stream(), right.judge.stream()
    pairs = expected.certain_pairs(*streams, join.tolerance, direction=join.direction, driver=join.driver)
    if join.emit_unmatched == "none":
        return Certain(pairs, (set(), set()))
    by_side = expected.unmatched(*streams, join.tolerance, direction=join.direction, driver=join.driver)
    lefts, rights = (found if join.emits_unmatched(side) else set() for side, found in zip(SIDES, by_side, strict=True))
    return Certain(pairs, (lefts, rights))


def _without(now: Certain, before: Certain) -> Certain:
    """Return the certain output that was not certain before."""
    known = _is_due(now.pairs, before.pairs)
    lefts, rights = (some - gone for some, gone in zip(now.unmatched, before.unmatched, strict=True))
    return Certain(expected.Pairs(*(column[~known] for column in now.pairs)), (lefts, rights))


def _is_due(pairs: expected.Pairs, due: expected.Pairs) -> NDArray[np.bool_]:
    if due is pairs:
        return np.ones(len(pairs.left_seq), dtype=np.bool_)
    first = set(zip(due.left_seq.tolist(), due.right_seq.tolist(), strict=True))
    both = zip(pairs.left_seq.tolist(), pairs.right_seq.tolist(), strict=True)
    return np.array([pair in first for pair in both], dtype=np.bool_)


def _columns(records: list[Record], time_ns: NDArray[np.int64]) -> Columns:
    result = np.array([record.result for record in records], dtype=np.float64)
    return Columns(result, time_ns, [record.thing for record in records], [record.id for record in records])


def _apply(name: str, left: Columns, right: Columns) -> NDArray[np.float64]:
    """Call the function for all pairs at once or, if that fails, pair by pair. A pair that fails yields NaN."""
    function, count = load_function(name), len(left.result)
    if not count:
        return np.empty(0)
    try:
        with np.errstate(all="ignore"):
            values = np.asarray(function(_copied(left), _copied(right)))
            if values.dtype.kind in NUMBER_KINDS and values.shape in {(count,), (count, 2)}:
                return values.astype(np.float64)
    except (Exception, SystemExit):  # noqa: BLE001 - a user's function may raise anything
        if count == 1:
            return np.full(1, np.nan)
    if count == 1:
        return np.full(1, np.nan)
    single = [_apply(name, _one(left, at), _one(right, at)) for at in range(count)]
    width = max(values.ndim for values in single)
    return np.concatenate([v if v.ndim == width else np.full((1, 2), np.nan) for v in single])


def _copied(columns: Columns) -> Columns:
    """Return a copy of the columns, because the joining function may modify its arguments."""
    return Columns(columns.result.copy(), columns.time_ns.copy(), list(columns.thing), list(columns.id))


def _one(columns: Columns, at: int) -> Columns:
    here = slice(at, at + 1)
    return Columns(columns.result[here], columns.time_ns[here], columns.thing[here], columns.id[here])


def altered_fields(want: ExpectedPairs, at: int, found: FoundJoined, message: Message, unit: str) -> list[str]:
    """Return the differences between the result ``found`` and pair ``at``, as ``field: found, expected wanted``."""
    pairs, left, right = want.pairs, want.left[at], want.right[at]
    mean = mean_text(int(pairs.left_ts[at]), int(pairs.right_ts[at]), unit)
    tie = f"{pairs.left_ordinal[at]}-{pairs.right_ordinal[at]}"
    tie = "" if tie == "0-0" else tie
    wrong = []
    if found.thing != left.thing:
        wrong.append(f"thing: {found.thing!r}, expected {left.thing!r}")
    is_arrow = not (message.value or b"").startswith(b"{")
    key = None if is_arrow else left.thing.encode()
    if message.key != key:
        wrong.append(f"Kafka key: {message.key!r}, expected {key!r}")
    if found.quantity != want.join.output:
        wrong.append(f"quantity: {found.quantity!r}, expected {want.join.output!r}")
    if not is_same_time(bytes(found.phenomenonTime), msgspec.Raw(mean.encode())):
        wrong.append(f"phenomenonTime: {bytes(found.phenomenonTime).decode()}, expected {mean}")
    if found.tie != tie:
        wrong.append(f"tie: {found.tie!r}, expected {tie!r}")
    if not _is_same_result(found.result, want.values[at], exact=want.join.function in BUILT_IN):
        wrong.append(f"result: {found.result}, expected {shown_value(want.values[at])}")
    if (found.left is None) != (found.right is None):
        wrong.append(f"{'left' if found.left is None else 'right'}: missing, although the other record is there")
    for name, side, record in (("left.", found.left, left), ("right.", found.right, right)):
        wrong += [] if side is None else altered_record(side, record, name)
    return wrong


def altered_record(found: FoundRecord, record: Record, prefix: str) -> list[str]:
    """Return the differences between an input record and its copy in an output."""
    is_equal = (found.quantity, found.result, found.id) == (record.quantity, record.result, record.id)
    if is_equal and is_same_time(bytes(found.phenomenonTime), record.phenomenonTime):
        return []
    wrong = [
        f"{prefix}{name}: {getattr(found, name)!r}, expected {getattr(record, name)!r}"
        for name in ("quantity", "result", "id")
        if getattr(found, name) != getattr(record, name)
    ]
    if not is_same_time(bytes(found.phenomenonTime), record.phenomenonTime):
        shown, want = (
            bytes(found.phenomenonTime).decode(),
            msgspec.json.encode(record.phenomenonTime).decode(),
        )
        wrong.append(f"{prefix}phenomenonTime: {shown}, expected {want}")
    return wrong


def is_same_time(found: bytes, given: int | str | msgspec.Raw) -> bool:
    """Return whether a time in an output is the same as in the input, compared as bytes, as text or as a number."""
    want = msgspec.json.encode(given)
    return found == want or _exact(found) == _exact(want)


def _exact(raw: bytes) -> str | Decimal | None:
    if raw.startswith(b'"'):
        return str(msgspec.json.decode(raw))
    try:
        return Decimal(raw.decode())
    except ArithmeticError:
        return None


def _is_same_result(found: float | dict[str, float], want: Any, *, exact: bool) -> bool:
    value = shown_value(want)
    if isinstance(found, dict) or isinstance(value, dict):
        if not isinstance(found, dict) or not isinstance(value, dict) or found.keys() != value.keys():
            return False
        return all(_is_same_result(found[name], value[name], exact=exact) for name in value)
    return found == value if exact else math.isclose(found, value, rel_tol=_RELATIVE_ERROR)


def shown_value(value: Any) -> float | dict[str, float]:
    """Return a joining function's value in the format used in results."""
    if np.ndim(value) == 0:
        return float(value)
    return {"left": float(value[0]), "right": float(value[1])}
