"""Is the output of a replica judged by what is due since it was founded, and are its start records left out?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.wire.start_records import encode_start
from joiner.check import command
from joiner.check.command import main
from joiner.check.found.evidence import EvidenceError, Message, RecordedEvidence
from joiner.check.found.findings import Findings
from joiner.check.report import render_findings
from joiner.check.verify.outputs import verify
from joiner.runtime.settings import JoinerSettings
from tests.unit.joiner.check.pretended_pipeline import (
    APPLICATION,
    PARTITIONS,
    Pipeline,
    make_checkpoint,
    make_pipeline,
    make_settings,
)

ALIGNS: list[dict[str, Any]] = [
    {"name": "table", "driver": "torque", "columns": {"speed": {"rule": "linear"}, "command": {"on_missing": "drop"}}},
    {"name": "regular", "grid": {"every": "700ms"}, "columns": {"speed": {}, "torque": {"rule": "linear"}}},
]
DATA = "machine.data"


def identity(message: Message) -> tuple[str, str]:
    return message.topic, json.loads(message.value or b"")["id"]


def founded_at(pipeline: Pipeline, share: float) -> tuple[dict[int, dict[str, int]], list[Message]]:
    """Return the vector of each unit after this share of the input, and the output that is due there."""
    vectors = {unit: {DATA: int(pipeline.ends[DATA, unit] * share)} for unit in range(PARTITIONS)}
    before = Pipeline(pipeline.settings)
    before.inputs = [one for one in pipeline.inputs if one.offset < vectors[one.partition][DATA]]
    before.run()
    return vectors, before.outputs


def judged(pipeline: Pipeline, vectors: dict[int, dict[str, int]], outputs: list[Message]) -> Findings:
    checkpoints = {
        unit: msgspec.structs.replace(make_checkpoint(pipeline, unit), founded=vector)
        for unit, vector in vectors.items()
    }
    evidence = RecordedEvidence(checkpoints, [*pipeline.inputs, *outputs], pipeline.settings.topics)
    return verify(pipeline.settings, evidence)


@pytest.mark.parametrize("seed", range(1, 7))
@pytest.mark.parametrize("aligns", [[], ALIGNS], ids=["joins", "aligns"])
def test_what_was_due_when_a_replica_was_founded_is_not_expected_of_it(seed: int, aligns: list[Any]) -> None:
    pipeline = make_pipeline(seed, settings=make_settings(align=aligns))
    vectors, before = founded_at(pipeline, share=seed / 7)
    known = {*map(identity, before)}
    assert known
    rest = [one for one in pipeline.outputs if identity(one) not in known]
    assert len(rest) < len(pipeline.outputs)
    findings = judged(pipeline, vectors, rest)
    assert findings.is_right, render_findings(findings)
    assert findings.total.expected == len(rest)


def test_what_it_wrote_before_and_what_it_did_not_write_since_are_found() -> None:
    pipeline = make_pipeline(seed=3)
    vectors, before = founded_at(pipeline, share=0.5)
    known = {*map(identity, before)}
    rest = [one for one in pipeline.outputs if identity(one) not in known]
    assert judged(pipeline, vectors, [*rest, *before]).total.unexpected == len(before)
    for number in range(0, len(rest), 7):
        found = judged(pipeline, vectors, rest[:number] + rest[number + 1 :]).total
        assert (found.missing, found.unexpected, found.altered) == (1, 0, 0)


@pytest.mark.parametrize("replicas", [1, 2])
def test_what_a_replica_wrote_before_it_was_reset_is_not_judged(replicas: int) -> None:
    pipeline = make_pipeline(seed=3, settings=make_settings(application={"name": APPLICATION, "replicas": replicas}))
    later = 10**6
    again = [one._replace(offset=one.offset + later) for one in pipeline.outputs]
    topics = pipeline.settings.output_topics.values()
    checkpoints = {
        unit: msgspec.structs.replace(make_checkpoint(pipeline, unit), result_ends=dict.fromkeys(topics, later))
        for unit in range(PARTITIONS)
    }

    def verified(outputs: list[Message]) -> Findings:
        evidence = RecordedEvidence(checkpoints, [*pipeline.inputs, *outputs], pipeline.settings.topics)
        return verify(pipeline.settings, evidence)

    findings = verified([*pipeline.outputs, *again])
    if replicas == 1:
        assert findings.total.doubled, "consumers have got these twice"
        return
    assert findings.is_right, render_findings(findings)
    assert verified([*pipeline.outputs, *again[1:]]).total.missing == 1, "it was written before the reset only"
    assert verified([*pipeline.outputs, *again, again[0]._replace(offset=2 * later)]).total.doubled == 1


def test_start_records_are_no_output_in_any_topic() -> None:
    pipeline = make_pipeline(seed=3)
    topics = pipeline.settings.topics
    for topic in (topics.out, topics.late, topics.unmatched, topics.rejected):
        for unit in range(PARTITIONS):
            pipeline.outputs.insert(0, Message(topic, unit, 10**6, 0, None, encode_start({DATA: 5})))
    findings = verify(pipeline.settings, pipeline.evidence())
    assert findings.is_right, render_findings(findings)


def test_a_start_record_in_the_input_is_not_selected() -> None:
    pipeline = make_pipeline(seed=3)
    before = verify(pipeline.settings, pipeline.evidence()).counts
    pipeline.put_in(encode_start({DATA: 5}), 0)
    findings = verify(pipeline.settings, pipeline.evidence())
    assert findings.is_right, render_findings(findings)
    assert findings.counts["not selected"] == before["not selected"] + 1
    assert findings.counts["input records"] == before["input records"] + 1
    assert findings.counts["rejected records"] == before["rejected records"]


CONFIG = '[application]\nreplicas = 2\n[[join]]\nname = "j"\nleft = "a"\nright = "b"\noutput = "c"\n'


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--replica", "2"], "there is no replica 2"),
        (["--replica", "1", "--influx"], "use them without --replica"),
        (["--replica", "1", "--events", "lsb.toml"], "use them without --replica"),
    ],
)
def test_a_replica_that_cannot_be_checked_is_status_2(
    arguments: list[str], what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lsb.toml").write_text(CONFIG, encoding="utf-8")
    assert main(["verify", *arguments]) == 2
    assert what in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "arguments", "checked"),
    [
        ("", [], ("lsb", False)),
        ("1", [], ("lsb.r1", False)),
        ("1", ["--replica", "0"], ("lsb", False)),
        ("1", ["--merged"], ("lsb", True)),
        ("1", ["--merged", "--events", "lsb.toml"], ("lsb", True)),
    ],
)
def test_the_variable_of_the_joiner_chooses_the_replica_unless_the_command_line_does(
    variable: str, arguments: list[str], checked: tuple[str, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, bool]] = []

    def evidence(settings: JoinerSettings, *, stall_s: float, is_merged: bool) -> None:
        assert stall_s > 0
        seen.append((settings.application.name, is_merged))
        raise EvidenceError("read no further")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LSB_REPLICA", variable)
    monkeypatch.setattr(command, "KafkaEvidence", evidence)
    Path("lsb.toml").write_text(CONFIG, encoding="utf-8")
    assert main(["verify", *arguments]) == 1
    assert seen == [checked]


def test_what_is_merged_can_be_checked_after_going_back_to_one_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def evidence(settings: JoinerSettings, *, stall_s: float, is_merged: bool) -> None:
        raise EvidenceError(f"replicas: {settings.application.replicas}, merged: {is_merged}")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "KafkaEvidence", evidence)
    Path("lsb.toml").write_text(CONFIG.replace("replicas = 2", "replicas = 1"), encoding="utf-8")
    assert main(["verify", "--merged"]) == 1
    assert "replicas: 1, merged: True" in capsys.readouterr().err


def test_a_variable_that_names_no_replica_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LSB_REPLICA", "second")
    with pytest.raises(SystemExit) as ended:
        main(["verify"])
    assert ended.value.code == 2
    assert "argument --replica" in capsys.readouterr().err
