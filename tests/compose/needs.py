"""The requirements of `make test-compose`, checked and reported in one line before anything is built.

Uses only the standard library, so that it runs without the project's environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys


def has_compose() -> bool:
    """Return whether Docker has Compose v2. docker-compose 1.29 is a different program and is not tested."""
    return _works("docker", "compose", "version")


def missing() -> str:
    """Return the missing requirements, each with its remedy; empty if nothing is missing."""
    wanted = [
        ("Docker (apt-get install docker.io)", shutil.which("docker") is not None),
        ("a Docker engine: start it, or run this as root with dockerd (apt-get install docker.io)", _has_engine()),
        ("debootstrap, for the images (apt-get install debootstrap)", shutil.which("debootstrap") is not None),
        ("Compose v2 (`docker compose`), or Go 1.24 to build it", has_compose() or shutil.which("go") is not None),
    ]
    return "; ".join(what for what, is_there in wanted if not is_there)


def _has_engine() -> bool:
    return _works("docker", "info") or (shutil.which("dockerd") is not None and os.geteuid() == 0)


def _works(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    if lacking := missing():
        sys.exit(f"make test-compose needs {lacking}")
