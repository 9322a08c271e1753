"""Are a replica's settings those of an application of its own that reads the same input?"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from broker.kafka.replicas import REPLICAS_MAX
from broker.settings import SettingsError
from joiner.runtime.kafka.topics import application_topics
from joiner.runtime.model import semantic_differences
from joiner.runtime.settings import JoinerSettings, replica_settings
from tests.unit.joiner.runtime.joiner_inputs import GAP, POWER, make_settings

COPIED = {
    "name": "speed",
    "topic": "plant.speed",
    "key": "$.k",
    "time": "$.t",
    "value": "$.v",
    "repartition": True,
}


def application(replicas: int = 3, **more: Any) -> JoinerSettings:
    return make_settings(
        POWER, GAP | {"emit_unmatched": "both"}, application={"name": "app", "replicas": replicas}, **more
    )


def test_replica_0_is_the_application_itself() -> None:
    settings = application()
    assert replica_settings(settings, 0) is settings
    assert settings.fingerprint() == application(replicas=1).fingerprint(), "replicas can be added while it runs"
    assert settings.application.shared_name == "app"


@pytest.mark.parametrize("replica", range(1, REPLICAS_MAX))
def test_another_replica_has_names_and_outputs_of_its_own(replica: int) -> None:
    settings = application()
    found = replica_settings(settings, replica)
    suffix = f".r{replica}"
    assert (found.application.name, found.application.replica) == (f"app{suffix}", replica)
    assert found.application.shared_name == "app"
    assert found.output_topics == {kind: f"{topic}{suffix}" for kind, topic in settings.output_topics.items()}
    assert (found.state_topic, found.control_topic) == (f"app{suffix}.state", f"app{suffix}.control")
    assert found.input_topics == settings.input_topics
    differing = semantic_differences(settings.semantics(), found.semantics())
    assert {path for path, _, _ in differing} == {f"outputs.{kind}" for kind in settings.output_topics}


def test_the_settings_of_each_replica_give_those_of_every_other() -> None:
    all_of_them = [replica_settings(application(), replica) for replica in range(REPLICAS_MAX)]
    for settings in all_of_them:
        assert [replica_settings(settings, replica) for replica in range(REPLICAS_MAX)] == all_of_them


def test_replicas_do_not_share_a_topic_that_they_write_to() -> None:
    written = [
        {spec.name for spec in application_topics(replica_settings(application(), replica))} - {"machine.data"}
        for replica in range(REPLICAS_MAX)
    ]
    assert len(set.union(*written)) == sum(map(len, written))


def test_replicas_share_the_copies_of_repartitioned_topics() -> None:
    settings = make_settings(application={"name": "app", "replicas": 2}, stream=[COPIED])
    found = replica_settings(settings, 1)
    assert found.repartitioned == settings.repartitioned == {"plant.speed": "app.plant.speed.repartition"}
    assert found.repartition_group == settings.repartition_group == "app/repartition"
    assert found.input_topics == settings.input_topics


@pytest.mark.parametrize(("replicas", "replica"), [(1, 1), (2, 2), (3, 3), (3, -1)])
def test_a_replica_that_does_not_exist_is_refused(replicas: int, replica: int) -> None:
    with pytest.raises(
        SettingsError, match=f"there is no replica {replica}, because application.replicas is {replicas}"
    ):
        replica_settings(application(replicas), replica)


@pytest.mark.parametrize("replicas", [0, REPLICAS_MAX + 1])
def test_there_are_one_to_three_replicas(replicas: int) -> None:
    with pytest.raises(ValidationError):
        application(replicas)


def test_a_name_that_is_that_of_a_replica_is_refused_only_if_there_are_replicas() -> None:
    assert make_settings(application={"name": "app.r1"}).application.shared_name == "app.r1"
    with pytest.raises(ValidationError, match="ends like that of a replica"):
        make_settings(application={"name": "app.r1", "replicas": 2})


@pytest.mark.parametrize(
    ("topics", "what"),
    [
        ({"late": "machine.out.r1"}, "more than one kind of output would be written to the topic 'machine.out.r1'"),
        ({"late": "machine.out.merged"}, "more than one kind of output"),
        ({"data": "machine.out.r1"}, "the topic 'machine.out.r1' is both read and written"),
        ({"data": "machine.out_r1"}, "differ only in '.' and '_'"),
    ],
)
def test_topics_of_other_replicas_are_not_used_for_anything_else(topics: dict[str, str], what: str) -> None:
    make_settings(topics={"partitions": 1, **topics})
    with pytest.raises(ValidationError, match=what):
        make_settings(topics={"partitions": 1, **topics}, application={"replicas": 2})
