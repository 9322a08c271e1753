"""Fixtures of the chaos tests: the real servers, and the report of the runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.pipeline import ChaosStack, chaos_stack
from tests.chaos.report import versions_of, write_report


@pytest.fixture(scope="module")
def servers() -> Iterator[ChaosStack]:
    """Kafka, an MQTT broker and InfluxDB, all running, with wires to them.

    They are stopped at the end of a file, because they would take CPU time from all later tests.
    """
    with chaos_stack() as started:
        yield started


@pytest.fixture(scope="session")
def chaos_report() -> Iterator[list[dict[str, Any]]]:
    """A list to which each run appends its row. At the end it is written to LSB_CHAOS_REPORT, as JSON and Markdown."""
    yield from _report("", "Crashes and faults at seeded moments")


@pytest.fixture(scope="session")
def replicas_report() -> Iterator[list[dict[str, Any]]]:
    """The same for the runs with replicas, whose report has the suffix ``_replicas``."""
    yield from _report("_replicas", "Crashes and faults of replicas at seeded moments")


def _report(suffix: str, title: str) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    versions = versions_of()
    yield rows
    name = os.environ.get("LSB_CHAOS_REPORT")
    if name and rows:
        write_report(Path(name + suffix), title, rows, versions)
