"""Redelivered events, from MQTT through Kafka to the joiner, which joins each event once.

A redelivered event keeps its id. It may arrive immediately, much later, out of order, or after a restart.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.connector_pipeline import Pipeline, connector_pipeline, event
from tests.integration.joiner_application import BASE_MS, PARTITIONS, Application, application
from tests.integration.services import stop

if TYPE_CHECKING:
    from tests.integration.conftest import MqttAddress

QUANTITIES = {"speed": 1.0, "torque": 2.0, "command": 3.0}


@pytest.fixture
def pipeline(kafka: str, mqtt: MqttAddress, tmp_path: Path) -> Iterator[Pipeline]:
    yield from connector_pipeline(kafka, mqtt, tmp_path)


@pytest.fixture
def app(kafka: str, tmp_path: Path, pipeline: Pipeline) -> Iterator[Application]:
    # The joiner uses the connector's topics.
    yield from application(kafka, tmp_path, name=pipeline.name)


def test_an_event_that_comes_again_is_joined_once_before_and_after_a_restart(
    pipeline: Pipeline, app: Application
) -> None:
    draw = random.Random(5)
    sent = [event(f"e{n}", thing=f"R{n % 5}", time_ms=BASE_MS + 40 * n, **QUANTITIES) for n in range(300)]
    connector = pipeline.start()
    at_once = [payload for payload in sent[:200] for _ in range(2)]
    again = sent[50:200]
    draw.shuffle(again)
    pipeline.publish([*at_once, *again])
    pipeline.wait_for_records(3 * (400 + 150))
    first = app.start()
    app.wait_until_through()
    first.kill()
    late = sent[100:300]
    draw.shuffle(late)
    pipeline.publish([*sent[150:300], *late])
    pipeline.wait_for_records(3 * (400 + 150 + 150 + 200))
    second = app.start()
    app.wait_until_through()
    assert second.stop() == 0
    assert stop(connector) == 0
    results = [json.loads(value) for value in app.values("out")]
    times = Counter((one["quantity"], one["left"]["id"], one["right"]["id"]) for one in results)
    assert max(times.values()) == 1
    # The quantities of an event have the same time, so every event forms a pair in each of the two joins.
    assert sum(left == right for _, left, right in times) == 2 * len(sent)
    found = app.checkpoints()
    assert len(found) == PARTITIONS
    assert sum(checkpoint.counts.get("duplicates", 0) for checkpoint in found.values()) > 0
    assert sum(checkpoint.counts.get("late", 0) for checkpoint in found.values()) > 0
    app.verify()
