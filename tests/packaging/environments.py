"""Builds the wheel, and virtual environments that contain only the wheel and the packages of one lock file.

The packages are linked from the development environment, because copies would be 400 MB for Spark alone. It was
installed with hash checking, and what the lock files say of a package is what its own lock file says (`lock_entries`).
Only the packages in the lock file are linked, at their locked versions.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement

ROOT: Final = Path(__file__).resolve().parents[2]

_FILES: Final = ("pyproject.toml", "README.md", "LICENSE")
_FOLDERS: Final = (
    *("bench", "broker", "connector", "control", "db_connector", "demo", "grafana", "joiner", "simulator", "tests"),
)
_DEADLINE_S: Final = 240.0


@dataclass(frozen=True)
class Environment:
    """A virtual environment in ``folder``. Its programs run in an empty folder, without the variables of the tests."""

    folder: Path

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, such as ``joiner``, or ``python`` with arguments."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("LSB_", "PYTHON", "PYSPARK_"))
        }
        own = {"PYSPARK_PYTHON": str(self.python), "SPARK_LOCAL_IP": "127.0.0.1"}
        empty = self.folder / "empty"
        empty.mkdir(exist_ok=True)
        return subprocess.run(
            [str(self.folder / "bin" / command[0]), *command[1:]],
            cwd=empty,
            env=kept | own | variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=_DEADLINE_S,
        )

    @property
    def python(self) -> Path:
        """The interpreter of the environment."""
        return self.folder / "bin" / "python"

    @property
    def site(self) -> Path:
        """The folder of its packages."""
        (folder,) = self.folder.glob("lib/python*/site-packages")
        return folder

    def packages(self) -> set[str]:
        """Return the names of the installed distributions."""
        found: list[dict[str, str]] = json.loads(_pip(self, "list", "--format", "json"))
        return {one["name"].lower().replace("_", "-") for one in found}

    def missing(self, requirement: str) -> list[str]:
        """Return the packages that pip would still have to install for ``requirement``, or why it cannot."""
        try:
            report: dict[str, Any] = json.loads(
                _pip(self, "install", "--dry-run", "--quiet", "--no-index", "--report", "-", requirement)
            )
        except subprocess.CalledProcessError as error:
            return [str(error.stderr)]
        return [one["metadata"]["name"] for one in report["install"]]


def build_wheel(folder: Path) -> Path:
    """Build the wheel in ``folder``, from a copy of the sources, so that the checkout stays clean."""
    sources = folder / "sources"
    sources.mkdir()
    for name in _FILES:
        shutil.copy(ROOT / name, sources)
    for name in _FOLDERS:
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    offline = ("--no-deps", "--no-build-isolation", "--no-index")
    _pip(None, "wheel", "--quiet", *offline, "--wheel-dir", str(folder), str(sources))
    (wheel,) = folder.glob("*.whl")
    return wheel


def link_environment(folder: Path, wheel: Path, lock: str) -> Environment:
    """Make an environment with the wheel, and links to those packages of the development environment that are locked.

    The packages are those of ``requirements/<lock>.txt``.
    """
    environment = _empty_environment(folder)
    site = environment.site
    for name, version in locked(lock).items():
        distribution = metadata.distribution(name)
        assert distribution.version == version, f"{name} {distribution.version} is installed, {version} is locked"
        tops = {Path(file).parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
        for top in tops:
            if not (site / top).exists():
                (site / top).symlink_to(str(distribution.locate_file(top)))
    return _with_wheel(environment, wheel)


def lock_entries(lock: str) -> set[str]:
    """Return what ``requirements/<lock>.txt`` says of each package: its version, its condition and its hashes."""
    text = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
    return set(re.findall(r"^\S.*(?:\n[ ].*)*", text, re.MULTILINE))


def locked(lock: str) -> dict[str, str]:
    """Return the versions that ``requirements/<lock>.txt`` pins for this interpreter."""
    text = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
    found = [Requirement(line) for line in re.findall(r"^([a-zA-Z0-9][^\\\n]*)\\$", text, re.MULTILINE)]
    chosen = [one for one in found if one.marker is None or one.marker.evaluate()]
    return {one.name: str(one.specifier).removeprefix("==") for one in chosen}


def _empty_environment(folder: Path) -> Environment:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=_DEADLINE_S)
    return Environment(folder)


def _with_wheel(environment: Environment, wheel: Path) -> Environment:
    _pip(environment, "install", "--quiet", "--no-compile", "--no-deps", "--no-index", str(wheel))
    return environment


def _pip(environment: Environment | None, *arguments: str) -> str:
    """Run the development environment's pip, on another environment if given, and return its output."""
    target = [] if environment is None else ["--python", str(environment.python)]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *target, *arguments]
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_DEADLINE_S, env=outside)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout
