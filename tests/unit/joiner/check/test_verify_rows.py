"""Does `tester.py verify` pass the aligned rows of a correct run, and fail others with the appropriate message?"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from joiner.check.found.evidence import RecordedEvidence
from joiner.check.found.findings import Findings
from joiner.check.report import render_findings
from joiner.check.verify.events import EventsCheck
from joiner.check.verify.outputs import verify
from joiner.check.verify.points import PointKey, PointsCheck
from tests.unit.joiner.check.pretended_pipeline import JOINS, Pipeline, make_checkpoint, make_pipeline, make_settings

SPINDLE = {
    "name": "spindle",
    "driver": "torque",
    "lateness": "1s",
    "columns": {
        "speed": {"rule": "linear", "tolerance": "4s"},
        "heading": {"stream": "command", "rule": "linear", "period": 360.0, "lateness": "1s"},
        "command": {"on_missing": "drop"},
        "near": {"stream": "speed", "rule": "nearest", "tolerance": "1s"},
    },
}


REGULAR = {
    "name": "regular",
    "grid": {"every": "150ms", "origin": "2100-01-01T00:00:00Z", "max_gap": "2s"},
    "columns": {
        "speed": {"rule": "linear", "tolerance": "4s", "lateness": "1s"},
        "torque": {"tolerance": "500ms", "lateness": "1s"},
    },
}
OF_SPEED = REGULAR | {
    "result": "speed",
    "columns": REGULAR["columns"] | {"speed": {"rule": "linear", "lateness": "1s", "on_missing": "drop"}},  # type: ignore[operator] # a dict
}


@pytest.fixture
def pipeline() -> Pipeline:
    return make_pipeline(3, rows=80, settings=make_settings(join=list(JOINS[:1]), align=[SPINDLE]))


@pytest.fixture(params=[REGULAR, OF_SPEED], ids=["count", "column"])
def on_grid(request: pytest.FixtureRequest) -> Pipeline:
    return make_pipeline(3, rows=80, settings=make_settings(join=list(JOINS[:1]), align=[request.param]))


def check(pipeline: Pipeline, **more: Any) -> Findings:
    return verify(pipeline.settings, pipeline.evidence(), **more)


def row_places(pipeline: Pipeline) -> list[int]:
    """Return the indices of the rows in the list of all outputs."""
    return [at for at, message in enumerate(pipeline.outputs) if b'"values":' in (message.value or b"")]


def test_a_right_run_is_right_and_has_every_kind_of_row(pipeline: Pipeline) -> None:
    findings = check(pipeline)
    assert findings.is_right, render_findings(findings)
    rows = [json.loads(pipeline.outputs[at].value or b"") for at in row_places(pipeline)]
    assert findings.tally("aligned rows", "spindle").found == len(rows) > 5
    assert any(None in row["values"].values() for row in rows)
    assert findings.tally("late records", "spindle").found > 1
    driver = next(side for side in findings.sides if side["side"] == "driver")
    assert (driver["joined"], driver["unmatched"] > 0) == (len(rows), True)
    assert driver["accepted"] == driver["joined"] + driver["unmatched"] + driver["waiting"]


def test_a_removed_row_is_missing_and_a_copy_is_doubled(pipeline: Pipeline) -> None:
    whole, at = list(pipeline.outputs), row_places(pipeline)[2]
    identity = json.loads(whole[at].value or b"")["id"]
    del pipeline.outputs[at]
    report = render_findings(check(pipeline))
    assert f"row {identity} of R" in report
    assert report.endswith("WRONG: 1 missing.")
    pipeline.outputs = [*whole, whole[at]._replace(offset=10**6)]
    report = render_findings(check(pipeline))
    assert f"row {identity}: at" in report
    assert report.endswith("WRONG: 1 doubled.")


def check_altered(pipeline: Pipeline, field: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Check that a row that has been changed is found, and that its example names the field."""
    rows = ((at, json.loads(pipeline.outputs[at].value or b"")) for at in row_places(pipeline))
    at, content = next((at, row) for at, row in rows if None not in row["values"].values())
    change(content)
    pipeline.outputs[at] = pipeline.outputs[at]._replace(value=json.dumps(content).encode())
    findings = check(pipeline)
    assert render_findings(findings).endswith("WRONG: 1 altered.")
    assert field in findings.examples["altered aligned rows"][0]


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("thing", lambda c: c.update(thing="R1000")),
        ("quantity", lambda c: c.update(quantity="other")),
        ("phenomenonTime", lambda c: c.update(phenomenonTime=c["phenomenonTime"] + 1)),
        ("result", lambda c: c.update(result=0.125)),
        ("tie", lambda c: c.update(tie="7")),
        ("values.speed", lambda c: c["values"].update(speed=123456.0)),
        ("values.speed", lambda c: c["values"].update(speed=c["values"]["speed"] * (1 + 1e-9))),
        ("values.command: None", lambda c: c["values"].update(command=None)),
        ("values.heading: missing", lambda c: c["values"].pop("heading")),
        ("values.more: there is no such column", lambda c: c["values"].update(more=1.0)),
        ("not a valid row", lambda c: c.pop("values")),
    ],
)
def test_an_altered_row_names_the_field(
    pipeline: Pipeline, field: str, change: Callable[[dict[str, Any]], object]
) -> None:
    check_altered(pipeline, field, change)


