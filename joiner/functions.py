"""Joining functions: what becomes of the two values of a pair.

A joining function takes two batches of columns, the left and the right records of n pairs, and returns n values:
one float64 array, or for `both` two. It is called on whole batches, so it should be arithmetic on arrays and
not a loop. A value that is not finite, or a function that raises, sends its pair to the dead letters; the others
of the batch are not touched by that. A function of one's own is named ``module:function`` in the settings.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class Columns(NamedTuple):
    """One side of n pairs: values (float64), event times (int64 ns), things, and event ids."""

    result: NDArray[np.float64]
    time_ns: NDArray[np.int64]
    thing: Sequence[str]
    id: Sequence[str]


class JoinFunction(Protocol):
    """From the two sides of n pairs to n values."""

    def __call__(self, left: Columns, right: Columns, /) -> NDArray[np.float64]:
        """The n values, in the order of the pairs."""
        ...


def product(left: Columns, right: Columns) -> NDArray[np.float64]:
    """Left times right."""
    return left.result * right.result


def difference(left: Columns, right: Columns) -> NDArray[np.float64]:
    """Left minus right."""
    return left.result - right.result


def mean(left: Columns, right: Columns) -> NDArray[np.float64]:
    """The mean of the two; halved before the sum, which could overflow."""
    return left.result / 2 + right.result / 2


def both(left: Columns, right: Columns) -> NDArray[np.float64]:
    """Both values, shape (n, 2): the result becomes ``{"left": x, "right": y}``."""
    return np.column_stack([left.result, right.result])


def spindle_power(left: Columns, right: Columns) -> NDArray[np.float64]:
    """Mechanical power in W of a spindle: 2 pi / 60 times speed (left, 1/min) times torque (right, N m)."""
    return 2 * np.pi / 60 * left.result * right.result


BUILT_IN: Final[dict[str, JoinFunction]] = {
    "product": product,
    "difference": difference,
    "mean": mean,
    "both": both,
}


def load_function(name: str) -> JoinFunction:
    """The joining function of a built-in name or of ``module:function``.

    Raises ValueError with what is wrong and what there is.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    module, _, attribute = name.partition(":")
    if not attribute:
        message = f"there is no joining function {name!r}; built in are {', '.join(BUILT_IN)}, or give module:function"
        raise ValueError(message)
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        message = f"the joining function {name!r} cannot be loaded: {error}"
        raise ValueError(message) from error
    if not callable(function):
        message = f"the joining function {name!r} is no function"
        raise ValueError(message)  # noqa: TRY004 - one error type for everything wrong with the name
    return function  # type: ignore[no-any-return] # its shape is checked on what it returns
