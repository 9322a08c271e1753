"""Topics that are partitioned by something else than their streams' keys are copied and joined, each message once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.joiner_application import found_of
from tests.integration.repartitioned import PARTITIONS, Repartitioned, entries_of, repartitioned
from tests.integration.services import wait_until


@pytest.fixture
def pipeline(kafka: str, tmp_path: Path) -> Iterator[Repartitioned]:
    yield from repartitioned(kafka, tmp_path)


def test_topics_with_other_keys_and_partitions_are_copied_and_joined(pipeline: Repartitioned) -> None:
    app = pipeline.app
    joiner = app.start()
    joiner.wait_for_units()
    for begin in range(3):
        pipeline.send(entries_of(begin, 700))
    findings = pipeline.finish()
    assert found_of(findings, "results", "gap") > 30
    copied = sum(found_of(findings, "copies", app.topic(topic)) for topic in PARTITIONS)
    assert copied == 2100
    assert findings["counts"]["rejected records"] > 20
    shown = json.loads(app.command("status", "--json").stdout)["repartition"]
    assert [(one["topic"], one["members"], one["lag"]) for one in shown] == [
        (app.topic(topic), ["one"], 0) for topic in sorted(PARTITIONS)
    ]
    assert joiner.stop() == 0
    wait_until(lambda: "not running" in app.command("status").stdout, "it has left the group")
