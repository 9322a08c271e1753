"""Compiles the core's inner loops with numba. Each loop applies one rule, record by record.

Compiled code is cached next to its module, in ``NUMBA_CACHE_DIR`` or in the user's cache folder. Only the first process
on a machine compiles, which takes about ten seconds; `make setup` does this in advance. If none of these folders is
writable, every process compiles. For debugging, ``NUMBA_DISABLE_JIT=1`` runs the loops in plain Python, slowly; numpy
then warns when `gap` wraps around.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import numpy as np
from numba import njit, types
from numba.core.caching import NullCache
from numba.core.compiler_lock import global_compiler_lock

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_Loop = TypeVar("_Loop", bound=Callable[..., Any])

_types: Final[Any] = types

COUNT: Final = types.int64
FLAG: Final = types.boolean
DURATION: Final = types.uint64
GIVEN: Final = types.Array(types.int64, 1, "C", readonly=True)
"""int64 of shape (n,), read-only."""
INTS: Final = types.Array(types.int64, 1, "C")
FLAGS: Final = types.Array(types.uint8, 1, "C")
TABLE: Final = types.Array(types.int64, 2, "C")


def several(*of: Any) -> Any:
    """Return the numba type of a tuple."""
    return _types.Tuple(of)


def named(known: type, *of: Any) -> Any:
    """Return the numba type of the NamedTuple ``known``, given the types of its fields."""
    return _types.NamedTuple(of, known) if len(set(of)) > 1 else _types.NamedUniTuple(of[0], len(of), known)


# A hash of the package's source files, which becomes part of each loop's name. numba recompiles a loop when its own
# file changes, but not when the file of a loop that it calls changes.
_STAMP: Final = hashlib.sha256(
    b"".join(
        file.read_bytes()
        for file in sorted(resources.files(__package__).iterdir(), key=lambda file: file.name)
        if file.name.endswith(".py")
    )
).hexdigest()[:16]


_loops: Final[list[Any]] = []
_declared: Final[defaultdict[str, list[tuple[Any, Any]]]] = defaultdict(list)
"""The loops yet to be compiled, each with its signature, by package."""


def compiled(returns: Any = None, *takes: Any) -> Callable[[_Loop], _Loop]:
    """Register a loop to be compiled by `compile_declared`, with its return and parameter types.

    A loop declared without types is compiled together with its first caller. Loops release the GIL and do not check
    array bounds, so every index must be valid.
    """

    def declare(loop: _Loop) -> _Loop:
        loop.__qualname__ = f"{loop.__qualname__}_{_STAMP}"
        try:
            made: Any = njit(nogil=True, cache=True)(loop)
        except RuntimeError:  # no folder is writable
            made = njit(nogil=True)(loop)
        _loops.append(made)
        if takes:
            _declared[loop.__module__.rpartition(".")[0]].append((made, returns(*takes)))
        return cast("_Loop", made)

    return declare


def compile_declared(package: str) -> None:
    """Compile all loops that ``package`` has declared since the last call, or load them from the cache.

    Loading takes about 20 ms per loop, so call this just before the loops are needed. If a call is interrupted, the
    next one picks up where it stopped.
    """
    with global_compiler_lock:
        while _declared[package]:
            loop, signature = _declared[package][-1]
            # With NUMBA_DISABLE_JIT, loops are plain functions.
            if hasattr(loop, "compile") and not loop.signatures:
                _compile(loop, signature)
            _declared[package].pop()


def _compile(loop: Any, signature: Any) -> None:
    try:
        loop.compile(signature)
    except OSError:
        # If the code is in an archive, numba does not check whether the cache folder is writable until this call.
        for other in _loops:
            other._cache = NullCache()  # noqa: SLF001 - numba has no public way to disable the cache afterwards
        loop.compile(signature)
    loop.disable_compile()


@compiled(INTS, GIVEN, GIVEN, GIVEN)
def distinct(one: Ints, other: Ints, more: Ints) -> Ints:
    """Return the distinct values of three arrays of small non-negative integers, ascending."""
    largest = -1
    for numbers in (one, other, more):
        for number in numbers:
            largest = max(largest, number)
    is_there, count = np.zeros(largest + 1, dtype=np.uint8), 0
    for numbers in (one, other, more):
        for number in numbers:
            count += 1 - is_there[number]
            is_there[number] = 1
    found, at = np.empty(count, dtype=np.int64), 0
    for number in range(largest + 1):
        if is_there[number]:
            found[at] = number
            at += 1
    return found


@compiled()
def gap(later: int, earlier: int) -> np.uint64:
    """Return ``later - earlier`` in ns. Exact for all int64 times if ``later`` is not less than ``earlier``."""
    return np.uint64(later - earlier)


@compiled()
def is_within(tolerance: np.uint64, until: int, ts: int) -> bool:
    """Return whether ``until`` is at most ``tolerance`` ns after ``ts``. Always true if ``until`` is before ``ts``."""
    return bool(until <= ts or gap(until, ts) <= tolerance)


@compiled()
def is_apart_at_most(tolerance: np.uint64, one: int, other: int) -> bool:
    """Return whether two times are at most ``tolerance`` ns apart."""
    return bool(gap(max(one, other), min(one, other)) <= tolerance)
