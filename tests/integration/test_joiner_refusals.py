"""When the joiner refuses to continue, which messages it logs, and what it repairs by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from joiner.runtime.model import Checkpoint, checkpoint_key, encode
from tests.integration.joiner_application import (
    PARTITIONS,
    Application,
    application,
    refusal,
    run_once,
    seeded_entries,
)
from tests.integration.services import DEADLINE_S, wait_until


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


def claim_as(app: Application, unit: int, **changes: str) -> None:
    """Claim the unit as another runner would, by writing its checkpoint with these changes."""
    producer = app.outsider(unit)
    found = app.checkpoints()[unit]
    changed = msgspec.structs.replace(found, **changes)
    assert isinstance(changed, Checkpoint)
    producer.begin_transaction()
    producer.produce(f"{app.name}.state", encode(changed), checkpoint_key(unit).encode(), unit)
    producer.commit_transaction(DEADLINE_S)
    wait_until(lambda: app.checkpoints().get(unit) == changed, "the claim can be read")


def group_offsets(app: Application) -> dict[int, int]:
    request = ConsumerGroupTopicPartitions(app.name)
    listed = app.admin().list_consumer_group_offsets([request])[app.name].result()
    return {int(at.partition): int(at.offset) for at in listed.topic_partitions or []}


def test_group_offsets_that_were_reset_or_deleted_change_nothing_and_are_repaired(app: Application) -> None:
    run_once(app, 21)
    right = {unit: checkpoint.offsets[app.topic("data")] for unit, checkpoint in app.checkpoints().items()}
    wait_until(lambda: group_offsets(app) == right, "the group has the offsets")
    wrong = [TopicPartition(app.topic("data"), unit, unit) for unit in range(PARTITIONS)]

    def reset_by_hand() -> bool:
        request = ConsumerGroupTopicPartitions(app.name, wrong)
        answer = app.admin().alter_consumer_group_offsets([request])[app.name]
        # Rejected while the group still lists the member that has left.
        return all(at.error is None for at in answer.result().topic_partitions or [])

    wait_until(reset_by_hand, "the group's offsets can be changed")
    assert group_offsets(app) != right
    joiner = app.start()
    joiner.wait_for_units()
    wait_until(lambda: group_offsets(app) == right, "the group has the right offsets again")
    assert joiner.stop() == 0

    def delete() -> bool:
        answer = app.admin().delete_consumer_groups([app.name])[app.name]
        return answer.exception() is None

    wait_until(delete, "the group can be deleted")
    again = app.start()
    app.produce(seeded_entries(22, 500))
    app.wait_until_through()
    assert again.stop() == 0
    app.verify()


def test_a_recreated_topic_is_refused(app: Application) -> None:
    run_once(app, 24)
    for future in app.admin().delete_topics([app.topic("data")], operation_timeout=DEADLINE_S).values():
        future.result()
    wait_until(lambda: app.topic("data") not in app.admin().list_topics(timeout=10).topics, "the topic is gone")
    app.create_topics()
    said = refusal(app)
    assert f"{app.topic('data')} was deleted and recreated" in said
    assert "joiner reset" in said


def test_a_log_that_begins_behind_what_recovery_needs_is_refused(app: Application) -> None:
    run_once(app, 25)
    app.produce(seeded_entries(26, 300))
    app.remove_records()
    said = refusal(app)
    assert f"the log of {app.topic('data')} begins at" in said
    assert "topics.retention" in said


def test_topics_that_do_not_fit_are_refused_all_together(app: Application) -> None:
    app.create_topics()
    resource = ConfigResource(ResourceType.TOPIC, app.topic("data"))
    for name, value in (("cleanup.policy", "compact"), ("message.timestamp.type", "CreateTime")):
        resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    for future in app.admin().incremental_alter_configs([resource]).values():
        future.result()
    app.partitions = 4
    said = refusal(app)
    assert "has 3 partitions, but must have 4" in said
    assert "cleanup.policy=compact, but must have delete" in said
    assert "message.timestamp.type=CreateTime, but must have LogAppendTime" in said


def test_a_claimant_that_died_before_its_claim_does_not_keep_the_unit(app: Application) -> None:
    app.create_topics()
    joiner = app.start()
    joiner.wait_for_units()
    for unit in range(PARTITIONS):
        app.outsider(unit)
    app.produce(seeded_entries(27, 600))
    app.wait_until_through()
    assert joiner.text().count("claiming it again") == PARTITIONS
    assert joiner.stop() == 0
    app.verify()


@pytest.mark.slow
def test_a_fenced_owner_releases_the_unit_names_the_new_owner_and_serves_it_again_when_that_one_is_gone(
    app: Application,
) -> None:
    app.create_topics()
    # The units are claimed again after that time, and what the other one did must have been read by then.
    joiner = app.start(LSB_APPLICATION__SESSION_TIMEOUT="20s")
    joiner.wait_for_units()
    for unit in range(PARTITIONS):
        claim_as(app, unit, run="abcdef", instance="elsewhere")
    app.produce(seeded_entries(28, 600))
    given_up = "now owned by process elsewhere (run abcdef); given up"
    wait_until(lambda: joiner.text().count(given_up) == PARTITIONS, "every unit is given up")
    assert {checkpoint.run for checkpoint in app.checkpoints().values()} == {"abcdef"}
    app.wait_until_through()
    assert joiner.text().count("still assigned to this process; claiming it again") == PARTITIONS
    assert joiner.stop() == 0
    app.verify()


def test_a_unit_of_another_kind_of_runner_is_claimed_only_when_forced(app: Application) -> None:
    run_once(app, 29)
    for unit in range(PARTITIONS):
        claim_as(app, unit, site="spark", instance="driver-7")
    before = app.checkpoints()
    said = refusal(app)
    assert "is owned by spark driver-7" in said
    assert "--force-claim" in said
    assert app.checkpoints() == before
    app.produce(seeded_entries(30, 300))
    joiner = app.start("--force-claim")
    app.wait_until_through()
    assert joiner.stop() == 0
    assert {checkpoint.site for checkpoint in app.checkpoints().values()} == {"process"}
    app.verify()


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (b"\x00not ours", "a record of the state topic cannot be read"),
        (None, "newer release"),
    ],
)
def test_a_state_topic_that_cannot_be_understood_is_refused(app: Application, value: bytes | None, what: str) -> None:
    run_once(app, 31, 200)
    found = app.checkpoints()[0]
    newer = json.loads(encode(found)) | {"format": 99}
    producer = app.outsider(0)
    producer.begin_transaction()
    producer.produce(f"{app.name}.state", value or json.dumps(newer).encode(), checkpoint_key(0).encode(), 0)
    producer.commit_transaction(DEADLINE_S)
    joiner = app.start()
    joiner.wait_for(what)
    joiner.wait_for_units(PARTITIONS - 1)
    assert joiner.stop() == 1


def test_a_damaged_snapshot_is_refused(app: Application) -> None:
    run_once(app, 32)
    producer = app.outsider(1)
    producer.begin_transaction()
    for slot in (0, 1):
        producer.produce(f"{app.name}.state", b"damaged", f"1/{slot}/0".encode(), 1)
    producer.commit_transaction(DEADLINE_S)
    joiner = app.start()
    joiner.wait_for("unit 1: snapshot .* does not match its checksum")
    joiner.wait_for_units(PARTITIONS - 1)
    assert joiner.stop() == 1
