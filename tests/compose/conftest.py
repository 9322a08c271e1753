"""A Docker engine, and the stack of docker-compose.yml in it, which each module of tests has anew."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.compose import stand_ins
from tests.compose.stack import Stack


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Docker engine: the one that runs, or one for the time of the tests."""
    if not shutil.which("docker") or not (shutil.which("docker-compose") or shutil.which("dockerd")):
        pytest.skip("no Docker here")
    if not subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        yield
        return
    if not shutil.which("dockerd") or os.geteuid() != 0:
        pytest.skip("no Docker engine runs here, and none can be started")
    with (tmp_path_factory.mktemp("engine") / "log").open("w") as log:
        running = subprocess.Popen(["dockerd", "--storage-driver=vfs"], stdout=log, stderr=log)
    try:
        until_s = time.monotonic() + 30
        while subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
            if running.poll() is not None or time.monotonic() > until_s:
                pytest.skip("the Docker engine does not start here")
            time.sleep(0.5)
        yield
    finally:
        running.terminate()
        running.wait()


@pytest.fixture(scope="session")
def images(engine: None) -> None:
    """All but that of Spark."""
    if not shutil.which("debootstrap"):
        pytest.skip("stand-in images need debootstrap")
    stand_ins.build()


@pytest.fixture(scope="module")
def stack(images: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """As docker-compose.yml has it, with the demo's simulator."""
    with Stack(tmp_path_factory.mktemp("stack")).lent() as made:
        yield made
