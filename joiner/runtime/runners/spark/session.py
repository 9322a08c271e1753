"""A Spark session as the stage needs it, and the grouping keys of units."""

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
from joiner.spark.request import PROVIDER, ROCKSDB

_NEEDED: Final = {
    # The only store that keeps the state of this kind of operator.
    PROVIDER: ROCKSDB,
    # A batch writes what has changed instead of the files of the whole store.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # What ran once must not run again beside itself; it would only be thrown away.
    "spark.task.maxFailures": "1",
    "spark.speculation": "false",
    # Would put several units into one task.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "2",
}

_PREFERRED: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    # The results of a batch go through the driver.
    "spark.driver.memory": "2g",
    "spark.driver.maxResultSize": "0",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
}
"""What settings may change."""

_LOCAL: Final = {
    # Nothing listens on other machines.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # The JVM has little to do here, and shares its cores with the workers: compiling it well took a tenth of them.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Where everything runs on this machine."""

_SCRATCH: Final = "joiner-spark-"
_ALIVE: Final = "alive"

MARKER: Final = "made-by-joiner"
"""The file in a folder of checkpoints that tells who made it."""

_KEYS_MAX: Final = 50_000
"""Among so many numbers there is one for each of 1,000 partitions, the most there may be."""


def make_session(settings: JoinerSettings, scratch: Path) -> SparkSession:
    """The session; under ``spark-submit``, which names the cluster, ``spark.master`` of the settings is not used."""
    # Both ends must be of one version; what is on the path may be another.
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
    """Whether ``spark-submit`` has started this program."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def grouping_keys(session: SparkSession, units: int) -> list[int]:
    """For each unit a key that Spark's hash puts into a partition of its own: the work of a batch is spread evenly."""
    # Of constants alone: answered while it is planned, without a job.
    (row,) = session.sql(f"select transform(sequence(0, {_KEYS_MAX}), key -> pmod(hash(key), {units}))").collect()
    places: list[int] = row[0]
    return [places.index(unit) for unit in range(units)]


class ForeignFolder(Exception):
    """A folder that is to be removed, and that this program has not made."""


class StageFolder:
    """A folder wherever Spark can write, for as long as a stage runs. A file in it says that it was made here.

    What has no such file is never removed: a checkpoint may be configured to be anywhere.
    """

    def __init__(self, session: SparkSession, name: str) -> None:
        self._name = name
        java: Any = session._jvm  # noqa: SLF001 - the only way to Hadoop's file systems
        self._path: Any = java.org.apache.hadoop.fs.Path
        self._folder = self._path(name)
        self._files = self._folder.getFileSystem(session._jsc.hadoopConfiguration())  # noqa: SLF001 - as above
        self._marker = self._path(name, MARKER)

    def begin(self) -> None:
        """Make the folder, empty, whatever a stage that was killed has left there. Raises `ForeignFolder`."""
        self.remove()
        if self._files.exists(self._folder) and not (
            self._files.getFileStatus(self._folder).isDirectory() and not self._files.listStatus(self._folder)
        ):
            raise ForeignFolder(
                f"the folder {self._name} holds something, and no file {MARKER}: no stage has made it, so it is not "
                "removed. Move it away, or name another spark.checkpoint"
            )
        self._files.mkdirs(self._folder)
        self._files.createNewFile(self._marker)

    def remove(self) -> None:
        """Remove the folder, if it is there and was made here."""
        if not self._files.exists(self._marker):
            return
        # The marker last: who is killed in the middle leaves what can still be told apart.
        for found in self._files.listStatus(self._folder):
            if found.getPath().getName() != MARKER:
                self._files.delete(found.getPath(), True)  # noqa: FBT003 - Java's
        self._files.delete(self._folder, True)  # noqa: FBT003 - Java's

    def remove_part(self, name: str) -> None:
        """Remove a folder in it."""
        if self._files.exists(self._marker):
            self._files.delete(self._path(self._name, name), True)  # noqa: FBT003 - Java's


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder that only this user may enter, removed at the end; those of stages that were killed go first."""
    for left in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
        with contextlib.suppress(OSError), (left / _ALIVE).open() as alive:
            # Its stage holds the lock as long as it lives.
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_SCRATCH))
    with (folder / _ALIVE).open("w") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
