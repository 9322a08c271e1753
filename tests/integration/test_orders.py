"""Orders of operators on real Kafka: a pinned unit, more standbys, and another attempt at a unit that has failed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.joiner_application import PARTITIONS, Application, application, flowing
from tests.integration.services import wait_until
from tests.integration.site_status import are_shared, assignment, commits_of, owners, warm
from tests.integration.test_joiner_defects import fail_once

SEED = 91


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


def order(app: Application, *arguments: str, status: int = 0) -> str:
    """Give an order. Return what the command prints, without the ends of its lines."""
    done = app.command(*arguments)
    assert done.returncode == status, done.stdout + done.stderr
    return " ".join(done.stdout.split())


@pytest.mark.long
def test_a_pinned_unit_is_handed_over_and_stays_while_another_instance_restarts(app: Application) -> None:
    with flowing(app, SEED):
        one, two = app.start(instance="one"), app.start(instance="two")
        wait_until(lambda: are_shared(app, "one", "two"), "both have units")
        unit = owners(app).index("one")
        assert f"unit {unit} is served by two and stays there" in order(app, "pin", str(unit), "two")
        one.wait_for(rf"units \[{unit}\]: handed over")
        wait_until(lambda: app.checkpoints()[unit].instance == "two", "the unit is committed there")
        run = app.checkpoints()[unit].run
        assert one.stop() == 0
        wait_until(lambda: commits_of(app) == {"two"}, "the one that remains has committed all units")
        again = app.start(instance="one")
        wait_until(lambda: are_shared(app, "one", "two"), "both have units again")
        assert (owners(app)[unit], app.checkpoints()[unit].run) == ("two", run)
        assert f"pinned: unit {unit} to two" in order(app, "status")
        assert "is no longer pinned" in order(app, "pin", str(unit), "--undo")
        assert "pinned" not in order(app, "status")
        assert "no instance 'three'" in order(app, "pin", str(unit), "three", status=1)
        assert f"no unit {PARTITIONS}" in order(app, "pin", str(PARTITIONS), "two", status=2)
    app.wait_until_through()
    assert [joiner.stop() for joiner in (again, two)] == [0, 0]
    app.verify()


@pytest.mark.long
def test_standbys_that_are_ordered_become_warm_and_take_over(app: Application) -> None:
    with flowing(app, SEED + 1):
        one, two = app.start(instance="one"), app.start(instance="two")
        wait_until(lambda: are_shared(app, "one", "two"), "both have units")
        assert warm(app) == 0
        assert "each unit has 1 standby;" in order(app, "standbys", "1")
        wait_until(lambda: warm(app) == PARTITIONS, "the standbys are seen to be warm")
        one.kill()
        two.wait_for("one is gone")
        wait_until(lambda: commits_of(app) == {"two"}, "the other instance has committed all units")
        again = app.start(instance="one")
        wait_until(
            lambda: are_shared(app, "one", "two") and warm(app) == PARTITIONS, "the order holds for who joins later"
        )
        assert "standbys by order: 1" in order(app, "status")
        assert "each unit has 0 standbys" in order(app, "standbys", "--undo")
        found = assignment(app)
        assert found is not None
        assert (found.standbys, found.standbys_ordered) == ([[]] * PARTITIONS, None)
    app.wait_until_through()
    assert [joiner.stop() for joiner in (again, two)] == [0, 0]
    app.verify()


@pytest.mark.slow
def test_a_unit_that_has_failed_is_served_again_by_order_without_a_restart(app: Application) -> None:
    failing, unit = fail_once(app, "joined", "KeyError")
    wait_until(lambda: f"unit {unit}: not served by process" in order(app, "status"), "status reports the unit")
    assert f"unit {unit} is served by one" in order(app, "retry", str(unit))
    app.wait_until_through()
    wait_until(lambda: "not served by" not in order(app, "status"), "status does not report it any more")
    assert "nothing to try again" in order(app, "retry", str(unit))
    assert failing.stop() == 0
    app.verify()
