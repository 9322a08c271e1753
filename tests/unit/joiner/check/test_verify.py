"""Does `tester.py verify` pass a correct run, and fail an incorrect one with the appropriate message?"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.wire import records as wire
from joiner.check.found.evidence import EvidenceError, Message, RecordedEvidence
from joiner.check.found.findings import Findings
from joiner.check.report import render_findings
from joiner.check.verify.events import EventsCheck
from joiner.check.verify.outputs import WrongApplicationError, verify
from joiner.check.verify.points import PointKey, PointsCheck
from tests.unit.joiner.check.pretended_pipeline import Pipeline, make_checkpoint, make_pipeline, make_settings


@pytest.fixture
def pipeline() -> Pipeline:
    return make_pipeline(seed=3)


def check(pipeline: Pipeline, **more: Any) -> Findings:
    return verify(pipeline.settings, pipeline.evidence(), **more)


def outputs_of(pipeline: Pipeline, topic: str) -> list[int]:
    """Return the indices of a topic's messages in the list of all outputs."""
    return [at for at, message in enumerate(pipeline.outputs) if message.topic == topic]


def alter(message: Message, change: Callable[[dict[str, Any]], object]) -> Message:
    """Return the message with its JSON content changed."""
    content = json.loads(message.value or b"")
    change(content)
    return message._replace(value=json.dumps(content).encode())


@pytest.mark.parametrize("seed", range(12))
def test_a_right_run_is_right(seed: int) -> None:
    pipeline = make_pipeline(seed)
    findings = check(pipeline)
    assert findings.is_right, render_findings(findings)
    total = findings.total
    assert total.expected == total.found == len(pipeline.outputs)
    assert total.after == 0


def test_the_pretended_run_has_every_kind_of_output(pipeline: Pipeline) -> None:
    findings = check(pipeline)
    for what in ("results", "late records"):
        assert all(findings.tally(what, join).expected > 1 for join in ("power", "gap", "keep"))
    assert findings.tally("unmatched records", "gap").expected > 1
    assert findings.tally("rejected records").expected >= 5
    assert findings.tally("failed pairs", "gap").expected >= 1
    assert all(side["duplicate"] for side in findings.sides)
    assert findings.counts["watermarks"] >= 1
    assert any("tie" in json.loads(m.value or b"") for m in pipeline.outputs)


def test_a_removed_result_is_missing(pipeline: Pipeline) -> None:
    removed = pipeline.outputs.pop(outputs_of(pipeline, "machine.out")[4])
    identity = json.loads(removed.value or b"")["id"]
    findings = check(pipeline)
    assert (findings.total.missing, findings.total.unexpected) == (1, 0)
    report = render_findings(findings)
    assert f"pair {identity}" in report
    assert "left machine.data partition" in report
    assert report.endswith("WRONG: 1 missing.")


def test_a_doubled_result_is_doubled(pipeline: Pipeline) -> None:
    again = pipeline.outputs[outputs_of(pipeline, "machine.out")[4]]
    pipeline.outputs.append(again._replace(offset=10**6))
    findings = check(pipeline)
    assert render_findings(findings).endswith("WRONG: 1 doubled.")
    assert f"{again.place} and again at" in findings.examples["doubled results"][0]


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("thing", lambda c: c.update(thing="R1000")),
        ("quantity", lambda c: c.update(quantity="other")),
        ("phenomenonTime", lambda c: c.update(phenomenonTime=c["phenomenonTime"] + 1)),
        ("result", lambda c: c.update(result={"left": 1.0, "right": 2.0, "both": 3.0})),
        ("result", lambda c: c.update(result=0.125)),
        ("tie", lambda c: c.update(tie="7-7")),
        ("left.id", lambda c: c["left"].update(id="x")),
        ("left.phenomenonTime", lambda c: c["left"].update(phenomenonTime=5)),
        ("right.result", lambda c: c["right"].update(result=c["right"]["result"] + 1)),
        ("right.quantity", lambda c: c["right"].update(quantity="load")),
        ("left: missing", lambda c: c.pop("left")),
        ("right: missing", lambda c: c.pop("right")),
        ("not a valid result", lambda c: c.pop("result")),
    ],
)
def test_an_altered_result_names_the_field(
    pipeline: Pipeline, field: str, change: Callable[[dict[str, Any]], object]
) -> None:
    at = outputs_of(pipeline, "machine.out")[7]
    pipeline.outputs[at] = alter(pipeline.outputs[at], change)
    findings = check(pipeline)
    assert render_findings(findings).endswith("WRONG: 1 altered.")
    assert field in findings.examples["altered results"][0]
    assert pipeline.outputs[at].place in findings.examples["altered results"][0]


