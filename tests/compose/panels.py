"""The dashboard panels as data, and their queries as Grafana would send them."""

from __future__ import annotations

import csv
import io
import json
import re
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final, NamedTuple

DASHBOARDS: Final = Path(__file__).parents[2] / "grafana/dashboards"
_THING: Final = "R0815"
_QUANTITY: Final = "mechPower_C11"


class Panel(NamedTuple):
    """A panel: its dashboard, title, type of data source, and queries."""

    dashboard: str
    title: str
    source: str
    queries: list[str]

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.title}"


def panels() -> list[Panel]:
    """Return all panels. The variables of the dashboards are included, with their queries."""
    found = []
    for path in sorted(DASHBOARDS.glob("*.json")):
        dashboard: dict[str, Any] = json.loads(path.read_text())
        for panel in dashboard["panels"]:
            queries = [target.get("expr") or target["query"] for target in panel["targets"]]
            found.append(Panel(path.stem, panel["title"], panel["datasource"]["type"], queries))
        for variable in dashboard.get("templating", {}).get("list", ()):
            queries = [variable["query"]["query"]]
            found.append(Panel(path.stem, f"variable {variable['name']}", variable["datasource"]["type"], queries))
    return found


def ask_prometheus(url: str, expression: str) -> list[dict[str, Any]]:
    """Return the current series that an expression selects."""
    with urllib.request.urlopen(
        f"{url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}", timeout=10
    ) as it:
        found: list[dict[str, Any]] = json.load(it)["data"]["result"]
    # A quantile without observations is NaN.
    return [one for one in found if one["value"][1] != "NaN"]


def ask_influxdb(
    url: str,
    query: str,
    thing: str = _THING,
    quantity: str = _QUANTITY,
    *,
    bucket: str = "lsb",
    span: tuple[str, str] = ("-1d", "1d"),
    period: str = "1s",
) -> list[dict[str, str]]:
    """Return the rows of a Flux query, with values for Grafana's variables: machine, quantity and time."""
    for name, value in (
        ("${thing}", thing),
        ("${quantity}", quantity),
        ("${quantity:regex}", re.sub(r"[\\^$*+?.()|[\]{}/]", r"\\\g<0>", quantity)),
        ("v.timeRangeStart", span[0]),
        ("v.timeRangeStop", span[1]),
        ("v.windowPeriod", period),
        ('bucket: "lsb"', f'bucket: "{bucket}"'),
    ):
        query = query.replace(name, value)
    assert "${" not in query
    headers = {"Content-Type": "application/vnd.flux", "Accept": "application/csv"}
    request = urllib.request.Request(f"{url}/api/v2/query?org=lsb", query.encode(), headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        text = answer.read().decode()
    # A table with other columns follows an empty line. InfluxDB 1.8 writes annotations before each table.
    tables = re.sub(r"(?m)^#.*\r\n", "", text).split("\r\n\r\n")
    return [row for table in tables for row in csv.DictReader(io.StringIO(table))]
