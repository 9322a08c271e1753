"""Operator mistakes with an application: settings, names, state, releases. Each is reported or handled correctly.

`test_topic_mistakes` covers mistakes with topics; `test_joiner_refusals` covers what the joiner detects by itself.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from broker.partitioner import partition_of
from joiner.core import snapshot
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.checkpoint_log import read_state
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.model import FORMAT_VERSION, Manifest, chunk_key, encode, manifest_key
from joiner.runtime.task import unit_snapshot
from tests.integration.joiner_application import (
    PARTITIONS,
    Application,
    application,
    refusal,
    run_once,
    seeded_entries,
)
from tests.integration.services import DEADLINE_S, read_topic, wait_until

POWER: dict[str, Any] = {
    "name": "power", "left": "speed", "right": "torque", "function": "product", "output": "mechPower",
}  # fmt: skip
GAP: dict[str, Any] = {
    "name": "gap", "left": "command", "right": "speed", "function": "difference", "output": "speedGap",
    "tolerance": "500ms", "lateness": ["1s", "500ms"], "emit_unmatched": "both",
}  # fmt: skip


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


def joins(*chosen: dict[str, Any]) -> dict[str, str]:
    """Return environment variables that override the joins in the settings file."""
    return {"LSB_JOIN": json.dumps(chosen)}


def test_whatever_changes_the_results_is_refused_with_each_difference(app: Application) -> None:
    run_once(app, 80)
    same = refusal_or_none(app, joins(POWER, GAP))
    assert same is None, "the joins above are those of the settings file"
    unit_of_time = {"LSB_EVENTS__TIME_UNIT": "us", "LSB_APPLICATION__MAX_FUTURE_SKEW": "2d"}
    said = refusal(
        app, **unit_of_time, **joins(POWER | {"left": "command"}, GAP | {"lateness": "2s", "tolerance": "5s"})
    )
    for difference in (
        "time_unit: ms then, us now",
        "max_future_skew_ns: 86400000000000 then, 172800000000000 now",
        "joins.gap.lateness_ns: [1000000000, 500000000] then, [2000000000, 2000000000] now",
        "joins.gap.tolerance_ns: 500000000 then, 5000000000 now",
        "joins.power.left.quantity: speed then, command now",
    ):
        assert difference in said
    # One join removed, one renamed, one added.
    said = refusal(app, **joins(POWER | {"name": "might"}, GAP | {"name": "more", "left": "temperature"}))
    assert re.search(r"joins\.gap: \{.*\} then, None now", said)
    assert re.search(r"joins\.power: \{.*\} then, None now", said)
    assert re.search(r"joins\.might: None then, \{.*\} now", said)
    assert re.search(r"joins\.more: None then, \{.*\} now", said)
    kinds = ("out", "late", "rejected", "unmatched")
    said = refusal(app, **{f"LSB_TOPICS__{kind.upper()}": f"{app.topic('elsewhere')}.{kind}" for kind in kinds})
    for kind in kinds:
        assert f"outputs.{kind}: {app.topic(kind)} then, {app.topic('elsewhere')}.{kind} now" in said
    assert said.count("restore the settings, or start over with `joiner reset`") == PARTITIONS
    app.verify()


def refusal_or_none(app: Application, environment: dict[str, str]) -> str | None:
    """Start a joiner, wait until it has claimed all units, and stop it. Return its log, or None if the status is 0."""
    joiner = app.start(**environment)
    joiner.wait_for_units()
    return None if joiner.stop() == 0 else joiner.text()


@pytest.mark.slow
def test_a_second_application_under_the_same_name_fences_no_runner(app: Application) -> None:
    app.create_topics()
    first = app.start(instance="first")
    first.wait_for_units()
    app.produce(seeded_entries(81, 600))
    # The second application reads another topic, so the group also assigns it units of the first one.
    elsewhere = {"LSB_TOPICS__DATA": f"{app.name}.other", "LSB_TOPICS__OUT": app.topic("elsewhere")}
    second = app.start(instance="second", **joins(POWER), **elsewhere)
    app.produce(seeded_entries(82, 600))
    # It tries each unit before it gives up.
    assert second.ends(2 * DEADLINE_S) == 1
    assert "was started with different values for settings that affect its results (joins.gap: {" in second.text()
    assert f"joins.power.left.topic: {app.topic('data')} then, {app.name}.other now" in second.text()
    assert f"outputs.out: {app.topic('out')} then, {app.topic('elsewhere')} now" in second.text()
    app.produce(seeded_entries(87, 300))
    app.wait_until_through()
    assert first.stop() == 0
    assert "another runner may have claimed it" not in first.text()
    assert app.values("elsewhere") == []
    app.verify()


def test_records_of_another_partitioner_are_rejected_with_their_right_partition(app: Application) -> None:
    app.create_topics()
    # The default partitioner of librdkafka is `consistent_random`, which hashes by CRC-32.
    producer = Producer({"bootstrap.servers": app.bootstrap})
    for entry in seeded_entries(83, 600):
        producer.produce(app.topic("data"), entry.value, entry.key.encode())
    assert producer.flush(DEADLINE_S) == 0
    app.produce(seeded_entries(86, 300))
    joiner = app.start()
    app.wait_until_through()
    assert joiner.stop() == 0
    stored = read_topic(app.bootstrap, app.topic("data"), PARTITIONS)
    wrong = [one for one in stored if one.partition != partition_of(one.key or b"", PARTITIONS)]
    assert 0 < len(wrong) < len(stored)
    dead_letters = app.rejected().values()
    for dead_letter in dead_letters:
        assert re.search(
            rf"belongs to partition \d, but the message is in partition {dead_letter.partition}: its producer must use",
            dead_letter.reason,
        )
    # Messages that no join selects are not checked further.
    assert len(dead_letters) == sum(b'"temperature"' not in one.value for one in wrong)
    assert app.values("out")
    app.verify()


def newer_unit(data: bytes) -> bytes:
    """Return a snapshot as a later release might write it: with another version and another structure."""
    return msgspec.msgpack.encode({"version": unit_snapshot.VERSION + 1, "units": [data[:9]], "offsets": "elsewhere"})


def newer_buffers(data: bytes) -> bytes:
    """Return a snapshot whose engine state was written by a later release."""
    content, version = msgspec.msgpack.decode(data), (snapshot.VERSION + 1).to_bytes(2, "little")
    buffers = {name: bytes(b[:8]) + version + b"other" * 9 for name, b in content["buffers"].items()}
    return msgspec.msgpack.encode(content | {"buffers": buffers})


def test_state_of_a_newer_release_is_refused_as_such_whatever_its_structure(app: Application) -> None:
    run_once(app, 84)
    settings, topic = app.settings(), f"{app.name}.state"
    for unit, change in enumerate((newer_unit, newer_buffers, None)):
        with closing(Readers(settings, SystemClock())) as readers:
            state = read_state(readers, unit)
        newest = state.manifests()[0]
        serial, slot = newest.serial + 1, (newest.serial + 1) % 2
        producer = app.outsider(unit)
        producer.begin_transaction()
        # A key that is not valid UTF-8 must not break any reader of the topic.
        producer.produce(topic, b"junk", b"\xff\xfe", unit)
        if change is None:
            manifest = json.dumps({"format": FORMAT_VERSION + 1, "serial": "of another kind"}).encode()
        else:
            data = change(state.snapshot(newest, "joiner reset"))
            digest = hashlib.sha256(data).hexdigest()
            made = Manifest(FORMAT_VERSION, serial, slot, 1, len(data), digest, newest.offsets, newest.fingerprint)
            manifest = encode(made)
            producer.produce(topic, data, chunk_key(unit, slot, 0).encode(), unit)
        producer.produce(topic, manifest, manifest_key(unit, slot).encode(), unit)
        producer.commit_transaction(DEADLINE_S)
    said = refusal(app)
    newer, buffer = unit_snapshot.VERSION + 1, snapshot.VERSION + 1
    assert f"the snapshot of unit 0 was written by a newer release (format {newer}, this one reads up to" in said
    assert f"the snapshot of unit 1 was written by a newer release (the snapshot has format version {buffer}" in said
    assert "unit 2: the state topic was written by a newer release (format 2); upgrade the joiner" in said


def test_a_deleted_state_topic_is_refused_and_without_its_group_replaced_with_a_warning(app: Application) -> None:
    session = {"LSB_APPLICATION__SESSION_TIMEOUT": "2s"}
    run_once(app, 85)
    before = app.values("out")
    state = f"{app.name}.state"
    for future in app.admin().delete_topics([state], operation_timeout=DEADLINE_S).values():
        future.result()
    wait_until(lambda: state not in app.admin().list_topics(timeout=10).topics, "the state topic is gone")
    said = refusal(app, **session)
    assert f"{state} holds no checkpoint: was the topic deleted? Restore it, or start over with `joiner reset`" in said

    def delete_group() -> bool:
        return app.admin().delete_consumer_groups([app.name])[app.name].exception() is None

    wait_until(delete_group, "the group can be deleted")
    again = app.start(**session)
    app.wait_until_through()
    assert again.stop() == 0
    assert again.text().count(f"starts from scratch, but {app.topic('out')} already contains results") == PARTITIONS
    assert sorted(app.values("out")) == sorted(before * 2), "the same results under the same ids"