def test_rounding_of_interpolated_values_and_the_seam_of_a_period_are_no_difference(pipeline: Pipeline) -> None:
    changed = 0
    for at in row_places(pipeline):
        content = json.loads(pipeline.outputs[at].value or b"")
        for name, factor in (("speed", 1 + 1e-15), ("heading", 1 - 1e-15)):
            if content["values"][name] is not None:
                content["values"][name] *= factor
                changed += 1
        pipeline.outputs[at] = pipeline.outputs[at]._replace(value=json.dumps(content).encode())
    assert changed > 5
    assert check(pipeline).is_right


def test_an_altered_kafka_key_of_a_row_is_altered(pipeline: Pipeline) -> None:
    at = row_places(pipeline)[1]
    pipeline.outputs[at] = pipeline.outputs[at]._replace(key=b"R0.speed")
    assert "Kafka key" in check(pipeline).examples["altered aligned rows"][0]


def test_a_row_that_must_not_be_is_unexpected(pipeline: Pipeline) -> None:
    at = row_places(pipeline)[0]
    value = (pipeline.outputs[at].value or b"").replace(b'"id":"spindle:', b'"id":"spindle:9')
    pipeline.outputs.append(pipeline.outputs[at]._replace(value=value, offset=10**6))
    assert render_findings(check(pipeline)).endswith("WRONG: 1 unexpected.")


def test_rows_that_became_due_after_the_progress_was_read_are_neither_missing_nor_unexpected(
    pipeline: Pipeline,
) -> None:
    whole = pipeline.evidence()
    earlier = {
        unit: make_checkpoint(pipeline, unit, stop=min(30, pipeline.ends["machine.data", unit])) for unit in range(3)
    }
    findings = verify(
        pipeline.settings, RecordedEvidence(earlier, whole.messages, whole.topics, whole.checkpoint_by_unit)
    )
    assert findings.is_right, render_findings(findings)
    tally = findings.tally("aligned rows", "spindle")
    assert tally.after > 0
    assert tally.found + tally.after == len(row_places(pipeline))


def test_every_quantity_of_the_file_is_accounted_for_by_driver_and_columns(pipeline: Pipeline, tmp_path: Path) -> None:
    file = tmp_path / "events.json"
    file.write_bytes(b"".join(row + b"\n" for row in pipeline.rows))
    evidence = pipeline.evidence()
    findings = verify(pipeline.settings, evidence, further=[EventsCheck(file, pipeline.settings, evidence)])
    assert findings.is_right, render_findings(findings)
    accounts = findings.events["accounts"]
    for name in ("driver", "speed", "heading", "command", "near"):
        account = accounts[f"spindle {name}"]
        assert account["joined"] > 0
        assert account["selected"] == sum(count for fate, count in account.items() if fate != "selected")


def check_points(pipeline: Pipeline) -> Findings:
    points = {PointKey(*key): dict(fields) for key, fields in pipeline.points.items()}
    return check(pipeline, further=[PointsCheck(points, ["power", "spindle"])])


def test_each_row_has_one_point_with_a_field_for_each_value(pipeline: Pipeline) -> None:
    findings = check_points(pipeline)
    assert findings.is_right, render_findings(findings)
    assert findings.tally("points in InfluxDB", "spindle").found == len(row_places(pipeline))
    key = next(key for key in pipeline.points if key[0] == "spindle")
    fields = pipeline.points.pop(key)
    assert render_findings(check_points(pipeline)).endswith("WRONG: 1 missing.")
    for wrong in (
        fields | {"result": 0.5},
        fields | {"more": 1.0},
        {**fields, "command": 0.5},
        {"result": fields["result"]},
    ):
        pipeline.points[key] = wrong
        assert render_findings(check_points(pipeline)).endswith("WRONG: 1 altered."), wrong


