"""Fixtures: a Docker engine, and for each test module a new stack started from docker-compose.yml."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose import stand_ins
from tests.compose.needs import missing
from tests.compose.stack import Stack


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Docker engine: the one already running, or one started for the tests."""
    if lacking := missing():
        pytest.skip(f"needs {lacking}")
    if not subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        yield
        return
    log = tmp_path_factory.mktemp("engine") / "log"
    # overlay2 shares layers; vfs copies them, but works everywhere.
    running = start_engine(log, "overlay2") or start_engine(log, "vfs")
    if running is None:
        pytest.skip(f"the Docker engine does not start here: {log.read_text()[-500:]}")
    try:
        yield
    finally:
        running.terminate()
        running.wait()


def start_engine(log: Path, driver: str) -> subprocess.Popen[bytes] | None:
    """Start dockerd. Return None if it does not start."""
    with log.open("a") as output:
        running = subprocess.Popen(["dockerd", f"--storage-driver={driver}"], stdout=output, stderr=output)
    until_s = time.monotonic() + 30
    while subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        if running.poll() is not None or time.monotonic() > until_s:
            running.kill()
            running.wait()
            return None
        time.sleep(0.5)
    return running


@pytest.fixture(scope="session")
def images(engine: None) -> None:
    """All images except the Spark image."""
    stand_ins.build()


@pytest.fixture(scope="module")
def stack(images: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A running stack, including the demo's simulator."""
    with Stack(tmp_path_factory.mktemp("stack")).lent() as made:
        yield made
