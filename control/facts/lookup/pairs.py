"""Finds the results of one join for one thing in messages, and the pairs between the records shown. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from broker.commandline import describe_missing
from broker.wire.records import Unreadable, decode_joined
from control.facts.lookup.one_at_a_time import Unavailable

PAIRS_MAX: Final = 2_000
"""The maximum number of pairs shown. If there are more, the last ones are shown."""


class Pair(msgspec.Struct, frozen=True):
    """A pair: the positions of its two records, and its result."""

    left: str
    right: str
    result: float | dict[str, float]


class ResultsOf(NamedTuple):
    """The results to search for."""

    join: str
    unit: int
    thing: str


def results_in(value: bytes | None, wanted: ResultsOf) -> Iterator[Pair]:
    """Yield the wanted results in a message of the result topic, whatever its format. Other messages have none.

    Raises `Unavailable` if the message holds many results and pyarrow is not installed.
    """
    start = f"{wanted.join}:{wanted.unit}:"
    if value and not value.startswith(b"{"):
        yield from _results_in_arrow(value, wanted)
    if not value or start.encode() not in value:
        return
    try:
        found = decode_joined(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if found.thing == wanted.thing and found.id.startswith(start):
        left, _, right = found.id.removeprefix(start).partition(":")
        yield Pair(left, right, found.result)


def _results_in_arrow(value: bytes, wanted: ResultsOf) -> Iterator[Pair]:
    try:
        from broker.wire.arrow.results import decode_results  # noqa: PLC0415 - pyarrow is an extra

        found = decode_results(value)
    except ImportError as error:
        raise Unavailable(describe_missing("pyarrow", "arrow")) from error
    except Unreadable:
        return
    if found.unit != wanted.unit:
        return
    for at, (thing, join) in enumerate(zip(found.thing, found.join, strict=True)):
        if (thing, join) == (wanted.thing, wanted.join):
            result = found.value[at]
            both = {"left": result[0], "right": result[1]} if isinstance(result, tuple) else result
            yield Pair(found.left[at], found.right[at], both)


def between(pairs: Iterable[Pair], left: Collection[str], right: Collection[str]) -> list[Pair]:
    """Return the last `PAIRS_MAX` pairs with at least one shown record, each once.

    ``pairs``: in the order they were written. ``left``, ``right``: the positions of the records shown.
    """
    lefts, rights = frozenset(left), frozenset(right)
    found = {(one.left, one.right): one for one in pairs if one.left in lefts or one.right in rights}
    return [*found.values()][-PAIRS_MAX:]
