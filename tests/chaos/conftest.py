"""A real Kafka for the chaos tests, and the report on what they found."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.stack import ephemeral_stack


@pytest.fixture(scope="session")
def kafka() -> Iterator[str]:
    """The bootstrap string of a running Kafka."""
    with ephemeral_stack(say=print) as stack:
        stack.up([stack.kafka])
        yield stack.kafka.address


@pytest.fixture(scope="session")
def chaos_report() -> Iterator[list[dict[str, Any]]]:
    """Collects a row for each run; where LSB_CHAOS_REPORT names a file, JSON and Markdown are written at the end."""
    rows: list[dict[str, Any]] = []
    yield rows
    name = os.environ.get("LSB_CHAOS_REPORT")
    if name:
        path = Path(name)
        path.with_suffix(".json").write_text(json.dumps(rows, indent=2) + "\n")
        path.with_suffix(".md").write_text(_markdown(rows))


def _markdown(rows: list[dict[str, Any]]) -> str:
    columns = ("seed", "deaths", "takeovers", "records", "expected", "found", "missing", "doubled", "unexpected", "s")
    lines = ["# Crashes at seeded moments", "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(row[column]) for column in columns) + " |" for row in rows]
    return "\n".join([*lines, ""])
