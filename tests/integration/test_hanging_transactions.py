"""What Kafka forgot to roll back is rolled back by the next owner of the unit, not committed with its claim.

Kafka is killed with an open transaction whose time runs out while it starts; it then ends the transaction without
markers (seen with 4.3.1). See `joiner.run.hanging`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer

from broker.client_log import client_logger
from broker.stack import LocalStack, ephemeral_stack
from joiner.run.progress import encode, progress_key
from tests.integration.joiner_application import PARTITIONS, Application, application, seeded_entries
from tests.integration.services import DEADLINE_S

_TRANSACTION_S = 2


@pytest.fixture
def own_stack() -> Iterator[LocalStack]:
    with ephemeral_stack(say=print) as stack:
        # What has run out is looked for at once, also while the broker is starting.
        stack.kafka.more = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
        stack.up([stack.kafka])
        yield stack


@pytest.fixture
def app(own_stack: LocalStack, tmp_path: Path) -> Iterator[Application]:
    yield from application(own_stack.kafka.address, tmp_path)


def test_what_kafka_forgot_to_roll_back_does_not_become_visible(app: Application, own_stack: LocalStack) -> None:
    app.create_topics()
    app.produce(seeded_entries(61, 600))
    joiner = app.start()
    app.wait_until_through()
    assert joiner.stop() == 0
    before = app.values("out")
    for unit, progress in app.progress().items():
        _leave_open(app, unit, encode(msgspec.structs.replace(progress, run="dead", instance="dead")))
    own_stack.kafka.kill()
    own_stack.up([own_stack.kafka])
    again = app.start()
    again.wait_for_units()
    if "open that Kafka should have ended" not in again.text():
        pytest.skip("this Kafka rolled everything back by itself")
    assert again.text().count("rolling it back") == PARTITIONS
    assert sorted(app.values("out")) == sorted(before)
    app.produce(seeded_entries(62, 600))
    app.wait_until_through()
    assert again.stop() == 0
    app.verify()


def _leave_open(app: Application, unit: int, progress: bytes) -> None:
    """A transaction of the unit's id with a result and progress, in the logs and open."""
    settings = {"transactional.id": f"{app.name}-{unit}", "transaction.timeout.ms": _TRANSACTION_S * 1000}
    producer = Producer({"bootstrap.servers": app.bootstrap, **settings}, logger=client_logger("outsider"))
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(app.topic("out"), b"never committed", b"R1", unit)
    producer.produce(f"{app.name}.state", progress, progress_key(unit).encode(), unit)
    assert producer.flush(DEADLINE_S) == 0
