"""A process that asks for the members of a group survives the loss of its connections, whenever that happens.

With another request, the Kafka client aborted such processes within seconds; see `broker.kafka.groups`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from random import Random

import pytest

from tests.chaos.pipeline import ChaosStack
from tests.integration.services import DEADLINE_S

CUTTING_S = 60.0


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_process_that_asks_for_a_group_survives_lost_connections(servers: ChaosStack) -> None:
    wire, draw = servers.kafka["connector"], Random(1)
    command = [sys.executable, "-m", "tests.chaos.asking", f"127.0.0.1:{wire.port}", "a group"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as asking:
        try:
            until_s = time.monotonic() + CUTTING_S
            while time.monotonic() < until_s and asking.poll() is None:
                time.sleep(draw.uniform(0.0, 1.0))
                servers.wires.cut(wire)
                time.sleep(draw.uniform(0.0, 0.2))
                servers.wires.mend(wire)
            assert asking.poll() is None
        finally:
            asking.kill()
            answers, _ = asking.communicate(timeout=DEADLINE_S)
    assert len(answers.splitlines()) > 1_000
