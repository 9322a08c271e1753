"""Joining functions, which compute a result for each pair.

A joining function takes the left and the right records of n pairs as two batches of columns. It returns n values as a
float64 array of shape (n,), or (n, 2) like `both`. It is called once per batch, so it should use array arithmetic
rather than a loop. If it raises for a pair, or returns a value that is not finite, that pair becomes a dead letter; the
other pairs of the batch are unaffected. In the same way, an align's function computes the results of aligned rows from
their columns. Settings refer to a user's function as ``module:function``. If its module cannot be imported, the error
message gives the file and line of the error.
"""

from __future__ import annotations

import importlib
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

import numpy as np

from broker.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray


class Columns(NamedTuple):
    """The columns of one side of n pairs. Both arrays have shape (n,).

    ``result``: the values (float64). ``time_ns``: the event times (int64 ns). ``thing``, ``id``: the n things and the n
    event ids.
    """

    result: NDArray[np.float64]
    time_ns: NDArray[np.int64]
    thing: Sequence[str]
    id: Sequence[str]


class AlignedColumns(NamedTuple):
    """The columns of n aligned rows. All arrays have shape (n,).

    ``values``: each column's values, by name (float64, NaN where missing). ``driver``: the values of the driver's
    records (float64), or None with a grid. ``time_ns``: the event times (int64 ns). ``thing``: the n things.
    """

    values: Mapping[str, NDArray[np.float64]]
    driver: NDArray[np.float64] | None
    time_ns: NDArray[np.int64]
    thing: Sequence[str]


class UnusableValuesError(ValueError):
    """A function returned something other than one column of real numbers or, for pairs, one or two."""


class JoinFunction(Protocol):
    """A function that computes n values from the two sides of n pairs."""

    def __call__(self, left: Columns, right: Columns, /) -> NDArray[np.float64]:
        """Return the values in the order of the pairs, shape (n,) or (n, 2)."""
        ...


class RowFunction(Protocol):
    """A function that computes the results of n aligned rows."""

    def __call__(self, rows: AlignedColumns, /) -> NDArray[np.float64]:
        """Return the results in the order of the rows, shape (n,)."""
        ...


def product(left: Columns, right: Columns) -> NDArray[np.float64]:
    """Return left times right."""
    return left.result * right.result


def difference(left: Columns, right: Columns) -> NDArray[np.float64]:
    """Return left minus right."""
    return left.result - right.result


def mean(left: Columns, right: Columns) -> NDArray[np.float64]:
    """Return the mean of both values. Each is halved first, because their sum could overflow."""
    return left.result / 2 + right.result / 2


def both(left: Columns, right: Columns) -> NDArray[np.float64]:
    """Return both values, shape (n, 2). A pair's result is then ``{"left": x, "right": y}``."""
    return np.column_stack([left.result, right.result])


def spindle_power(left: Columns, right: Columns) -> NDArray[np.float64]:
    """Return the mechanical power of a spindle in W: 2 pi / 60 times speed (left, 1/min) times torque (right, N m)."""
    return 2 * np.pi / 60 * left.result * right.result


BUILT_IN: Final[dict[str, JoinFunction]] = {
    "product": product,
    "difference": difference,
    "mean": mean,
    "both": both,
}


NUMBER_KINDS: Final = frozenset("biufO")
"""The dtype kinds that a joining function may return. Complex numbers, strings and dates are excluded, because numpy
would silently convert them to floats."""


def call_function(function: JoinFunction, left: Columns, right: Columns) -> NDArray[np.float64]:
    """Call ``function`` for n pairs. Return its values as a float64 array of shape (n,) or (n, 2).

    Raises `UnusableValuesError` if the function returns anything else. Exceptions that the function raises propagate.
    """
    count = len(left.result)
    return _values_of(lambda: function(left, right), {(count,), (count, 2)}, f"{count} pairs")


def call_row_function(function: RowFunction, rows: AlignedColumns) -> NDArray[np.float64]:
    """Call ``function`` for n rows. Return its values as a float64 array of shape (n,); see `call_function`."""
    count = len(rows.time_ns)
    return _values_of(lambda: function(rows), {(count,)}, f"{count} rows")


def _values_of(call: Callable[[], object], shapes: set[tuple[int, ...]], of: str) -> NDArray[np.float64]:
    with np.errstate(all="ignore"):
        returned = np.asarray(call())
        if returned.dtype.kind not in NUMBER_KINDS:
            message = f"it returned {returned.dtype} values, not real numbers"
            raise UnusableValuesError(message)
        values = returned.astype(np.float64)
    if values.shape not in shapes:
        message = f"it returned an array of shape {values.shape} for {of}"
        raise UnusableValuesError(message)
    return values