def test_compact_results_are_checked_too(pipeline: Pipeline) -> None:
    for at in outputs_of(pipeline, "machine.out")[::2]:
        pipeline.outputs[at] = alter(pipeline.outputs[at], lambda c: (c.pop("left"), c.pop("right")))
    assert check(pipeline).is_right
    at = outputs_of(pipeline, "machine.out")[4]
    pipeline.outputs[at] = alter(pipeline.outputs[at], lambda c: c.update(result=0.125))
    assert "result: 0.125" in check(pipeline).examples["altered results"][0]


def test_an_altered_kafka_key_is_altered(pipeline: Pipeline) -> None:
    at = outputs_of(pipeline, "machine.out")[7]
    pipeline.outputs[at] = pipeline.outputs[at]._replace(key=b"R0.speed")
    assert "Kafka key" in check(pipeline).examples["altered results"][0]


def test_a_result_in_another_partition_is_unexpected_there_and_missing_here(pipeline: Pipeline) -> None:
    at = outputs_of(pipeline, "machine.out")[7]
    moved = pipeline.outputs[at]
    pipeline.outputs[at] = moved._replace(partition=(moved.partition + 1) % 3, offset=10**6)
    assert render_findings(check(pipeline)).endswith("WRONG: 1 missing, 1 unexpected.")


def test_a_pair_that_must_not_be_is_unexpected(pipeline: Pipeline) -> None:
    at = outputs_of(pipeline, "machine.out")[0]
    invented = alter(pipeline.outputs[at], lambda c: c.update(id=c["id"] + "999"))
    pipeline.outputs.append(invented._replace(offset=10**6))
    assert render_findings(check(pipeline)).endswith("WRONG: 1 unexpected.")


def test_what_is_no_result_is_unexpected(pipeline: Pipeline) -> None:
    pipeline.outputs.append(Message("machine.out", 0, 10**6, 0, None, b"\xff\x00"))
    assert render_findings(check(pipeline)).endswith("WRONG: 1 unexpected.")


@pytest.mark.parametrize(
    ("topic", "what"),
    [
        ("machine.late", "late records"),
        ("machine.unmatched", "unmatched records"),
        ("machine.rejected", "rejected"),
    ],
)
def test_late_unmatched_and_rejected_records_are_compared_too(pipeline: Pipeline, topic: str, what: str) -> None:
    at = outputs_of(pipeline, topic)[0]
    whole = list(pipeline.outputs)
    del pipeline.outputs[at]
    findings = check(pipeline)
    assert render_findings(findings).endswith("WRONG: 1 missing.")
    assert what in str(findings.examples)
    pipeline.outputs = [*whole, whole[at]._replace(offset=10**6)]
    assert render_findings(check(pipeline)).endswith("WRONG: 1 doubled.")
    pipeline.outputs = [*whole, alter(whole[at], lambda c: c.update(id=c["id"] + "9"))._replace(offset=10**6)]
    assert render_findings(check(pipeline)).endswith("WRONG: 1 unexpected.")
    pipeline.outputs = list(whole)
    pipeline.outputs[at] = alter(whole[at], lambda c: c.update(offset=c["offset"] + 1))
    findings = check(pipeline)
    assert render_findings(findings).endswith("WRONG: 1 altered.")
    assert "offset" in str(findings.examples)


