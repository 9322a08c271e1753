"""What happens in a run, as data: a seed gives a schedule, and the same schedule can be played again."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import Final

from tests.chaos.dying_joiner import STEPS

INSTANCES: Final = ("one", "two")
KINDS: Final = ("kill", "kill", "die", "die", "die", "leave", "freeze")


@dataclass(frozen=True)
class Action:
    """One thing done to one of the processes, once ``after`` more records have been written.

    kill     SIGKILL, and a new start at once
    die      a start of a process that kills itself at the ``count``-th arrival at ``step``, then a new start
    leave    SIGKILL, and a new start when the other process has taken all units
    freeze   SIGSTOP until the other process has taken all units, then SIGCONT: a zombie
    """

    kind: str
    instance: str
    after: int
    step: str = ""
    count: int = 0


def schedule(seed: int) -> list[Action]:
    """The actions of a seed: five, with one takeover, one death inside a transaction and one kill at least."""
    draw = random.Random(seed)
    kinds = [draw.choice(["leave", "freeze"]), "die", "kill", *(draw.choice(KINDS[:5]) for _ in range(2))]
    draw.shuffle(kinds)
    # Every step has its turn within six seeds.
    first = STEPS[seed % len(STEPS)]
    actions = []
    for kind in kinds:
        step, count = "", 0
        if kind == "die":
            step, first = first, draw.choice(STEPS)
            count = draw.randint(1, 2) if step in {"initialised", "within-snapshot"} else draw.randint(2, 12)
        actions.append(Action(kind, draw.choice(INSTANCES), draw.randint(30, 900), step, count))
    return actions


def seeds() -> list[int]:
    """``LSB_CHAOS_SEEDS``: ``"1 2 3"`` or ``"1-20"``; by default 1 2 3."""
    found: list[int] = []
    for part in (os.environ.get("LSB_CHAOS_SEEDS") or "1 2 3").replace(",", " ").split():
        low, _, high = part.partition("-")
        found += range(int(low), int(high or low) + 1)
    return found
