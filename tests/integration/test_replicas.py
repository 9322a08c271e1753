"""A second replica is added to an application that has run, on real Kafka: both write the same, each exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.wire.records import decode_joined
from broker.wire.start_records import read_start
from joiner.runtime.model import RESET_RUN
from tests.integration.joiner_application import Application, application, seeded_entries
from tests.integration.services import read_topic

SEED = 231


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


def results(app: Application) -> tuple[set[str], dict[int, list[dict[str, int]]]]:
    """Return the ids of the replica's results, and its start records by unit."""
    ids, starts = set[str](), dict[int, list[dict[str, int]]]()
    for stored in read_topic(app.bootstrap, app.settings().topics.out, app.partitions):
        if (vector := read_start(stored.value)) is not None:
            starts.setdefault(stored.partition, []).append(vector)
        else:
            ids.add(decode_joined(stored.value).id)
    return ids, starts


def test_a_replica_that_is_added_later_writes_what_the_application_writes_from_then_on(app: Application) -> None:
    entries = seeded_entries(SEED, 900)
    app.create_topics()
    app.produce(entries[:400])
    alone = app.start(instance="one")
    app.wait_until_through()
    assert alone.stop() == 0
    before, starts = results(app)
    assert not starts

    app.application += "\nreplicas = 2"
    first = app.start(instance="one")
    # Without the native reader and writer, which the other replica uses.
    added = app.start("--replica", "1", instance="two", LSB_APPLICATION__NATIVE="false")
    app.produce(entries[400:700])
    added.wait_for(r"unit \d+: founded at .* as replica 0")
    added.wait_for_units()
    added.kill()
    again = app.start("--replica", "1", instance="two")
    app.produce(entries[700:])
    for app.replica in (0, 1):
        app.wait_until_through()
    assert [joiner.stop() for joiner in (first, again)] == [0, 0]

    found = {}
    for app.replica in (0, 1):
        app.verify()
        found[app.replica] = results(app)
        _, starts = found[app.replica]
        assert starts.keys() == set(range(app.partitions))
        topic = app.topic("data")
        assert all(
            [one[topic] for one in of_unit] == sorted(one[topic] for one in of_unit) for of_unit in starts.values()
        )
    assert all(checkpoint.founded for checkpoint in app.checkpoints().values())
    (ours, _), (theirs, _) = found[1], found[0]
    assert ours < theirs
    assert ours - before, "it has written something"
    assert theirs - ours <= before, "it lacks nothing that was written since"

    assert "application.replicas is 2" in app.command("status", "--replica", "2").stderr
    assert f"{app.name}.r1" in app.command("status", "--replica", "1").stdout
    reset = app.command("reset", "--replica", "1", "--yes")
    assert reset.returncode == 0, reset.stdout + reset.stderr
    checkpoints = app.checkpoints().values()
    assert [(one.run, one.founded == one.offsets) for one in checkpoints] == [(RESET_RUN, True)] * app.partitions
