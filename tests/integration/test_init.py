"""Settings that `lsb-init` proposes for topics of other programs: does the joiner run with them as they are?"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import NewTopic

from tests.integration.joiner_application import (
    PARTITIONS,
    TOPICS,
    Application,
    Entry,
    found_of,
    things_over_all_units,
)
from tests.integration.proposing import init
from tests.integration.your_data import LAYOUTS

ANY: Final = f"""\
[topics]
partitions = {PARTITIONS}
[[join]]
name = "any"
left = "a"
right = "b"
output = "c"
"""
"""Settings with which topics can be created."""


@dataclass
class Proposed(Application):
    """An application with proposed settings, and with a name and result topics of its own."""

    proposal: str = ""

    @property
    def config(self) -> Path:
        """The path of the settings file."""
        topics = "".join(f'{kind} = "{self.topic(kind)}"\n' for kind in TOPICS)
        text = self.proposal.replace("[topics]\n", f"[topics]\n{topics}")
        path = self.folder / "proposed.toml"
        path.write_text(f'{text}\n[application]\nname = "{self.name}"\n')
        return path


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Proposed]:
    made = Proposed(kafka, tmp_path)
    yield made
    made.close()


def test_proposed_settings_join_what_they_were_derived_from(app: Proposed) -> None:
    layout = LAYOUTS["debezium"]
    kinds = [stream.topic for stream in layout.streams]
    messages = [*layout.messages(random.Random(3), things_over_all_units(6), 2_000)]
    app.proposal = ANY
    for kind in kinds:
        app.data = f"{app.name}.{kind}"
        app.create_topics()
        app.produce([Entry(one.key, one.value) for one in messages if one.topic == kind])
    app.data = ""
    names = [f"{app.name}.{kind}" for kind in kinds]
    made = init(app.bootstrap, *names, "--output", "new.toml", folder=app.folder)
    assert made.returncode == 0, made.stderr
    app.proposal = (app.folder / "new.toml").read_text()
    joiner = app.start()
    app.wait_until_through()
    assert found_of(app.verify(), "results", "speed_torque") > 1_000
    assert not app.values("rejected")
    assert joiner.stop() == 0


def test_topics_that_the_joiner_would_refuse_are_told_with_the_command_that_changes_them(app: Proposed) -> None:
    app.admin().create_topics([NewTopic(f"{app.name}.data", app.partitions, 1)])[f"{app.name}.data"].result()
    layout = LAYOUTS["telegraf"]
    app.produce([Entry(one.key, one.value) for one in layout.messages(random.Random(4), things_over_all_units(6), 300)])
    made = init(app.bootstrap, f"{app.name}.data", folder=app.folder)
    assert made.returncode == 0, made.stderr
    assert (
        f"kafka-configs --alter --topic {app.name}.data --add-config message.timestamp.type=LogAppendTime"
        in made.stdout
    )


def test_a_topic_that_does_not_exist_is_told_with_those_that_do(app: Proposed) -> None:
    app.proposal = ANY
    app.create_topics()
    made = init(app.bootstrap, f"{app.name}.dat", folder=app.folder)
    assert made.returncode == 1
    assert f"no such topic or file: {app.name}.dat; topics: {app.name}.data, " in made.stderr
    empty = init(app.bootstrap, f"{app.name}.data", folder=app.folder)
    assert empty.returncode == 1
    assert f"{app.name}.data: there are no messages to look at" in empty.stderr


def test_without_kafka_the_error_says_where_it_was_looked_for(tmp_path: Path) -> None:
    made = init("127.0.0.1:9", "plant", folder=tmp_path)
    assert made.returncode == 1
    assert "Kafka at 127.0.0.1:9 did not answer" in made.stderr
