"""Defines a contender: one or more commands that run the same `Job` and are observed from outside."""

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
    """Raised if a contender cannot run on this machine. The message gives the reason."""


@dataclass(frozen=True)
class Limits:
    """The time limits of a run.

    ``start_s`` limits the wait for the first result, and ``budget_s`` the time from then until the end of the run. A
    run that writes no new results for ``quiet_s`` has gone quiet.
    """

    budget_s: float = 90.0
    start_s: float = 120.0
    quiet_s: float = 6.0


@dataclass(frozen=True)
class Job:
    """A task for a contender. Each job has its own ``name`` and its own ``folder``.

    ``cores`` is the number of cores that the contender may use, or 0 for all. ``quantities`` names the driver and the
    columns of aligned rows; it is empty if the job is to find the neighbours of speed and torque. ``registry`` is the
    URL of the schema registry if the input is in Avro, or empty if it is in JSON.
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
    quantities: tuple[str, ...] = ()
    registry: str = ""

    @property
    def out(self) -> str:
        """The topic for its results."""
        return f"{self.name}.out"

    @property
    def state(self) -> Path:
        """The folder for its state."""
        return self.folder / "state"

    def of(self, workload: Workload) -> Job:
        """Return a copy of the job that uses the lateness, watermark scope and quantities of ``workload``."""
        return replace(
            self,
            lateness_ms=workload.lateness_ms,
            watermark_scope=workload.watermark_scope,
            quantities=workload.quantities if workload.has_columns else (),
        )


@dataclass(frozen=True)
class Contender:
    """An engine with its settings.

    ``commands`` returns one command per process; the processes run in parallel. ``has_window`` says whether the results
    depend on the width of a window. If ``widths`` is above 1, the windows form a fixed grid and each of them is
    ``widths`` times as long as the given width. ``topics`` is 2 if each side needs a topic of its own. ``guarantee`` is
    the delivery guarantee. ``states`` returns the states the contender has stored in Kafka. The time limit is
    multiplied by ``patience``. ``waits_ms`` is how far event time must advance before a result is emitted.
    ``in_batches`` says whether it works in batches, so that results come in bursts. ``variants`` are contenders with
    alternative settings to try, ``for_latency`` those with the settings for measuring latency, if they differ.
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
    in_batches: bool = False
    variants: tuple[Contender, ...] = ()
    for_latency: tuple[Contender, ...] = ()

    def window(self, width_ms: int, lateness_ms: int = 0) -> Window:
        """Return the window in which the contender finds pairs when it looks ``width_ms`` to each side of a record.

        A contender that waits for event time to advance also waits for its lateness and for the end of its window.
        """
        waits_ms = self.waits_ms + lateness_ms + 2 * width_ms if self.waits_ms else 0
        if not self.has_window:
            return Window(waits_ms=waits_ms)
        return Window(self.widths * width_ms, is_grid=self.widths > 1, waits_ms=waits_ms)

    @property
    def slug(self) -> str:
        """The name, with every character that is not allowed in a topic or file name replaced."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.name.lower())
