"""Makes garbage collections rare, because batches create almost no reference cycles to collect."""

from __future__ import annotations

import gc
from typing import Final

_THRESHOLD: Final = (50_000, 20, 50)
"""Thresholds of the garbage collector's three generations. They are high because a batch has tens of thousands of
messages."""


def tune_gc() -> None:
    """Make garbage collections rare. Call this once all long-lived objects exist, to exempt them."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLD)
