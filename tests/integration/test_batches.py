"""Many records in a message on real Kafka, as Arrow: joined exactly once, by either kind of runner."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from broker.wire.arrow.results import decode_results
from broker.wire.arrow.rows import encode_columns
from tests.integration.joiner_application import (
    SPARK_STARTS_S,
    Application,
    Entry,
    application,
    seeded_entries,
)
from tests.integration.joiner_process import Joiner

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


def in_batches(app: Application, entries: Sequence[Entry], seed: int) -> list[Entry]:
    """Return the entries with several records of a partition in each message, in the same order."""
    draw, waiting = random.Random(seed), dict[int, list[dict[str, Any]]]()
    found: list[Entry] = []

    def flush(unit: int) -> None:
        if rows := waiting.pop(unit, []):
            names = ("thing", "quantity", "phenomenonTime", "result", "id")
            thing, quantity, time, result, ids = ([row[name] for row in rows] for name in names)
            found.append(Entry(thing[0], encode_columns(thing, quantity, time, result, ids), unit))

    for entry in entries:
        content, unit = json.loads(entry.value or b"{}"), app.unit_of(entry.key)
        if "result" not in content:
            flush(unit)
            found.append(entry)
            continue
        waiting.setdefault(unit, []).append(content)
        if draw.random() < 0.05:
            flush(unit)
    for unit in list(waiting):
        flush(unit)
    return found


@pytest.mark.parametrize("runner", ["run", pytest.param("spark", marks=pytest.mark.long)])
def test_batches_are_joined_once_across_a_kill_and_a_restart(app: Application, runner: str) -> None:
    app.runner, app.data_format = runner, "arrow"
    app.application += '\nresults = "arrow"'
    app.create_topics()
    for piece, end in enumerate((Joiner.kill, Joiner.stop)):
        app.produce(in_batches(app, seeded_entries(2 * piece, 3000), piece))
        joiner = app.start()
        app.wait_until_through(SPARK_STARTS_S)
        app.produce([*in_batches(app, seeded_entries(2 * piece + 1, 900), piece), Entry("R1", b"no Arrow")])
        app.wait_until_through()
        end(joiner)
    total = app.verify()["total"]
    assert total["found"] > 3000
    ids = Counter(identity for value in app.values("out") for identity in decode_results(value).ids())
    assert max(ids.values()) == 1
    assert len(app.values("out")) < len(ids) / 5, "many results share a message"


def test_records_one_by_one_can_give_results_in_batches(app: Application) -> None:
    app.application += '\nresults = "arrow"'
    app.create_topics()
    app.produce(seeded_entries(5, 3000))
    joiner = app.start()
    app.wait_until_through()
    assert joiner.stop() == 0
    assert app.verify()["total"]["found"] > 1000
