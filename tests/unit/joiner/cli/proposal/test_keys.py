"""Which key does a proposal take if the messages are partitioned by another one, or only Kafka knows the key?"""

from __future__ import annotations

import pytest

from joiner.cli.proposal.samples import Question, Source
from tests.unit.joiner.cli.proposal.sampled import AT_MS, guessed, topic_of
from tests.unit.joiner.cli.proposal.test_guess import MACHINES, messages, spindle


def without_keys(source: Source) -> Source:
    return source._replace(samples=[sample._replace(key=None) for sample in source.samples])


def test_a_topic_that_no_field_partitions_is_repartitioned_by_the_likeliest_key() -> None:
    shifted = topic_of([(MACHINES[(number + 1) % 6], spindle(number)) for number in range(60)])
    topic = guessed(without_keys(shifted))
    assert (topic.key, topic.repartition) == ("$.machine.id", True)
    assert any("not partitioned by $.machine.id" in note for note in topic.notes)
    assert not guessed(topic_of(messages())).repartition


def test_a_given_key_is_repartitioned_by_if_it_does_not_determine_the_partition() -> None:
    source = topic_of(messages())
    assert not guessed(source, key="$.machine.id").repartition
    assert not guessed(source, key="kafka.key").repartition
    assert guessed(source, key="$.machine.line").repartition
    assert guessed(source, key="'machine'").repartition
    assert guessed(source._replace(partitions=4), key="kafka.key").repartition


def test_keys_of_kafka_messages_in_other_partitions_are_repartitioned_by() -> None:
    documents = [(key, {"ts": AT_MS + at, "rpm": at}) for at, (key, _) in enumerate(messages())]
    topic = guessed(topic_of(documents)._replace(partitions=4))
    assert (topic.key, topic.repartition) == ("kafka.key", True)


def test_a_topic_without_anything_like_a_key_is_a_question() -> None:
    documents = [("m0", {"ts": AT_MS + at, "rpm": at}) for at in range(60)]
    with pytest.raises(Question, match=r"which field is the key\?.*--key PATH"):
        guessed(without_keys(topic_of(documents)))


def test_a_key_that_only_the_kafka_messages_have_is_proposed() -> None:
    topic = guessed(topic_of([(key, {"ts": AT_MS + at, "rpm": at}) for at, (key, _) in enumerate(messages())]))
    assert topic.key == "kafka.key"
    assert any("such as 'm0'" in note for note in topic.notes)
