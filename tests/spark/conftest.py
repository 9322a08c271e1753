"""One local Spark session for all tests of a process, with two cores and the RocksDB state store."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

ROOT: Final = Path(__file__).resolve().parents[2]
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PARTITIONS: Final = 3


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        folder = tmp_path_factory.mktemp("spark")
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            # The second compiler costs more than it gains within the minutes for which a session runs.
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
            .config("spark.local.dir", str(folder / "local"))
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.sql.shuffle.partitions", str(PARTITIONS))
            .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
            # Different from the machine's time zone, because no result may depend on that.
            .config("spark.sql.session.timeZone", "Asia/Tokyo")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()


@pytest.fixture(autouse=True)
def _sockets_of_pyspark() -> Iterator[None]:
    # pyspark leaves sockets open until they are garbage-collected, which causes warnings.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
