"""Members of consumer groups: units that a group has left without a member, and members that close at any moment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, KafkaException

from tests.integration.joiner_application import PARTITIONS, Application, application, seeded_entries
from tests.integration.services import DEADLINE_S, wait_until

_ANSWER_S = 2.0


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


def test_a_unit_that_was_on_its_way_when_all_members_died_is_served(app: Application) -> None:
    app.create_topics()
    first = _member(app, "one")
    wait_until(lambda: _units(app) == {"one": PARTITIONS}, "the first member has all units")
    second = _member(app, "two")
    first.wait(DEADLINE_S)
    second.kill()
    second.wait()
    assert sum(_units(app).values()) < PARTITIONS
    app.produce(seeded_entries(71, 300))
    joiners = [app.start(instance="one"), app.start(instance="two")]
    app.wait_until_through()
    assert [joiner.stop() for joiner in joiners] == [0, 0]
    app.verify()


def test_a_member_that_closes_before_it_has_seen_its_partitions_does_not_hang(app: Application) -> None:
    app.create_topics()
    # In a process of its own, because a member that hangs keeps the interpreter's lock.
    command = [sys.executable, "-m", "tests.integration.closing_members"]
    subprocess.run([*command, app.bootstrap, app.topic("data")], check=True, timeout=DEADLINE_S)


def _member(app: Application, instance: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.integration.dying_member"]
    return subprocess.Popen([*command, app.bootstrap, app.name, app.topic("data"), instance])


def _units(app: Application) -> dict[str, int]:
    """Return the number of units of each member by instance name, or nothing while the group is rebalancing."""
    asked = app.admin().describe_consumer_groups([app.name], request_timeout=_ANSWER_S)
    try:
        group: Any = asked[app.name].result(DEADLINE_S)
    except KafkaException:
        return {}  # a broker that has just started may not respond
    if group.state != ConsumerGroupState.STABLE:
        return {}
    return {member.group_instance_id: len(member.assignment.topic_partitions) for member in group.members}
