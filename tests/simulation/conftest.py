"""Pins the test process to one core while it plays histories, whose threads run one at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.simulation.seeds import keep_to_one_core


@pytest.fixture(autouse=True, scope="package")
def _one_core() -> Iterator[None]:
    if not hasattr(os, "sched_setaffinity"):  # macOS
        yield
        return
    cores = os.sched_getaffinity(0)
    keep_to_one_core()
    yield
    os.sched_setaffinity(0, cores)
