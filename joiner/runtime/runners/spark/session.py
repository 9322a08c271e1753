"""The Spark session of a stage, and its temporary folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from joiner.runtime.settings import JoinerSettings

_ATTEMPTS_MAX: Final = 100
"""How often a task may fail before Spark gives up. A task's failures add up for as long as the stage runs."""

_NEEDED: Final = {
    "spark.task.maxFailures": str(_ATTEMPTS_MAX),
    # A second copy of a task would have the same instance name.
    "spark.speculation": "false",
    # An instance must not find anything that an earlier one left behind in the process.
    "spark.python.worker.reuse": "false",
}

_PREFERRED: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
}
"""Defaults that settings may override."""

_LOCAL: Final = {
    # Listen on the loopback interface only.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # The JVM does little work, and shares the cores with the workers.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Settings for a master on this machine."""

_SCRATCH: Final = "joiner-spark-"
_ALIVE: Final = "alive"


def make_session(settings: JoinerSettings, scratch: Path) -> SparkSession:
    """Create the Spark session. ``spark.master`` is ignored under ``spark-submit``, which specifies the cluster."""
    # The driver and the workers must use the same Python, which may not be the one on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"joiner {settings.application.name}")
    chosen = dict(_PREFERRED)
    if not _is_submitted():
        builder = builder.master(_with_attempts(settings.spark.master))
        if settings.spark.master.startswith("local"):
            chosen |= _LOCAL | {"spark.local.dir": str(scratch)}
    chosen |= {name: str(value) for name, value in settings.spark.config.items()}
    chosen |= _NEEDED
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _with_attempts(master: str) -> str:
    """Add the number of attempts to a local master, where Spark ignores the setting. Return other masters unchanged."""
    found = re.fullmatch(r"local(?:\[(\*|\d+)\])?", master)
    return f"local[{found[1] or 1},{_ATTEMPTS_MAX}]" if found else master


def _is_submitted() -> bool:
    """Return whether this program was started by ``spark-submit``."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a private temporary folder and remove it on exit. Folders left by killed stages are removed first."""
    for left in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
        with contextlib.suppress(OSError), (left / _ALIVE).open() as alive:
            # A live stage holds the lock.
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    # It gets its final name only once it is locked, or a stage starting at the same time might remove it.
    folder = Path(tempfile.mkdtemp(prefix=f".{_SCRATCH}"))
    with (folder / _ALIVE).open("w") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        folder = folder.rename(folder.with_name(folder.name.removeprefix(".")))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
