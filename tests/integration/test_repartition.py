"""Topics that are partitioned by something else than their streams' keys are copied and joined, each message once."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from broker.kafka.topics import topic_facts
from joiner.runtime.kafka.clients import make_consumer, make_producer
from tests.integration.joiner_application import found_of, refusal
from tests.integration.repartitioned import PARTITIONS, Repartitioned, entries_of, repartitioned
from tests.integration.services import DEADLINE_S, wait_until


@pytest.fixture
def pipeline(kafka: str, tmp_path: Path) -> Iterator[Repartitioned]:
    yield from repartitioned(kafka, tmp_path)


def test_topics_with_other_keys_and_partitions_are_copied_and_joined(pipeline: Repartitioned) -> None:
    app = pipeline.app
    joiner = app.start()
    joiner.wait_for_units()
    for begin in range(3):
        pipeline.send(entries_of(begin, 700))
    findings = pipeline.finish()
    assert found_of(findings, "results", "gap") > 30
    copied = sum(found_of(findings, "copies", app.topic(topic)) for topic in PARTITIONS)
    assert copied == 2100
    assert findings["counts"]["rejected records"] > 20
    shown = json.loads(app.command("status", "--json").stdout)["repartition"]
    assert [(one["topic"], one["members"], one["lag"]) for one in shown] == [
        (app.topic(topic), ["one"], 0) for topic in sorted(PARTITIONS)
    ]
    assert joiner.stop() == 0
    wait_until(lambda: "not running" in app.command("status").stdout, "it has left the group")


def test_a_topic_that_does_not_exist_is_waited_for_and_its_retention_is_kept(pipeline: Repartitioned) -> None:
    app = pipeline.app
    settings = app.settings()
    source, target = next(iter(settings.repartitioned.items()))
    pipeline.close()
    wait_until(lambda: not topic_facts(app.admin(), [*settings.repartitioned]), "the topics are deleted")
    copier = app.start(command="repartition")
    copier.wait_for("waiting for topics that do not exist: .*" + source)
    assert copier.stop() == 0
    wait_until(lambda: target in topic_facts(app.admin(), [target]), "the repartition topic exists")
    app.admin().delete_topics([target])[target].result()
    wait_until(lambda: not topic_facts(app.admin(), [target]), "it is deleted")
    pipeline.create({"retention.ms": "-1"})
    copier = app.start(command="repartition")
    pipeline.send(entries_of(1, 50))
    pipeline.wait_until_copied()
    resource = ConfigResource(ResourceType.TOPIC, target)
    assert app.admin().describe_configs([resource])[resource].result()["retention.ms"].value == "-1"
    assert copier.stop() == 0


def test_a_topic_with_other_partitions_is_refused_with_the_way_out(pipeline: Repartitioned) -> None:
    app = pipeline.app
    app.aligns = app.aligns.replace("repartition = true", "")
    log = refusal(app)
    assert f"topic {app.topic('orders')} has 2 partitions, but must have 3: set repartition = true" in log


def test_copying_continues_after_the_last_copies_if_the_offsets_are_gone(pipeline: Repartitioned) -> None:
    """Kafka deletes the offsets of a group some days after its last member has left."""
    app = pipeline.app
    copier = app.start(command="repartition")
    pipeline.send(entries_of(0, 400))
    pipeline.wait_until_copied()
    assert copier.stop() == 0
    group = app.settings().repartition_group
    wait_until(lambda: is_done(app.admin().delete_consumer_groups([group])[group]), "the group is deleted")
    pipeline.send(entries_of(1, 400))
    joiner = app.start()
    joiner.wait_for("no valid committed offsets, but .* holds copies")
    findings = pipeline.finish()
    copied = pipeline.origins()
    assert (len(copied), len(set(copied))) == (800, 800)
    assert found_of(findings, "results", "gap") > 10
    assert joiner.stop() == 0


def test_a_topic_that_was_recreated_is_refused_and_a_reset_copies_and_joins_it_anew(pipeline: Repartitioned) -> None:
    """Kafka deletes the offsets of a topic along with it, so only the copies tell that it is another one."""
    app = pipeline.app
    joiner = app.start()
    pipeline.send(entries_of(0, 300))
    pipeline.finish()
    assert "instances one are still repartitioning: stop" in app.command("reset", "--yes").stdout
    sources = [app.topic(topic) for topic in PARTITIONS]
    for future in app.admin().delete_topics(sources).values():
        future.result()
    wait_until(lambda: not topic_facts(app.admin(), sources), "the topics are deleted")
    pipeline.create({})
    # More than before, so that there is an original at each offset up to which there are copies.
    pipeline.send(entries_of(1, 900))
    joiner.wait_for(r"was deleted and recreated, so .* start over with `joiner reset`")
    assert joiner.stop() == 0
    asked = app.command("reset")
    assert asked.returncode == 2
    assert "are deleted, and made again from the originals" in asked.stdout
    done = app.command("reset", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"{target}: deleted" in done.stdout for target in app.settings().repartitioned.values())
    joiner = app.start()
    pipeline.wait_until_copied()
    app.wait_until_through()
    copied = pipeline.origins()
    assert (len(copied), len(set(copied))) == (900, 900)
    assert joiner.stop() == 0


def is_done(future: Future[None]) -> bool:
    return future.exception() is None


def test_a_topic_that_cannot_be_copied_as_it_is_stops_the_commands(pipeline: Repartitioned) -> None:
    app = pipeline.app
    entry = ConfigEntry("message.timestamp.type", "CreateTime", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, app.topic("plant"), incremental_configs=[entry])
    app.admin().incremental_alter_configs([resource])[resource].result()
    for command in ("run", "repartition"):
        log = refusal(app, command=command)
        assert f"topic {app.topic('plant')} has message.timestamp.type=CreateTime, but must have LogAppendTime" in log


def test_a_repartition_topic_that_would_refuse_copies_is_refused(pipeline: Repartitioned) -> None:
    app = pipeline.app
    target = app.settings().repartitioned[app.topic("plant")]
    config = {"message.timestamp.type": "CreateTime", "max.message.bytes": "1000"}
    count = app.settings().topics.partitions
    app.admin().create_topics([NewTopic(target, count, 1, config=config)])[target].result()
    assert f"topic {target} has max.message.bytes=1000, but must have at least 33554432" in refusal(app)


@pytest.mark.parametrize("copying_s", ["0", "3"])
def test_a_frozen_process_that_has_lost_its_partitions_commits_no_copies(
    pipeline: Repartitioned, copying_s: str
) -> None:
    app = pipeline.app
    frozen = app.start(
        module="tests.integration.frozen_copier", command="repartition", instance="two", FROZEN_COPYING_S=copying_s
    )
    frozen.wait_for("repartitioning .* as a member of the group")
    pipeline.send(entries_of(0, 300))
    status = Path(f"/proc/{frozen.process.pid}/stat")
    wait_until(lambda: status.read_text().rpartition(")")[2].split()[0] == "T", "it has stopped itself")
    other = app.start(command="repartition")
    pipeline.wait_until_copied()
    frozen.process.send_signal(signal.SIGCONT)
    frozen.wait_for("repartitioning: .*; starting over")
    pipeline.send(entries_of(1, 100))
    pipeline.wait_until_copied()

    # If the frozen process could not abort its transaction at once, Kafka does after a while.
    wait_until(lambda: len(set(pipeline.origins())) == 400, "all copies can be read")
    assert len(pipeline.origins()) == 400
    assert (frozen.stop(), other.stop()) == (0, 0)


@pytest.mark.long
def test_a_transaction_that_does_not_end_keeps_only_its_partition_from_being_copied(pipeline: Repartitioned) -> None:
    """Kafka does not tell the offset that the transaction may change, and may have forgotten to end it."""
    app = pipeline.app
    settings, entries = app.settings(), entries_of(0, 300)
    producer = make_producer(settings.kafka, transactional_id=f"{app.name}-open", transaction_timeout_ms=300_000)
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    with closing(make_consumer(settings.kafka, settings.repartition_group)) as stranger:
        stranger.assign([])
        changed = [TopicPartition(app.topic("plant"), 0, 0)]
        producer.send_offsets_to_transaction(changed, stranger.consumer_group_metadata(), DEADLINE_S)
    copier = app.start(command="repartition")
    copier.wait_for("repartitioning .* as a member of the group")
    pipeline.send(entries)
    others = sum((topic, partition) != ("plant", 0) for topic, _, _, partition in entries)
    wait_until(lambda: len(pipeline.origins()) == others, "all other partitions are copied", DEADLINE_S, 0.5)
    producer.abort_transaction(DEADLINE_S)
    pipeline.wait_until_copied()
    assert len(set(pipeline.origins())) == len(pipeline.origins()) == 300
    assert copier.stop() == 0


def test_copies_of_another_topic_under_the_same_name_are_refused(pipeline: Repartitioned) -> None:
    app = pipeline.app
    copier = app.start(command="repartition")
    copier.wait_for("repartitioning .* as a member of the group")
    assert copier.stop() == 0
    target = app.settings().repartitioned[app.topic("plant")]
    pipeline.write_copy_of("another", target)
    copier = app.start(command="repartition")
    copier.wait_for(f"{target} holds copies of another, not of {app.topic('plant')}: .*another name")
    assert copier.stop() == 0
