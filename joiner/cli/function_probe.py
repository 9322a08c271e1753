"""Calls joining functions with made-up pairs at start-up, so that a function that cannot work is reported at once.

A function may have side effects, so it is called as rarely as possible: once with a batch of three pairs and, if that
fails, once with a single pair. Built-in functions are not called.

Failing for made-up pairs proves little, because a function may reject a machine that it does not know. A function is
therefore refused only for an error that would occur with any pair: it does not accept two arguments, uses an undefined
name, or does not return a column of numbers. Any other exception only causes a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from broker.settings import SettingsError
from joiner.functions import BUILT_IN, Columns, JoinFunction, UnusableValuesError, call_function, place_of, reason_of

MADE_UP: Final = "made-up"
"""The thing in all made-up pairs and the prefix of their event ids, so that a joining function can recognise them."""

_TIME_NS: Final = 1_577_836_800 * 10**9
"""2020-01-01T00:00:00Z."""

_PAIRS: Final = 3
_REASON_LENGTH_MAX: Final = 300


def probe_functions(names: Mapping[str, str], functions: Mapping[str, JoinFunction]) -> list[str]:
    """Call each joining function with made-up pairs. Return a warning for each that failed but may still work.

    ``names``: maps each join to the name of its function in the settings. ``functions``: maps each join to its
    function. Raises `SettingsError` listing every function that cannot work.
    """
    mistakes, warnings = [], []
    # A function that several joins share is probed only once.
    for name in dict.fromkeys(names.values()):
        if name in BUILT_IN:
            continue
        join = next(join for join, its_name in names.items() if its_name == name)
        error = _failure(functions[join], _PAIRS)
        if error is None:
            continue
        single_error = _failure(functions[join], 1)
        where = f"join {join!r}: the joining function {name!r}"
        if single_error is None:
            warnings.append(
                f"{where} works for one pair, but fails for a batch of {_PAIRS}: {_describe(error)}. The joiner passes "
                "whole batches as columns; if a batch fails, it calls the function once per pair, which is many times "
                "slower"
            )
        elif _fails_for_all(single_error):
            mistakes.append(f"{where} fails for every pair: {_describe(single_error)}; correct it")
        else:
            warnings.append(
                f"{where} failed for made-up pairs: {_describe(single_error)}. This is harmless if it only rejects the "
                f"made-up thing {MADE_UP!r}; every real pair for which it fails becomes a dead letter"
            )
    if mistakes:
        raise SettingsError("\n".join(mistakes))
    return warnings


def _failure(function: JoinFunction, count: int) -> BaseException | None:
    try:
        call_function(function, *(_made_up(side, count) for side in (1, 2)))
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
    """Return whether the error that a joining function raised would occur for every pair."""
    if isinstance(error, UnusableValuesError | NameError | ImportError | NotImplementedError):
        return True
    if isinstance(error, AttributeError):
        return isinstance(error.obj, Columns | np.ndarray)
    # The function has the wrong parameters, or does arithmetic with a `Columns` object instead of a column.
    return isinstance(error, TypeError) and (not place_of(error) or Columns.__name__ in str(error))


def _describe(error: BaseException) -> str:
    """Describe on one line the exception and where it was raised."""
    what = " ".join(reason_of(error)[:_REASON_LENGTH_MAX].split()).rstrip(": ")
    place = place_of(error)
    return f"{place}: {what}" if place else what
