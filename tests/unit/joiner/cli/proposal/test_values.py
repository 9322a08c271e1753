"""Are Booleans used in conditions, and are long arrays looked at?"""

from __future__ import annotations

from typing import Any

import pytest

from joiner.cli.proposal.fields import literal
from joiner.cli.proposal.settings import compose, try_out
from joiner.cli.proposal.values import COUNTED_MAX, STREAMS_MAX
from tests.unit.joiner.cli.proposal.sampled import AT_MS, file_of, guessed, topic_of


def messages(**more: list[Any]) -> list[dict[str, Any]]:
    """Return messages whose further members take turns among the given values."""
    return [
        {"host": "m1", "ts": AT_MS + number, **{name: one[number % len(one)] for name, one in more.items()}}
        for number in range(40)
    ]


def test_a_boolean_that_may_select_messages_is_told_with_the_condition() -> None:
    (note,) = [
        one for one in guessed(file_of(messages(valid=[True, False, True], rpm=[1, 2, 3]))).notes if "$.v" in one
    ]
    assert note == (
        'if $.valid (true, false) says which messages are to be joined, select them with where = "$.valid == true"'
    )


def test_a_boolean_tells_quantities_apart_if_it_is_named_like_a_kind() -> None:
    topic = guessed(file_of(messages(channel=[True, False], value=[1, 2, 3])))
    assert [(one.name, one.where) for one in topic.streams] == [
        ("channel.true", "$.channel == true"),
        ("channel.false", "$.channel == false"),
    ]
    tried = try_out(compose([topic]), [topic])
    assert [sum(one.things.values()) for one in tried] == [20, 20]


def test_true_and_1_are_not_mistaken_for_the_same_kind() -> None:
    topic = guessed(file_of(messages(channel=[True, 1, 0], value=[1, 2])))
    assert [one.where for one in topic.streams] == [None]


def test_booleans_are_literals_of_conditions() -> None:
    assert [literal(one) for one in (True, False, 1, "a")] == ["true", "false", "1", "'a'"]


def test_all_elements_of_an_array_are_looked_at() -> None:
    readings = [[{"v": number + place} for place in range(8)] for number in range(5)]
    topic = guessed(file_of(messages(readings=readings)))
    assert [one.value for one in topic.streams] == [f"$.readings[{place}].v" for place in range(8)]
    assert [one.name for one in topic.streams] == [f"readings.{place}" for place in range(8)]
    assert len(try_out(compose([topic]), [topic])) == 6


def test_an_element_of_an_array_is_told_because_the_others_may_be_messages_too() -> None:
    topic = guessed(topic_of(("m1", [{"host": "m1", "ts": AT_MS + at, "v": at}]) for at in range(40)))
    assert [one.value for one in topic.streams] == ["$[0].v"]
    assert any(one.startswith("$[0].v is in an array, of which a stream reads one element") for one in topic.notes)
    assert not any("array" in one for one in guessed(file_of(messages(rpm=[1, 2]))).notes)


def test_elements_that_only_some_messages_have_select_these() -> None:
    topic = guessed(file_of(messages(axes=[[1, 2, 3, 4, 5], [1.5, 2, 3, 9]])))
    by_value = {one.value: one.where for one in topic.streams}
    assert by_value["$.axes[3]"] is None
    assert by_value.get("$.axes[0]", "") is None


def test_an_element_that_is_rarely_there_needs_a_condition() -> None:
    topic = guessed(file_of(messages(axes=[[1, 2, 3, 4, 5], [1.5, 2.5, 3.5, 9], [0, 1, 2, 3, 7]])))
    assert {one.value: one.where for one in topic.streams}["$.axes[4]"] == "$.axes[4]"


def test_a_long_array_is_not_proposed_element_by_element() -> None:
    curves = [[float(number + place) for place in range(5_000)] for number in range(3)]
    topic = guessed(file_of(messages(curve=curves)))
    assert len(topic.streams) == 20
    assert any("it has 100 streams, of which 20 are proposed" in note for note in topic.notes)


