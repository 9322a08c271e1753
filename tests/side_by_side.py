"""Prints how many test processes run side by side if there are tests on servers: ``python -m tests.side_by_side``.

All but one have servers of their own: a Kafka broker and often other servers, a Spark session or a browser, about 3 GB
in all. They wait for half of their time, so that two cores have time for another process, with the tests that need no
server (``--fill-waits``, see `tests.scheduling`).
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
    """Return for how many test processes with servers this machine, or this container, has enough memory."""
    memory = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for limit in limits:
        with suppress(OSError, ValueError):  # there is no such file, or it contains "max"
            memory.append(int(limit.read_text()))
    return _MANY if min(memory) >= _ENOUGH_BYTES else _FEW


if __name__ == "__main__":
    sys.stdout.write(f"{count_processes() + 1}\n")
