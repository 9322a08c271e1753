"""Compiles the loops of all services: ``python -m joiner.cli.loops``.

Otherwise, the first process on a machine that needs a loop has to wait for the compiler. In a container, that would be
the first one after every start.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Final

from broker.kafka.native.library import Unavailable, load_loops
from joiner.core.compiled import compile_declared

_COMPILED_BY_IMPORT: Final = (
    *("broker.wire.arrow.results", "broker.wire.bulk", "joiner.mapping.bulk.avro", "joiner.mapping.bulk.protobuf"),
    "joiner.runtime.task.unit",
)
"""Modules that have such loops, or import all others that have them."""

_DECLARED: Final = ("joiner.core", "joiner.alignment")


def main() -> None:
    """Compile them, or load them if they are compiled already. Those of extras that are not installed are left out."""
    for name in _COMPILED_BY_IMPORT:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    for package in _DECLARED:
        compile_declared(package)
    with suppress(Unavailable):
        load_loops()


if __name__ == "__main__":
    main()
