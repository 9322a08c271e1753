"""Joining functions: what becomes of the two values of a pair.

A joining function takes two batches of columns, the left and the right records of n pairs, and returns n values:
one float64 array, or for `both` two. It is called on whole batches, so it should be arithmetic on arrays and
not a loop. A value that is not finite, or a function that raises, sends its pair to the dead letters; the others
of the batch are not touched by that. A function of one's own is named ``module:function`` in the settings. Its
module is somebody else's program, so whatever goes wrong in it becomes a message with the place in that program.
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
    """One side of n pairs: values (float64), event times (int64 ns), things, and event ids."""

    result: NDArray[np.float64]
    time_ns: NDArray[np.int64]
    thing: Sequence[str]
    id: Sequence[str]


class UnusableValuesError(ValueError):
    """What a function gives is no column of numbers."""


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


NUMBER_KINDS: Final = frozenset("biufO")
"""Kinds of dtype that a function may give. numpy would also turn complex numbers, texts and dates into floats, and
say nothing."""


def call_function(function: JoinFunction, left: Columns, right: Columns) -> NDArray[np.float64]:
    """What a function gives for n pairs: n values, shape (n,) or (n, 2).

    Raises `UnusableValuesError` for anything else, and whatever the function raises.
    """
    count = len(left.result)
    with np.errstate(all="ignore"):
        given = np.asarray(function(left, right))
        if given.dtype.kind not in NUMBER_KINDS:
            message = f"it gave {given.dtype} values, not real numbers"
            raise UnusableValuesError(message)
        values = given.astype(np.float64)
    if values.shape not in {(count,), (count, 2)}:
        message = f"it gave an array of shape {values.shape} for {count} pairs"
        raise UnusableValuesError(message)
    return values


def load_functions(functions: Mapping[str, str]) -> dict[str, JoinFunction]:
    """The joining functions by join, from their names by join; modules are also looked for in the current folder.

    Raises `SettingsError` with every mistake at once.
    """
    here = Path.cwd()
    if here not in map(Path, sys.path):
        # Last, so that no file that happens to lie here goes before a library.
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

    Raises ValueError with what is wrong, where, and what there is.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    module, _, attribute = name.partition(":")
    if not attribute:
        message = f"there is no joining function {name!r}; built in are {', '.join(BUILT_IN)}, or give module:function"
        raise ValueError(message)
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # the import runs the user's program, which may raise anything
        message = f"the joining function {name!r} cannot be loaded: {_reason(error, module, attribute)}"
        raise ValueError(message) from error
    if not callable(function):
        message = f"the joining function {name!r} is no function"
        raise ValueError(message)  # noqa: TRY004 - one error type for everything wrong with the name
    return function  # type: ignore[no-any-return] # its shape is checked on what it returns


def _reason(error: BaseException, module: str, attribute: str) -> str:
    """What failed, where, and what to do."""
    if module.startswith("."):
        return f"{module!r} is a relative name; give the module's full one, without the dot in front"
    if isinstance(error, AttributeError) and module in sys.modules:  # one whose import failed is not kept there
        file = getattr(sys.modules[module], "__file__", None) or module
        return f"{file} has no {attribute!r}; correct the name, or the module's if another file was meant"
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
        return f"there is no module {error.name!r} in {Path.cwd()} or on the Python path; set PYTHONPATH to its folder"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename} line {error.lineno}: {type(error).__name__}: {error.msg}; correct it there"
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    place = place_of(error)
    return f"{place}: {what}; correct it there" if place else f"{what}; correct the module"


def reason_of(error: BaseException) -> str:
    """What a function raised, or what is wrong with the values that it gave."""
    return str(error) if isinstance(error, UnusableValuesError) else f"{type(error).__name__}: {error}"


def place_of(error: BaseException) -> str:
    """File and line where the user's program failed: not where a library noticed, if there is a choice.

    Empty where nothing of the user's was running.
    """
    ours = str(Path(__file__).parent), importlib.__file__
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    frames = [frame for frame in frames if not frame.filename.startswith("<")]
    libraries = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    own = [frame for frame in frames if not frame.filename.startswith(libraries)]
    return next((f"{frame.filename} line {frame.lineno}" for frame in reversed(own or frames)), "")
