"""The Kafka topics of the pipeline: how they must be set up, creating them, checking those that exist.

Data topics are never compacted (compaction would lose records) and carry the broker's append time (a replay
of an old recording stamped with its event times would be emptied by retention within minutes). The number of
partitions is the number of units, the same for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.settings import TopicSettings

_TIMEOUT_S: Final = 30.0


class TopicError(Exception):
    """Topics that cannot be used as they are; ``str`` lists every fault with the way out, a line each."""


@dataclass(frozen=True)
class TopicSpec:
    """How a topic must be: ``required`` settings are checked where the topic exists, ``initial`` ones are not."""

    name: str
    partitions: int
    replication_factor: int
    required: dict[str, str]
    initial: dict[str, str]


@dataclass(frozen=True)
class TopicFacts:
    """What Kafka says of a topic: its id changes when it is deleted and made anew."""

    topic_id: str
    partitions: int


def data_topic_specs(settings: TopicSettings, inputs: Sequence[str] = ()) -> list[TopicSpec]:
    """The topics that carry records: input, results, late, rejected, unmatched, and other ``inputs``."""
    required = {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}
    initial = {"retention.ms": str(settings.retention // 1_000_000)}
    names = (settings.data, settings.out, settings.late, settings.rejected, settings.unmatched, *inputs)
    return [
        TopicSpec(name, settings.partitions, settings.replication_factor, required, initial)
        for name in dict.fromkeys(names)
    ]


def state_topic_spec(application: str, settings: TopicSettings) -> TopicSpec:
    """The compacted topic of an application's progress records and snapshots, a partition for each unit."""
    return TopicSpec(
        f"{application}.state",
        settings.partitions,
        settings.replication_factor,
        {"cleanup.policy": "compact"},
        {"min.cleanable.dirty.ratio": "0.1", "segment.ms": "3600000"},
    )


def ensure_topics(admin: AdminClient, specs: Sequence[TopicSpec]) -> dict[str, TopicFacts]:
    """Create what is missing, check what exists, return the facts by name.

    Raises `TopicError` with all faults together, KafkaException where Kafka cannot be reached.
    """
    facts = topic_facts(admin, [spec.name for spec in specs])
    missing = [spec for spec in specs if spec.name not in facts]
    _create(admin, missing)
    faults = _faults(admin, [spec for spec in specs if spec.name in facts], facts)
    if faults:
        raise TopicError("\n".join(faults))
    if missing:
        facts = topic_facts(admin, [spec.name for spec in specs])
    return facts


def topic_facts(admin: AdminClient, names: Sequence[str]) -> dict[str, TopicFacts]:
    """The facts of those of ``names`` that exist."""
    facts = {}
    for name, future in admin.describe_topics(TopicCollection(list(names)), request_timeout=_TIMEOUT_S).items():
        try:
            found = future.result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                continue
            raise
        facts[name] = TopicFacts(str(found.topic_id), len(found.partitions))
    return facts


def _create(admin: AdminClient, specs: Sequence[TopicSpec]) -> None:
    if not specs:
        return
    new = [
        NewTopic(
            spec.name,
            num_partitions=spec.partitions,
            replication_factor=spec.replication_factor,
            config={**spec.initial, **spec.required},
        )
        for spec in specs
    ]
    for name, future in admin.create_topics(new, operation_timeout=_TIMEOUT_S).items():
        try:
            future.result()
        except KafkaException as error:
            # Another service that starts at the same time may have been quicker.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                message = f"topic {name} cannot be created: {error.args[0].str()}"
                raise TopicError(message) from error


def _faults(admin: AdminClient, specs: Sequence[TopicSpec], facts: dict[str, TopicFacts]) -> list[str]:
    if not specs:
        return []
    faults = [
        f"topic {spec.name} has {facts[spec.name].partitions} partitions and the settings say {spec.partitions}: "
        f"set topics.partitions to {facts[spec.name].partitions}, or delete the topic and start anew"
        for spec in specs
        if facts[spec.name].partitions != spec.partitions
    ]
    resources = {ConfigResource(ResourceType.TOPIC, spec.name): spec for spec in specs}
    for resource, future in admin.describe_configs(list(resources), request_timeout=_TIMEOUT_S).items():
        spec, found = resources[resource], future.result()
        faults += [
            f"topic {spec.name} has {name}={found[name].value} and needs {value}: "
            f"kafka-configs --alter --topic {spec.name} --add-config {name}={value}"
            for name, value in spec.required.items()
            if found[name].value != value
        ]
    return faults
