"""Keeps a simulated world on one core.

Only one of its threads runs at a time, and passing the turn to another is several times faster on the same core.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def on_one_core() -> Iterator[None]:
    """Keep this thread, and those that it starts, on one core. Other systems than Linux decide for themselves."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {_own_core(sorted(before))})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _own_core(cores: list[int]) -> int:
    """Choose the core of this process. Processes that run tests side by side have different ones."""
    worker = re.fullmatch(r"gw(\d+)", os.environ.get("PYTEST_XDIST_WORKER", ""))
    return cores[(int(worker[1]) if worker else os.getpid()) % len(cores)]
