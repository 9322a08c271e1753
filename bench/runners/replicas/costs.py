"""Measures what groups of processes cost: CPU time, and what they write to Kafka."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.contest.running.arena import Arena
from bench.runners.replicas.group import Group, Setup
from bench.runners.replicas.sending import Sender

SETUPS: Final = (
    Setup("alone"),
    Setup("standby", standbys=1),
    Setup("two replicas", replicas=2),
    Setup("two replicas, merged", replicas=2, is_merged=True),
    Setup("three replicas", replicas=3),
    Setup("three replicas, merged", replicas=3, is_merged=True),
)

_WARM_UP_RATE: Final = 1_000
_WARM_UP_S: Final = 10.0


class Load(NamedTuple):
    """Records that arrive at a rate for some seconds."""

    rate: int
    seconds: float


def measure_costs(arena: Arena, loads: Sequence[Load], turns: int) -> Iterator[dict[str, Any]]:
    """Yield a row per setup, load and turn: the records, and what was used until all were through.

    ``joiner_s``, ``merger_s`` and ``kafka_s`` are CPU seconds. ``bytes`` are by topic, without the name of the
    application. Raises RuntimeError if a process has ended, or is not at work in time.
    """
    for setup in SETUPS:
        with (
            closing(Group(arena.kafka, arena.folder, setup, {})) as group,
            closing(Sender(arena.kafka, group.application.data)) as sender,
        ):
            # Rows that are measured later are not those of a process that compiles its loops.
            sender.send(_WARM_UP_RATE)
            group.start_all()
            time.sleep(_WARM_UP_S)
            sender.pause()
            group.wait_until_through(sender)
            for turn in range(turns):
                for load in loads:
                    row = {"setup": setup.name, "turn": turn, "rate": load.rate}
                    yield row | _cost(arena, group, sender, load)
            group.stop()


def _cost(arena: Arena, group: Group, sender: Sender, load: Load) -> dict[str, Any]:
    before, written, sent, began_s = _used(arena, group), _written(arena, group), sender.sent, time.monotonic()
    sender.send(load.rate)
    time.sleep(load.seconds)
    sender.pause()
    group.wait_until_through(sender)
    after = _used(arena, group)
    return {
        "records": sender.sent - sent,
        "took_s": time.monotonic() - began_s,
        **{name: value - before[name] for name, value in after.items()},
        "bytes": dict(_written(arena, group) - written),
    }


def _used(arena: Arena, group: Group) -> dict[str, float]:
    """Return the CPU seconds used so far."""
    return {"joiner_s": group.joining.look(), "merger_s": group.merging.look(), "kafka_s": arena.kafka_cpu_s()}


def _written(arena: Arena, group: Group) -> Counter[str]:
    """Return the size of the logs of the application's and of Kafka's own topics, in bytes."""
    return log_bytes(arena.stack.kafka.data, group.application.settings.application.name)


def log_bytes(data: Path, name: str) -> Counter[str]:
    """Return the size of the logs of an application's and of Kafka's own topics, in bytes.

    ``data``: the broker's folder. The application's topics begin with ``name``, which is left out.
    """
    found: Counter[str] = Counter()
    for path in data.rglob("*.log"):
        # The folder of a partition is named <topic>-<partition>.
        topic = path.parent.name.rpartition("-")[0]
        if topic.startswith((f"{name}.", "__")):
            found[topic.removeprefix(f"{name}.")] += path.stat().st_size
    return found
