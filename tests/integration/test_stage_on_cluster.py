"""The Spark stage on a standalone cluster with a master and two workers, each with its own executor."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.integration.joiner_application import SPARK_STARTS_S, Application, application, flowing
from tests.integration.services import signal_all, wait_until, with_children
from tests.spark.cluster import cluster

pytestmark = pytest.mark.timeout(600)

CONFIG: Final = {
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path, runner="spark")


def executors() -> list[int]:
    """Return the process ids of the executors started by this process."""
    found = []
    for number in with_children(os.getpid()):
        try:
            words = Path(f"/proc/{number}/cmdline").read_text().split("\0")
        except OSError:  # it has just ended
            continue
        # The descendants include drivers, which are not executors.
        if any(word.endswith("CoarseGrainedExecutorBackend") for word in words):
            found.append(number)
    return found


def joined(app: Application) -> int:
    """Return the sum of the consumed offsets of all units."""
    return sum(sum(checkpoint.offsets.values()) for checkpoint in app.checkpoints().values())


@pytest.mark.long
def test_two_executors_share_the_units_and_the_loss_of_one_costs_nothing(app: Application, tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    with cluster(folder) as master, flowing(app, 11):
        stage = app.start(
            LSB_SPARK__MASTER=master,
            LSB_SPARK__CONFIG=json.dumps(CONFIG),
        )
        # The instances log on the executors.
        wait_until(lambda: joined(app) > 0, "something is joined", SPARK_STARTS_S)
        before = executors()
        assert len(before) == 2
        signal_all(with_children(before[0]), signal.SIGKILL)
        wait_until(lambda: bool(set(executors()) - set(before)), "a new executor has started", SPARK_STARTS_S)
        reached = joined(app)
        wait_until(lambda: joined(app) > reached, "the join continues", SPARK_STARTS_S)
    # The cluster is now down, and Spark waits for it. The application continues in a local stage.
    # Its instances do not answer, so the driver exits when its time to stop is over.
    stage.process.terminate()
    assert stage.ends() == 0
    again = app.start()
    app.wait_until_through(SPARK_STARTS_S)
    assert again.stop() == 0
    assert app.verify()["total"]["found"] > 0
