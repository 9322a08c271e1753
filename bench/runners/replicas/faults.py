"""Lets faults happen to the processes of a group, one at a time, each followed by a quiet period."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from bench.harness.wire import Wire, Wires
from bench.runners.replicas.group import Group, Member

BEFORE_MS: Final = 1_000
WINDOW_MS: Final = 5_000
"""What is around a fault: records that are due from `BEFORE_MS` before it on, for this long. A quiet period is as
long."""

LASTING_S: Final = 2.0
"""How long a process is stopped, or cut off from Kafka."""
RESTART_S: Final = 0.5
"""How long a killed process is away until it is started again, as by ``joiner run --processes``."""
CALM_S: Final = 1.0
"""How long to wait after a fault, once all processes are at work again, until the quiet period begins."""

KILLED: Final = "killed"
STOPPED: Final = "stopped"
CUT_OFF: Final = "cut off"
KINDS: Final = (KILLED, STOPPED, CUT_OFF)


class Fault(NamedTuple):
    """What happened to the process ``name``, and when, by the wall clock.

    ``settled_ms`` is when all processes were seen at work again, not before the time around the fault was over.
    ``quiet_ms`` is when the quiet period began.
    """

    kind: str
    name: str
    at_ms: int
    settled_ms: int
    quiet_ms: int


class Network:
    """How the processes reach Kafka: through wires that can be cut."""

    def __init__(self, wires: Wires, by_name: Mapping[str, Wire]) -> None:
        self._wires, self.by_name = wires, by_name

    def cut_off(self, member: Member) -> None:
        """Break the connections of a process, and refuse new ones."""
        self._wires.cut(self.by_name[member.name])

    def reconnect(self, member: Member) -> None:
        """Let the process connect again."""
        self._wires.mend(self.by_name[member.name])


def play(group: Group, network: Network, count: int) -> Iterator[Fault]:
    """Let ``count`` faults happen to the processes that join, in turn. Yield each once its quiet period is over.

    Raises RuntimeError if the processes are not at work again in time. Whatever happens, no process remains disturbed.
    """
    acts: dict[str, Callable[[Member], None]] = {
        KILLED: lambda member: _kill(group, member),
        STOPPED: lambda member: _stop(group, member),
        CUT_OFF: lambda member: _cut_off(network, member),
    }
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        member = group.members[number // len(KINDS) % len(group.members)]
        time.sleep(BEFORE_MS / 1000)
        at_ms, end_s = _now_ms(), time.monotonic() + (WINDOW_MS - BEFORE_MS) / 1000
        acts[kind](member)
        # Looking takes CPU time, as nothing does in the quiet period.
        time.sleep(max(0.0, end_s - time.monotonic()))
        group.settle()
        settled_ms = _now_ms()
        time.sleep(CALM_S)
        quiet_ms = _now_ms()
        time.sleep(WINDOW_MS / 1000)
        yield Fault(kind, member.name, at_ms, settled_ms, quiet_ms)


def _kill(group: Group, member: Member) -> None:
    group.kill(member)
    try:
        time.sleep(RESTART_S)
    finally:
        group.start(member)


def _stop(group: Group, member: Member) -> None:
    group.signal(member, signal.SIGSTOP)
    try:
        time.sleep(LASTING_S)
    finally:
        group.signal(member, signal.SIGCONT)


def _cut_off(network: Network, member: Member) -> None:
    network.cut_off(member)
    try:
        time.sleep(LASTING_S)
    finally:
        network.reconnect(member)


def _now_ms() -> int:
    return round(1000 * time.time())