def test_the_dead_letter_of_a_failed_pair_must_be_there(pipeline: Pipeline) -> None:
    dead_letters = outputs_of(pipeline, "machine.rejected")
    at = next(at for at in dead_letters if b'"gap:' in (pipeline.outputs[at].value or b""))
    del pipeline.outputs[at]
    findings = check(pipeline)
    assert findings.tally("failed pairs", "gap").missing == 1
    assert "whose joining function fails" in findings.examples["missing failed pairs"][0]


def test_outputs_of_others_are_left_alone_and_counted(pipeline: Pipeline) -> None:
    out, late, rejected = (
        pipeline.outputs[outputs_of(pipeline, topic)[0]]
        for topic in ("machine.out", "machine.late", "machine.rejected")
    )
    pipeline.outputs += [
        alter(out, lambda c: c.update(id="theirs:0:1:2")),
        alter(late, lambda c: c.update(application="theirs")),
        alter(rejected, lambda c: c.update(source="connector")),
    ]
    findings = check(pipeline)
    assert findings.is_right
    assert findings.counts["results of other applications"] == 1
    assert findings.counts["late records of other applications"] == 1
    assert findings.counts["dead letters of other services"] == 1


def test_what_became_due_after_the_progress_was_read_is_neither_missing_nor_unexpected(
    pipeline: Pipeline,
) -> None:
    whole = pipeline.evidence()
    earlier = {
        unit: make_checkpoint(pipeline, unit, stop=min(20, pipeline.ends["machine.data", unit])) for unit in range(3)
    }
    running = RecordedEvidence(
        earlier,
        whole.messages,
        whole.topics,
        whole.checkpoint_by_unit,
    )
    findings = verify(pipeline.settings, running)
    total = findings.total
    assert findings.is_right, render_findings(findings)
    assert total.after > 0
    assert total.found > 0
    assert total.found + total.after == len(pipeline.outputs)


def test_at_an_earlier_vector_what_came_later_is_unexpected(pipeline: Pipeline) -> None:
    whole = pipeline.evidence()
    earlier = {
        unit: make_checkpoint(pipeline, unit, stop=min(20, pipeline.ends["machine.data", unit])) for unit in range(3)
    }
    at_rest = RecordedEvidence(earlier, whole.messages, whole.topics)
    assert verify(pipeline.settings, at_rest).total.unexpected > 0


def test_other_settings_are_refused_and_the_difference_is_named(pipeline: Pipeline) -> None:
    other = make_settings(application={"name": "shop", "max_future_skew": "2d"})
    with pytest.raises(WrongApplicationError, match="max_future_skew_ns was 86400000000000 and is 172800000000000"):
        verify(other, pipeline.evidence())


def test_an_application_that_never_ran_is_an_error(pipeline: Pipeline) -> None:
    evidence = pipeline.evidence()
    evidence.checkpoint_by_unit.clear()
    with pytest.raises(EvidenceError, match="has committed nothing"):
        verify(pipeline.settings, evidence)


def test_the_outputs_of_a_unit_that_has_not_begun_are_unexpected(pipeline: Pipeline) -> None:
    evidence = pipeline.evidence()
    del evidence.checkpoint_by_unit[1]
    theirs = [m for m in pipeline.outputs if m.partition == 1]
    findings = verify(pipeline.settings, evidence)
    assert findings.total.unexpected == len(theirs) > 0
    assert "unit 1 has no checkpoint" in findings.notes[0]


# The replayed file


def check_file(pipeline: Pipeline, folder: Path) -> Findings:
    file = folder / "events.json"
    file.write_bytes(b"".join(row + b"\n" for row in pipeline.rows))
    evidence = pipeline.evidence()
    return verify(
        pipeline.settings,
        evidence,
        further=[EventsCheck(file, pipeline.settings, evidence)],
        examples_max=100,
    )


def test_every_quantity_of_the_file_is_accounted_for(pipeline: Pipeline, tmp_path: Path) -> None:
    findings = check_file(pipeline, tmp_path)
    assert findings.is_right, render_findings(findings)
    accounts = findings.events["accounts"]
    for account in accounts.values():
        assert account["selected"] == sum(count for fate, count in account.items() if fate != "selected") > 0
    assert all(account["joined"] for name, account in accounts.items() if name != "no join")
    assert accounts["no join"]["not selected"] == accounts["no join"]["selected"]
    assert findings.events["redelivered"] > 0
    assert findings.events["not in the file"] == 3


