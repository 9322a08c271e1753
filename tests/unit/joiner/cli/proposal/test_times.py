"""Which time does a proposal take, and is what is doubtful about it told?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from joiner.cli.proposal.samples import Question, Source
from joiner.cli.proposal.settings import compose, try_out
from tests.unit.joiner.cli.proposal.sampled import AT_MS, avro_topic, file_of, guessed, record_of, topic_of

COUNT = 30


def in_order_of_partitions(source: Source) -> Source:
    """Return a topic whose partitions are looked at one after the other."""
    return source._replace(samples=sorted(source.samples, key=lambda one: one.partition))


def messages(**more: Any) -> list[dict[str, Any]]:
    return [{"machine": f"m{number % 3}", "rpm": number, **more} for number in range(COUNT)]


@pytest.mark.parametrize("installed", ["2020-01-01T00:00:00Z", AT_MS])
def test_a_date_that_never_changes_is_not_the_time_even_if_there_is_no_other(installed: Any) -> None:
    """Otherwise, all records would have the same time, and each would be joined with any other."""
    documents = messages(installed_at=installed)
    topic = guessed(topic_of((one["machine"], one) for one in documents))
    assert topic.time == "kafka.timestamp"
    with pytest.raises(Question, match=r"which field is the time\?"):
        guessed(file_of(documents))


def test_a_time_that_never_changes_is_told_if_its_name_leaves_no_doubt() -> None:
    topic = guessed(file_of(messages(ts=AT_MS)))
    assert (topic.time, topic.time_unit) == ("$.ts", "ms")
    told = "30 messages have only 1 different times $.ts: check that they are those of the measurements"
    assert told in topic.notes


@pytest.mark.parametrize("partitions", [0, 1, 3])
def test_dates_of_things_are_not_the_time(partitions: int) -> None:
    documents: list[dict[str, Any]] = [
        {"machine": f"m{at % 3}", "commissioned": f"2020-01-0{1 + at % 3}T00:00:00Z", "rpm": at} for at in range(99)
    ]
    if not partitions:
        with pytest.raises(Question, match=r"which field is the time\?"):
            guessed(file_of(documents))
        return
    source = topic_of(((one["machine"], one) for one in documents), partitions=partitions)
    assert guessed(source).time == "kafka.timestamp"
    assert guessed(in_order_of_partitions(source)).time == "kafka.timestamp"


def test_things_that_are_measured_at_the_same_times_have_these_times() -> None:
    """Each partition begins with the same times again."""
    documents: list[dict[str, Any]] = [
        {"machine": f"m{at % 9}", "date": AT_MS // 1000 + at // 9, "rpm": at} for at in range(270)
    ]
    source = topic_of((one["machine"], one) for one in documents)
    topic = guessed(in_order_of_partitions(source))
    assert (topic.time, topic.time_unit) == ("$.date", "s")
    assert not any("different times" in note for note in topic.notes)


def uploaded(name: str, at: Callable[[int], Any]) -> list[dict[str, Any]]:
    """Return messages of things each of which sends all of its values at once. The values have the same times."""
    return [{"machine": f"m{thing}", name: at(minute), "rpm": minute} for thing in range(9) for minute in range(10)]


def minute_of(minute: int) -> str:
    return f"2023-11-14T22:{minute:02}:00Z"


@pytest.mark.parametrize("name", ["sample_time", "measuredTime", "observation_date", "readingTime", "ts"])
def test_values_that_things_send_all_at_once_have_the_times_of_their_measurement(name: str) -> None:
    topic = guessed(topic_of((one["machine"], one) for one in uploaded(name, minute_of)))
    assert topic.time == f"$.{name}"
    told = f"90 messages have only 10 different times $.{name}: check that they are those of the measurements"
    assert told in topic.notes


@pytest.mark.parametrize(
    ("at", "example", "unit"),
    [
        (minute_of, minute_of(0), ""),
        (lambda minute: AT_MS + 60_000 * minute, f"{AT_MS}, which is 2023-11-14T22:13:20Z if in ms", " --time-unit ms"),
    ],
)
def test_times_that_are_left_out_are_told_with_how_to_take_them(
    at: Callable[[int], Any], example: str, unit: str
) -> None:
    documents = uploaded("date", at)
    answer = f"; if $.date is the time ({example}), answer with --time '$.date'{unit}"
    topic = guessed(topic_of((one["machine"], one) for one in documents))
    assert topic.time == "kafka.timestamp"
    assert f"no field contains a usable time{answer}" in topic.notes
    with pytest.raises(Question) as question:
        guessed(file_of(documents))
    assert str(question.value).endswith(answer)
    received = [one | {"received_at": AT_MS + number} for number, one in enumerate(documents)]
    topic = guessed(topic_of((one["machine"], one) for one in received))
    assert topic.time == "$.received_at"
    assert "other times: $.date" in topic.notes


def test_dates_of_things_are_not_the_time_even_if_a_schema_says_that_they_are_times() -> None:
    schema = record_of(machine="string", commissioned={"type": "long", "logicalType": "timestamp-millis"}, rpm="int")
    keys = [f"m{at % 3}" for at in range(99)]
    documents = [(key, {"machine": key, "commissioned": AT_MS + at % 3, "rpm": at}) for at, key in enumerate(keys)]
    topic = guessed(avro_topic(schema, documents))
    assert topic.time == "kafka.timestamp"
    assert any("if $.commissioned is the time" in note for note in topic.notes)


@pytest.mark.parametrize("name", ["unixtimestamp", "epoch", "epochMillis", "UNIXTIME", "sampledatetime"])
def test_names_of_times_need_nothing_between_their_words(name: str) -> None:
    topic = guessed(file_of({"machine": "m1", name: AT_MS + at, "rpm": at} for at in range(30)))
    assert (topic.time, topic.time_unit) == (f"$.{name}", "ms")


def test_numbers_that_may_be_times_in_another_language_are_told_with_a_date() -> None:
    documents = [{"machine": "m1", "zeit": AT_MS + at, "rpm": at} for at in range(30)]
    answer = (
        f"; if $.zeit is the time ({AT_MS}, which is 2023-11-14T22:13:20Z if in ms), answer with --time '$.zeit' "
        "--time-unit ms"
    )
    topic = guessed(topic_of(("m1", one) for one in documents))
    assert f"no field contains a usable time{answer}" in topic.notes
    with pytest.raises(Question) as question:
        guessed(file_of(documents))
    assert str(question.value).endswith(f"Answer with --time PATH{answer}")
    assert guessed(file_of(documents), time="$.zeit", time_unit="ms").time == "$.zeit"


def test_a_person_may_answer_with_a_time_that_never_changes() -> None:
    assert guessed(file_of(messages(installed_at=AT_MS)), time="$.installed_at").time_unit == "ms"


def test_a_number_in_quotes_is_told_as_what_it_is() -> None:
    documents = [one | {"ts": str(AT_MS + one["rpm"])} for one in messages()]
    topic = guessed(topic_of((one["machine"], one) for one in documents))
    assert topic.time == "kafka.timestamp"
    (note,) = [one for one in topic.notes if "$.ts cannot" in one]
    assert note == (
        f"plant: $.ts cannot be the time, because '{AT_MS}' is a number in quotes, which cannot be read as a time; "
        "only the producer can remove them"
    )


def test_a_unit_that_contradicts_the_times_is_not_passed_over_silently() -> None:
    documents = [one | {"ts": AT_MS + one["rpm"]} for one in messages()]
    topic = guessed(file_of(documents), time_unit="us")
    assert topic.time_unit == "ms"
    assert "the times $.ts are probably in ms rather than us: if they are not, add --time '$.ts'" in topic.notes
    assert not any("rather than" in note for note in guessed(file_of(documents), time_unit="ms").notes)


def test_what_is_shown_of_long_values_is_short() -> None:
    documents = [one | {"ts": "x" * 100_000, "text": "y" * 100_000} for one in messages()]
    with pytest.raises(Question) as question:
        guessed(file_of(documents))
    assert "..." in str(question.value)
    assert len(str(question.value)) < 1_000


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
@pytest.mark.parametrize("second", [946_684_800, 1_700_000_000, 1_790_000_000])
def test_the_unit_of_any_year_since_2000_is_the_one_whose_date_is_shown(unit: str, factor: int, second: int) -> None:
    documents = [one | {"ts": (second + one["rpm"]) * factor, "torque": -one["rpm"]} for one in messages()]
    topics = [guessed(file_of(documents))]
    assert topics[0].time_unit == unit
    proposal = compose(topics)
    assert topics[0].example in proposal.text
    assert {one.first_ns for one in try_out(proposal, topics)} == {second * 10**9}


@pytest.mark.parametrize("time", [1, 86_400, -1, 2**31, 4_000_000_000, 2**63, 1e300, 0.5])
def test_a_number_of_no_likely_date_is_a_question_with_what_it_would_be_in_each_unit(time: float) -> None:
    with pytest.raises(Question, match=r"in which unit is the time \$\.ts\?.* if in s, .* if in ms, .* if in us, "):
        guessed(file_of(messages(ts=time)))
