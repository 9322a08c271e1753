"""What all commands of the pipeline share: the version, and the message for a package that is not installed.

Every command imports this module first, so it imports the standard library alone. `joiner.spark` has a message of its
own, because it also works from a zip of ``joiner``, without this package.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

VERSION: Final = "0.1.0"
"""As in pyproject.toml. Not from the installed metadata: the container images run the sources, without any."""

DISTRIBUTIONS: Final = {
    "confluent_kafka": "confluent-kafka",
    "google": "protobuf",
    "influxdb_client": "influxdb-client",
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
"""The packages of the extras ``service`` and ``spark``, by the names under which they are imported."""

_WRONG_USAGE: Final = 2


def version_of(command: str) -> str:
    """What ``<command> --version`` prints."""
    return f"{command} {VERSION}"


def describe_missing(package: str, extra: str) -> str:
    """The message for a package of an extra that is not installed; ``package`` is a key of `DISTRIBUTIONS`."""
    command = f"pip install 'localstreambuffer[{extra}]'"
    return f"{DISTRIBUTIONS[package]} is not installed: {command} (in the repository: make setup)"


@contextmanager
def imports_of(command: str, extra: str = "service") -> Iterator[None]:
    """Holds the imports of a command's module. Where a package of the extra is missing, the process ends.

    It then prints one line and exits with 2; ``--version`` is answered all the same. Other errors pass.
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
