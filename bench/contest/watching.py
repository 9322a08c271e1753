"""Processes as they are seen from outside: CPU time and memory of a whole tree, sizes of folders. Linux's /proc."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_END_S: Final = 20.0


class Seen(NamedTuple):
    """A living process: parent, when it was started, CPU seconds, resident bytes."""

    parent: int
    started: int
    cpu_s: float
    memory: int


@dataclass(frozen=True)
class Sample:
    """A moment: CPU seconds so far of a tree and of Kafka."""

    at_s: float
    cpu_s: float
    kafka_cpu_s: float


class Tree:
    """Some processes and all their children, also those that have ended since."""

    def __init__(self, roots: Sequence[subprocess.Popen[bytes]]) -> None:
        self.roots = roots
        self.memory_max = 0
        self._cpu_s: dict[tuple[int, int], float] = {}

    def look(self) -> float:
        """CPU seconds so far; the memory is looked at, too."""
        living = processes()
        members = {root.pid for root in self.roots if root.pid in living}
        # A child that was seen stays a member when its parent has gone.
        members |= {pid for pid, started in self._cpu_s if pid in living and living[pid].started == started}
        grown = True
        while grown:
            more = {pid for pid, one in living.items() if one.parent in members} - members
            members |= more
            grown = bool(more)
        self._cpu_s |= {(pid, living[pid].started): living[pid].cpu_s for pid in members}
        self.memory_max = max(self.memory_max, sum(living[pid].memory for pid in members))
        return sum(self._cpu_s.values())

    def kill(self) -> None:
        """SIGKILL for all of them."""
        self.look()
        living = processes()
        for pid, started in self._cpu_s:
            if pid in living and living[pid].started == started:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for root in self.roots:
            root.wait()

    def end(self) -> bool:
        """SIGTERM, and SIGKILL for what is left after a while; whether that was not needed."""
        self.look()
        for root in self.roots:
            root.terminate()
        deadline_s = time.monotonic() + _END_S
        while any(root.poll() is None for root in self.roots) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        in_time = all(root.poll() is not None for root in self.roots)
        self.kill()
        return in_time


def processes() -> dict[int, Seen]:
    """All that live now, by id."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name, in brackets, may hold anything.
            fields = path.read_text().rpartition(")")[2].split()
            cpu_s = (int(fields[11]) + int(fields[12])) * _TICK_S
            found[int(path.parent.name)] = Seen(int(fields[1]), int(fields[19]), cpu_s, int(fields[21]) * _PAGE)
    return found


def folder_bytes(folder: Path, pattern: str = "*") -> int:
    """Of all files below."""
    total = 0
    for path in folder.rglob(pattern):
        with suppress(OSError):
            total += path.lstat().st_size
    return total
