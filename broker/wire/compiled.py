"""Loops that numba compiles, for what numpy has no words for: the bytes of texts, one by one.

A compiled function is kept beside its module (or in ``NUMBA_CACHE_DIR``), so that only the first process on a machine
waits for the compiler, some seconds; `make setup` is that first one. Where nothing can be kept, each process compiles.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib import resources
from typing import Any, Final, TypeVar

from numba import njit, types

_Loop = TypeVar("_Loop", bound=Callable[..., object])

BYTES: Final = types.Array(types.uint8, 1, "C", readonly=True)
INTS: Final = types.Array(types.int64, 1, "C", readonly=True)
BYTES_OUT: Final = types.Array(types.uint8, 1, "C")
INTS_OUT: Final = types.Array(types.int64, 1, "C")
COLUMNS_OUT: Final = types.Array(types.int64, 2, "C")


# numba compiles anew when the file of a loop has changed, and not when that of another loop has which it calls.
# The same as in joiner/core/compiled.py, which has to come up without this package.
_STAMP: Final = hashlib.sha256(
    b"".join(
        file.read_bytes()
        for file in sorted(resources.files(__package__).iterdir(), key=lambda file: file.name)
        if file.name.endswith(".py")
    )
).hexdigest()[:16]


def compiled(returns: Any = None, *takes: Any) -> Callable[[_Loop], _Loop]:
    """Compile a loop for arguments of these types; without any, for whatever the compiled loops that call it give.

    It does not hold Python's lock, and looks at no bounds: indices have to be right.
    """
    signature = returns(*takes) if takes else None

    def compile_it(loop: _Loop) -> _Loop:
        loop.__qualname__ = f"{loop.__qualname__}_{_STAMP}"

        def compile_for(*, cache: bool) -> Any:
            return njit(signature, nogil=True, cache=cache)(loop)

        try:
            made: _Loop = compile_for(cache=True)
        except RuntimeError:  # no folder can be written to
            made = compile_for(cache=False)
        return made

    return compile_it
