"""An application's topics and their configuration."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from broker.kafka.topics import control_topic_spec, data_topic_specs, state_topic_spec, topic_facts
from broker.settings import TopicSettings


def test_every_topic_that_carries_records_keeps_all_of_them_under_the_time_of_their_arrival() -> None:
    specs = data_topic_specs(TopicSettings.model_validate({"retention": "2h", "partitions": 7}))
    assert [spec.name for spec in specs] == [
        f"machine.{kind}" for kind in ("data", "out", "late", "rejected", "unmatched")
    ]
    for spec in specs:
        assert spec.required == {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}
        assert spec.initial == {"retention.ms": "7200000"}
        assert spec.partitions == 7


def test_the_inputs_of_joins_are_topics_like_the_others_and_named_once() -> None:
    names = [spec.name for spec in data_topic_specs(TopicSettings(), ["elsewhere", "machine.data"])]
    assert names == [*dict.fromkeys(names)]
    assert names[-1] == "elsewhere"


def test_the_state_topic_is_compacted() -> None:
    spec = state_topic_spec("app", TopicSettings(partitions=3))
    assert (spec.name, spec.partitions, spec.required) == ("app.state", 3, {"cleanup.policy": "compact"})


def test_the_control_topic_has_one_order_and_one_clock() -> None:
    spec = control_topic_spec("app", TopicSettings(partitions=3))
    assert (spec.name, spec.partitions) == ("app.control", 1)
    assert spec.required == {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}


def test_a_denied_access_names_the_topic() -> None:
    """Kafka's own error does not."""
    known, denied = Future[Any](), Future[Any]()
    known.set_result(SimpleNamespace(topic_id="id", partitions=[0]))
    denied.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    admin: Any = SimpleNamespace(describe_topics=lambda *_given, **_more: {"a": known, "b": denied})
    with pytest.raises(KafkaException, match="topic b: Broker: Topic authorization failed"):
        topic_facts(admin, ["a", "b"])
