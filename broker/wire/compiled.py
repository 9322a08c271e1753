"""Compiles loops over the bytes of strings with numba, for operations that numpy cannot express.

Compiled loops are cached next to their module, or in ``NUMBA_CACHE_DIR``. Only the first process on a machine, normally
`make setup`, has to wait a few seconds for the compiler. If the cache folder is not writable, every process
recompiles the loops.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib import resources
from typing import Any, Final, TypeVar

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_Loop = TypeVar("_Loop", bound=Callable[..., object])

BYTES: Final = types.Array(types.uint8, 1, "C", readonly=True)
INTS: Final = types.Array(types.int64, 1, "C", readonly=True)
BYTES_OUT: Final = types.Array(types.uint8, 1, "C")
INTS_OUT: Final = types.Array(types.int64, 1, "C")
COLUMNS_OUT: Final = types.Array(types.int64, 2, "C")

copy_bytes: Any = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.intp))
"""C's memcpy(target, source, count), for compiled loops. It takes three nanoseconds for a short string. A loop would
take one nanosecond per byte, because the compiler cannot know that the source and the target do not overlap."""

compare_bytes: Any = types.ExternalFunction("memcmp", types.int32(types.intp, types.intp, types.intp))
"""C's memcmp(address, address, count), for compiled loops. It returns 0 if the bytes are equal."""


def _reading(bits: int, number: Any) -> Any:
    """Create a function for compiled loops that reads an integer of the given bit width from a memory address."""

    def read(_context: Any, _address: Any) -> Any:
        def generate(_codegen: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.load(builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer()))

        return number(types.int64), generate

    return intrinsic(read)


word_at: Any = _reading(64, types.int64)
"""The int64 at an address, for compiled loops."""

half_word_at: Any = _reading(32, types.int32)
"""The int32 at an address, for compiled loops."""

byte_at: Any = _reading(8, types.uint8)
"""The uint8 at an address, for compiled loops. A call with an address is several times faster than one with an array,
whose references are counted."""


# numba recompiles a loop if the loop's own file has changed, but not if it calls a loop in another file that has
# changed. This hash of all files becomes part of each loop's name, so that any change triggers recompilation. The
# same code is in joiner/core/compiled.py, which must work without this package.
_STAMP: Final = hashlib.sha256(
    b"".join(
        file.read_bytes()
        for file in sorted(resources.files(__package__).iterdir(), key=lambda file: file.name)
        if file.name.endswith(".py")
    )
).hexdigest()[:16]


def compiled(returns: Any = None, *takes: Any) -> Callable[[_Loop], _Loop]:
    """Decorate a loop so that it is compiled for arguments of the given types.

    If no types are given, it is compiled for those that its compiled callers pass. A compiled loop releases the GIL and
    does not check bounds, so all indices must be valid.
    """
    signature = returns(*takes) if takes else None

    def compile_it(loop: _Loop) -> _Loop:
        loop.__qualname__ = f"{loop.__qualname__}_{_STAMP}"

        def compile_for(*, cache: bool) -> Any:
            return njit(signature, nogil=True, cache=cache)(loop)

        try:
            compiled_loop: _Loop = compile_for(cache=True)
        except RuntimeError:  # no writable folder
            compiled_loop = compile_for(cache=False)
        return compiled_loop

    return compile_it
