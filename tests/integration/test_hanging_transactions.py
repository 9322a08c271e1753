"""The next owner of a unit resolves the dangling transactions of former owners, and its first commit is not affected.

Kafka may fail to end a transaction: if a broker is killed and an open transaction expires during its restart, the
transaction is ended without markers (observed with 4.3.1). A request of an older owner may also arrive after the claim
of a new one. See `joiner.runtime.ownership.dangling`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, ResourceType

from broker.kafka.client_log import client_logger
from broker.kafka.replicas import merged_topic, replica_name
from broker.kafka.topics import ensure_topics
from broker.stack import LocalStack, ephemeral_stack
from joiner.cli.merging.merger import merge_topics
from joiner.runtime.model import checkpoint_key, encode
from tests.integration.belated_owner import BelatedOwner
from tests.integration.joiner_application import (
    PARTITIONS,
    Application,
    application,
    run_once,
    seeded_entries,
)
from tests.integration.services import DEADLINE_S, read_topic, wait_until
from tests.integration.test_merge import Replica, encoded, expected, ids
from tests.integration.test_topic_mistakes import set_config

_TRANSACTION_S = 8


_ACCEPTS_DELAYED: Final = "transaction.partition.verification.enable"
"""The broker's setting. Without verification, it behaves as before Kafka 3.6 and accepts delayed writes. Newer releases
accept them only rarely."""


@pytest.fixture
def own_stack() -> Iterator[LocalStack]:
    with ephemeral_stack(say=print) as stack:
        # Expired transactions are aborted promptly, even while the broker is starting.
        stack.kafka.more = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
        stack.up([stack.kafka])
        yield stack


@pytest.fixture
def app_of_its_own(own_stack: LocalStack, tmp_path: Path) -> Iterator[Application]:
    yield from application(own_stack.kafka.address, tmp_path)


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    """An application on a broker that accepts delayed writes."""
    admin = AdminClient({"bootstrap.servers": kafka})
    set_config(admin, ResourceType.BROKER, "1", **{_ACCEPTS_DELAYED: "false"})
    yield from application(kafka, tmp_path)
    set_config(admin, ResourceType.BROKER, "1", **{_ACCEPTS_DELAYED: None})


@pytest.mark.long
def test_what_kafka_forgot_to_end_is_there_once_and_what_was_rolled_back_is_not(
    app_of_its_own: Application, own_stack: LocalStack
) -> None:
    app = app_of_its_own
    run_once(app, 61)
    app.produce(seeded_entries(62, 600))
    ends = app.ends()
    checkpoint = app.checkpoints()
    _leave_open(app, 0, app.topic("out"), b'{"id":"power:0:100000:100001"}', b"R1")
    for unit in range(1, PARTITIONS):
        later = msgspec.structs.replace(checkpoint[unit], offsets=ends[unit], run="dead", instance="dead")
        _leave_open(app, unit, f"{app.name}.state", encode(later), checkpoint_key(unit).encode())
    left_s = time.monotonic()
    own_stack.kafka.kill()
    wait_until(lambda: time.monotonic() > left_s + _TRANSACTION_S, "the transactions have expired")
    own_stack.up([own_stack.kafka])
    again = app.start()
    again.wait_for_units()
    if "open that Kafka should have ended" not in again.text():
        pytest.skip("Kafka ended all transactions correctly this time")
    # How many transactions Kafka fails to end depends on timing. Any that the joiner overlooked would block its unit
    # forever. A claim that is repeated logs its transactions again.
    assert resolved_units(again.text())
    app.wait_until_through()
    assert again.stop() == 0
    app.verify()


def test_in_flight_writes_of_an_older_owner_are_refused_once_the_unit_is_claimed(app: Application) -> None:
    run_once(app, 63, 300)
    older = BelatedOwner(app.bootstrap, f"{app.name}-0")
    again = app.start()
    again.wait_for_units()
    for topic in (app.topic("out"), app.topic("late"), app.topic("rejected"), f"{app.name}.state"):
        assert older.write(topic, b"R1", b'{"id":"belated"}') == KafkaError.INVALID_PRODUCER_EPOCH
    app.produce(seeded_entries(64, 300))
    app.wait_until_through()
    assert again.stop() == 0
    app.verify()


def test_what_an_older_owner_had_on_its_way_is_rolled_back_by_the_next_one(app: Application) -> None:
    run_once(app, 65, 300)
    older = BelatedOwner(app.bootstrap, f"{app.name}-0")
    app.outsider(0)
    assert older.write(app.topic("out"), b"R1", b'{"id":"belated"}') == KafkaError.NO_ERROR
    again = app.start()
    again.wait_for_units()
    # A claim that is repeated logs it again.
    assert resolved_units(again.text()) == {"0"}
    app.produce(seeded_entries(66, 300))
    app.wait_until_through()
    assert again.stop() == 0
    app.verify()


def test_hanging_transactions_in_merged_topics_and_those_of_replicas_lose_and_repeat_nothing(app: Application) -> None:
    app.application = "replicas = 2"
    ensure_topics(app.admin(), merge_topics(app.settings()))
    replicas = [Replica(app, number) for number in (0, 1)]
    first = app.start(command="merge")
    for replica in replicas:
        replica.write(50)
    wait_until(lambda: ids(app) == expected(app, 50), "everything is merged")
    assert first.stop() == 0
    merged, other, state = merged_topic(app.topic("out")), replica_name(app.topic("out"), 1), f"{app.name}.merged.state"
    older = BelatedOwner(app.bootstrap, f"{app.name}.merged")
    _owner_of(app, f"{app.name}.merged")
    assert older.write(merged, b"R1", encoded(0, 50)) == KafkaError.NO_ERROR
    stored = [one for one in read_topic(app.bootstrap, state, 1) if one.key == merged.encode()]
    assert older.write(state, merged.encode(), stored[-1].value) == KafkaError.NO_ERROR
    stranger = BelatedOwner(app.bootstrap, f"{app.name}-stranger")
    ending = _owner_of(app, f"{app.name}-stranger")
    assert stranger.write(other, b"R1", encoded(0, 9_999)) == KafkaError.NO_ERROR
    second = app.start(command="merge")
    second.wait_for("merging 2 replicas")
    for replica in reversed(replicas):
        replica.write(100)
    wait_until(lambda: ids(app) == expected(app, 100), "one replica suffices while another one cannot be read")
    assert older.write(merged, b"R1", encoded(0, 100)) == KafkaError.INVALID_PRODUCER_EPOCH
    # What ends the transaction is its producer's next marker there.
    ending.begin_transaction()
    ending.produce(other, b"{}", partition=0)
    ending.abort_transaction(DEADLINE_S)
    for replica in replicas:
        replica.write(150)
    wait_until(lambda: ids(app) == expected(app, 150), "everything is merged")
    assert second.stop() == 0
    assert "Traceback" not in first.text() + second.text()


def _owner_of(app: Application, identity: str) -> Producer:
    """Return a producer that has initialised a transactional id."""
    producer = Producer({"bootstrap.servers": app.bootstrap, "transactional.id": identity})
    producer.init_transactions(DEADLINE_S)
    return producer


def resolved_units(log: str) -> set[str]:
    """Return the units of which transactions were resolved."""
    return set(re.findall(r"unit (\d+): .*; resolving it up to", log))


def _leave_open(app: Application, unit: int, topic: str, value: bytes, key: bytes) -> None:
    """Leave a transaction of the unit's transactional id open, with this record in the log."""
    settings = {"transactional.id": f"{app.name}-{unit}", "transaction.timeout.ms": _TRANSACTION_S * 1000}
    producer = Producer({"bootstrap.servers": app.bootstrap, **settings}, logger=client_logger("outsider"))
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(topic, value, key, unit)
    assert producer.flush(DEADLINE_S) == 0
