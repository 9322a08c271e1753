"""Observes processes from outside: CPU time and memory of a process tree, from Linux's /proc, and folder sizes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_END_S: Final = 20.0


class Seen(NamedTuple):
    """A running process: its parent, start time, CPU seconds and resident bytes."""

    parent: int
    started: int
    cpu_s: float
    memory: int


class Machine(NamedTuple):
    """The CPU seconds of all cores since the machine started: used by processes, idle, and stolen by the host."""

    busy_s: float = 0.0
    idle_s: float = 0.0
    steal_s: float = 0.0


@dataclass(frozen=True)
class Sample:
    """The CPU seconds that a process tree, Kafka, this program and the whole machine had used at a point in time."""

    at_s: float
    cpu_s: float
    kafka_cpu_s: float
    measuring_cpu_s: float = 0.0
    machine: Machine = field(default_factory=Machine)


def machine_cpu(stat: str | None = None) -> Machine:
    """Return how the machine has spent its CPU time so far. ``stat`` holds the contents of /proc/stat.

    Time spent handling interrupts is left out, because it belongs to no process.
    """
    lines = (Path("/proc/stat").read_text() if stat is None else stat).splitlines()
    user, nice, system, idle, waiting, _, _, steal = (int(word) * _TICK_S for word in lines[0].split()[1:9])
    return Machine(user + nice + system, idle + waiting, steal)


def others_cores(machine: Machine, known_s: float, passed_s: float) -> dict[str, float]:
    """Return how many cores were used by other programs, stolen by the host, and idle.

    ``machine`` is what the machine spent in ``passed_s`` seconds, ``known_s`` the CPU seconds of the contender, Kafka
    and the measuring programs. ``foreign_share`` is the share of the machine that others used or the host stole.
    """
    foreign_s = max(0.0, machine.busy_s - known_s)
    whole_s = machine.busy_s + machine.idle_s + machine.steal_s
    return {
        "foreign_cores": foreign_s / passed_s,
        "steal_cores": machine.steal_s / passed_s,
        "idle_cores": machine.idle_s / passed_s,
        "foreign_share": (foreign_s + machine.steal_s) / whole_s if whole_s else 0.0,
    }


class Tree:
    """A tree of processes: the given roots and all of their descendants, including those that have exited."""

    def __init__(self, roots: Sequence[subprocess.Popen[bytes]]) -> None:
        self.roots = roots
        self.memory_max = 0
        self._cpu_s: dict[tuple[int, int], float] = {}

    def look(self) -> float:
        """Sample the tree and return its CPU seconds so far."""
        living = processes()
        members = {root.pid for root in self.roots if root.pid in living}
        # A known child stays in the tree after its parent has exited.
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
        """Send SIGKILL to all processes."""
        self.look()
        living = processes()
        for pid, started in self._cpu_s:
            if pid in living and living[pid].started == started:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for root in self.roots:
            root.wait()

    def end(self) -> bool:
        """Send SIGTERM, and SIGKILL after a deadline. Return whether all roots exited before the deadline."""
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
    """Return all running processes, by id."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The fields follow the name of the process, which is in parentheses and may itself contain any character.
            fields = path.read_text().rpartition(")")[2].split()
            cpu_s = (int(fields[11]) + int(fields[12])) * _TICK_S
            found[int(path.parent.name)] = Seen(int(fields[1]), int(fields[19]), cpu_s, int(fields[21]) * _PAGE)
    return found


def folder_bytes(folder: Path, pattern: str = "*") -> int:
    """Return the total size of the files below ``folder`` whose names match ``pattern``."""
    total = 0
    for path in folder.rglob(pattern):
        with suppress(OSError):
            total += path.lstat().st_size
    return total
