"""Creates a Python environment for each peer except Spark, because the peers' packages conflict with the project's.

An environment is created in the subfolder ``peers`` from a file in ``requirements/peers``. It is reused until that file
changes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from broker.stack.errors import StackError
from broker.stack.parts import Parts

REQUIREMENTS: Final = Path(__file__).parents[2] / "requirements" / "peers"

_PYTHONS: Final = ("3.11", "3.12")
"""Python versions for which all peers have wheels. bytewax and Apache Beam, which Flink needs, have no wheels for newer
versions."""

_FLINK_JARS: Final = (("org.apache.flink", "flink-sql-connector-kafka", "5.0.0-2.2"),)
"""Flink's newest Kafka connector. It is built for Flink 2.2 but also works with 2.3."""
_FLINK_AVRO_JARS: Final = (("org.apache.flink", "flink-sql-avro-confluent-registry", "2.3.0"),)
"""Flink's format for Avro in the wire format of a schema registry, with all that it needs."""

ENVIRONMENTS: Final = {
    "bytewax_window": "bytewax",
    "flink_interval": "flink",
    "pathway_join": "pathway",
    "quix_asof": "quix",
}
"""The environment of each script."""


def versions() -> dict[str, str]:
    """Return the pinned versions of the peers, and of Flink's Kafka connector, by name."""
    found = {}
    for name in sorted(set(ENVIRONMENTS.values())):
        # The peer is the first requirement; the others are its dependencies.
        pinned = (line for line in (REQUIREMENTS / f"{name}.in").read_text().splitlines() if "==" in line)
        package, _, version = next(pinned).split()[0].partition("==")
        found[package] = version
    return found | {"Flink's Kafka connector": _FLINK_JARS[0][2]}


def command(script: str, folder: Path, say: Callable[[str], None], registry: str = "") -> list[str]:
    """Return the command that starts a peer's script, without run-specific arguments.

    The peer's dependencies are installed first if needed. ``registry`` is the URL of the schema registry if the input
    is in Avro, which only Flink's script reads.
    """
    python = interpreter(ENVIRONMENTS[script], folder, say)
    more = ["--jars", str(flink_jars(folder, say))] if script == "flink_interval" else []
    more += ["--jars", str(_flink_avro_jars(folder, say)), "--registry", registry] if registry else []
    return [str(python), str(Path(__file__).with_name(f"{script}.py")), *more]


def interpreter(name: str, folder: Path, say: Callable[[str], None]) -> Path:
    """Return the Python interpreter of the environment ``flink``, ``quix``, ``bytewax`` or ``pathway``.

    The environment is created if needed. Raises StackError with the installer's output if that fails.
    """
    wanted = REQUIREMENTS / f"{name}.txt"
    place = (folder / "peers" / name).absolute()
    python, installed = place / "bin" / "python", place / "installed.txt"
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed.is_file() or installed.read_bytes() != wanted.read_bytes():
            say(f"{name:9} installing it in a separate environment")
            shutil.rmtree(place, ignore_errors=True)
            run = Parts(folder, say).run
            run(name, [_find_python(name), "-m", "venv", str(place)])
            # The lock is complete. Without --no-deps, pip rejects a dependency on a pinned package with an extra.
            only = ("--quiet", "--require-hashes", "--no-deps", "-r", str(wanted))
            run(name, [str(python), "-m", "pip", "install", *only])
            shutil.copyfile(wanted, installed)
    return python


def flink_jars(folder: Path, say: Callable[[str], None]) -> Path:
    """Return the folder that contains Flink's Kafka connector. Download the connector if it is missing."""
    notice = "flink     downloading its Kafka connector (10 MB)"
    return Parts(folder / "peers", say).jars("flink-kafka", _FLINK_JARS, REQUIREMENTS / "flink-jars.sha256", notice)


def _flink_avro_jars(folder: Path, say: Callable[[str], None]) -> Path:
    """Return the folder that contains Flink's format for Avro. Download the format if it is missing."""
    notice = "flink     downloading its format for Avro with a schema registry (23 MB)"
    sums = REQUIREMENTS / "flink-avro-jars.sha256"
    return Parts(folder / "peers", say).jars("flink-avro", _FLINK_AVRO_JARS, sums, notice)


def _find_python(name: str) -> str:
    if "{}.{}".format(*sys.version_info) in _PYTHONS:
        return sys.executable
    # Python versions installed with pyenv are on the PATH only while they are selected.
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in _PYTHONS:
        found = shutil.which(f"python{version}")
        pyenv = sorted(kept.glob(f"{version}.*/bin/python"))
        if found or pyenv:
            return found or str(pyenv[-1])
    raise StackError(f"{name}: needs Python {' or '.join(_PYTHONS)}, which was not found")
