"""Real servers for the chaos tests, and their report."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.stack import ephemeral_stack
from tests.chaos.pipeline import ChaosStack, chaos_stack
from tests.chaos.report import versions_of, write_report


@pytest.fixture(scope="session")
def servers() -> Iterator[ChaosStack]:
    """Running Kafka, MQTT broker and InfluxDB, with wires to them."""
    with chaos_stack() as started:
        yield started


@pytest.fixture(scope="session")
def plain_kafka() -> Iterator[str]:
    """The address of a Kafka broker without wires, for tests of joiners alone."""
    with ephemeral_stack(say=print) as stack:
        stack.up([stack.kafka])
        yield stack.kafka.address


@pytest.fixture(scope="session")
def chaos_report(servers: ChaosStack) -> Iterator[list[dict[str, Any]]]:
    """Collects a row for each run, and writes JSON and Markdown to LSB_CHAOS_REPORT at the end."""
    rows: list[dict[str, Any]] = []
    versions = versions_of(servers.stack)
    yield rows
    name = os.environ.get("LSB_CHAOS_REPORT")
    if name and rows:
        write_report(Path(name), rows, versions)
