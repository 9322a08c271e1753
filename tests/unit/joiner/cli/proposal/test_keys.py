"""Which key does a proposal take if the messages are partitioned by another one, or only Kafka knows the key?"""

from __future__ import annotations

import pytest

from joiner.cli.proposal.samples import Question, Source
from tests.unit.joiner.cli.proposal.sampled import AT_MS, file_of, guessed, topic_of
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


def changes(name: str = "plant") -> Source:
    """Return changed rows of a table, whose messages have the primary key as their key."""
    rows = [{"id": at, "machine": MACHINES[at % 6], "measured_at": AT_MS + at, "rpm": at % 7} for at in range(60)]
    return topic_of([(str(row["id"]), {"after": row}) for row in rows], name)


def test_a_primary_key_is_not_the_thing_although_it_is_the_key_of_the_messages() -> None:
    """Otherwise, rows of different tables that happen to have the same number would be joined."""
    topic = guessed(changes())
    assert (topic.key, topic.repartition) == ("$.after.machine", True)
    # It may be that of one of very many things, each with a single message among the samples.
    told = (
        "their key is $.after.id, which is another one in each message: if it is the thing rather than the message, "
        "answer with --key '$.after.id'"
    )
    assert topic.notes.count(told) == 1
    assert guessed(changes(), key="$.after.id").key == "$.after.id"


def test_a_key_of_many_things_is_proposed_with_a_note_if_there_is_no_other() -> None:
    documents = [(f"imei-{at}", {"imei": f"imei-{at}", "ts": AT_MS + at, "speed": at % 9}) for at in range(60)]
    topic = guessed(topic_of(documents))
    assert (topic.key, topic.repartition) == ("$.imei", False)
    assert "$.imei is another one in each message: check that it is the thing, and not the message" in topic.notes
    named = [(key, {"device": key, "ts": one["ts"], "speed": one["speed"]}) for key, one in documents]
    assert not any("another one" in note for note in guessed(topic_of(named)).notes)


def test_the_question_about_the_key_of_a_file_shows_some_of_many_fields() -> None:
    documents = [{"ts": AT_MS + at} | {f"v{number}": at for number in range(40)} for at in range(9)]
    with pytest.raises(Question, match=r"\$\.v0 \(0\), .*\$\.v7 \(0\), and 32 more\. Answer with --key PATH"):
        guessed(file_of(documents))
