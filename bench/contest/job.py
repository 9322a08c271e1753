"""Defines a contender: a list of commands that all get the same `Job` and are observed from outside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bench.contest.states import State
from bench.contest.workload.expected import Window
from bench.contest.workload.inputs import Workload
from bench.harness.pipeline import PARTITIONS
from broker.settings import KafkaSettings

ROOT: Final = Path(__file__).parents[2]
EXACTLY_ONCE: Final = "exactly once"
AT_LEAST_ONCE: Final = "at least once"


class NotHereError(Exception):
    """The contender cannot run here. The message is the reason."""


@dataclass(frozen=True)
class Limits:
    """The time limits of a run, and how long it may be quiet before it is ended although input is left."""

    budget_s: float = 90.0
    start_s: float = 120.0
    quiet_s: float = 6.0


@dataclass(frozen=True)
class Job:
    """A task for a contender. ``folder`` is not shared with other jobs, and ``name`` is unique.

    ``cores`` is the number of cores that the contender may use, or 0 for all.
    """

    kafka: KafkaSettings
    folder: Path
    name: str
    data: str
    records: int
    lateness_ms: int = 0
    watermark_scope: str = "key"
    width_ms: int = 0
    partitions: int = PARTITIONS
    cores: int = 0

    @property
    def out(self) -> str:
        """The topic for its results."""
        return f"{self.name}.out"

    @property
    def state(self) -> Path:
        """The folder for its state."""
        return self.folder / "state"

    def of(self, workload: Workload) -> Job:
        """Return the same job with the lateness and the watermark scope of a workload."""
        return replace(self, lateness_ms=workload.lateness_ms, watermark_scope=workload.watermark_scope)


@dataclass(frozen=True)
class Contender:
    """An engine with its settings.

    ``commands`` returns the commands of its processes, which run in parallel. ``has_window`` says whether its
    results depend on the width. If ``widths`` is above 1, its windows form a grid and are each this many widths wide.
    ``topics`` is 2 if each side needs its own topic. ``guarantee`` is how its results are delivered. ``states`` returns
    the states that it has stored in Kafka. ``patience`` multiplies the time limit. ``waits_ms`` is how much event time
    must pass before a result is emitted. ``variants`` are other settings to try. ``for_latency`` are the settings under
    which its latency is measured, instead of its own.
    """

    name: str
    what: str
    commands: Callable[[Job], list[list[str]]]
    lacks: str = ""
    has_window: bool = False
    widths: int = 1
    guarantee: str = EXACTLY_ONCE
    topics: int = 1
    states: Callable[[Job], list[State]] = lambda _: []
    patience: float = 1.0
    waits_ms: int = 0
    variants: tuple[Contender, ...] = ()
    for_latency: tuple[Contender, ...] = ()

    def window(self, width_ms: int, lateness_ms: int = 0) -> Window:
        """Return the window in which the contender finds pairs, for ``width_ms`` to each side.

        A contender that waits for event time to pass also waits for its lateness and for the end of its window.
        """
        waits_ms = self.waits_ms + lateness_ms + 2 * width_ms if self.waits_ms else 0
        if not self.has_window:
            return Window(waits_ms=waits_ms)
        return Window(self.widths * width_ms, is_grid=self.widths > 1, waits_ms=waits_ms)

    @property
    def slug(self) -> str:
        """The name in a form that topic and file names allow."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.name.lower())
