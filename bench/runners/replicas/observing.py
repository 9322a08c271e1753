"""Observes the results of a group of processes while faults happen to them, and keeps them in files."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from confluent_kafka import KafkaException

from bench.contest.running.arena import Arena
from bench.harness.pipeline import PARTITIONS, about
from bench.harness.processes import Machine, machine_cpu, others_cores, processes
from bench.runners.failover.effects import read_results
from bench.runners.replicas import raw
from bench.runners.replicas.analysis import ALONE, REPLICAS, STANDBY
from bench.runners.replicas.faults import Fault, Network, play
from bench.runners.replicas.group import Group, Setup
from bench.runners.replicas.raw import Output
from bench.runners.replicas.sending import Sender

SETUPS: Final = {
    ALONE: Setup(ALONE),
    STANDBY: Setup(STANDBY, standbys=1),
    REPLICAS: Setup(REPLICAS, replicas=2, is_merged=True),
}


class Plan(NamedTuple):
    """How many faults happen, at how many records a second, how long after the start, and where to keep the results."""

    faults: int
    rate: int
    warm_up_s: float
    folder: Path


def observe(arena: Arena, network: Network, setup: Setup, plan: Plan) -> bool:
    """Let faults happen, and keep the results. Return whether to go on, which is False after Ctrl-C.

    If the processes are not at work again in time, the faults until then are kept.
    """
    faults: list[Fault] = []
    facts: dict[str, Any] = {"machine": about(), "setup": setup._asdict(), "rate": plan.rate}
    facts |= {"faults": [], "cores": {}, "verdicts": {}, "sender_late_ms": 0.0, "problem": ""}
    with (
        closing(Group(arena.kafka, arena.folder, setup, network.by_name)) as group,
        closing(Sender(arena.kafka, group.application.data)) as sender,
    ):
        is_stopped = False
        try:
            sender.send(plan.rate)
            group.start_all()
            print(f"{setup.name}: at work, {plan.warm_up_s:.0f} s to warm up", flush=True)
            time.sleep(plan.warm_up_s)
            usage = _Usage(arena, group, sender)
            for fault in play(group, network, plan.faults):
                faults.append(fault)
                facts |= {"faults": [one._asdict() for one in faults], "cores": usage.cores()}
                raw.save_facts(plan.folder, setup.name, facts)
                took_s = (fault.settled_ms - fault.at_ms) / 1000
                done = f"{setup.name} {len(faults)}/{plan.faults}"
                print(f"{done}: {fault.name} {fault.kind}, all at work again within {took_s:.1f} s", flush=True)
        except KeyboardInterrupt:
            is_stopped, facts["problem"] = True, "Ctrl-C"
        except (RuntimeError, KafkaException) as error:
            facts["problem"] = repr(error)
        if faults:
            is_stopped = not _finish(group, sender, facts) or is_stopped
            facts["sender_late_ms"] = sender.late_ms
            raw.save_outputs(plan.folder, setup.name, {name: _read(arena, one) for name, one in group.outputs.items()})
            raw.save_facts(plan.folder, setup.name, facts)
            facts["verdicts"] = group.verify()
            raw.save_facts(plan.folder, setup.name, facts)
    if facts["problem"]:
        print(f"{setup.name} stopped early ({facts['problem']}); {len(faults)} faults are kept", flush=True)
    return not is_stopped


def _finish(group: Group, sender: Sender, facts: dict[str, Any]) -> bool:
    """Wait until everything is through, and stop the processes. Return False after Ctrl-C. A problem is noted."""
    try:
        sender.end()
        group.wait_until_through(sender)
        group.stop()
    except KeyboardInterrupt:
        facts["problem"] = facts["problem"] or "Ctrl-C at the end"
        return False
    except (RuntimeError, KafkaException) as error:
        facts["problem"] = facts["problem"] or f"at the end: {error!r}"
    return True


def _read(arena: Arena, topic: str) -> Output:
    parts = [read_results(arena.kafka, topic, unit) for unit in range(PARTITIONS)]
    return Output(*(np.concatenate(one) for one in zip(*parts, strict=True)))


class _Usage:
    """What has been used since the beginning, in cores."""

    def __init__(self, arena: Arena, group: Group, sender: Sender) -> None:
        self._arena, self._group, self._sender = arena, group, sender
        self._began_s = time.monotonic()
        self._used_s, self._machine = self._look(), machine_cpu()

    def cores(self) -> dict[str, float]:
        """Return the cores used by the joiner, Kafka, the measuring programs and others, and those stolen."""
        passed_s = time.monotonic() - self._began_s
        spent_s = {name: used_s - self._used_s[name] for name, used_s in self._look().items()}
        machine = Machine(*np.subtract(machine_cpu(), self._machine).tolist())
        others = others_cores(machine, sum(spent_s.values()), passed_s)
        cores = {name: used_s / passed_s for name, used_s in spent_s.items()}
        return cores | {"foreign": others["foreign_cores"], "stolen": others["steal_cores"]}

    def _look(self) -> dict[str, float]:
        """Return the CPU seconds used so far. The wires are in this process."""
        sending = processes()[self._sender.pid].cpu_s
        joining_s = self._group.joining.look() + self._group.merging.look()
        return {"joiner": joining_s, "Kafka": self._arena.kafka_cpu_s(), "measuring": time.process_time() + sending}
