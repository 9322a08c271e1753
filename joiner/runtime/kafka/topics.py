"""The topics of an application, and a check that its input topics do not change while it runs.

A consumer with explicit offsets does not notice when partitions are added, when a topic is deleted, or when a topic is
recreated and grows past the consumer's offset. The joiner therefore periodically requests the topics' ids and partition
counts. The request is asynchronous: the process's main loop polls for the answer. Failed requests are retried.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from broker.kafka.client_log import answered
from broker.kafka.topics import (
    TopicError,
    TopicFacts,
    TopicSpec,
    control_topic_spec,
    data_topic_specs,
    repartition_topic_spec,
    state_topic_spec,
    topic_facts,
    topic_faults,
)
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.clients import KAFKA_LOG
from joiner.runtime.settings import JoinerSettings

INTERVAL_S: Final = 5.0
"""Time between checks. Records from a recreated topic may be joined for about this long before the process stops."""

_ANSWER_S: Final = 10.0


class TopicReplaced(TopicError):
    """Raised if topics were deleted or recreated, and nothing else has changed. ``topics``: their names.

    The message tells how to go on with the input of an application.
    """

    def __init__(self, message: str, topics: list[str]) -> None:
        super().__init__(message)
        self.topics = topics


class TopicWatch:
    """Checks that topics still exist and still have the ids and partition counts in ``known``, taken at startup."""

    def __init__(
        self,
        admin: AdminClient,
        known: Mapping[str, TopicFacts],
        clock: Clock,
        may_grow: Collection[str] = (),
        *,
        reset: str = "`joiner reset`",
    ) -> None:
        """``may_grow``: the topics to which partitions may be added. ``reset``: the command to start over with."""
        self._may_grow, self._reset = may_grow, reset
        self._admin, self._clock = admin, clock
        self._known = dict(known)
        self._asked: dict[str, Any] = {}
        self._absent: set[str] = set()
        self._due_s = self._clock.monotonic_s() + INTERVAL_S

    def check(self) -> None:
        """Send a request if one is due, or examine the answer to it.

        Raises `TopicReplaced` if topics were deleted or recreated, and `TopicError` if they have other partitions.
        """
        if self._asked:
            if all(future.done() for future in self._asked.values()):
                answers, self._asked = self._asked, {}
                self._due_s = self._clock.monotonic_s() + INTERVAL_S
                self._judge(answers)
        elif self._known and self._clock.monotonic_s() >= self._due_s:
            self._asked = self._admin.describe_topics(TopicCollection(list(self._known)), request_timeout=_ANSWER_S)

    def _judge(self, answers: Mapping[str, Any]) -> None:
        # Forward the log lines queued in the client, which would otherwise appear only when the client is closed.
        self._admin.poll(0)
        absent = {topic for topic, answer in answers.items() if _is_unknown(answer)}
        # A topic must be missing twice in a row, because a broker that has just started may not know every topic yet.
        replaced = {topic: _gone(topic, self._reset) for topic in sorted(absent & self._absent)}
        self._absent = absent
        changed = []
        for topic, answer in answers.items():
            if answer.exception() is None:
                answered(KAFKA_LOG)
                found, known = answer.result(), self._known[topic]
                if str(found.topic_id) != known.topic_id:
                    replaced[topic] = _recreated(topic, self._reset)
                elif len(found.partitions) != known.partitions and topic not in self._may_grow:
                    changed.append(_with_other_partitions(topic, len(found.partitions), known.partitions))
        if changed:
            raise TopicError("\n".join([*replaced.values(), *changed]))
        if replaced:
            raise TopicReplaced("\n".join(replaced.values()), list(replaced))


def _is_unknown(answer: Any) -> bool:
    error = answer.exception()
    return isinstance(error, KafkaException) and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def _gone(topic: str, reset: str) -> str:
    return (
        f"topic {topic} was deleted while the joiner was running: restore it, or run {reset} and then "
        "restart the joiner, which creates the topic and starts over"
    )


def _recreated(topic: str, reset: str) -> str:
    return (
        f"topic {topic} was deleted and recreated while the joiner was running, so its offsets refer to other "
        f"records: start over with {reset} (results of the last few seconds may come from the new topic)"
    )


def _with_other_partitions(topic: str, found: int, known: int) -> str:
    return (
        f"topic {topic} has {found} partitions, but had {known} when the joiner "
        "started: keys would move to other partitions, and their records would no longer be joined. Kafka cannot "
        "remove partitions: create new topics that all have the same number of partitions (section [topics]), and "
        "give the application a new name"
    )


_OTHER_PARTITIONS: Final = (
    "set repartition = true in each [[stream]] of this topic, so that the joiner copies it to a topic with as many "
    "partitions, or set topics.partitions to the number of this topic"
)


def repartition_topic_specs(settings: JoinerSettings) -> list[TopicSpec]:
    """Return the topics into which the application copies others."""
    return [
        repartition_topic_spec(target, source, settings.topics) for source, target in settings.repartitioned.items()
    ]


def check_sources(admin: AdminClient, settings: JoinerSettings) -> dict[str, TopicFacts]:
    """Return the facts of the topics to copy that exist. They may have any number of partitions.

    Raises `TopicError` if one of them cannot be copied as it is, and KafkaException.
    """
    if not settings.repartitioned:
        return {}
    found = topic_facts(admin, list(settings.repartitioned))
    specs = [
        spec
        for topic, facts in found.items()
        for spec in data_topic_specs(settings.topics.model_copy(update={"partitions": facts.partitions}), [topic])
        if spec.name == topic
    ]
    if faults := topic_faults(admin, specs, found):
        raise TopicError("\n".join(faults))
    return found


def retention_warnings(admin: AdminClient, settings: JoinerSettings) -> list[str]:
    """Return a warning for each existing repartition topic that deletes copies earlier than the originals are deleted.

    Raises KafkaException.
    """
    pairs = settings.repartitioned
    resources = [ConfigResource(ResourceType.TOPIC, name) for pair in pairs.items() for name in pair]
    answers = admin.describe_configs(resources, request_timeout=_ANSWER_S)
    # Kept for ever: -1.
    kept_ms = {one.name: int(found.result()["retention.ms"].value) % 2**63 for one, found in answers.items()}
    return [
        f"{target} deletes copies earlier than {topic} deletes their originals, which may be before they are joined: "
        f"kafka-configs --bootstrap-server … --alter --topic {target} --add-config retention.ms={kept_ms[topic]}"
        for topic, target in pairs.items()
        if kept_ms[target] < kept_ms[topic]
    ]


def application_topics(settings: JoinerSettings) -> list[TopicSpec]:
    """Return all topics of an application, including its state and control topics."""
    copies = {target: source for source, target in settings.repartitioned.items()}
    inputs = [topic for topic in settings.input_topics if topic not in copies]
    mapped = {topic for topic in inputs if settings.mapped_streams(topic)}
    return [
        *(
            replace(spec, remedy=_OTHER_PARTITIONS) if spec.name in mapped else spec
            for spec in data_topic_specs(settings.topics, inputs)
        ),
        *repartition_topic_specs(settings),
        state_topic_spec(settings.application.name, settings.topics),
        control_topic_spec(settings.application.name, settings.topics),
    ]
