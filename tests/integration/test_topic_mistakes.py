"""What happens to the input topics by mistake: cut by retention, made anew, given partitions, a compacted state.

Each ends in right results or in a stop that says what happened, where, and what to do.
"""

from __future__ import annotations

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

from broker.topics import ensure_topics, state_topic_spec
from joiner.run.intake import Message
from joiner.run.unit import Unit
from tests.integration.joiner_application import (
    PARTITIONS,
    Application,
    Entry,
    application,
    refusal,
    run_once,
    seeded_entries,
)
from tests.integration.services import DEADLINE_S, ends_of, read_topic, topic_reader, wait_until

RARE_SNAPSHOTS = {"LSB_APPLICATION__SNAPSHOT_INTERVAL": "1h", "LSB_APPLICATION__SNAPSHOT_RECORDS": "1000000"}


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


@pytest.fixture
def other_app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    folder = tmp_path / "other"
    folder.mkdir()
    yield from application(kafka, folder)


def results_of(app: Application, entries: Sequence[Entry]) -> list[bytes]:
    """The results of entries that were produced in this order, computed in memory, sorted."""
    settings, topic, found = app.settings(), app.topic("data"), []
    for number in range(app.partitions):
        mine = [entry.value for entry in entries if app.unit_of(entry.key) == number]
        messages = [Message(offset, 10**13, value) for offset, value in enumerate(mine)]
        effects = Unit(settings, number, {topic: 0}).apply({topic: messages}, {topic: len(messages)})
        found += [value for name, _, value in effects.messages(settings.topics) if name == settings.topics.out]
    return sorted(found)


def delete_topic(app: Application, name: str) -> None:
    """Delete a topic and wait until it is gone."""
    for future in app.admin().delete_topics([name], operation_timeout=DEADLINE_S).values():
        future.result()
    wait_until(lambda: name not in app.admin().list_topics(timeout=10).topics, f"{name} is gone")


def add_partition(app: Application, *topics: str) -> None:
    """Give topics one partition more."""
    wanted = [NewPartitions(topic, PARTITIONS + 1) for topic in topics]
    for future in app.admin().create_partitions(wanted, operation_timeout=DEADLINE_S).values():
        future.result()


def set_config(admin: AdminClient, kind: ResourceType, name: str, **values: str | None) -> None:
    """Set dynamic configurations; None takes one back. Underscores stand for dots."""
    resource = ConfigResource(kind, name)
    for key, value in values.items():
        how = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        resource.add_incremental_config(ConfigEntry(key.replace("_", "."), value, incremental_operation=how))
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()


def test_what_retention_takes_is_nothing_up_to_the_snapshot_and_refused_behind_it(app: Application) -> None:
    first, second, third = (seeded_entries(seed, 500) for seed in (90, 91, 92))
    app.create_topics()
    app.produce(first)
    joiner = app.start()
    app.wait_until_through()
    assert joiner.stop() == 0
    app.remove_records()
    # The log begins where the snapshot was taken: pairs over the cut come from what it holds.
    joiner = app.start()
    app.produce(second)
    app.wait_until_through()
    assert joiner.stop() == 0
    assert sorted(app.values("out")) == results_of(app, [*first, *second])
    # Consumed and committed, but not in a snapshot.
    joiner = app.start(**RARE_SNAPSHOTS)
    app.produce(third)
    app.wait_until_through()
    joiner.kill()
    app.remove_records()
    said = refusal(app)
    for unit in range(PARTITIONS):
        assert f"unit {unit}: the log of {app.topic('data')} begins at" in said
    assert (
        said.count("retention has removed what was not consumed or not yet in a snapshot; raise topics.retention") == 3
    )


def test_records_that_are_removed_before_a_slow_joiner_reads_them_stop_it(app: Application) -> None:
    app.create_topics()
    joiner = app.start(LSB_APPLICATION__SESSION_TIMEOUT="30s")
    joiner.wait_for_units()
    joiner.process.send_signal(signal.SIGSTOP)
    # The fetch that is under way is answered with the first of them; the next one finds that they are gone.
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


def test_topics_that_change_while_the_joiner_runs_stop_it(app: Application, other_app: Application) -> None:
    for one in (app, other_app):
        one.create_topics()
        one.produce(seeded_entries(96, 600))
    grown, renewed = app.start(), other_app.start()
    app.wait_until_through()
    other_app.wait_until_through()
    add_partition(app, app.topic("data"))
    # Made anew, and at once far beyond the offsets that were consumed.
    delete_topic(other_app, other_app.topic("data"))
    other_app.create_topics()
    other_app.produce(seeded_entries(97, 1800))
    assert grown.ends() == 1
    assert f"topic {app.topic('data')} has 4 partitions and had 3 when the joiner began" in grown.text()
    assert "give the application a new name" in grown.text()
    assert renewed.ends() == 1
    assert "made anew" in renewed.text()
    assert "joiner reset" in renewed.text()
    assert "Traceback" not in grown.text() + renewed.text()
    # What was joined until then is right, and the next starts are refused, too.
    assert sorted(app.values("out")) == results_of(app, seeded_entries(96, 600))
    assert "has 4 partitions and the settings say 3" in refusal(app)
    assert f"{other_app.topic('data')} was deleted and made anew" in refusal(other_app)
    add_partition(app, *(app.topic(kind) for kind in ("out", "late", "rejected", "unmatched")), f"{app.name}.state")
    app.partitions = 4
    assert "was begun with 3 partitions, now there are 4: keys would change their unit" in refusal(app)


def test_a_deleted_input_topic_stops_the_joiner(app: Application) -> None:
    run_once(app, 98)
    joiner = app.start()
    joiner.wait_for_units()
    delete_topic(app, app.topic("data"))
    assert joiner.ends() == 1
    assert f"topic {app.topic('data')} was deleted while the joiner ran" in joiner.text()


def test_the_hardest_compaction_of_the_state_topic_takes_nothing_that_counts(app: Application) -> None:
    state = f"{app.name}.state"
    set_config(app.admin(), ResourceType.BROKER, "1", log_cleaner_backoff_ms="200")
    try:
        ensure_topics(app.admin(), [state_topic_spec(app.name, app.settings().topics)])
        set_config(
            app.admin(), ResourceType.TOPIC, state, segment_ms="200", min_cleanable_dirty_ratio="0",
            delete_retention_ms="0", max_compaction_lag_ms="1",
        )  # fmt: skip
        app.create_topics()
        entries = seeded_entries(99, 3000)
        joiner = app.start()
        for part in range(0, len(entries), 500):
            for at in range(part, part + 500, 25):
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
