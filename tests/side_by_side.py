"""Prints how many test processes with servers of their own run side by side: ``python -m tests.side_by_side``.

They wait for more than half of their time, so three of them keep two cores busy. Each has a Kafka broker and often
other servers, a Spark session or a browser, about 3 GB in all.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

_MANY: Final = 3
_FEW: Final = 2
_ENOUGH_BYTES: Final = 12 << 30
"""The memory from which `_MANY` processes run. With less, the servers would have to be smaller."""

_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""The files that contain the limit of a container, if it has one."""


def count_processes(limits: Sequence[Path] = tuple(map(Path, _LIMITS))) -> int:
    """Return how many test processes the memory of this machine, or of this container, is enough for."""
    memory = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for limit in limits:
        with suppress(OSError, ValueError):  # there is no such file, or it contains "max"
            memory.append(int(limit.read_text()))
    return _MANY if min(memory) >= _ENOUGH_BYTES else _FEW


if __name__ == "__main__":
    sys.stdout.write(f"{count_processes()}\n")
