"""Seeded moves back and forth between two runners while data flows. In each, one runner is killed at a named step.

A `Runner` describes one kind of runner. To cover another kind, add an instance.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from tests.chaos.dying import SOURCE_POINTS, TARGET_POINTS
from tests.integration.joiner_application import PARTITIONS, SPARK_STARTS_S, Application, flowing
from tests.integration.joiner_process import Joiner
from tests.integration.services import DEADLINE_S, wait_until

_UP: Final = "waiting until it is moved here|: claimed"

_ATTEMPTS: Final = 4
"""The maximum number of attempts to move after a crash. The first ones may fail while the source reclaims the units."""

Start = Callable[[Application, dict[str, str]], Joiner]
"""Starts a runner that waits for units. A non-empty environment specifies where it dies."""


class Runner(NamedTuple):
    """A kind of runner: its site, how to start it, and where it may die as a source or as a target."""

    site: str
    start: Start
    source_points: tuple[str, ...]
    target_points: tuple[str, ...]


def process(site: str) -> Runner:
    """Return the plain process at a site."""

    def start(app: Application, environment: dict[str, str]) -> Joiner:
        module = "tests.integration.dying_joiner" if environment else "joiner"
        given = "--standby", "--site", site
        joiner = app.start(*given, instance=site, module=module, **environment)
        _wait_until_up(joiner, environment)
        return joiner

    return Runner(site, start, tuple(SOURCE_POINTS), tuple(TARGET_POINTS))


def spark() -> Runner:
    """Return the stage in Spark."""

    def start(app: Application, environment: dict[str, str]) -> Joiner:
        module = "tests.chaos.dying_stage" if environment else "joiner"
        joiner = app.start("--standby", instance="in-spark", command="spark", module=module, **environment)
        _wait_until_up(joiner, environment, SPARK_STARTS_S)
        return joiner

    return Runner("spark", start, tuple(SOURCE_POINTS), tuple(TARGET_POINTS))


def _wait_until_up(joiner: Joiner, environment: dict[str, str], deadline_s: float = DEADLINE_S) -> None:
    """Wait until the joiner serves or awaits units, or has died early because a unit was already moving to it."""
    if environment:
        wait_until(lambda: joiner.process.poll() is not None or bool(re.search(_UP, joiner.text())), _UP, deadline_s)
    else:
        joiner.wait_for(_UP, deadline_s)


class Play:
    """The moves of a seed."""

    def __init__(self, app: Application, seed: int, runners: tuple[Runner, Runner], turns: int) -> None:
        self.timeline: list[str] = []
        self._app, self._seed, self._runners, self._turns = app, seed, runners, turns
        self._draw = random.Random(f"moves {seed}")
        self._running: dict[str, Joiner] = {}

    def run(self) -> dict[str, Any]:
        """Run the moves. Check that the tester reports no errors, and return its findings."""
        with flowing(self._app, self._seed):
            for runner in self._runners:
                self._start(runner)
            for turn in range(self._turns):
                source, target = self._runners[turn % 2], self._runners[(turn + 1) % 2]
                self._crash(source, target)
                self._settle(source, target)
        self._app.wait_until_through()
        return self._app.verify()

    def _start(self, runner: Runner, **environment: str) -> None:
        if runner.site in self._running:
            self._running[runner.site].kill()
        self._running[runner.site] = runner.start(self._app, environment)

    def _crash(self, source: Runner, target: Runner) -> None:
        """Order a move in which one side dies at a named step of the handover of one unit."""
        chosen = [(target, point) for point in target.target_points] + [
            (source, point) for point in source.source_points
        ]
        dying, point = self._draw.choice(chosen)
        deed = f"{point}:{self._draw.randint(1, PARTITIONS)}"
        self._start(dying, LSB_CHAOS_DIE=deed)
        output = self._app.command("move", "--to", target.site, "--timeout", "3s").stdout
        self._note(f"{source.site} to {target.site}, {dying.site} dies at {deed}\n{output}")
        # If the runner has not reached the point and is still alive, this kills it first.
        self._start(dying)

    def _settle(self, source: Runner, target: Runner) -> None:
        for _ in range(_ATTEMPTS):
            done = self._app.command("move", "--to", target.site)
            self._note(f"{source.site} to {target.site}\n{done.stdout}{done.stderr}")
            if done.returncode == 0:
                break
        owners = {checkpoint.site for checkpoint in self._app.checkpoints().values()}
        assert owners == {target.site}, "\n".join(self.timeline)

    def _note(self, text: str) -> None:
        self.timeline.append(text)
        print(f"seed {self._seed}: {text}")  # noqa: T201 - pytest shows it if the seed fails
