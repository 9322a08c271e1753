"""The machine data dashboard on a real InfluxDB: every query returns data, and only few rows even for a long range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker.wire.records import AlignedRow
from db_connector.sinks.points import point_line
from tests.compose.panels import Panel, ask_influxdb, panels
from tests.integration.db_connector_pipeline import database_at
from tests.unit.db_connector.test_contract import joined

if TYPE_CHECKING:
    from tests.integration.conftest import InfluxdbAccess

PANELS = {panel.title: panel for panel in panels() if panel.source == "influxdb"}
BEGIN_S = 1_554_096_460
COUNT = 20_000
STEP_NS = 10_000_000
QUANTITIES = ["any / name (of x)", "both values", "at any"]


@pytest.fixture(scope="module")
def asked(new_database: Any) -> Any:
    """A function that runs a panel's query over a time range that contains 200 s of points, one every 10 ms."""
    influxdb: InfluxdbAccess = new_database()
    lines = []
    for number in range(COUNT):
        at_ns = BEGIN_S * 10**9 + number * STEP_NS
        value = float(number % 1_000)
        pair = joined("R1", QUANTITIES[0], 2 * at_ns + number % 2, value, "one:0:1:2", "0-1" if number % 3 else "")
        lines.append(point_line(pair, "joined", "ms"))
        if number % 100 == 0:
            both = joined("R1", QUANTITIES[1], 2 * at_ns, {"left": value, "right": -value}, "two:0:1:2")
            lines.append(point_line(both, "joined", "ms"))
        if number % 200 == 0:
            row = AlignedRow("R1", "at any", at_ns // 10**6, value, "at any:0:1", {"speed": None if number else 5.0})
            lines.append(point_line(row, "joined", "ms"))
    lines.append(point_line(joined("R2", "of another machine", 2 * BEGIN_S * 10**9), "joined", "ms"))
    # A point written by a release from before the tag `join` was introduced.
    lines.append(f'joined,quantity=both\\ values,thing=R1 left=7,id="two:0:0:0" {BEGIN_S * 10**9 - 1}'.encode())
    database_at(influxdb.url, influxdb.bucket).write(lines)

    def ask(panel: Panel, quantity: str = "") -> list[dict[str, str]]:
        (query,) = panel.queries
        span = ("2019-04-01T05:20:00Z", "2019-04-01T05:40:00Z")
        return ask_influxdb(influxdb.url, query, "R1", quantity, bucket=influxdb.bucket, span=span, period="10s")

    return ask


def test_the_variables_offer_the_machines_and_their_quantities(asked: Any) -> None:
    assert {row["_value"] for row in asked(PANELS["variable thing"])} == {"R1", "R2"}
    assert {row["_value"] for row in asked(PANELS["variable quantity"])} == set(QUANTITIES)


def test_a_long_range_is_thinned_out_and_hides_no_extreme(asked: Any) -> None:
    rows = asked(PANELS["$quantity"], QUANTITIES[0])
    names = [f"one result {kind}" for kind in ("mean", "lowest", "highest")]
    found = {name: [float(row["_value"]) for row in rows if row["_field"] == name] for name in names}
    # 20,000 points in 200 s are grouped into intervals of 10 s. Points with the tags `tie` and `half` are in the same
    # series as the others.
    assert {name: len(values) for name, values in found.items()} == dict.fromkeys(names, 20)
    assert len(rows) == 60
    assert found[names[0]] == pytest.approx([499.5] * 20)
    assert (set(found[names[1]]), set(found[names[2]])) == ({0.0}, {999.0})


def test_both_values_of_a_pair_are_lines_and_those_of_an_older_release_are_not(asked: Any) -> None:
    rows = asked(PANELS["$quantity"], QUANTITIES[1])
    assert {row["_field"] for row in rows} == {
        f"two {side} {kind}" for side in ("left", "right") for kind in ("mean", "lowest", "highest")
    }
    assert "7" not in {row["_value"] for row in rows}


def test_the_rows_of_an_align_are_shown_without_the_pairs(asked: Any) -> None:
    rows = asked(PANELS["Aligned rows"])
    results = [float(row["_value"]) for row in rows if row["_field"] == "at any result"]
    # Of the five rows in each interval of 10 s, the last one. The column has a value in the first row alone.
    assert results == [800.0] * 20
    assert [(row["_field"], float(row["_value"])) for row in rows if "result" not in row["_field"]] == [
        ("at any speed", 5.0)
    ]


def test_the_table_has_the_newest_pairs_in_order(asked: Any) -> None:
    rows = asked(PANELS["Pairs"], QUANTITIES[1])
    assert len(rows) == 200
    assert [float(row["left"]) for row in rows[:3]] == [900.0, 800.0, 700.0]
    assert [row["right"] for row in rows[:3]] == ["-900", "-800", "-700"]
    assert {row["join"] for row in rows} == {"two"}
    assert len(asked(PANELS["Pairs"], QUANTITIES[0])) == 200
