"""Determines what the demo has to do, and checks all options and settings before anything starts.

`demo.run` executes the resulting task. The generator, the simulator and the services each validate their own input;
this module only runs those checks early.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from broker.settings import Service, SettingsError, load_settings
from connector.settings import Settings as ConnectorSettings
from db_connector.settings import DbConnectorSettings
from joiner.functions import load_functions
from joiner.runtime.settings import PROCESS, SPARK, JoinerSettings
from simulator import settings as simulator_settings
from simulator.generate import Plan

_OTHER: Final = {PROCESS: SPARK, SPARK: PROCESS}
"""Maps the runner on which the join starts to the runner that it moves to."""


class Pipeline(NamedTuple):
    """The settings of the three services."""

    connector: ConnectorSettings
    joiner: JoinerSettings
    db_connector: DbConnectorSettings


class Wishes(NamedTuple):
    """The options given by the user.

    If ``events`` is None, events are generated. If ``runner`` is None, the join moves from a process to Spark.
    """

    events: Path | None
    events_count: int
    rate: str
    seed: int
    as_recorded: bool
    folder: Path
    runner: str | None = None
    move: bool = False
    """Whether to move the join from ``runner`` to the other runner. The join always moves if ``runner`` is None."""
    ui: bool = False
    """Whether to start the control service, and to keep everything running at the end."""


@dataclass(frozen=True)
class Task:
    """The work of one demo. All of its settings have been checked."""

    folder: Path
    events: Path
    plan: Plan | None
    """The plan for the events to generate; None if ``events`` is a recording."""
    rate: str
    replay: tuple[str, ...]
    """The simulator's command-line arguments, except for ``--journal``."""
    runner: str
    """The site where the join starts."""
    moves_to: str | None
    """The site that the join moves to midway through the replay; None if it stays."""
    ui: bool = False
    """Whether to start the control service, and to keep everything running at the end."""


def read_task(wishes: Wishes) -> Task:
    """Check all options and settings, and create the folder.

    Raises a `SettingsError` that lists every mistake in the services' settings or, if there are none, in the options.
    """
    pipeline = load_pipeline()
    mistakes: list[str] = []
    runner = wishes.runner or PROCESS
    if runner not in _OTHER:
        mistakes.append(f"--runner: must be {' or '.join(_OTHER)}, not {runner!r}")
    plan = _plan(wishes, mistakes) if wishes.events is None else None
    # The simulator refuses a file that does not exist. If the events have yet to be generated, this module's own file
    # is passed instead.
    mistakes += _replay_mistakes(_replay_arguments(wishes, pipeline, wishes.events or Path(__file__)))
    if wishes.events is not None and wishes.events.is_file() and not wishes.events.stat().st_size:
        mistakes.append(f"--events: {wishes.events} is empty: there is nothing to replay")
    if not mistakes:
        try:
            wishes.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            mistakes.append(f"--folder: {wishes.folder} cannot be used: {error.strerror}")
    if mistakes:
        raise SettingsError("\n".join(mistakes))
    events = wishes.events or wishes.folder / "events.json"
    replay = _replay_arguments(wishes, pipeline, events)
    moves_to = _OTHER[runner] if wishes.move or wishes.runner is None else None
    return Task(wishes.folder, events, plan, wishes.rate, replay, runner, moves_to, wishes.ui)


def load_pipeline() -> Pipeline:
    """Load the settings that the services will read from ``lsb.toml`` and the environment.

    The joining functions are loaded too. Raises a `SettingsError` that lists the mistakes in the settings of all
    services, without repeating those in shared settings.
    """
    mistakes: dict[str, None] = {}
    connector, joiner, database = (
        _load(ConnectorSettings, mistakes),
        _load(JoinerSettings, mistakes),
        _load(DbConnectorSettings, mistakes),
    )
    if connector is None or joiner is None or database is None:
        raise SettingsError("\n".join(mistakes))
    load_functions({join.name: join.function for join in joiner.join})
    return Pipeline(connector, joiner, database)


def _load(model: type[Service], mistakes: dict[str, None]) -> Service | None:
    try:
        return load_settings(model)
    except SettingsError as error:
        mistakes.update(dict.fromkeys(str(error).splitlines()))
        return None


def _plan(wishes: Wishes, mistakes: list[str]) -> Plan | None:
    count = wishes.events_count
    if count < 1:
        mistakes.append(f"--events-count: must be a whole number of at least 1, not {count}")
        return None
    try:
        return Plan(events=count, seed=wishes.seed, machines=7, disorder=0.02, repeats=0.005, equal=0.005)
    except ValueError as error:
        mistakes.append(f"--events-count: {error}")
        return None


def _replay_arguments(wishes: Wishes, pipeline: Pipeline, events: Path) -> tuple[str, ...]:
    # The simulator does not read lsb.toml, so the connector's topic and time unit must be passed as arguments.
    connector = pipeline.connector
    found = (
        f"--events={events}",
        f"--rate={wishes.rate}",
        f"--topic={connector.mqtt.topic}",
        f"--time-unit={connector.events.time_unit}",
    )
    return (*found, "--as-recorded") if wishes.as_recorded else found


def _replay_mistakes(arguments: tuple[str, ...]) -> list[str]:
    try:
        found = simulator_settings.read_settings(arguments, os.environ)
    except simulator_settings.SettingsError as error:
        # The demo has no --topic option, so the message must name the setting in lsb.toml instead.
        return [fault.replace("--topic:", "mqtt.topic, to which the demo also publishes,") for fault in error.errors]
    if (found.read_first, found.skip_first, found.rounds, found.rebase) != (None, 0, 1, None):
        names = "READ_FIRST_N, SKIP_FIRST_N, LOOP and REBASE"
        return [f"the demo can only verify a replay of the whole, unchanged file: unset {names} in the environment"]
    return []
