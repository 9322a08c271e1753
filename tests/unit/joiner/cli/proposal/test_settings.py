"""Can proposed settings be loaded, and do they read what they were derived from?"""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.settings import SettingsError
from joiner.cli.proposal.samples import Question, Table, UnusableSource
from joiner.cli.proposal.settings import JOINS_MAX, compose, try_out, without_common_things
from tests.unit.joiner.cli.proposal.sampled import AT_MS, file_of, guessed, topic_of


def documents(*names: str, host: str = "m1", count: int = 9) -> list[dict[str, Any]]:
    return [{"host": host, "ts": AT_MS + number, **dict.fromkeys(names, number)} for number in range(count)]


def test_a_proposal_reads_the_messages_that_it_was_derived_from() -> None:
    left = topic_of([("m1", one) for one in documents("speed")], "plant.spindle")
    right = topic_of([("m1", one) for one in documents("torque")], "plant.lab")
    topics = [guessed(left), guessed(right)]
    proposal = compose(topics, [Table("[kafka]", {"bootstrap_servers": "kafka:9092"})])
    found = tomllib.loads(proposal.text)
    assert found["kafka"] == {"bootstrap_servers": "kafka:9092"}
    assert found["topics"] == {"partitions": 3}
    assert [(one["left"], one["right"]) for one in found["join"]] == proposal.joins == [("speed", "torque")]
    speed, torque = try_out(proposal, topics)
    assert (speed.name, speed.topic, speed.things, speed.rejected) == ("speed", "plant.spindle", {"m1": 9}, 0)
    assert str(torque) == (
        "torque (plant.lab): 9 records in 9 messages, 1 thing (m1), 2023-11-14T22:13:20Z to 2023-11-14T22:13:20.008Z"
    )
    assert not without_common_things(proposal, [speed, torque])


def test_streams_without_a_common_thing_are_told() -> None:
    topics = [guessed(file_of(documents("a"), "x")), guessed(file_of(documents("b", host="m2"), "y"))]
    proposal = compose(topics)
    assert "no thing in common" in without_common_things(proposal, try_out(proposal, topics))[0]


def test_streams_of_other_messages_are_joined_first_and_the_rest_is_commented_out() -> None:
    names = [f"v{number}" for number in range(8)]
    topics = [guessed(file_of(documents(*names), "x")), guessed(file_of(documents("other"), "y"))]
    proposal = compose(topics)
    assert proposal.joins == [("v0", "other"), *(("v0", f"v{number}") for number in range(1, JOINS_MAX))]
    assert '# name = "v7"' in proposal.text
    assert len(try_out(proposal, topics)) == JOINS_MAX + 1


def test_streams_of_the_same_name_are_told_apart_by_their_topics() -> None:
    topics = [guessed(file_of(documents("rpm"), name)) for name in ("x", "y")]
    assert compose(topics).joins == [("x.rpm", "y.rpm")]


def test_labels_with_topics_do_not_collide_with_other_names() -> None:
    """The kind of a message may be called like a topic and a stream."""
    kinds = [{"host": "m1", "ts": AT_MS + at, "metric": ("x.rpm", "z")[at % 2], "value": at} for at in range(9)]
    topics = [guessed(file_of(kinds, "k")), *(guessed(file_of(documents("rpm"), name)) for name in ("x", "y"))]
    proposal = compose(topics)
    assert sorted(one["name"] for one in tomllib.loads(proposal.text)["stream"]) == ["x.rpm", "x.rpm.2", "y.rpm", "z"]
    assert len(try_out(proposal, topics)) == 4


def test_a_stream_is_not_called_like_a_quantity_that_a_join_selects() -> None:
    own = [
        {"thing": "m1", "quantity": "y.rpm", "phenomenonTime": AT_MS + at, "result": at, "id": "i"} for at in range(9)
    ]
    topics = [guessed(file_of(own, "own")), *(guessed(file_of(documents("rpm"), name)) for name in ("x", "y"))]
    proposal = compose(topics)
    assert proposal.joins == [("y.rpm", "x.rpm"), ("y.rpm", "y.rpm.2")]
    assert [sum(one.things.values()) for one in try_out(proposal, topics)] == [9, 9, 9]


def test_the_longest_names_are_told_apart() -> None:
    long = [
        {"host": "m1", "ts": AT_MS + at, "a" * 300: at, "b" * 300: at, "type": "ab"[at % 2] * 90} for at in range(9)
    ]
    topics = [guessed(file_of(long, "t" * 200)), guessed(file_of(long, "u" * 200))]
    proposal = compose(topics)
    assert len({one.label for one in proposal.streams}) == len(proposal.streams) == JOINS_MAX + 1
    assert len(try_out(proposal, topics)) == JOINS_MAX + 1


