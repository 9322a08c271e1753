"""Calls functions with made-up pairs or rows at startup, so that a function that cannot work is reported at once.

A function may have side effects, so it is called as rarely as possible: once with a batch of three pairs and, if that
fails, once with a single pair. Built-in functions are not called.

Failing for made-up pairs proves little, because a function may reject machines that it does not know. A function is
therefore refused only for an error that would occur with any pair or row: for example, it does not accept the
arguments, uses an undefined name, or does not return a column of numbers. Any other exception only causes a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from broker.settings import SettingsError
from joiner.functions import (
    BUILT_IN,
    AlignedColumns,
    Columns,
    JoinFunction,
    RowFunction,
    UnusableValuesError,
    call_function,
    call_row_function,
    place_of,
    reason_of,
)

if TYPE_CHECKING:
    from joiner.operators import AlignSettings

MADE_UP: Final = "made-up"
"""The thing in all made-up pairs and rows, and the prefix of all event ids, so that a function can recognise them."""

_TIME_NS: Final = 1_577_836_800 * 10**9
"""2020-01-01T00:00:00Z."""

_PAIRS: Final = 3
_REASON_LENGTH_MAX: Final = 300


def probe_functions(names: Mapping[str, str], functions: Mapping[str, JoinFunction]) -> list[str]:
    """Call each joining function with made-up pairs. Return a warning for each that failed but may still work.

    ``names``: maps each join to the name of its function in the settings. ``functions``: maps each join to its
    function. Raises `SettingsError` listing every function that cannot work.
    """
    # A function that several joins share is probed only once.
    first_joins: dict[str, str] = {}
    for join, name in names.items():
        if name not in BUILT_IN:
            first_joins.setdefault(name, join)
    return _warnings_of(
        _probe(f"join {join!r}: the joining function {name!r}", "pair", partial(_call_with_pairs, functions[join]))
        for name, join in first_joins.items()
    )


def probe_row_functions(functions: Sequence[tuple[AlignSettings, RowFunction]]) -> list[str]:
    """Call the function of each align with made-up rows that have all values; see `probe_functions`."""
    return _warnings_of(
        _probe(
            f"align {align.name!r}: the function {align.function!r}", "row", partial(_call_with_rows, function, align)
        )
        for align, function in functions
    )


def _warnings_of(probes: Iterable[tuple[list[str], list[str]]]) -> list[str]:
    """Return the warnings of all probes. Raises `SettingsError` listing their mistakes if there are any."""
    mistakes, warnings = [], []
    for mistake, warning in probes:
        mistakes += mistake
        warnings += warning
    if mistakes:
        raise SettingsError("\n".join(mistakes))
    return warnings


def _probe(where: str, what: str, call: Callable[[int], object]) -> tuple[list[str], list[str]]:
    """Return the mistakes and warnings about a function. ``call``: calls it with a number of pairs or rows."""
    error = _failure(call, _PAIRS)
    if error is None:
        return [], []
    single_error = _failure(call, 1)
    if single_error is None:
        warning = (
            f"{where} works for one {what}, but fails for a batch of {_PAIRS}: {_describe(error)}. The joiner passes "
            f"whole batches as columns; if a batch fails, it calls the function once per {what}, which is many times "
            "slower"
        )
        return [], [warning]
    if _fails_for_all(single_error):
        return [f"{where} fails for every {what}: {_describe(single_error)}; correct it"], []
    warning = (
        f"{where} failed for made-up {what}s: {_describe(single_error)}. This is harmless if it only rejects the "
        f"made-up thing {MADE_UP!r}; every real {what} for which it fails becomes a dead letter"
    )
    return [], [warning]


def _call_with_pairs(function: JoinFunction, count: int) -> None:
    call_function(function, *(_made_up(side, count) for side in (1, 2)))


def _call_with_rows(function: RowFunction, align: AlignSettings, count: int) -> None:
    first, _, *columns = (_made_up(number, count) for number in range(1, len(align.columns) + 3))
    values = {name: one.result for name, one in zip(align.columns, columns, strict=True)}
    driver = None if align.driver is None else first.result
    call_row_function(function, AlignedColumns(values, driver, first.time_ns, first.thing))


def _failure(call: Callable[[int], object], count: int) -> BaseException | None:
    try:
        call(count)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a user's function may raise anything, including SystemExit
        return error
    return None


def _made_up(side: int, count: int) -> Columns:
    """Return one side of ``count`` made-up pairs, with distinct values, times and ids."""
    number = np.arange(1, count + 1)
    return Columns(
        result=side * number.astype(np.float64),
        time_ns=_TIME_NS + 1_000_000 * (2 * number + side),
        thing=[MADE_UP] * count,
        id=[f"{MADE_UP}-{side}-{at}" for at in number.tolist()],
    )


def _fails_for_all(error: BaseException) -> bool:
    """Return whether the error that a function raised would occur for every pair or row."""
    if isinstance(error, UnusableValuesError | NameError | ImportError | NotImplementedError):
        return True
    if isinstance(error, AttributeError):
        return isinstance(error.obj, Columns | AlignedColumns | np.ndarray)
    # The function has the wrong parameters, or does arithmetic with all columns instead of one.
    return isinstance(error, TypeError) and (not place_of(error) or Columns.__name__ in str(error))


def _describe(error: BaseException) -> str:
    """Describe the exception, and where it was raised, on one line."""
    what = " ".join(reason_of(error)[:_REASON_LENGTH_MAX].split()).rstrip(": ")
    place = place_of(error)
    return f"{place}: {what}" if place else what
