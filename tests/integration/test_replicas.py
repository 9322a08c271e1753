"""A second replica is added to an application that has run, and is reset, on real Kafka: both write the same, once.

The union of what they have written is merged, each message once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from broker.kafka.replicas import merged_topic
from broker.wire.records import decode_joined, is_watermark
from broker.wire.start_records import read_start
from tests.integration.joiner_application import Application, application, seeded_entries
from tests.integration.services import read_topic, wait_until

SEED = 231


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


class Found(NamedTuple):
    """The ids in a result topic, and its start records by unit."""

    ids: Counter[str]
    starts: dict[int, list[dict[str, int]]]


def results(app: Application, topic: str) -> Found:
    found = Found(Counter(), {})
    for stored in read_topic(app.bootstrap, topic, app.partitions):
        if (vector := read_start(stored.value)) is not None:
            found.starts.setdefault(stored.partition, []).append(vector)
        elif not is_watermark(stored.value):
            found.ids[decode_joined(stored.value).id] += 1
    return found


def results_of(app: Application, replica: int) -> Found:
    app.replica = replica
    return results(app, app.settings().topics.out)


def wait_for_both(app: Application) -> None:
    for app.replica in (0, 1):
        app.wait_until_through()


def test_a_replica_that_is_added_later_writes_what_the_application_writes_from_then_on(app: Application) -> None:
    entries = seeded_entries(SEED, 1_000)
    app.create_topics()
    app.produce(entries[:400])
    alone = app.start(instance="one")
    app.wait_until_through()
    assert alone.stop() == 0
    before = results_of(app, 0)
    assert not before.starts

    app.application += "\nreplicas = 2"
    first = app.start(instance="one")
    # Without the native reader and writer, which the other replica uses.
    added = app.start("--replica", "1", instance="two", LSB_APPLICATION__NATIVE="false")
    added.wait_for(r"unit \d+: founded at .* as replica 0")
    added.wait_for_units()
    app.produce(entries[400:600])
    added.kill()
    again = app.start("--replica", "1", instance="two")
    app.produce(entries[600:800])
    wait_for_both(app)
    assert again.stop() == 0

    theirs, ours = results_of(app, 0), results_of(app, 1)
    for app.replica in (0, 1):
        app.verify()
    assert theirs.starts.keys() == ours.starts.keys() == set(range(app.partitions))
    for unit in range(app.partitions):
        assert {} not in theirs.starts[unit], "it has continued what it wrote without replicas"
        assert ours.starts[unit][0] == {}
        for vectors in (theirs.starts[unit], ours.starts[unit][1:]):
            consumed = [vector[app.topic("data")] for vector in vectors]
            assert consumed == sorted(consumed)
    assert all(checkpoint.founded for checkpoint in app.checkpoints().values())
    assert ours.ids < theirs.ids
    assert ours.ids - before.ids, "it has written something"
    assert theirs.ids - ours.ids <= before.ids, "it lacks nothing that was written since"

    assert "application.replicas is 2" in app.command("status", "--replica", "2").stderr
    reset = app.command("reset", "--replica", "1", "--yes")
    assert reset.returncode == 0, reset.stdout + reset.stderr
    merger = app.start(instance="three", command="merge")
    again = app.start("--replica", "1", instance="two")
    again.wait_for_units()
    app.produce(entries[800:])
    wait_for_both(app)
    assert f"{app.name}.r1" in app.command("status").stdout
    assert [vectors.count({}) for vectors in results_of(app, 1).starts.values()] == [2] * app.partitions
    wanted = results_of(app, 0).ids
    merged = merged_topic(app.topic("out"))
    wait_until(lambda: results(app, merged).ids == wanted, "each result is merged once")
    assert not results(app, merged).starts
    app.verify(merged=True)
    assert [joiner.stop() for joiner in (first, again, merger)] == [0, 0, 0]
    assert not any("Traceback" in joiner.text() for joiner in app.started)
