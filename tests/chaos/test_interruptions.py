"""Transactions continue after short interruptions of the network, however often these happen.

By default, librdkafka 2.16 lets some of them wait (see `joiner.runtime.kafka.unit_producer`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Final

import pytest

from broker.kafka.topics import ensure_topics
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.clients import make_admin, make_consumer
from joiner.runtime.kafka.topics import application_topics
from joiner.runtime.kafka.unit_producer import UnitProducer
from joiner.runtime.settings import JoinerSettings
from tests.chaos.disturbances import last_for
from tests.chaos.pipeline import ChaosStack, chaos_stack
from tests.integration.services import DEADLINE_S

INTERRUPTIONS: Final = 12
SHORT_S: Final = 0.2
BETWEEN_S: Final = 2.0
UNITS: Final = 3


@pytest.fixture
def servers() -> Iterator[ChaosStack]:
    with chaos_stack() as stack:
        yield stack


def transactions(settings: JoinerSettings, unit: int, is_over: threading.Event) -> int:
    """Write transactions until it is over. Return how many. Raises KafkaException if one does not end in time."""
    count = 0
    with closing(make_consumer(settings.kafka, settings.application.name)) as consumer:
        producer = UnitProducer(settings, unit, consumer, SystemClock())
        producer.connect(settings.topics.out)
        producer.init()
        while not is_over.is_set():
            count += 1
            producer.begin()
            producer.send_offsets({settings.topics.data: count})
            producer.write(settings.topics.out, "key", b"value")
            producer.commit()
    return count


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_each_transaction_ends_although_the_network_is_interrupted_again_and_again(servers: ChaosStack) -> None:
    wire, is_over = servers.kafka["one"], threading.Event()
    joins = [{"name": "power", "left": "speed", "right": "torque", "output": "out"}]
    settings = JoinerSettings.model_validate(
        {
            "kafka": {"bootstrap_servers": f"127.0.0.1:{wire.port}"},
            "topics": {"partitions": UNITS},
            "application": {"name": "interrupted"},
            "join": joins,
        }
    )
    ensure_topics(make_admin(settings.kafka), application_topics(settings))
    with ThreadPoolExecutor(UNITS) as pool:
        try:
            running = [pool.submit(transactions, settings, unit, is_over) for unit in range(UNITS)]
            for _ in range(INTERRUPTIONS):
                last_for(BETWEEN_S)
                servers.wires.cut(wire)
                last_for(SHORT_S)
                servers.wires.mend(wire)
        finally:
            is_over.set()
        counts = [future.result(DEADLINE_S) for future in running]
    assert min(counts) > 5 * INTERRUPTIONS, counts