def test_the_rows_of_a_grid_are_right_or_missing_doubled_and_unexpected(on_grid: Pipeline) -> None:
    findings = check(on_grid)
    assert findings.is_right, render_findings(findings)
    places = row_places(on_grid)
    assert findings.tally("aligned rows", "regular").found == len(places) > 20
    assert {side["side"]: side["joined"] > 0 for side in findings.sides if side["join"] == "regular"} == {
        "speed": True,
        "torque": True,
    }
    whole, at = list(on_grid.outputs), places[5]
    identity = json.loads(whole[at].value or b"")["id"]
    del on_grid.outputs[at]
    report = render_findings(check(on_grid))
    assert f"row {identity} of {identity.split(':')[2]}: tick {identity.split(':')[3]}" in report
    assert report.endswith("WRONG: 1 missing.")
    on_grid.outputs = [*whole, whole[at]._replace(offset=10**6)]
    assert render_findings(check(on_grid)).endswith("WRONG: 1 doubled.")
    value = (whole[at].value or b"").replace(identity.encode(), f"{identity}9".encode())
    on_grid.outputs = [*whole, whole[at]._replace(value=value, offset=10**6)]
    assert render_findings(check(on_grid)).endswith("WRONG: 1 unexpected.")


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("thing", lambda c: c.update(thing="R1000")),
        ("phenomenonTime", lambda c: c.update(phenomenonTime=c["phenomenonTime"] + 1)),
        ("result", lambda c: c.update(result=c["result"] * (1 + 1e-9))),
        ("tie", lambda c: c.update(tie="1")),
        ("values.speed", lambda c: c["values"].update(speed=c["values"]["speed"] * (1 + 1e-9))),
        ("values.torque", lambda c: c["values"].update(torque=None)),
    ],
)
def test_an_altered_row_of_a_grid_names_the_field(
    on_grid: Pipeline, field: str, change: Callable[[dict[str, Any]], object]
) -> None:
    check_altered(on_grid, field, change)


def test_rows_of_a_grid_that_became_due_later_are_neither_missing_nor_unexpected(on_grid: Pipeline) -> None:
    whole = on_grid.evidence()
    earlier = {
        unit: make_checkpoint(on_grid, unit, stop=min(30, on_grid.ends["machine.data", unit])) for unit in range(3)
    }
    findings = verify(
        on_grid.settings, RecordedEvidence(earlier, whole.messages, whole.topics, whole.checkpoint_by_unit)
    )
    assert findings.is_right, render_findings(findings)
    tally = findings.tally("aligned rows", "regular")
    assert tally.after > 0
    assert tally.found + tally.after == len(row_places(on_grid))


def test_each_row_of_a_grid_has_one_point(on_grid: Pipeline) -> None:
    def findings() -> Findings:
        points = {PointKey(*key): dict(fields) for key, fields in on_grid.points.items()}
        return check(on_grid, further=[PointsCheck(points, ["power", "regular"])])

    assert findings().tally("points in InfluxDB", "regular").found == len(row_places(on_grid))
    key = next(key for key, fields in on_grid.points.items() if key[0] == "regular" and "torque" in fields)
    fields = on_grid.points[key]
    for wrong in (fields | {"result": -1.0}, {"result": fields["result"]}):
        on_grid.points[key] = wrong
        assert render_findings(findings()).endswith("WRONG: 1 altered."), wrong
    del on_grid.points[key]
    assert render_findings(findings()).endswith("WRONG: 1 missing.")


OF_ROW = "tests.unit.joiner.joining_functions:of_row"


@pytest.mark.parametrize("align", [SPINDLE, REGULAR], ids=["driver", "grid"])
def test_the_results_of_a_function_and_the_rows_for_which_it_fails_are_checked(align: dict[str, Any]) -> None:
    name = align["name"]
    pipeline = make_pipeline(
        3, rows=80, settings=make_settings(join=list(JOINS[:1]), align=[align | {"function": OF_ROW}])
    )
    findings = check(pipeline)
    assert findings.is_right, render_findings(findings)
    rows, failed = findings.tally("aligned rows", name), findings.tally("failed rows", name)
    assert rows.found == rows.expected == len(row_places(pipeline)) > 5
    assert failed.found == failed.expected > 1
    points = {PointKey(*key): dict(fields) for key, fields in pipeline.points.items()}
    assert check(pipeline, further=[PointsCheck(points, ["power", name])]).is_right
    at = row_places(pipeline)[3]
    whole, content = list(pipeline.outputs), json.loads(pipeline.outputs[at].value or b"")
    content["result"] *= 1 + 1e-9
    pipeline.outputs[at] = whole[at]._replace(value=json.dumps(content).encode())
    findings = check(pipeline)
    assert "result: " in findings.examples["altered aligned rows"][0]
    dead = next(at for at, one in enumerate(whole) if b"not finite" in (one.value or b""))
    identity = json.loads(whole[dead].value or b"")["id"]
    pipeline.outputs = [one for at, one in enumerate(whole) if at != dead]
    assert f"dead letter of row {identity}, whose function fails" in render_findings(check(pipeline))
    value = (whole[at].value or b"").replace(json.loads(whole[at].value or b"")["id"].encode(), identity.encode())
    unit = int(identity.split(":")[1])
    pipeline.outputs = [*whole, whole[at]._replace(value=value, offset=10**6, partition=unit)]
    assert "its function fails, so a dead letter is expected" in render_findings(check(pipeline))