def test_what_is_sometimes_an_object_is_not_a_value() -> None:
    """No condition would keep messages with the object out of the stream."""
    topic = guessed(file_of(messages(load=[1, {"x": 2}, 3, {}], rpm=[1, 2, 3, 4, 5])))
    assert "$.load" not in [one.value for one in topic.streams]
    mostly = messages(rpm=[1, 2, 3])
    mostly[7]["rpm"] = {"damaged": 1}
    topic = guessed(file_of(mostly))
    assert [one.value for one in topic.streams] == ["$.rpm"]


@pytest.mark.parametrize("value", [10**399, "1e400", "1" + "0" * 400])
def test_a_number_that_no_double_holds_is_not_a_value(value: Any) -> None:
    topic = guessed(file_of(messages(large=[value], rpm=[1, 2, 3])))
    assert [one.value for one in topic.streams] == ["$.rpm"]


def test_no_stream_is_lost_because_of_its_name() -> None:
    """A number that tells two streams of the same name apart may be part of the name of a third one."""
    fourth = [["", "", "", 1], ["", "", "", 2]]
    topic = guessed(file_of(messages(x=[{"a": 1}, {"a": 2}], a=fourth, z=[1, 2], y=[{"a": 3}, {"a": 4}])))
    assert {one.name: one.value for one in topic.streams} == {
        "a": "$.x.a",
        "a.3": "$.a[3]",
        "z": "$.z",
        "a.2": "$.y.a",
    }


def test_a_long_text_that_may_divide_the_messages_is_not_told() -> None:
    texts = ["a" * 100_000, "b" * 100_000]
    notes = guessed(file_of(messages(log=texts, state=["on", "off"], rpm=[1, 2, 3]))).notes
    assert any("$.state" in note for note in notes)
    assert not any("$.log" in note for note in notes)


def test_fields_with_long_names_are_left_out_so_that_conditions_stay_short() -> None:
    long = "n" * 1_500
    sometimes: list[Any] = [
        {"host": "m1", "ts": AT_MS + at, "a": at, **({long: at} if at % 2 else {})} for at in range(9)
    ]
    other = [{"host": "m1", "ts": AT_MS + at, "b": at} for at in range(9)]
    topics = [guessed(file_of(sometimes)), guessed(file_of(other, "other"))]
    assert [one.name for one in try_out(compose(topics), topics)] == ["a", "b"]


def test_kinds_with_the_longest_names_have_conditions_that_can_be_loaded() -> None:
    kind, value = f"{'k' * 380}_metric", "v" * 380
    documents = [
        {"host": "m1", "ts": AT_MS + at, kind: ("\x01" * 99 + "ab"[at % 2]), value: at if at % 3 else None}
        for at in range(40)
    ]
    topics = [guessed(file_of(documents))]
    assert len(topics[0].streams) == 2
    assert len(try_out(compose(topics), topics)) == 2


def test_more_kinds_than_anybody_counts_are_not_counted() -> None:
    documents = [
        {"host": "m1", "ts": AT_MS + at, "metric": f"metric-{at // 2}", "value": at}
        for at in range(2 * COUNTED_MAX + 20)
    ]
    topic = guessed(file_of(documents))
    assert len(topic.streams) == 20
    assert f"it has more than {COUNTED_MAX} streams, of which 20 are proposed" in topic.notes


def test_thousands_of_quantities_of_own_records_are_not_all_looked_at() -> None:
    own = [
        {"thing": "m1", "quantity": f"q{at % 2_000}" if at % 3 else "usual", "phenomenonTime": AT_MS + at, "result": 1}
        | {"id": str(at)}
        for at in range(4_000)
    ]
    topic = guessed(file_of(own))
    assert (len(topic.streams), topic.streams[0].name) == (STREAMS_MAX, "usual")
    assert any("quantities, of which the 20 most frequent are looked at" in note for note in topic.notes)
