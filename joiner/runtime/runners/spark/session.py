"""The Spark session of a stage, its folders, and the keys by which Spark groups each unit's rows."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from joiner.runtime.settings import JoinerSettings

_NEEDED: Final = {
    # The only state store that supports the operator used here (``transformWithStateInPandas``).
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # With changelogs, a batch writes only its changes instead of all files of the state store.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Tasks must not run twice, because the outcome of the second attempt would be discarded anyway.
    "spark.task.maxFailures": "1",
    "spark.speculation": "false",
    # It would put several units into one task.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "2",
}

_PREFERRED: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    # All results of a batch pass through the driver.
    "spark.driver.memory": "2g",
    "spark.driver.maxResultSize": "0",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
}
"""Defaults that settings may change."""

_LOCAL: Final = {
    # Nothing listens on other machines.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # The JVM does little work and shares the cores with the workers. Optimising compilation used a tenth of their time.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Settings for a master on this machine."""

_SCRATCH: Final = "joiner-spark-"
_ALIVE: Final = "alive"

MARKER: Final = "made-by-joiner"
"""Name of the file that marks a checkpoint folder as created by the joiner."""

_KEYS_MAX: Final = 50_000
"""Keys are chosen from the integers up to this one. These suffice for 1,000 partitions, the maximum allowed."""


def make_session(settings: JoinerSettings, scratch: Path) -> SparkSession:
    """Create the Spark session. ``spark.master`` is ignored under ``spark-submit``, which specifies the cluster."""
    # The driver and the workers must use the same Python, which may not be the one on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"joiner {settings.application.name}")
    chosen = dict(_PREFERRED)
    if not _is_submitted():
        builder = builder.master(settings.spark.master)
        if settings.spark.master.startswith("local"):
            chosen |= _LOCAL | {"spark.local.dir": str(scratch)}
    chosen |= {name: str(value) for name, value in settings.spark.config.items()}
    chosen |= _NEEDED | {"spark.sql.shuffle.partitions": str(settings.topics.partitions)}
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _is_submitted() -> bool:
    """Return whether this program was started by ``spark-submit``."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def grouping_keys(session: SparkSession, units: int) -> list[int]:
    """Return a key for each unit, chosen so that Spark hashes every key to a different partition."""
    # The query has only constants, so Spark evaluates it during planning, without running a job.
    (row,) = session.sql(f"select transform(sequence(0, {_KEYS_MAX}), key -> pmod(hash(key), {units}))").collect()
    places: list[int] = row[0]
    return [places.index(unit) for unit in range(units)]


class ForeignFolder(Exception):
    """Raised instead of removing a folder that this program did not create."""


class StageFolder:
    """A folder in any file system to which Spark can write. It exists for as long as the stage runs.

    The path is a setting and may name any folder, so a stage puts a marker file into the folder it creates. A folder
    without the marker is never removed.
    """

    def __init__(self, session: SparkSession, name: str) -> None:
        self._name = name
        java: Any = session._jvm  # noqa: SLF001 - the only way to Hadoop's file systems
        self._path: Any = java.org.apache.hadoop.fs.Path
        self._folder = self._path(name)
        self._files = self._folder.getFileSystem(session._jsc.hadoopConfiguration())  # noqa: SLF001 - as above
        self._marker = self._path(name, MARKER)

    def begin(self) -> None:
        """Create an empty folder, after removing one left behind by a killed stage. Raises `ForeignFolder`."""
        self.remove()
        if self._files.exists(self._folder) and not (
            self._files.getFileStatus(self._folder).isDirectory() and not self._files.listStatus(self._folder)
        ):
            raise ForeignFolder(
                f"the folder {self._name} is not empty and has no file {MARKER}: it was not created by a stage, so it "
                "will not be removed. Move it elsewhere, or set spark.checkpoint to another folder"
            )
        self._files.mkdirs(self._folder)
        self._files.createNewFile(self._marker)

    def remove(self) -> None:
        """Remove the folder if it exists and was created by a stage."""
        if not self._files.exists(self._marker):
            return
        # The marker is deleted last, so that the folder is still recognised if the process is killed halfway.
        for found in self._files.listStatus(self._folder):
            if found.getPath().getName() != MARKER:
                self._files.delete(found.getPath(), True)  # noqa: FBT003 - Java's
        self._files.delete(self._folder, True)  # noqa: FBT003 - Java's

    def remove_part(self, name: str) -> None:
        """Remove a subfolder, but only if a stage created this folder."""
        if self._files.exists(self._marker):
            self._files.delete(self._path(self._name, name), True)  # noqa: FBT003 - Java's


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a private temporary folder and remove it on exit. Folders of killed stages are removed first."""
    for left in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
        with contextlib.suppress(OSError), (left / _ALIVE).open() as alive:
            # A living stage holds the lock.
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_SCRATCH))
    with (folder / _ALIVE).open("w") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
