"""Units move between processes of two sites while data flows. Whichever process dies, each result is written once."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Final

import pytest

from tests.chaos.dying import SOURCE_POINTS
from tests.integration.joiner_application import (
    PARTITIONS,
    Application,
    application,
    flowing,
    moved_to,
    refusal,
    run_once,
)
from tests.integration.joiner_process import Joiner
from tests.integration.services import DEADLINE_S, start_service, wait_until
from tests.long import rest_long


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


def begin(app: Application, **environment: str) -> Joiner:
    """Start the joiner that owns the units first, and wait until it has claimed them."""
    module = "tests.integration.dying_joiner" if environment else "joiner"
    joiner = app.start(instance="blue", module=module, **environment)
    joiner.wait_for_units()
    return joiner


def standby(app: Application, site: str = "green", instance: str = "", **environment: str) -> Joiner:
    """Start a standby joiner."""
    module = "tests.integration.dying_joiner" if environment else "joiner"
    given = "--standby", "--site", site
    joiner = app.start(*given, instance=instance or site, module=module, **environment)
    joiner.wait_for("waiting until it is moved here|: claimed")
    return joiner


SHORT: Final = "8s"
"""How long an order waits for a process that has died. The targets must be ready by then, so that it comes to that."""


def move(app: Application, to: str = "green", *more: str) -> CompletedProcess[str]:
    done = app.command("move", "--to", to, *more)
    assert "Traceback" not in done.stderr
    return done


def owners(app: Application) -> dict[int, str]:
    return {unit: checkpoint.owner for unit, checkpoint in app.checkpoints().items()}


def all_of(owner: str) -> dict[int, str]:
    return dict.fromkeys(range(PARTITIONS), owner)


@pytest.mark.slow
def test_all_units_move_there_and_back_while_data_flows(app: Application) -> None:
    with flowing(app, 1):
        blue, green = begin(app), standby(app)
        for to, owner in (("green", "green green"), ("process", "process blue"), ("green", "green green")):
            moved = moved_to(app, to)
            assert moved.returncode == 0, moved.stdout + green.text()
            assert re.search(rf"MOVED: all \d units are at {to}|nothing to do", moved.stdout)
            assert owners(app) == all_of(owner)
        again = move(app, "green")
        assert again.returncode == 0
        assert again.stdout.count("already owned by green green; nothing to do") == PARTITIONS
    app.wait_until_through()
    assert "green green" in app.command("status").stdout
    assert (blue.stop(), green.stop()) == (0, 0)
    app.verify()


@pytest.mark.long
def test_some_units_move_and_the_others_stay(app: Application) -> None:
    with flowing(app, 2):
        begin(app)
        standby(app)
        moved = move(app, "green", "--units", "0,2")
        assert moved.returncode == 0, moved.stdout
        assert owners(app) == {0: "green green", 1: "process blue", 2: "green green"}
        assert move(app, "green", "--units", "7").returncode == 2
    app.wait_until_through()
    app.verify()


def test_without_a_target_the_source_continues(app: Application) -> None:
    with flowing(app, 3):
        blue = begin(app)
        before = app.checkpoints()
        moved = move(app, "nowhere", "--timeout", "2s")
        assert moved.returncode == 1
        assert moved.stdout.count("no target was ready in time") == PARTITIONS
        assert {unit: one.run for unit, one in app.checkpoints().items()} == {
            unit: one.run for unit, one in before.items()
        }
    app.wait_until_through()
    assert blue.stop() == 0
    app.verify()


def test_a_target_with_other_settings_refuses_before_anything_is_released(app: Application) -> None:
    with flowing(app, 12):
        blue = begin(app)
        before = {unit: one.run for unit, one in app.checkpoints().items()}
        right, app.tolerance = app.tolerance, "7s"
        standby(app)
        moved = move(app)
        assert moved.returncode == 1
        assert moved.stdout.count("was started with different values for settings") == PARTITIONS, moved.stdout
        assert "released" not in blue.text()
        assert {unit: one.run for unit, one in app.checkpoints().items()} == before
        app.tolerance = right
    app.wait_until_through()
    assert blue.stop() == 0
    app.verify()


def test_an_order_that_is_stopped_leaves_everything_where_it_is(app: Application) -> None:
    run_once(app, 11, 100)
    blue = begin(app)
    log = app.folder / "move.log"
    given = "move", "--to", "nowhere", "--config", str(app.config)
    order = start_service("joiner", *given, environment={"PYTHONUNBUFFERED": "1"}, log=log)
    wait_until(lambda: "moving units" in log.read_text(), "the order is given")
    order.send_signal(signal.SIGINT)
    assert order.wait(DEADLINE_S) == 1
    assert log.read_text().count("not moved: stopped before it was released") == PARTITIONS, log.read_text()
    assert owners(app) == all_of("process blue")
    assert blue.stop() == 0


def test_a_unit_without_an_owner_is_not_moved_and_the_remedy_is_printed(app: Application) -> None:
    assert "has never run" in move(app).stdout
    run_once(app, 4, 100)
    assert app.command("reset", "--yes").returncode == 0
    moved = move(app)
    assert moved.returncode == 1
    assert moved.stdout.count("has had no owner since a reset; start a joiner with --site green") == PARTITIONS
    green = standby(app)
    app.wait_until_through()
    assert owners(app) == all_of("green green")
    assert green.stop() == 0


def test_a_process_that_may_not_own_the_units_names_the_remedies(app: Application) -> None:
    run_once(app, 5, 100)
    said = refusal(app, "--site", "green")
    for way in ("joiner move --to green", "--standby", "--force-claim"):
        assert way in said


@pytest.mark.slow
@pytest.mark.parametrize("point", rest_long("claimed", "after-ready-record"))
def test_a_target_that_is_killed_costs_nothing(app: Application, point: str) -> None:
    with flowing(app, 6):
        begin(app)
        green = standby(app, LSB_CHAOS_DIE=f"{point}:1")
        first = move(app, "green", "--timeout", SHORT)
        assert green.ends() == -signal.SIGKILL
        assert first.returncode == 1, first.stdout
        came_back(app, "green", first)
    app.wait_until_through()
    app.verify()


@pytest.mark.slow
@pytest.mark.parametrize("point", rest_long(*SOURCE_POINTS))
def test_a_source_that_is_killed_at_any_step_costs_nothing(app: Application, point: str) -> None:
    with flowing(app, 7):
        blue = begin(app, LSB_CHAOS_DIE=f"{point}:1")
        standby(app)
        first = move(app, "green", "--timeout", SHORT)
        assert blue.ends() == -signal.SIGKILL
        came_back(app, "process", first)
    app.wait_until_through()
    app.verify()


def came_back(app: Application, site: str, first: CompletedProcess[str]) -> None:
    """Restart the killed joiner, and check that the whole move then succeeds."""
    standby(app, site, "blue" if site == "process" else "green")
    # At first, the source may still be reclaiming the units of the first move.
    last = moved_to(app, "green")
    assert last.returncode == 0, first.stdout + last.stdout + "".join(one.text() for one in app.started)[-6000:]
    assert owners(app) == all_of("green green")


@pytest.mark.long
def test_units_that_a_frozen_target_does_not_claim_are_reclaimed_and_it_does_no_harm_when_resumed(
    app: Application,
) -> None:
    with flowing(app, 8):
        blue = begin(app)
        green = standby(app, LSB_CHAOS_DIE="after-ready-record:1", LSB_CHAOS_SIGNAL="STOP")
        first = move(app, "green", "--units", "1")
        assert first.returncode == 1
        assert "no one claimed it, so its source reclaimed it" in first.stdout, first.stdout + green.text()[-3000:]
        assert owners(app) == all_of("process blue")
        green.process.send_signal(signal.SIGCONT)
        green.wait_for("waiting until it is moved here")
        last = move(app)
        assert last.returncode == 0, last.stdout + green.text()[-3000:]
        assert owners(app) == all_of("green green")
    app.wait_until_through()
    assert (blue.stop(), green.stop()) == (0, 0)
    app.verify()


@pytest.mark.long
def test_units_that_a_frozen_source_has_released_are_claimed_and_it_does_no_harm_when_resumed(app: Application) -> None:
    with flowing(app, 9):
        blue = begin(app, LSB_CHAOS_DIE="after-release-commit:1", LSB_CHAOS_SIGNAL="STOP")
        standby(app)
        move(app, "green", "--timeout", SHORT)
        assert "green green" in owners(app).values()
        os.kill(blue.process.pid, signal.SIGCONT)
        last = move(app)
        assert last.returncode == 0, last.stdout
        wait_until(lambda: owners(app) == all_of("green green"), "all units are at the target")
    app.wait_until_through()
    assert blue.stop() == 0
    app.verify()


@pytest.mark.long
def test_a_third_process_that_joins_the_source_meanwhile_keeps_nothing(app: Application) -> None:
    with flowing(app, 10):
        begin(app)
        standby(app)
        third = app.start(instance="third")
        moved = move(app)
        if moved.returncode:  # the group was assigning units to the third process
            moved = move(app)
        assert moved.returncode == 0, moved.stdout
        # On a busy machine, all units have left before it is settled, so that it is never assigned one.
        third.wait_for(
            "joiner move --to process|waiting until it is moved here|on its way to green|releasing it to green"
            r"|units \[\], 0 records held"
        )
        assert owners(app) == all_of("green green")
    app.wait_until_through()
    assert owners(app) == all_of("green green")
    app.verify()