def test_a_topic_with_more_partitions_than_a_joiner_can_have_is_repartitioned() -> None:
    topics = [
        guessed(topic_of([("m1", one) for one in documents(value)], name, partitions))
        for name, value, partitions in (("x", "a", 1_500), ("y", "b", 3))
    ]
    proposal = compose(topics)
    found = tomllib.loads(proposal.text)
    assert found["topics"] == {"partitions": 1_000}
    assert [one.get("repartition") for one in found["stream"]] == [True, True]
    assert [one.rejected for one in try_out(proposal, topics)] == [0, 0]


def test_own_records_are_selected_by_quantity() -> None:
    own = [
        {"thing": "m1", "quantity": "ab"[number % 2], "phenomenonTime": AT_MS // 1000 + number, "result": 1, "id": "i"}
        for number in range(8)
    ]
    topics = [guessed(file_of(own, "one")), guessed(file_of(own, "two"))]
    proposal = compose(topics)
    found = tomllib.loads(proposal.text)
    assert found["events"] == {"time_unit": "s"}
    assert found["topics"] == {"data": "one"}
    assert found["join"][0] | {"name": ""} == {
        "name": "",
        "left": "a",
        "right": {"topic": "two", "quantity": "a"},
        "function": "both",
        "output": "one.a_two.a",
    }
    assert [(one.name, one.things) for one in try_out(proposal, topics)] == [
        (f"{topic}.{quantity}", {"m1": 4}) for topic in ("one", "two") for quantity in "ab"
    ]


def test_topics_with_different_numbers_of_partitions_are_repartitioned_to_the_larger_number() -> None:
    topics = [
        guessed(topic_of([("m1", one) for one in documents(value)], name, partitions))
        for name, value, partitions in (("x", "a", 3), ("y", "b", 4))
    ]
    proposal = compose(topics)
    found = tomllib.loads(proposal.text)
    assert found["topics"] == {"partitions": 4}
    assert [(one["topic"], one.get("repartition")) for one in found["stream"]] == [("x", True), ("y", None)]
    assert "x: it has 3 partitions instead of 4" in proposal.text
    assert [(one.rejected, one.things) for one in try_out(proposal, topics)] == [(0, {"m1": 9})] * 2


def test_a_topic_whose_key_is_elsewhere_gets_the_number_of_partitions_of_the_others() -> None:
    shifted = topic_of([("line-1", one) for one in documents("a")], "x", 8)
    topics = [guessed(shifted, key="$.host"), guessed(topic_of([("m1", one) for one in documents("b")], "y", 4))]
    proposal = compose(topics)
    found = tomllib.loads(proposal.text)
    assert found["topics"] == {"partitions": 4}
    assert [one.get("repartition") for one in found["stream"]] == [True, None]
    assert [(one.rejected, one.things) for one in try_out(proposal, topics)] == [(0, {"m1": 9})] * 2


def test_own_records_in_different_numbers_of_partitions_are_refused() -> None:
    own = {"thing": "m1", "quantity": "a", "phenomenonTime": AT_MS, "result": 1, "id": "i"}
    topics = [guessed(topic_of([("m1", own)] * 9, name, count)) for name, count in (("x", 3), ("y", 4))]
    with pytest.raises(UnusableSource, match="x has 3, y has 4"):
        compose(topics)


def test_a_single_stream_is_refused() -> None:
    with pytest.raises(UnusableSource, match=r"only one stream to join \(a in x\): name another"):
        compose([guessed(file_of(documents("a"), "x"))])


def test_messages_in_the_wrong_partition_would_be_rejected() -> None:
    topics = [
        # A key that nearly all messages have.
        guessed(topic_of([("m1" if at else "m2", one) for at, one in enumerate(documents("a", count=40))], "x")),
        guessed(file_of(documents("b"), "y")),
    ]
    tried, _ = try_out(compose(topics), topics)
    assert tried.rejected > 0
    assert "belongs in partition" in str(tried)


def test_own_records_are_read_as_the_joiner_reads_them() -> None:
    own = {"thing": "m1", "quantity": "a", "phenomenonTime": AT_MS, "result": 1, "id": "i"}
    wrong = [("m1", own | {"result": None}), ("m1", own | {"id": 5}), ("zz", own)]
    topics = [guessed(topic_of([*[("m1", own)] * 60, *wrong], "x")), guessed(topic_of([("m1", own)] * 9, "y"))]
    tried, _ = try_out(compose(topics), topics)
    assert (tried.things, tried.rejected) == ({"m1": 60}, 3)


def test_joins_of_similar_names_have_names_of_their_own() -> None:
    topics = [guessed(file_of(documents("speed", "torque", "torque_2", "torque 2"), "x"))]
    proposal = compose(topics)
    assert len({one["name"] for one in tomllib.loads(proposal.text)["join"]}) == 3
    assert len(try_out(proposal, topics)) == 4


def test_own_records_in_different_units_are_refused() -> None:
    own = {"thing": "m1", "quantity": "a", "result": 1, "id": "i"}
    topics = [guessed(file_of([own | {"phenomenonTime": time}] * 3, f"t{time}")) for time in (AT_MS, AT_MS // 1000)]
    with pytest.raises(UnusableSource, match="times in one unit, not in ms, s"):
        compose(topics)


def test_the_environment_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSB_STREAM", "[]")
    monkeypatch.setenv("LSB_TOPICS__DATA_FORMAT", "arrow")
    topics = [guessed(file_of(documents("a", "b"), "x"))]
    assert [one.name for one in try_out(compose(topics), topics)] == ["a", "b"]


def test_a_topic_with_the_name_of_a_result_topic_is_refused() -> None:
    topics = [guessed(file_of(documents("a", "b"), "machine_out"))]
    with pytest.raises(SettingsError, match=r"would not be accepted: .*differ only in"):
        try_out(compose(topics), topics)


def test_a_setting_that_is_not_utf_8_is_refused() -> None:
    """Python turns such bytes in an environment variable into lone surrogates."""
    topics = [guessed(file_of(documents("a", "b"), "x"))]
    with pytest.raises(UnusableSource, match=r"the setting 'kafka\\udcff' is not UTF-8"):
        compose(topics, [Table("[kafka]", {"bootstrap_servers": "kafka\udcff"})])


def test_tables_come_first_with_any_values() -> None:
    values: dict[str, str | int | float | bool] = {"a.b": 'x"\x7f', "number": 5, "real": 0.5, "yes": True}
    topics = [guessed(file_of(documents("a", "b"), "x"))]
    proposal = compose(topics, [Table("[kafka.client]", values, ["a note\nof two lines"])])
    assert tomllib.loads(proposal.text)["kafka"]["client"] == values
    assert "# a note?of two lines\n[kafka.client]" in proposal.text
    assert try_out(proposal, topics)


def test_files_get_the_number_of_partitions_that_a_person_gives() -> None:
    topics = [guessed(file_of(documents("a", "b"), "x"))]
    assert "partitions" not in tomllib.loads(compose(topics).text).get("topics", {})
    proposal = compose(topics, partitions=7)
    assert tomllib.loads(proposal.text)["topics"] == {"partitions": 7}
    assert (compose(topics).partitions, proposal.partitions) == (0, 7)
    assert [one.rejected for one in try_out(proposal, topics)] == [0, 0]


def test_topics_with_other_numbers_of_partitions_than_a_person_gives_are_repartitioned() -> None:
    topics = [guessed(topic_of([("m1", one) for one in documents("a")], "x", 3)), guessed(file_of(documents("b"), "y"))]
    found = tomllib.loads(compose(topics, partitions=4).text)
    assert found["topics"] == {"partitions": 4}
    assert [one.get("repartition") for one in found["stream"]] == [True, None]


def test_own_records_cannot_get_another_number_of_partitions() -> None:
    own = {"thing": "m1", "quantity": "a", "phenomenonTime": AT_MS, "result": 1, "id": "i"}
    topics = [guessed(topic_of([("m1", own | {"quantity": name})] * 9, name, 3)) for name in "ab"]
    with pytest.raises(UnusableSource, match="has 3 partitions, so there cannot be 4"):
        compose(topics, partitions=4)


def test_files_of_one_thing_are_repartitioned_if_there_are_several_partitions() -> None:
    without_key = [{"ts": AT_MS + number, "a": number, "b": number} for number in range(9)]
    topics = [guessed(file_of(without_key, "x"), key="'machine'")]
    assert tomllib.loads(compose(topics).text)["topics"] == {"partitions": 1}
    proposal = compose(topics, partitions=4)
    assert {one["repartition"] for one in tomllib.loads(proposal.text)["stream"]} == {True}
    assert [one.things for one in try_out(proposal, topics)] == [{"machine": 9}] * 2


NAMES = (
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
    | st.sampled_from(
        ["ts", "time", "id", "host", "type", "value", "after", "it's", 'a"b', "\x7f", "a\nb", "other.speed"]
    )
    | st.builds(str.__mul__, st.sampled_from(["n", "\x01", "metric", "\U0001f600"]), st.integers(50, 400))
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.integers(AT_MS, AT_MS + 10)
    | st.floats(allow_nan=False, allow_infinity=False)
    | NAMES
    | st.sampled_from(["2024-05-01T12:00:00Z", "2024-05-01 12:00", "1.5", "m1"])
)
CONTENTS = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(NAMES, inner, max_size=4))


@given(st.lists(st.dictionaries(NAMES, CONTENTS, max_size=5), min_size=1, max_size=6), st.integers(0, 3))
def test_whatever_the_messages_are_the_proposal_can_be_loaded_and_tried(contents: list[Any], partitions: int) -> None:
    """Or the reason why there is none can be told to a user."""
    common = [{"host": "m1", "ts": AT_MS + number, "a": number, **one} for number, one in enumerate(contents)]
    source = file_of(common) if not partitions else topic_of([("m1", one) for one in common], partitions=partitions)
    try:
        topics = [guessed(source), guessed(file_of(documents("speed"), "other"))]
        proposal = compose(topics)
    except (UnusableSource, Question):
        return
    tried = try_out(proposal, topics)
    assert [one.name for one in tried if one.topic == "other"] == ["speed"]
    assert json.dumps([*map(str, tried)])
