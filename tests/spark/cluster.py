"""A standalone Spark cluster on the loopback interface: a master and two workers, each in its own process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pyspark

_HOME: Final = Path(pyspark.__file__).parent
_DEADLINE_S: Final = 90.0
"""Even on a busy machine, a JVM starts within ten seconds."""


def environment() -> dict[str, str]:
    """Return the environment variables of the cluster's processes. They cannot import the project."""
    ours = {"SPARK_HOME": str(_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | ours


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Run the cluster. Yield its address, ``spark://…``."""
    with ExitStack() as stack:
        master = stack.enter_context(
            _daemon(folder, "master.Master", "Starting Spark master at (spark://[^ ]+:[0-9]+)")
        )
        for name in ("one", "two"):
            options = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / name), master]
            stack.enter_context(_daemon(folder, "worker.Worker", "(Successfully registered)", *options, name=name))
        yield master


@contextmanager
def _daemon(folder: Path, daemon: str, ready: str, *options: str, name: str = "master") -> Iterator[str]:
    log = folder / f"{name}.log"
    command = [str(_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{daemon}"]
    command += ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *options]
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(command, env=environment(), cwd=folder, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield _wait_for(ready, log, process)
    finally:
        process.terminate()
        process.wait(_DEADLINE_S)


def _wait_for(ready: str, log: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + _DEADLINE_S
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(ready, log.read_text(encoding="utf-8")):
            return found[1]
        time.sleep(0.1)
    message = f"{' '.join(map(str, process.args[1:2]))} did not come up: {log.read_text(encoding='utf-8')[-2000:]}"  # type: ignore[index]
    raise TimeoutError(message)


def submit(master: str, folder: Path, *arguments: str) -> str:
    """Run ``spark-submit``. Return the standard output of the job. Raises RuntimeError if the job fails."""
    command = [str(_HOME / "bin" / "spark-submit"), "--master", master, "--conf", "spark.ui.enabled=false"]
    command += ["--conf", "spark.executor.memory=512m", "--conf", "spark.sql.shuffle.partitions=4", *arguments]
    done = subprocess.run(
        command, env=environment(), cwd=folder, check=False, capture_output=True, text=True, timeout=3 * _DEADLINE_S
    )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if " INFO " not in line]
        raise RuntimeError("\n".join([done.stdout, *errors])[-20_000:])
    return done.stdout