def test_an_event_lost_before_kafka_is_missing(pipeline: Pipeline, tmp_path: Path) -> None:
    lost = {"Thing": "R1", "Timestamp": 1_554_096_470_000, "id": "lost", "speed": 4.5, "load": 1}
    pipeline.rows.append(json.dumps(lost).encode())
    findings = check_file(pipeline, tmp_path)
    assert findings.tally("events in Kafka").missing == 2
    assert "lost before Kafka: thing 'R1', quantity 'speed', id 'lost'" in str(findings.examples)
    assert findings.events["accounts"]["power left"]["lost before Kafka"] == 1
    assert findings.events["accounts"]["no join"]["lost before Kafka"] == 1


def test_a_quantity_lost_before_kafka_is_missing(pipeline: Pipeline, tmp_path: Path) -> None:
    event = {"Thing": "R1", "Timestamp": 1_554_096_470_000, "id": "e", "speed": 4.5, "torque": 1}
    pipeline.put_event(event, lose="torque")
    pipeline.run()
    assert check_file(pipeline, tmp_path).tally("events in Kafka").missing == 1


def test_two_equal_rows_are_a_record_and_its_duplicate(pipeline: Pipeline, tmp_path: Path) -> None:
    before = check_file(pipeline, tmp_path).events["accounts"]["power left"]
    event = {"Thing": "R1", "Timestamp": 1_554_096_990_000, "id": "e", "speed": 4.5}
    pipeline.put_event(event)
    pipeline.put_event(event)
    pipeline.run()
    after = check_file(pipeline, tmp_path).events["accounts"]["power left"]
    assert after["duplicate"] == before["duplicate"] + 1
    assert after["selected"] == before["selected"] + 2


BAD_ROWS = [
    b"",
    b"{",
    b"[1]",
    b'"text"',
    b"\xff",
    b'{"Thing":"R0","Timestamp":1554096460000,"id":"a"}',
    b'{"Thing":"","Timestamp":1554096460000,"id":"a","speed":1}',
    b'{"Thing":"R0","Timestamp":1554096460000,"speed":1}',
    b'{"Thing":"R0","Timestamp":1554096460000,"id":7,"speed":1}',
    b'{"Thing":"R0","Timestamp":true,"id":"a","speed":1}',
    b'{"Thing":"R0","Timestamp":"2019-04-01T00:00:00","id":"a","speed":1}',
    b'{"Thing":"R0","Timestamp":99999999999999999,"id":"a","speed":1}',
    b'{"Thing":"R0","Timestamp":1554096460000,"id":"a","speed":NaN}',
    b'{"Thing":"R0","Timestamp":1554096460000,"id":"a","speed":1,"speed":2}',
    b'{"Thing":"R0","Timestamp":1554096460000,"id":"a","speed":1,"x":"' + b"y" * 300_000 + b'"}',
]


@pytest.mark.parametrize("row", BAD_ROWS, ids=range(len(BAD_ROWS)))
def test_a_row_that_is_no_event_must_be_a_dead_letter(pipeline: Pipeline, tmp_path: Path, row: bytes) -> None:
    pipeline.rows.append(row)
    findings = check_file(pipeline, tmp_path)
    assert findings.tally("rows that are not events").missing == 1
    assert findings.tally("events in Kafka").missing == 0
    dead_letter = wire.reject(row, "no event", source="connector", topic="machine/states")
    pipeline.put_out("machine.rejected", 0, "", dead_letter)
    assert check_file(pipeline, tmp_path).is_right


def test_a_bad_quantity_is_a_dead_letter_and_the_others_are_records(pipeline: Pipeline, tmp_path: Path) -> None:
    good = {"Thing": "R1", "Timestamp": 1_554_096_990_000, "id": "e", "speed": 4.5}
    pipeline.put_event(good)
    row = json.dumps({**good, "torque": None}).encode()
    pipeline.rows[-1] = row
    pipeline.run()
    findings = check_file(pipeline, tmp_path)
    assert findings.tally("rows that are not events").missing == 1
    assert findings.tally("events in Kafka").missing == 0
    whole = wire.reject(row, "", source="connector", topic="machine/states")
    dead_letter = msgspec.structs.replace(whole, id=f"{whole.id}:torque")
    pipeline.put_out("machine.rejected", 0, "", dead_letter)
    assert check_file(pipeline, tmp_path).is_right


