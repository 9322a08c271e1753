"""Mistakes with topics: input removed by retention, recreated topics, added partitions, a compacted state topic.

In each case the joiner either writes correct results, or stops with a message that says what happened, where, and what
to do.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from broker.kafka.topics import ensure_topics, state_topic_spec
from joiner.runtime.task.decoding.messages import Messages
from joiner.runtime.task.unit import Unit
from tests.integration.joiner_application import (
    PARTITIONS,
    Application,
    Entry,
    application,
    refusal,
    seeded_entries,
)
from tests.integration.services import DEADLINE_S, ends_of, is_stopped, read_topic, topic_reader, wait_until

RARE_SNAPSHOTS = {"LSB_APPLICATION__SNAPSHOT_INTERVAL": "1h", "LSB_APPLICATION__SNAPSHOT_RECORDS": "1000000"}


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


@pytest.fixture
def apps(kafka: str, tmp_path: Path) -> Iterator[list[Application]]:
    """Three applications."""
    folders = [tmp_path / name for name in ("first", "second", "third")]
    make = contextlib.contextmanager(application)
    with contextlib.ExitStack() as stack:
        for folder in folders:
            folder.mkdir()
        yield [stack.enter_context(make(kafka, folder)) for folder in folders]


def results_of(app: Application, entries: Sequence[Entry]) -> list[bytes]:
    """Return the sorted results of joining the entries in this order, computed in memory."""
    settings, topic = app.settings(), app.topic("data")
    found: list[bytes] = []
    for number in range(app.partitions):
        mine = [entry.value for entry in entries if app.unit_of(entry.key) == number]
        messages = Messages.of(range(len(mine)), [10**13] * len(mine), mine)
        effects = Unit(settings, number, {topic: 0}).apply({topic: messages}, {topic: len(messages)})
        found += effects.joined.values.each()
    return sorted(found)


def delete_topic(app: Application, name: str) -> None:
    """Delete a topic and wait until it is gone."""
    for future in app.admin().delete_topics([name], operation_timeout=DEADLINE_S).values():
        future.result()
    wait_until(lambda: name not in app.admin().list_topics(timeout=10).topics, f"{name} is gone")


def add_partition(app: Application, *topics: str) -> None:
    """Add a partition to each of the topics."""
    wanted = [NewPartitions(topic, PARTITIONS + 1) for topic in topics]
    for future in app.admin().create_partitions(wanted, operation_timeout=DEADLINE_S).values():
        future.result()


def set_config(admin: AdminClient, kind: ResourceType, name: str, **values: str | None) -> None:
    """Set dynamic configurations, or reset those that are None. Underscores in names stand for dots."""
    resource = ConfigResource(kind, name)
    for key, value in values.items():
        how = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        resource.add_incremental_config(ConfigEntry(key.replace("_", "."), value, incremental_operation=how))
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()


def test_records_deleted_by_retention_do_not_matter_before_the_snapshot_and_are_refused_behind_it(
    app: Application,
) -> None:
    first, second, third = (seeded_entries(seed, 500) for seed in (90, 91, 92))
    app.create_topics()
    app.produce(first)
    joiner = app.start()
    app.wait_until_through()
    assert joiner.stop() == 0
    app.remove_records()
    # The log now starts at the snapshot. Pairs across that point come from records in the snapshot.
    joiner = app.start()
    app.produce(second)
    app.wait_until_through()
    assert joiner.stop() == 0
    assert sorted(app.values("out")) == results_of(app, [*first, *second])
    # These records are consumed and committed, but not in a snapshot.
    joiner = app.start(**RARE_SNAPSHOTS)
    app.produce(third)
    app.wait_until_through()
    joiner.kill()
    app.remove_records()
    said = refusal(app)
    for unit in range(PARTITIONS):
        assert f"unit {unit}: the log of {app.topic('data')} begins at" in said
    assert said.count("removed input that was not yet consumed or not yet in a snapshot; raise topics.retention") == 3


def test_records_that_are_removed_before_a_slow_joiner_reads_them_stop_it(app: Application) -> None:
    app.create_topics()
    joiner = app.start(LSB_APPLICATION__SESSION_TIMEOUT="30s")
    joiner.wait_for_units()
    joiner.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: is_stopped(joiner.process), "the joiner is frozen")
    # The pending fetch still returns the first records. The next one finds that the others have been removed.
    for seed in (93, 94):
        app.produce(seeded_entries(seed, 300))
    app.remove_records()
    app.produce(seeded_entries(95, 300))
    joiner.process.send_signal(signal.SIGCONT)
    assert joiner.ends() == 1
    assert "Traceback" not in joiner.text()
    for unit in range(PARTITIONS):
        joiner_says = [line for line in joiner.text().splitlines() if f"unit {unit}: " in line and "ERROR" in line]
        (line,) = joiner_says
        assert "joiner reset" in line
        assert "retention" in line


@pytest.mark.slow
def test_topics_that_change_while_the_joiner_runs_stop_it(apps: list[Application]) -> None:
    for one in apps:
        run_to_the_end(one, seeded_entries(96, 600))
    grown, renewed, gone = apps
    add_partition(grown, grown.topic("data"))
    # The topic is recreated, with end offsets far beyond the consumed ones.
    delete_topic(renewed, renewed.topic("data"))
    renewed.create_topics()
    renewed.produce(seeded_entries(97, 1800))
    delete_topic(gone, gone.topic("data"))
    said = ended(grown)
    assert f"topic {grown.topic('data')} has 4 partitions, but had 3 when the joiner started" in said
    assert "give the application a new name" in said
    for one in (renewed, gone):
        # Either the topic watch or the consumer, whose offset is out of range, detects it first, depending on timing.
        why = r"was deleted|no longer exists"
        assert re.search(rf"{one.topic('data')} ({why}).*joiner reset", ended(one))
    # The results up to that point are correct, and later starts are refused as well.
    for one in (grown, gone):
        assert sorted(one.values("out")) == results_of(one, seeded_entries(96, 600))
    assert "has 4 partitions, but must have 3" in refusal(grown)
    for one in (renewed, gone):
        assert f"{one.topic('data')} was deleted and recreated, so the offsets" in refusal(one)
    others = [grown.topic(kind) for kind in ("out", "late", "rejected", "unmatched")]
    add_partition(grown, *others, f"{grown.name}.state")
    grown.partitions = 4
    # The first start may end as soon as the units that were assigned before have failed.
    text = "was started with 3 partitions, but now there are 4: keys would move to other units"
    wait_until(lambda: refusal(grown).count(text) == 4, "every unit is refused")


def run_to_the_end(app: Application, entries: Sequence[Entry]) -> None:
    """Start a joiner and wait until it has consumed all entries. It keeps running."""
    app.create_topics()
    app.produce(entries)
    app.start()
    app.wait_until_through()


def ended(app: Application) -> str:
    """Wait until the joiner ends by itself with status 1. Return its log."""
    (joiner,) = app.started
    assert joiner.ends() == 1, joiner.text()
    assert "Traceback" not in joiner.text()
    return joiner.text()


@pytest.mark.long
def test_the_most_aggressive_compaction_of_the_state_topic_removes_nothing_that_is_needed(app: Application) -> None:
    state = f"{app.name}.state"
    set_config(app.admin(), ResourceType.BROKER, "1", log_cleaner_backoff_ms="200")
    try:
        ensure_topics(app.admin(), [state_topic_spec(app.name, app.settings().topics)])
        set_config(
            app.admin(), ResourceType.TOPIC, state, segment_ms="200", min_cleanable_dirty_ratio="0",
            delete_retention_ms="0", max_compaction_lag_ms="1",
        )  # fmt: skip
        app.create_topics()
        entries = seeded_entries(99, 2000)
        joiner = app.start()
        for part in range(0, len(entries), 1000):
            for at in range(part, part + 1000, 25):
                app.produce(entries[at : at + 25])
            joiner.wait_for_units()
            joiner.kill()
            joiner = app.start()
        app.wait_until_through()

        def is_compacted() -> bool:
            app.produce(seeded_entries(100, 1))
            with topic_reader(app.bootstrap, f"{app.name}-watch") as consumer:
                written = sum(ends_of(consumer, state, PARTITIONS))
            return len(read_topic(app.bootstrap, state, PARTITIONS)) < written // 5

        wait_until(is_compacted, "the state topic is compacted")
        joiner.kill()
    finally:
        set_config(app.admin(), ResourceType.BROKER, "1", log_cleaner_backoff_ms=None)
    last = app.start()
    last.wait_for_units()
    app.wait_until_through()
    assert last.stop() == 0
    app.verify()
