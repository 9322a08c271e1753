"""A process that asks for the members of a group survives the loss of its connections, whenever that happens.

With another request, the Kafka client aborted such processes within seconds; see `broker.kafka.groups`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from broker.settings import KafkaSettings
from joiner.runtime.kafka.clients import make_consumer
from tests.chaos.pipeline import ChaosStack
from tests.integration.services import DEADLINE_S, wait_until

CUTTING_S = 60.0
CUTTING_MAX_S = 240.0
ANSWERS = 1_000
"""How many answers there must be, so that requests are in flight when connections are lost. On a busy machine, that
takes longer than `CUTTING_S`."""


@contextmanager
def member_of(servers: str, group: str) -> Iterator[None]:
    """Be the only member of a group."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(group, 1, 1)])[group].result(DEADLINE_S)
    with closing(make_consumer(KafkaSettings(bootstrap_servers=servers), group)) as member:
        member.subscribe([group])

        def has_joined() -> bool:
            member.poll(0.1)
            return bool(member.assignment())

        wait_until(has_joined, "the group has a member")
        yield


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_process_that_asks_for_a_group_survives_lost_connections(servers: ChaosStack, tmp_path: Path) -> None:
    wire, draw, file = servers.kafka["connector"], Random(1), tmp_path / "answers"
    group = f"asked-{time.time_ns()}"
    command = [sys.executable, "-m", "tests.chaos.asking", f"127.0.0.1:{wire.port}", group]
    with (
        file.open("wb") as answers,
        member_of(servers.stack.kafka.address, group),
        subprocess.Popen(command, stdout=answers, stderr=subprocess.DEVNULL) as asking,
    ):
        try:
            begin_s = time.monotonic()
            while asking.poll() is None and (for_s := time.monotonic() - begin_s) < CUTTING_MAX_S:
                if for_s > CUTTING_S and count(file) > ANSWERS:
                    break
                time.sleep(draw.uniform(0.0, 1.0))
                servers.wires.cut(wire)
                time.sleep(draw.uniform(0.0, 0.2))
                servers.wires.mend(wire)
            assert asking.poll() is None
        finally:
            asking.kill()
    assert count(file) > ANSWERS


def count(answers: Path) -> int:
    """Return how many answers say that the group has one member."""
    return answers.read_bytes().splitlines().count(b"1")
