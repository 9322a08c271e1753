"""Both kinds of runner write the same output for the same application and input, record for record.

The runners are the plain process and the Spark stage. Features that only one of them has are tested elsewhere.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.moving import process, spark
from tests.integration.joiner_application import (
    BASE_MS,
    SPARK_STARTS_S,
    Application,
    Entry,
    application,
    flowing,
    moved_to,
    record,
    seeded_entries,
    things_over_all_units,
)
from tests.integration.joiner_process import Joiner
from tests.integration.services import signal_all, with_children

pytestmark = pytest.mark.timeout(600)

RUNNERS = ("run", "spark")


@pytest.fixture
def apps(kafka: str, tmp_path: Path) -> Iterator[list[Application]]:
    """An application for each kind of runner. All of them read the same topic."""
    made: list[Iterator[Application]] = []
    found: list[Application] = []
    for runner in RUNNERS:
        folder = tmp_path / runner
        folder.mkdir()
        made.append(application(kafka, folder, runner=runner, data=found[0].topic("data") if found else ""))
        found.append(next(made[-1]))
    yield found
    for one in made:
        next(one, None)


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


def poisoned(seed: int, count: int) -> list[Entry]:
    """Return valid and invalid entries, including disorder, equal times, late and repeated records, and watermarks."""
    thing = things_over_all_units(1)[0]
    unusable: list[bytes | None] = [b"no JSON", None, b'{"mark": true}', json.dumps({"thing": thing}).encode()]
    entries = [*seeded_entries(seed, count), record(thing, "speed", 7_258_118_400_000, 1.0, "from the future")]
    step = count // len(unusable)
    for at, value in enumerate(unusable):
        entries.insert(at * step, Entry(thing, value))
    # A pair whose result is not finite.
    entries += [record(thing, quantity, BASE_MS, 1e308, quantity) for quantity in ("speed", "torque")]
    return entries


def written(app: Application) -> dict[str, Counter[bytes]]:
    """Return an application's output by kind of topic, with the names in it replaced by fixed ones."""
    name, data = app.name.encode(), app.topic("data").encode()
    return {
        kind: Counter(value.replace(data, b"data").replace(name, b"name") for value in app.values(kind))
        for kind in ("out", "late", "rejected", "unmatched")
    }


@pytest.mark.long
@pytest.mark.slow
def test_every_runner_writes_the_same_for_the_same_input(apps: list[Application]) -> None:
    apps[0].create_topics()
    for piece, end in enumerate((Joiner.kill, Joiner.stop)):
        apps[0].produce(poisoned(2 * piece, 1500))
        running = [app.start() for app in apps]
        for app in apps:
            app.wait_until_through(SPARK_STARTS_S)
        apps[0].produce(poisoned(2 * piece + 1, 700))
        for app in apps:
            app.wait_until_through()
        for joiner in running:
            end(joiner)
    for app in apps:
        app.verify()
    plain, *others = map(written, apps)
    for kind, values in plain.items():
        assert values, kind
        for other in others:
            assert values == other[kind], kind


@pytest.mark.slow
def test_a_join_moves_to_and_fro_between_processes_and_spark_while_data_comes(app: Application) -> None:
    with flowing(app, 7):
        for runner in (process("process"), process("green"), spark()):
            runner.start(app, {})
        for target in ("spark", "process", "green", "spark"):
            moved = moved_to(app, target)
            assert moved.returncode == 0, moved.stdout + moved.stderr
            assert {checkpoint.site for checkpoint in app.checkpoints().values()} == {target}
    app.wait_until_through()
    assert app.verify()["total"]["found"] > 0


@pytest.mark.long
def test_a_forced_claim_of_the_units_stops_the_other_kind_of_runner(app: Application) -> None:
    with flowing(app, 8):
        stage = app.start(command="spark", instance="in-spark")
        stage.wait_for_units()
        # A frozen runner is a zombie once another runner has claimed its units.
        frozen = with_children(stage.process.pid)
        signal_all(frozen, signal.SIGSTOP)
        process = app.start("--force-claim", instance="plain")
        process.wait_for_units()
        signal_all(frozen, signal.SIGCONT)
        assert stage.ends(SPARK_STARTS_S) == 1
        assert "now owned by process plain" in stage.text()
        assert "Traceback" not in stage.text()
        again = app.start("--force-claim", command="spark", instance="in-spark-again")
        again.wait_for_units()
        assert process.ends() == 1
        assert "now owned by spark in-spark-again" in process.text()
    app.wait_until_through()
    assert again.stop() == 0
    assert app.verify()["total"]["found"] > 0
