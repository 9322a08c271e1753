"""The outputs of two replicas are merged, each message once, although the processes that merge are killed."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from broker.kafka.replicas import merged_topic, replica_name
from broker.kafka.topics import ensure_topics
from broker.wire.start_records import encode_start
from joiner.cli.merging.merger import merge_topics
from joiner.library.merging.reader import MergedReader
from tests.integration.joiner_application import Application, application
from tests.integration.services import DEADLINE_S, read_topic, wait_until

ROUNDS = 5
ALIVE = 2
"""In later rounds, replica 0 is dead, and the other one writes more than what is remembered."""
PER_ROUND = 200
"""The number of results of a unit in each round."""


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path, application="replicas = 2")


class Replica:
    """Writes what a replica would: transactions of any size, each beginning with a start record."""

    def __init__(self, app: Application, number: int) -> None:
        self._topic, self._units = replica_name(app.topic("out"), number), app.partitions
        self._chance = random.Random(number)
        self._producer = Producer(
            {"bootstrap.servers": app.bootstrap, "transactional.id": f"{app.name}-replica-{number}"}
        )
        self._producer.init_transactions(DEADLINE_S)
        self._at = dict.fromkeys(range(self._units), 0)

    def write(self, until: int) -> None:
        """Write the results up to an offset of the input."""
        while min(self._at.values()) < until:
            self._producer.begin_transaction()
            for unit, at in self._at.items():
                end = min(until, at + self._chance.randint(1, 40))
                values = [encode_start({"data": at}), *(encoded(unit, number) for number in range(at, end))]
                for value in values:
                    self._producer.produce(self._topic, value, partition=unit)
                self._at[unit] = end
            self._producer.commit_transaction(DEADLINE_S)


def encoded(unit: int, number: int) -> bytes:
    return json.dumps({"id": f"power:{unit}:{number}:0", "result": 1.0}).encode()


def ids(app: Application) -> Counter[str]:
    stored = read_topic(app.bootstrap, merged_topic(app.topic("out")), app.partitions)
    return Counter(json.loads(one.value)["id"] for one in stored)


def expected(app: Application, until: int) -> Counter[str]:
    return Counter(f"power:{unit}:{number}:0" for unit in range(app.partitions) for number in range(until))


def test_each_result_is_merged_once_although_processes_and_replicas_die(app: Application) -> None:
    ensure_topics(app.admin(), merge_topics(app.settings()))
    replicas = [Replica(app, number) for number in (0, 1)]
    mergers = [app.start("--remembered-max", "500", instance=name, command="merge") for name in ("one", "two")]
    wait_until(lambda: any("merging 2 replicas" in merger.text() for merger in mergers), "one of them merges")
    for round_ in range(ROUNDS):
        for replica in replicas if round_ < ALIVE else replicas[1:]:
            replica.write((round_ + 1) * PER_ROUND)
        if round_ == 1:
            at_work = next(merger for merger in mergers if "merging 2 replicas" in merger.text())
            at_work.kill()
            mergers.remove(at_work)
        everything = expected(app, (round_ + 1) * PER_ROUND)
        wait_until(lambda wanted=everything: ids(app) == wanted, f"round {round_} is merged")  # type: ignore[misc] # a default
    # Replica 0 is back, and writes again what it has missed.
    replicas[0].write(ROUNDS * PER_ROUND)
    for replica in replicas:
        replica.write((ROUNDS + 1) * PER_ROUND)
    wait_until(lambda: ids(app) == expected(app, (ROUNDS + 1) * PER_ROUND), "everything is merged")
    (merger,) = mergers
    assert merger.stop() == 0
    assert "Traceback" not in merger.text()
    config = {"bootstrap.servers": app.bootstrap}
    found: Counter[str] = Counter()
    with MergedReader(config, app.topic("out"), app.name, 2, partitions=range(app.partitions)) as reader:

        def is_read() -> bool:
            found.update(json.loads(message.value() or b"")["id"] for message in reader.read())
            return found.total() >= expected(app, (ROUNDS + 1) * PER_ROUND).total()

        wait_until(is_read, "a reader has read everything")
    assert found == expected(app, (ROUNDS + 1) * PER_ROUND)


def test_merged_topics_of_which_nothing_is_known_are_not_written_a_second_time(app: Application) -> None:
    ensure_topics(app.admin(), merge_topics(app.settings()))
    producer = Producer({"bootstrap.servers": app.bootstrap})
    producer.produce(merged_topic(app.topic("out")), b"{}", partition=0)
    assert producer.flush(DEADLINE_S) == 0
    merger = app.start(command="merge")
    assert merger.ends() == 1
    assert "would be written a second time: delete the topic" in merger.text()
    assert "Traceback" not in merger.text()


def test_a_control_topic_that_was_deleted_is_created_again_and_merging_goes_on(app: Application) -> None:
    """The group that decides who merges assigns this topic, and nobody is assigned what does not exist."""
    ensure_topics(app.admin(), merge_topics(app.settings()))
    replica = Replica(app, 0)
    one = app.start(instance="one", command="merge")
    wait_until(lambda: "merging 2 replicas" in one.text(), "the first process merges")
    two = app.start(instance="two", command="merge")
    replica.write(PER_ROUND)
    wait_until(lambda: ids(app) == expected(app, PER_ROUND), "the beginning is merged")
    for future in app.admin().delete_topics([app.settings().control_topic]).values():
        future.result()
    # Whoever learns of it last may find that the topic exists again.
    wait_until(lambda: "starting over" in one.text() + two.text(), "somebody has noticed")
    replica.write(2 * PER_ROUND)
    wait_until(lambda: ids(app) == expected(app, 2 * PER_ROUND), "merging goes on")
    assert one.stop() == 0
    replica.write(3 * PER_ROUND)
    wait_until(lambda: ids(app) == expected(app, 3 * PER_ROUND), "the process that has waited merges")
    assert two.stop() == 0
    assert "Traceback" not in one.text() + two.text()
