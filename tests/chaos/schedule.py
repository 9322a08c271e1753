"""The acts of a run, as data. The seed determines them, so that a run can be repeated."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import Final

from tests.chaos.dying import MERGER_POINTS, POINTS
from tests.seed_text import parse_seeds

SLOT_S: Final = 3.0
"""The mean time between two acts."""

_FOREVER_S: Final = 9e9

Planned = tuple[str, str, float, str, int]
"""An act without its time: the fields of `Act` from ``fault`` on."""


@dataclass(frozen=True)
class Act:
    """A fault of a process, a server or a wire, ``at_s`` seconds after data starts to flow, for ``lasting_s``.

    kill     SIGKILL; restarted after ``lasting_s``
    die      SIGKILL, and a restart that kills itself at the ``count``-th arrival at ``point`` (see `dying`)
    stop     SIGTERM; restarted after ``lasting_s``
    freeze   SIGSTOP, then SIGCONT: if that is after the session and transaction timeouts, a zombie wakes up
    cut      connections break, and new ones fail
    silence  connections stay open but carry nothing
    delay    all data on the wire takes 0.3 s longer in each direction
    slow     each database response takes 2 s longer
    refuse   the database responds with 503
    starve   additional memory is limited to a few MB; restarted without it after ``lasting_s``
    join     another joiner starts
    lose     SIGKILL to all instances of a replica; restarted after ``lasting_s``
    reset    a replica is reset (see `replicated`). ``point``: "merger" if the process that merges is killed
    fill     the server's disk is full (see `limits`)
    clock    the clock is set ``count`` seconds ahead, or back if negative
    """

    at_s: float
    fault: str
    target: str
    lasting_s: float = 0.0
    point: str = ""
    count: int = 0

    @property
    def until_s(self) -> float:
        """The time at which the act is undone."""
        return self.at_s + self.lasting_s


OTHERS: Final[tuple[tuple[str, str, float], ...]] = (
    ("freeze", "one", 18),
    ("stop", "connector", 1),
    ("cut", "db_connector", 5),
    ("freeze", "kafka", 12),
    ("stop", "one", 0),
    ("silence", "connector", 8),
    ("freeze", "two", 18),
    ("refuse", "influxdb", 6),
    ("stop", "simulator", 1),
    ("cut", "one", 12),
    ("freeze", "influxdb", 8),
    ("starve", "connector", 6),
    ("stop", "kafka", 2),
    ("delay", "one", 8),
    ("freeze", "connector", 12),
    ("stop", "mqtt", 1),
    ("silence", "two", 12),
    ("slow", "influxdb", 8),
    ("freeze", "db_connector", 10),
    ("cut", "connector", 5),
    ("starve", "one", 6),
    ("stop", "db_connector", 0),
    ("freeze", "mqtt", 8),
    ("delay", "connector", 8),
    ("stop", "two", 9),
    ("cut", "simulator", 4),
    ("silence", "db_connector", 8),
    ("stop", "influxdb", 2),
    ("starve", "db_connector", 6),
    ("freeze", "simulator", 4),
    ("delay", "db_connector", 8),
)
"""Faults other than kills, with their durations in seconds. Each seed takes the next three, in this order."""

_COUNTS: Final[dict[str, tuple[int, int]]] = {
    "initialised": (1, 3),
    "replaying": (1, 2),
    "within-snapshot": (1, 3),
    "before-commit": (2, 12),
    "after-commit": (2, 12),
    "before-offsets": (2, 12),
    "joined": (2, 12),
    "produced": (2, 12),
    "message": (50, 400),
    "sent": (2, 60),
    "kafka-acknowledged": (20, 200),
    "mqtt-acknowledged": (2, 40),
    "database-acknowledged": (1, 8),
    "acknowledged": (50, 200),
    "merge-fenced": (1, 1),
    "merge-restored": (1, 1),
    "merge-written": (50, 400),
    "merge-before-commit": (2, 20),
    "merge-after-commit": (2, 20),
}
"""For each point, the range from which the fatal arrival is drawn. For points not listed it is 1 to 5."""


def schedule(seed: int) -> list[Act]:
    """Return the acts of a seed in order: about fourteen kills and three other faults, across all processes."""
    draw = random.Random(seed)
    wanted = [
        *(die(draw, joiner, "joiner", seed * 3 + turn) for turn, joiner in enumerate(("one", "two", "one"))),
        ("kill", draw.choice(["one", "two"]), 0.0, "", 0),
        ("kill", draw.choice(["one", "two"]), 9.0, "", 0),  # down for longer than a session, so that others take over
        die(draw, "connector", "connector", seed),
        die(draw, "db_connector", "db_connector", seed),
        die(draw, "simulator", "simulator", seed) if seed % 2 else ("kill", "simulator", 0.0, "", 0),
        ("kill", draw.choice(["connector", "db_connector"]), draw.uniform(0, 3), "", 0),
        ("kill", ("kafka", "influxdb")[seed % 2], draw.uniform(0, 4), "", 0),
        *((fault, target, lasting_s, "", 0) for fault, target, lasting_s in _others(seed)),
    ]
    draw.shuffle(wanted)
    acts = without_overlap(draw, wanted)
    middle_s = acts[len(acts) // 4].at_s
    end_s = max(act.at_s for act in acts)
    leaves = "stop" if seed % 2 else "kill"
    acts += [Act(middle_s, "join", "three"), Act(end_s - SLOT_S, leaves, "three", _FOREVER_S)]
    return sorted(acts, key=lambda act: act.at_s)


def _others(seed: int) -> list[tuple[str, str, float]]:
    return [OTHERS[(seed * 3 + turn) % len(OTHERS)] for turn in range(3)]


def die(draw: random.Random, target: str, service: str, turn: int) -> Planned:
    """Return a death at one of the points of a kind of service (see `dying`), which ``turn`` chooses."""
    points = list((POINTS | {"merger": MERGER_POINTS})[service])
    point = points[turn % len(points)]
    return "die", target, 0.0, point, draw.randint(*_COUNTS.get(point, (1, 5)))


def without_overlap(draw: random.Random, wanted: list[Planned], begin_s: float = 0.0) -> list[Act]:
    """Schedule each act after ``begin_s``, at a time when its target has no other fault."""
    acts: list[Act] = []
    free_s: dict[str, float] = {}
    at_s = begin_s + draw.uniform(1, SLOT_S)
    waiting = list(wanted)
    while waiting:
        ready = [one for one in waiting if free_s.get(one[1], 0.0) <= at_s]
        if ready:
            waiting.remove(ready[0])
            fault, target, lasting_s, point, count = ready[0]
            acts.append(Act(round(at_s, 2), fault, target, round(lasting_s, 2), point, count))
            # A restart takes time. A service that is due to die takes longer, and most of all one that merges: it waits
            # until the group has noticed that it was killed.
            until_dead_s = 16 if point in MERGER_POINTS else 8
            free_s[target] = at_s + lasting_s + (until_dead_s if fault == "die" else 4)
        at_s += draw.uniform(0.5, 1.5) * SLOT_S
    return acts


def seeds() -> list[int]:
    """Return the seeds in ``LSB_CHAOS_SEEDS``, such as ``"1 2 3"`` or ``"1-20"``. The default is 1."""
    return parse_seeds(os.environ.get("LSB_CHAOS_SEEDS") or "1")
