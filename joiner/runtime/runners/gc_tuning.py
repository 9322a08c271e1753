"""Python's collector of garbage in a process that joins: called seldom, as batches leave it almost nothing to find."""

from __future__ import annotations

import gc
from typing import Final

_THRESHOLD: Final = (50_000, 20, 50)
"""Objects and rounds between collections; a batch has tens of thousands of messages."""


def tune_gc() -> None:
    """To be called once, when everything that lives to the end is there: it is never looked at again."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLD)
