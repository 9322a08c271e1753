"""Garbage-collector settings. Collections are made rare, because batches create almost no cycles."""

from __future__ import annotations

import gc
from typing import Final

_THRESHOLD: Final = (50_000, 20, 50)
"""Collection thresholds of the three generations. A batch has tens of thousands of messages."""


def tune_gc() -> None:
    """Tune the collector. Call it once all long-lived objects exist: the collector ignores them from then on."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLD)
