"""pyproject.toml, the lock files and the code agree on versions and requirements."""

from __future__ import annotations

import re
import tomllib
from typing import Any, Final

import pytest
from packaging.requirements import Requirement

import joiner
from broker.commandline import DISTRIBUTIONS, VERSION
from tests.packaging.environments import ROOT, locked

PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCKS: Final = {
    "library": (),
    "services": ("service", "sparkplug", "protobuf"),
    "control": ("control",),
    "arrow": ("arrow",),
    "spark": ("service", "spark"),
    "dev": ("all",),
}
"""The extras that each lock file covers."""


def wanted(*extras: str) -> list[Requirement]:
    """Return the requirements of the package with these extras, and with the extras that they refer to."""
    found = [Requirement(text) for text in PROJECT["dependencies"]]
    for extra in extras:
        for text in PROJECT["optional-dependencies"][extra]:
            requirement = Requirement(text)
            inner = wanted(*requirement.extras) if requirement.name == PROJECT["name"] else [requirement]
            found += [one for one in inner if one not in found]
    return found


def test_the_version_is_the_same_wherever_it_is_written() -> None:
    images = re.findall(r"localstreambuffer[\w-]*:([\w.]+)", (ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    assert len(images) == 3
    assert {joiner.__version__, VERSION, *images} == {PROJECT["version"]}


def test_every_package_that_an_extra_may_lack_has_a_message() -> None:
    extras = ("delta", "spark", "control", "sparkplug", "protobuf")
    needed = {one.name for one in wanted(*extras)} - {one.name for one in wanted()}
    assert set(DISTRIBUTIONS.values()) == needed


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_has_what_the_metadata_asks_for_in_a_version_within_its_range(lock: str) -> None:
    versions = locked(lock)
    wrong = [str(one) for one in wanted(*LOCKS[lock]) if not one.specifier.contains(versions.get(one.name, "0"))]
    assert wrong == []


def test_a_package_has_the_same_version_in_every_lock() -> None:
    everything = locked("dev")
    for lock in LOCKS:
        versions = locked(lock)
        assert versions == {name: everything[name] for name in versions}


def test_the_metadata_pins_no_version() -> None:
    texts = [*PROJECT["dependencies"], *(text for one in PROJECT["optional-dependencies"].values() for text in one)]
    assert [text for text in texts if "==" in text] == []
