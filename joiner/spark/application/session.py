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
from typing import Final

from pyspark.sql import SparkSession

from joiner.run.settings import JoinerSettings
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


def remove(session: SparkSession, folder: str) -> None:
    """Remove a folder wherever Spark can write, if it is there."""
    java = session._jvm  # noqa: SLF001 - the only way to Hadoop's file systems
    if java is None:
        return
    path = java.org.apache.hadoop.fs.Path(folder)
    path.getFileSystem(session._jsc.hadoopConfiguration()).delete(path, True)  # noqa: SLF001, FBT003 - as above; Java's


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
