"""Aligned rows on real Kafka: once each, over kills, beside joins, and as the input of a join."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.joiner_application import ALIGNS, Application, application, found_of, seeded_entries
from tests.integration.services import read_topic

GRIDS = """
[[align]]
name = "regular"
grid = { every = "150ms", origin = 2100-01-01T00:00:00Z, max_gap = "2s" }
result = "speed"

[align.columns]
speed = { rule = "linear", lateness = "1s", on_missing = "drop" }
torque = { lateness = "500ms", tolerance = "300ms" }

[[align]]
name = "sum"
grid = { every = "1s" }
function = "tests.unit.joiner.joining_functions:of_row"

[align.columns]
speed = { rule = "linear", lateness = "1s" }
torque = { rule = "nearest", lateness = "500ms", tolerance = "600ms" }
"""


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path, aligns=ALIGNS + GRIDS)


def rows_of(app: Application, align: str = "table") -> list[dict[str, Any]]:
    rows = (json.loads(value) for value in app.values("out"))
    return [row for row in rows if "values" in row and row["quantity"] == align]


@pytest.mark.slow
def test_a_killed_joiner_writes_each_row_once_beside_its_joins(app: Application) -> None:
    # Snapshots are rare at first, so that there are records to replay.
    often, app.application = app.application, 'snapshot_interval = "1h"\nsnapshot_records = 1000000'
    app.create_topics()
    first = app.start()
    app.produce(seeded_entries(3, 2000))
    app.wait_until_through()
    first.kill()
    app.application = often
    second = app.start()
    app.produce(seeded_entries(4, 1500))
    app.wait_until_through()
    replayed = re.findall(r"recovered at \S+ \((\d+) records replayed", second.text())
    assert sum(map(int, replayed)) == 2000
    second.kill()
    third = app.start()
    app.produce(seeded_entries(5, 1500))
    app.wait_until_through()
    findings = app.verify()
    assert third.stop() == 0
    rows = rows_of(app)
    assert found_of(findings, "aligned rows", "table") == len(rows) > 100
    assert found_of(findings, "late records", "table") > 10
    assert len({row["id"] for row in rows}) == len(rows)
    assert any(row["values"]["speed"] is None for row in rows)
    assert sum(checkpoint.counts["table:rows"] for checkpoint in app.checkpoints().values()) == len(rows)
    for grid in ("regular", "sum"):
        on_grid = rows_of(app, grid)
        assert found_of(findings, "aligned rows", grid) == len(on_grid) > 100
        assert len({row["id"] for row in on_grid}) == len(on_grid)
    failed = found_of(findings, "failed rows", "sum")
    assert failed == sum(checkpoint.counts["sum:failed"] for checkpoint in app.checkpoints().values()) > 10
    keys = {
        (stored.key, json.loads(stored.value)["thing"]) for stored in read_topic(app.bootstrap, app.topic("out"), 3)
    }
    assert all(key == thing.encode() for key, thing in keys)
    status = json.loads(app.command("status", "--json").stdout)
    assert sum(unit["aligns"]["sum"]["failed"] for unit in status["units"]) == failed
    assert sum(unit["aligns"]["table"]["rows"] for unit in status["units"]) == len(rows)
    assert "heading" in app.command("status").stdout


def test_rows_are_joined_again_by_another_application(app: Application, kafka: str, tmp_path: Path) -> None:
    app.create_topics()
    app.produce(seeded_entries(6, 1500))
    joiner = app.start()
    app.wait_until_through()
    assert joiner.stop() == 0
    folder = tmp_path / "again"
    folder.mkdir()
    again = ALIGNS.replace('"torque"', '"table"').replace('name = "table"', 'name = "again"')
    for other in application(
        kafka, folder, data=app.topic("out"), aligns=again.split("speed =")[0] + "mechPower = {}\n"
    ):
        run = other.start()
        other.wait_until_through()
        assert run.stop() == 0
        findings = other.verify()
        assert findings["counts"]["rejected records"] == 0
        assert [one["found"] > 50 for one in findings["compared"] if one["what"] == "aligned rows"] == [True]
