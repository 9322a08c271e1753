"""Instances that come, go and die on real Kafka: units change their owners, and every result is there once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from joiner.runtime.clock import SystemClock
from joiner.runtime.runners.workers.host_load import HostLoad
from joiner.runtime.runners.workers.supervisor import IN_USE_STATUS
from tests.integration.joiner_application import (
    PARTITIONS,
    Application,
    Entry,
    application,
    flowing,
)
from tests.integration.services import DEADLINE_S, topic_reader, wait_until
from tests.integration.site_status import are_shared, commits_of, owners, warm

SEED = 83


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


def test_a_standby_takes_over_from_a_killed_owner(app: Application) -> None:
    app.application += "\nstandbys = 1"
    with flowing(app, SEED):
        one, two = app.start(instance="one"), app.start(instance="two")
        wait_until(lambda: are_shared(app, "one", "two") and warm(app) == PARTITIONS, "every standby is warm")
        one.kill()
        two.wait_for("one is gone")
        wait_until(lambda: set(owners(app)) == {"two"}, "the other instance has all units")
        wait_until(lambda: commits_of(app) == {"two"}, "it has committed them")
    app.wait_until_through()
    assert two.stop() == 0
    app.verify()


def test_units_are_handed_over_to_instances_that_come_and_from_those_that_go(app: Application) -> None:
    with flowing(app, SEED + 1):
        one = app.start(instance="one")
        wait_until(lambda: set(owners(app)) == {"one"}, "the only instance has all units")
        two = app.start(instance="two")
        wait_until(lambda: are_shared(app, "one", "two"), "both have units")
        # An instance that a busy machine keeps from sending heartbeats is gone for a moment, and is then not drained.
        wait_until(lambda: "one is drained" in app.command("drain", "one").stdout, "it is drained")
        wait_until(lambda: commits_of(app) == {"two"}, "the other one has committed all units")
        assert app.command("drain", "one", "--undo").returncode == 0
        wait_until(lambda: are_shared(app, "one", "two"), "both have units again")
        assert two.stop() == 0
        assert "handed over" in two.text()
        wait_until(lambda: commits_of(app) == {"one"}, "the one that remains has committed all units")
    app.wait_until_through()
    assert one.stop() == 0
    app.verify()


def test_the_group_assigns_the_units_while_a_process_of_an_older_release_is_running(app: Application) -> None:
    with flowing(app, SEED + 2):
        older = app.start(instance="older", module="tests.integration.older_joiner")
        wait_until(lambda: commits_of(app) == {"older"}, "the older process has committed all units")
        newer = app.start(instance="newer")
        newer.wait_for("the consumer group assigns the units, because older releases are running as older")
        wait_until(lambda: commits_of(app) == {"older", "newer"}, "both have units")
        assert older.stop() == 0
        newer.wait_for("no older release is running any more")
        wait_until(lambda: commits_of(app) == {"newer"}, "the newer process has committed all units")
        again = app.start(instance="older", module="tests.integration.older_joiner")
        wait_until(lambda: commits_of(app) == {"older", "newer"}, "both have units again")
    app.wait_until_through()
    assert [one.stop() for one in (newer, again)] == [0, 0]
    app.verify()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_number_of_worker_processes_changes_ten_times_while_data_flows(app: Application) -> None:
    with flowing(app, SEED + 3):
        workers = app.start("--processes", "1", instance="host")
        wait_until(lambda: commits_of(app) == {"host-1"}, "the only worker has committed all units")
        for count in (4, 1) * 10:
            done = app.command("scale", str(count))
            assert done.returncode == 0, done.stdout + done.stderr
            names = {f"host-{number + 1}" for number in range(count)}
            # A worker has nothing to do if there are more workers than units.
            busy = min(count, PARTITIONS)
            wait_until(
                lambda names=names, busy=busy: len(found := commits_of(app)) == busy and found <= names,  # type: ignore[misc] # mypy cannot infer its type
                f"{busy} of {count} workers have committed all units",
            )
    app.wait_until_through()
    assert workers.stop() == 0
    app.verify()


def test_of_two_supervisors_of_the_same_name_the_one_that_started_first_ends(app: Application) -> None:
    with flowing(app, SEED + 4):
        first = app.start("--processes", "2", instance="host")
        wait_until(lambda: are_shared(app, "host-1", "host-2"), "both workers have units")
        second = app.start("--processes", "2", instance="host")
        assert first.ends() == IN_USE_STATUS, first.text()
        assert "another process has started under the name of worker host-" in first.text()
        wait_until(lambda: are_shared(app, "host-1", "host-2"), "the workers of the second one have units")
    app.wait_until_through()
    assert "has ended" not in second.text()
    assert second.stop() == 0
    app.verify()


def test_the_load_is_observed_while_a_unit_has_an_open_transaction(app: Application) -> None:
    app.create_topics()
    app.produce(Entry("thing", b"{}", partition=0) for _ in range(7))
    producer = app.outsider(0)
    with closing(topic_reader(app.bootstrap, app.name)) as consumer:
        group = consumer.consumer_group_metadata()
    for offset in (3, 5):
        producer.begin_transaction()
        place = TopicPartition(app.topic("data"), 0, offset)
        producer.send_offsets_to_transaction([place], group, DEADLINE_S)
        if offset == 3:
            producer.commit_transaction(DEADLINE_S)
    with closing(HostLoad(app.settings(), SystemClock())) as load:
        seen = load.observe([])
    producer.abort_transaction(DEADLINE_S)
    assert (seen.consumed, seen.lag) == (3, {0: 4, 1: 0, 2: 0})
