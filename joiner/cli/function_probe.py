"""A joining function is tried at the start with a few made-up pairs, so that one that cannot work is told of at once.

It may do more than compute, so it is called as seldom as that can be: once with a batch of three pairs, and once with
one of them where the batch fails. Built-in functions are not tried.

What made-up pairs prove is little. A function may look its machines up and refuse one that it does not know, which is
right. So a function is refused only for what no pair can change: it does not take two sides, it names something that is
not there, or what it gives is no column of numbers. Whatever else it raises is a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from broker.settings import SettingsError
from joiner.functions import BUILT_IN, Columns, JoinFunction, UnusableValuesError, call_function, place_of, reason_of

MADE_UP: Final = "made-up"
"""The thing of the pairs, and the begin of their ids: by it a function can tell them from real ones."""

_TIME_NS: Final = 1_577_836_800 * 10**9
"""The begin of 2020."""

_PAIRS: Final = 3
_REASON_LENGTH_MAX: Final = 300


def probe_functions(names: Mapping[str, str], functions: Mapping[str, JoinFunction]) -> list[str]:
    """Try the functions, by join, whose ``names`` are those of the settings; returns warnings.

    Raises `SettingsError` with every function that cannot work.
    """
    mistakes, warnings = [], []
    # Joins that share a function share its trial.
    for name in dict.fromkeys(names.values()):
        if name in BUILT_IN:
            continue
        join = next(join for join, its_name in names.items() if its_name == name)
        error = _failure(functions[join], _PAIRS)
        if error is None:
            continue
        alone = _failure(functions[join], 1)
        where = f"join {join!r}: the joining function {name!r}"
        if alone is None:
            warnings.append(
                f"{where} takes one pair, but no batch of {_PAIRS}: {_told(error)}. It gets batches of columns; where "
                "one fails, it is called for each pair by itself, which is many times slower"
            )
        elif _is_certain(alone):
            mistakes.append(f"{where} gives no value for any pair: {_told(alone)}; correct it")
        else:
            warnings.append(
                f"{where} failed for made-up pairs: {_told(alone)}. That is fine where it refuses only those (their "
                f"thing is {MADE_UP!r}); if it fails for all pairs, each of them becomes a dead letter"
            )
    if mistakes:
        raise SettingsError("\n".join(mistakes))
    return warnings


def _failure(function: JoinFunction, count: int) -> BaseException | None:
    try:
        call_function(function, *(_made_up(side, count) for side in (1, 2)))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a user's function may raise anything, SystemExit too
        return error
    return None


def _made_up(side: int, count: int) -> Columns:
    """Values, times and ids that differ, so that a function has something to work with."""
    number = np.arange(1, count + 1)
    return Columns(
        result=side * number.astype(np.float64),
        time_ns=_TIME_NS + 1_000_000 * (2 * number + side),
        thing=[MADE_UP] * count,
        id=[f"{MADE_UP}-{side}-{at}" for at in number.tolist()],
    )


def _is_certain(error: BaseException) -> bool:
    """Whether no other pair could change it."""
    if isinstance(error, UnusableValuesError | NameError | ImportError | NotImplementedError):
        return True
    if isinstance(error, AttributeError):
        return isinstance(error.obj, Columns | np.ndarray)
    # Its parameters do not fit, or it calculates with a side as if that were a number.
    return isinstance(error, TypeError) and (not place_of(error) or Columns.__name__ in str(error))


def _told(error: BaseException) -> str:
    """What was raised and where, in a line."""
    what = " ".join(reason_of(error)[:_REASON_LENGTH_MAX].split()).rstrip(": ")
    place = place_of(error)
    return f"{place}: {what}" if place else what
