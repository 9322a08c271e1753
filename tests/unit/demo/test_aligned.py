"""The demo shows a row whose columns all have values, and the point in the database that has its tags and time."""

from __future__ import annotations

from typing import Any

import pytest

from broker.settings import load_settings
from broker.wire.records import AlignedRow, encode
from connector.settings import Settings as ConnectorSettings
from db_connector.settings import DbConnectorSettings
from demo.aligned import row_and_point
from demo.results import Result
from demo.task import Pipeline
from joiner.check.verify.points import PointKey
from joiner.runtime.settings import JoinerSettings
from tests.unit.db_connector.test_contract import joined

JOIN: dict[str, Any] = {"name": "power", "left": "a", "right": "b", "output": "c"}
ALIGN: dict[str, Any] = {"name": "spindle", "driver": "torque", "columns": {"speed": {}, "command": {}}}
WHOLE = AlignedRow("R1", "spindle", 7, 2.5, "spindle:0:3", {"speed": 288.0, "command": 290.0}, "1")
KEY = PointKey("spindle", "R1", "spindle", "", "1", 7_000_000)


def pipeline(monkeypatch: pytest.MonkeyPatch, rows: list[Any], points: dict[PointKey, Any], **more: Any) -> Pipeline:
    results = [Result(0, offset, encode(row)) for offset, row in enumerate(rows)]
    monkeypatch.setattr("demo.aligned.read_results", lambda _settings: (result for result in results))
    monkeypatch.setattr("demo.aligned.read_points", lambda *_arguments: points)
    joiner = JoinerSettings.model_validate({"application": {"name": "demo"}, "join": [JOIN], **more})
    return Pipeline(load_settings(ConnectorSettings), joiner, load_settings(DbConnectorSettings))


def test_a_row_is_shown_with_the_point_of_its_tags_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    without = AlignedRow("R1", "spindle", 6, 1.0, "spindle:0:2", {"speed": None, "command": 1.0})
    another = AlignedRow("R1", "another", 6, 1.0, "another:0:2", {"speed": 1.0})
    points = {KEY: {"result": 2.5, "speed": 288.0, "command": 290.0}, KEY._replace(tie=""): {"result": 9.0}}
    given = pipeline(monkeypatch, [joined(), without, another, WHOLE], points, align=[ALIGN])
    assert row_and_point(given) == [
        f"Kafka     {encode(WHOLE).decode()}",
        "InfluxDB  thing=R1,quantity=spindle command=290.0,result=2.5,speed=288.0 7000000",
    ]


def test_a_row_without_a_point_is_shown_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    assert row_and_point(pipeline(monkeypatch, [WHOLE], {}, align=[ALIGN]))[1:] == ["InfluxDB  no point"]


@pytest.mark.parametrize(
    ("rows", "more"), [([joined()], {"align": [ALIGN]}), ([WHOLE], {})], ids=["no row", "no align"]
)
def test_without_a_row_nothing_is_shown(rows: list[Any], more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert row_and_point(pipeline(monkeypatch, rows, {KEY: {}}, **more)) == []
