"""The acts of a run with replicas, as data. The seed determines them, so that a run can be repeated.

A replica is reset in some runs, in the middle. Until it is complete again, neither the other replicas nor Kafka have a
fault: if none is complete, results may be delivered again (docs/replicas.md).
"""

from __future__ import annotations

import random
from typing import Final

from tests.chaos.pipeline import OPERATORS, JoinerApplication
from tests.chaos.schedule import SLOT_S, Act, Planned, die, without_overlap

_OPERATORS: Final = OPERATORS.replace("joiner.functions:spindle_power", "tests.chaos.functions:power_or_failure")
"""Each unit writes all kinds of output, dead letters too. In a quiet topic, a replica becomes complete only later."""

LATE: Final = "one_r2"
"""The instance of replica 2. It is started in the middle of a run."""

OTHERS: Final[tuple[tuple[str, str, float], ...]] = (
    ("freeze", "merge_one", 18),
    ("cut", "one_r1", 12),
    ("freeze", "one", 18),
    ("cut", "merge_one", 8),
    ("freeze", "kafka", 12),
    ("stop", "merge_one", 1),
    ("silence", "merge_one", 12),
    ("stop", "one_r1", 2),
    ("freeze", "one_r1", 18),
    ("delay", "merge_one", 8),
    ("kill", "influxdb", 2),
    ("silence", "one", 12),
    ("starve", "merge_one", 6),
    ("stop", "kafka", 2),
    ("freeze", "db_connector", 10),
    ("delay", "one_r1", 8),
)
"""Faults other than kills, with their durations in seconds. Each seed takes the next two, in this order."""


def replicated(replicas: int, mergers: int) -> JoinerApplication:
    """Return an application of two or three replicas, merged by one or two processes. It has four joiners."""
    further = (("one_r1", "two_r1"),) if replicas == 2 else (("one_r1",), (LATE,))
    return JoinerApplication(
        "first", ("one", "two"), _OPERATORS, further=further, mergers=("merge_one", "merge_two")[:mergers]
    )


def application_of(seed: int) -> JoinerApplication:
    """Return the application of a seed: every fourth one has three replicas, and every other one a second merger."""
    return replicated(2 if seed % 4 else 3, 1 + seed % 2)


def standbys_of(seed: int) -> int:
    """Return how many standbys each unit has."""
    return seed // 2 % 2


def short_schedule(seed: int) -> list[Act]:
    """Return a joiner, a whole replica, a merger and Kafka that are killed once each, in the order of the seed."""
    draw = random.Random(f"replicas {seed}")
    wanted: list[Planned] = [
        die(draw, "one", "joiner", seed),
        ("lose", "replica 1", 3.0, "", 0),
        ("kill", "merge_one", 0.0, "", 0),
        ("kill", "kafka", draw.uniform(0, 2), "", 0),
    ]
    draw.shuffle(wanted)
    return without_overlap(draw, wanted)


def full_schedule(seed: int) -> list[Act]:
    """Return about fifteen kills and two other faults, across all processes, and a reset in two of three seeds."""
    draw = random.Random(f"replicas {seed}")
    replicas, mergers = application_of(seed).replicas, application_of(seed).mergers
    present = [replica for replica in replicas if LATE not in replica]
    wanted: list[Planned] = [
        *(die(draw, replica[0], "joiner", seed * 3 + turn) for turn, replica in enumerate(present)),
        *(("kill", draw.choice(replica), draw.choice([0.0, 9.0]), "", 0) for replica in present),
        ("lose", f"replica {seed % len(present)}", 12.0, "", 0),
        ("kill", draw.choice(mergers), draw.choice([0.0, 9.0]), "", 0),
        *_deaths_of_mergers(draw, seed, mergers),
        die(draw, "db_connector", "db_connector", seed),
        ("kill", "connector", draw.uniform(0, 3), "", 0),
        ("kill", "kafka", draw.uniform(0, 4), "", 0),
        *((fault, target, lasting_s, "", 0) for fault, target, lasting_s in _others(seed)),
    ]
    draw.shuffle(wanted)
    half = len(wanted) // 2
    acts = without_overlap(draw, wanted[:half])
    middle_s = max(act.until_s for act in acts) + SLOT_S
    if len(replicas) == 3:
        acts.append(Act(middle_s, "join", LATE))
        wanted.append(("kill", LATE, 0.0, "", 0))
    if seed % 3:
        # In turn replica 1, which begins with a snapshot of replica 0, and replica 0, which begins at the beginning.
        killed = "merger" if draw.random() < 0.5 else ""
        acts.append(Act(middle_s + 0.1, "reset", f"replica {seed % 3 % 2}", 0.0, killed))
    acts += without_overlap(draw, wanted[half:], middle_s + 0.2)
    return sorted(acts, key=lambda act: act.at_s)


def _deaths_of_mergers(draw: random.Random, seed: int, mergers: tuple[str, ...]) -> list[Planned]:
    """Return deaths at two of the steps of merging. If another process merges, a step is not taken, so kill instead."""
    if len(mergers) == 1:
        return [die(draw, mergers[0], "merger", seed + turn) for turn in (0, 1)]
    return [("kill", name, 0.0, "", 0) for name in mergers]


def _others(seed: int) -> list[tuple[str, str, float]]:
    return [OTHERS[(seed * 2 + turn) % len(OTHERS)] for turn in range(2)]
