"""Fixtures of the chaos tests: the real servers, and the report of the runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.stack import ephemeral_stack
from tests.chaos.pipeline import ChaosStack, chaos_stack
from tests.chaos.report import versions_of, write_report


@pytest.fixture(scope="package")
def servers() -> Iterator[ChaosStack]:
    """Kafka, an MQTT broker and InfluxDB, all running, with wires to them."""
    with chaos_stack() as started:
        yield started


@pytest.fixture(scope="package")
def plain_kafka() -> Iterator[str]:
    """The address of a Kafka broker without wires, for tests that run only joiners."""
    with ephemeral_stack(say=print) as stack:
        stack.up([stack.kafka])
        yield stack.kafka.address


@pytest.fixture(scope="package")
def chaos_report(servers: ChaosStack) -> Iterator[list[dict[str, Any]]]:
    """A list to which each run appends its row. At the end it is written to LSB_CHAOS_REPORT, as JSON and Markdown."""
    rows: list[dict[str, Any]] = []
    versions = versions_of(servers.stack)
    yield rows
    name = os.environ.get("LSB_CHAOS_REPORT")
    if name and rows:
        write_report(Path(name), rows, versions)
