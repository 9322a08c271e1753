"""Shared by all commands of the pipeline: the version, and the message for a missing package.

Every command imports this module first, so it depends only on the standard library. `joiner.spark` has its own message,
because it also runs from a zip of ``joiner`` that lacks this package.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

VERSION: Final = "0.1.0"
"""The version in pyproject.toml. It is repeated here because the container images run from source, without installed
metadata."""

DISTRIBUTIONS: Final = {
    "confluent_kafka": "confluent-kafka",
    "google": "protobuf",
    "influxdb_client": "influxdb-client",
    "llvmlite": "llvmlite",
    "msgspec": "msgspec",
    "paho": "paho-mqtt",
    "pandas": "pandas",
    "prometheus_client": "prometheus-client",
    "py4j": "pyspark",
    "pyarrow": "pyarrow",
    "pydantic": "pydantic",
    "pydantic_settings": "pydantic-settings",
    "pyspark": "pyspark",
    "structlog": "structlog",
}
"""Distribution names of the packages in the extras ``service``, ``arrow`` and ``spark``, by import name."""

_WRONG_USAGE: Final = 2


def version_of(command: str) -> str:
    """Return the output of ``<command> --version``."""
    return f"{command} {VERSION}"


def describe_missing(package: str, extra: str) -> str:
    """Return the message for a missing package of an extra. ``package`` is a key of `DISTRIBUTIONS`."""
    command = f"pip install 'localstreambuffer[{extra}]'"
    return f"{DISTRIBUTIONS[package]} is not installed: {command} (in the repository: make setup)"


@contextmanager
def imports_of(command: str, extra: str = "service") -> Iterator[None]:
    """Guard the imports of a command: exit if a package of the extra is missing.

    In that case print one line and exit with status 2; ``--version`` still works. Other errors propagate.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in DISTRIBUTIONS:
            raise
        if sys.argv[1:] == ["--version"]:
            print(version_of(command))
            sys.exit(0)
        print(f"{command}: {describe_missing(package, extra)}", file=sys.stderr)
        sys.exit(_WRONG_USAGE)
