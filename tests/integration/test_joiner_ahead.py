"""A side that runs ahead in a separate topic waits for the other side instead of filling the buffer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.kafka.topics import ensure_topics
from joiner.runtime.kafka.topics import application_topics
from tests.integration.joiner_application import BASE_MS, Application, Entry, application, record

COUNT = 6_000
HELD_MAX = 1_000


@pytest.fixture
def app(kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Application]:
    limits = f"buffer_records_max = {HELD_MAX}\nbatch_records_max = 100"
    for made in application(kafka, tmp_path, application=limits, partitions=1):
        topics = {"left": {"topic": made.topic("data")}, "right": {"topic": made.topic("other")}}
        join = {"name": "apart", "function": "product", "output": "product", **topics}
        monkeypatch.setenv("LSB_JOIN", json.dumps([join]))
        ensure_topics(made.admin(), application_topics(made.settings()))
        yield made


def records(quantity: str, shift_ms: int) -> list[Entry]:
    return [
        record("R0", quantity, BASE_MS + 10 * number + shift_ms, float(number), f"{quantity} {number}")
        for number in range(COUNT)
    ]


@pytest.mark.parametrize("first", ["data", "other"])
def test_a_side_that_is_read_first_waits_for_the_other(app: Application, first: str) -> None:
    for topic in (first, {"data": "other", "other": "data"}[first]):
        app.produce(records(topic, shift_ms=5 * (topic == "other")), topic)
    joiner = app.start()
    app.wait_until_through()
    assert joiner.stop() == 0
    assert "because records that are ahead fill the buffer" in joiner.text()
    assert "resumed " in joiner.text()
    compared = {(row["what"], row["join"]): row["found"] for row in app.verify()["compared"]}
    assert compared["results", "apart"] == 2 * COUNT - 1


def test_a_side_that_waits_for_nothing_is_not_paused_and_stops_its_unit_when_the_buffer_is_full(
    app: Application,
) -> None:
    app.produce(records("data", shift_ms=0))
    joiner = app.start()
    assert joiner.ends() == 1
    assert "join 'apart' holds" in joiner.text()
    # Once the silent stream resumes and the buffer is larger, nothing has been lost.
    app.produce(records("other", shift_ms=5), "other")
    app.application = f"buffer_records_max = {10 * COUNT}"
    joiner = app.start()
    app.wait_until_through()
    assert joiner.stop() == 0
    app.verify()
