"""Joining functions: they compute the result of a pair.

A joining function takes two batches of columns, the left and the right records of n pairs, and returns n values as a
float64 array of shape (n,), or (n, 2) as `both` does. It is called for whole batches, so it should use array arithmetic
instead of a loop. If it raises for a pair, or returns a value that is not finite, the pair becomes a dead letter; the
other pairs of the batch are not affected. Settings name a user's function as ``module:function``. Any error in that
module becomes a message with the file and line.
"""

from __future__ import annotations

import importlib
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from broker.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


class Columns(NamedTuple):
    """One side of n pairs: values (float64) and event times (int64 ns), shape (n,); n things and n event ids."""

    result: NDArray[np.float64]
    time_ns: NDArray[np.int64]
    thing: Sequence[str]
    id: Sequence[str]


class UnusableValuesError(ValueError):
    """A joining function returned something other than a column of numbers."""


class JoinFunction(Protocol):
    """Computes n values from the two sides of n pairs."""

    def __call__(self, left: Columns, right: Columns, /) -> NDArray[np.float64]:
        """The values in the order of the pairs, shape (n,) or (n, 2)."""
        ...


def product(left: Columns, right: Columns) -> NDArray[np.float64]:
    """Left times right."""
    return left.result * right.result


def difference(left: Columns, right: Columns) -> NDArray[np.float64]:
    """Left minus right."""
    return left.result - right.result


def mean(left: Columns, right: Columns) -> NDArray[np.float64]:
    """The mean of both values. They are halved first, because the sum could overflow."""
    return left.result / 2 + right.result / 2


def both(left: Columns, right: Columns) -> NDArray[np.float64]:
    """Both values, shape (n, 2). The result is ``{"left": x, "right": y}``."""
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


NUMBER_KINDS: Final = frozenset("biufO")
"""Kinds of dtype that a function may return. numpy would also convert complex numbers, strings and dates to floats,
silently."""


def call_function(function: JoinFunction, left: Columns, right: Columns) -> NDArray[np.float64]:
    """Call ``function`` for n pairs; returns float64 of shape (n,) or (n, 2).

    Raises `UnusableValuesError` for any other return value, and any exception of the function.
    """
    count = len(left.result)
    with np.errstate(all="ignore"):
        returned = np.asarray(function(left, right))
        if returned.dtype.kind not in NUMBER_KINDS:
            message = f"it returned {returned.dtype} values, not real numbers"
            raise UnusableValuesError(message)
        values = returned.astype(np.float64)
    if values.shape not in {(count,), (count, 2)}:
        message = f"it returned an array of shape {values.shape} for {count} pairs"
        raise UnusableValuesError(message)
    return values


def load_functions(functions: Mapping[str, str]) -> dict[str, JoinFunction]:
    """The joining functions by join. ``functions``: their names by join. The current folder is searched, too.

    Raises `SettingsError` that names all mistakes.
    """
    here = Path.cwd()
    if here not in map(Path, sys.path):
        # Last, so that a file in this folder does not shadow a library.
        sys.path.append(str(here))
    loaded, mistakes = {}, []
    for join, name in functions.items():
        try:
            loaded[join] = load_function(name)
        except ValueError as error:
            mistakes.append(f"join {join!r}: {error}")
    if mistakes:
        raise SettingsError("\n".join(mistakes))
    return loaded


def load_function(name: str) -> JoinFunction:
    """The joining function of a built-in name or of ``module:function``.

    Raises ValueError that says what is wrong, where, and how to correct it.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    module, _, attribute = name.partition(":")
    if not attribute:
        message = f"unknown joining function {name!r}; built in are {', '.join(BUILT_IN)}, or give module:function"
        raise ValueError(message)
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # the import runs the user's code, which may raise anything
        message = f"the joining function {name!r} cannot be loaded: {_reason(error, module, attribute)}"
        raise ValueError(message) from error
    if not callable(function):
        message = f"the joining function {name!r} is not callable"
        raise ValueError(message)  # noqa: TRY004 - one error type for all mistakes in a name
    return function  # type: ignore[no-any-return] # `call_function` checks what it returns


def _reason(error: BaseException, module: str, attribute: str) -> str:
    """What failed, where, and how to correct it."""
    if module.startswith("."):
        return f"{module!r} is a relative name; give the absolute name, without the leading dot"
    if isinstance(error, AttributeError) and module in sys.modules:  # it is not there if its import failed
        file = getattr(sys.modules[module], "__file__", None) or module
        return f"{file} has no {attribute!r}; correct the function's name, or the module's"
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
        return f"there is no module {error.name!r} in {Path.cwd()} or on the Python path; set PYTHONPATH to its folder"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename} line {error.lineno}: {type(error).__name__}: {error.msg}; correct it there"
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    place = place_of(error)
    return f"{place}: {what}; correct it there" if place else f"{what}; correct the module"


def reason_of(error: BaseException) -> str:
    """The exception of a function, or what is wrong with the values that it returned."""
    return str(error) if isinstance(error, UnusableValuesError) else f"{type(error).__name__}: {error}"


def place_of(error: BaseException) -> str:
    """File and line of the innermost frame in the user's code; of a library's, if there is no such frame.

    Empty if the traceback has only frames of this package.
    """
    ours = str(Path(__file__).parent), importlib.__file__
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    frames = [frame for frame in frames if not frame.filename.startswith("<")]
    libraries = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    own = [frame for frame in frames if not frame.filename.startswith(libraries)]
    return next((f"{frame.filename} line {frame.lineno}" for frame in reversed(own or frames)), "")