def test_a_file_that_cannot_be_read_is_an_error(pipeline: Pipeline, tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="cannot be read"):
        EventsCheck(tmp_path / "none.json", pipeline.settings, pipeline.evidence())


# The database


def check_points(pipeline: Pipeline) -> Findings:
    points = {PointKey(*key): dict(fields) for key, fields in pipeline.points.items()}
    return check(pipeline, further=[PointsCheck(points, [join.name for join in pipeline.settings.join])])


def test_the_points_of_a_right_run_are_right(pipeline: Pipeline) -> None:
    findings = check_points(pipeline)
    assert findings.is_right, render_findings(findings)
    assert sum(findings.tally("points in InfluxDB", join).found for join in ("power", "gap", "keep")) == len(
        pipeline.points
    )


def test_a_removed_point_is_missing(pipeline: Pipeline) -> None:
    key = next(iter(pipeline.points))
    del pipeline.points[key]
    findings = check_points(pipeline)
    assert render_findings(findings).endswith("WRONG: 1 missing.")
    assert f": thing={key[1]}, quantity={key[2]}, join={key[0]}" in str(findings.examples)


def test_an_altered_point_is_altered(pipeline: Pipeline) -> None:
    for fields in pipeline.points.values():
        if "result" in fields:
            fields["result"] = 17.0
            break
    assert render_findings(check_points(pipeline)).endswith("WRONG: 1 altered.")
    pipeline.run()
    next(iter(pipeline.points.values()))["id"] = "power:0:0:0"
    assert "id: 'power:0:0:0', expected None" in check_points(pipeline).examples["altered points in InfluxDB"][0]


def test_an_unexpected_point_is_unexpected(pipeline: Pipeline) -> None:
    key = next(iter(pipeline.points))
    pipeline.points[(*key[:4], "5-5", key[5])] = {"result": 1.0}
    assert render_findings(check_points(pipeline)).endswith("WRONG: 1 unexpected.")


def test_a_point_of_another_join_with_our_output_is_left_alone_and_counted(pipeline: Pipeline) -> None:
    key = next(iter(pipeline.points))
    pipeline.points[("theirs", *key[1:])] = {"result": 1.0}
    findings = check_points(pipeline)
    assert findings.is_right
    assert findings.counts["points of other applications"] == 1


def test_a_point_without_a_join_is_unexpected_and_said_to_be_of_an_older_release(pipeline: Pipeline) -> None:
    key, fields = next(iter(pipeline.points.items()))
    pipeline.points[("", *key[1:])] = {**fields, "id": "power:0:0:1"}
    findings = check_points(pipeline)
    assert render_findings(findings).endswith("WRONG: 1 unexpected.")
    assert "older release" in str(findings.examples)


def test_a_point_that_was_refused_is_not_missing(pipeline: Pipeline) -> None:
    del pipeline.points[next(iter(pipeline.points))]
    # One point is made for each result, in the same order.
    result = pipeline.outputs[outputs_of(pipeline, "machine.out")[0]]
    identity = json.loads(result.value or b"")["id"]
    dead_letter = wire.reject(b"", "no", source="db_connector", topic="machine.out", identity=identity)
    pipeline.put_out("machine.rejected", 0, "", dead_letter)
    findings = check_points(pipeline)
    assert findings.is_right
    assert findings.counts["points refused by the database (dead letters)"] == 1


def test_the_json_report_holds_the_verdict_and_the_counts(pipeline: Pipeline) -> None:
    report = json.loads(json.dumps(check(pipeline).as_json()))
    assert report["verdict"] == "right"
    assert report["total"]["expected"] == len(pipeline.outputs)
    pipeline.outputs.pop()
    assert check(pipeline).as_json()["verdict"] == "wrong"