def load_all(
    joins: Mapping[str, str], aligns: Mapping[str, str]
) -> tuple[dict[str, JoinFunction], dict[str, RowFunction]]:
    """Load the functions of joins and aligns, keyed by operator name. See `load_functions` for the errors."""
    mistakes = []
    for kind, functions in (("join", joins), ("align", aligns)):
        try:
            load_functions(functions, kind)
        except SettingsError as error:
            mistakes.append(str(error))
    if mistakes:
        raise SettingsError("\n".join(mistakes))
    return load_functions(joins), {name: load_row_function(function) for name, function in aligns.items()}


def functions_given(kind: str, given: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the functions of joins or aligns that have not been validated, by operator name."""
    functions: dict[str, str] = {}
    for number, one in enumerate(given):
        if isinstance(one.get("function"), str):
            name = str(one.get("name"))
            functions[name if name not in functions else f"{name} ({kind}.{number})"] = one["function"]
    return functions


def load_functions(functions: Mapping[str, str], kind: str = "join") -> dict[str, JoinFunction]:
    """Load the function of each join, or of each operator of another ``kind``.

    ``functions`` maps operator names to function names. Modules in the current folder can be imported. Raises
    `SettingsError` listing every function that cannot be loaded.
    """
    here = Path.cwd()
    if here not in map(Path, sys.path):
        # Put the current folder last in the path, so that its files do not shadow libraries.
        sys.path.append(str(here))
    loaded, mistakes = {}, []
    for join, name in functions.items():
        try:
            loaded[join] = load_function(name, "joining function" if kind == "join" else "function")
        except ValueError as error:
            mistakes.append(f"{kind} {join!r}: {error}")
    if mistakes:
        raise SettingsError("\n".join(mistakes))
    return loaded


def load_function(name: str, what: str = "joining function") -> JoinFunction:
    """Load a built-in function by its name, or a user's function given as ``module:function``.

    ``what``: what error messages call it. Raises ValueError if it cannot be loaded. The message says what is wrong,
    where, and how to correct it.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    module, _, attribute = name.partition(":")
    if not attribute:
        message = f"unknown {what} {name!r}; use one of {', '.join(BUILT_IN)}, or your own as module:function"
        raise ValueError(message)
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # importing runs the user's code, which may raise anything
        message = f"the {what} {name!r} cannot be loaded: {_reason(error, module, attribute)}"
        raise ValueError(message) from error
    if not callable(function):
        message = f"the {what} {name!r} is not callable"
        raise ValueError(message)  # noqa: TRY004 - one error type for all errors in a name
    return function  # type: ignore[no-any-return] # `call_function` checks what it returns


def load_row_function(name: str) -> RowFunction:
    """Load a user's row function, given as ``module:function``; see `load_function`."""
    return cast("RowFunction", load_function(name, "function"))


def _reason(error: BaseException, module: str, attribute: str) -> str:
    """Return why a function could not be loaded, where that happened (if known), and how to correct it."""
    if module.startswith("."):
        return f"{module!r} is a relative name; use the absolute name, without the leading dot"
    if isinstance(error, AttributeError) and module in sys.modules:  # a module that failed to import is not there
        file = getattr(sys.modules[module], "__file__", None) or module
        return f"{file} does not define {attribute!r}; correct the name of the function or of the module"
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
        return f"there is no module {error.name!r} in {Path.cwd()} or on the Python path; set PYTHONPATH to its folder"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename} line {error.lineno}: {type(error).__name__}: {error.msg}; correct it there"
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    place = place_of(error)
    return f"{place}: {what}; correct it there" if place else f"{what}; correct the module"


def reason_of(error: BaseException) -> str:
    """Return the type and message of a function's exception, or why the values it returned are unusable."""
    return str(error) if isinstance(error, UnusableValuesError) else f"{type(error).__name__}: {error}"


def place_of(error: BaseException) -> str:
    """Return the file and line of the innermost frame in the user's code, or in a library if there is no such frame.

    Returns an empty string if all frames of the traceback are in this package or in the import system.
    """
    ours = str(Path(__file__).parent), importlib.__file__
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    frames = [frame for frame in frames if not frame.filename.startswith("<")]
    libraries = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    own = [frame for frame in frames if not frame.filename.startswith(libraries)]
    return next((f"{frame.filename} line {frame.lineno}" for frame in reversed(own or frames)), "")
