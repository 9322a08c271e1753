"""The valid ranges of the connector's own settings, and the topics with other formats than events."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from broker.settings import SettingsError, load_settings
from connector.settings import ConnectorSettings, Settings, subscriptions
from connector.templates import TemplateSettings, covers, overlap

TEMPLATES: TypeAdapter[TemplateSettings] = TypeAdapter(TemplateSettings)


@pytest.mark.parametrize(
    ("name", "shortest", "longest"),
    [("keep_alive", "1s", "65535s"), ("linger", "0", "1s"), ("idle_after", "100ms", "366d")],
)
def test_both_ends_of_a_range_belong_to_it(name: str, shortest: str, longest: str) -> None:
    for end in (shortest, longest):
        ConnectorSettings.model_validate({name: end})


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("keep_alive", "999999us", "must be from 1s to 65535s"),
        ("keep_alive", "65536s", "must be from 1s to 65535s"),
        ("linger", "1001ms", "must be from 0s to 1s"),
        ("idle_after", "99ms", "must be from 100ms to 366d"),
        ("idle_after", "367d", "must be from 100ms to 366d"),
    ],
)
def test_a_duration_outside_its_range_is_refused_with_both_ends(name: str, given: str, text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        ConnectorSettings.model_validate({name: given})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "Field required"),
        ({"topic": ""}, "must be an MQTT topic filter"),
        ({"topic": "a/#/{thing}"}, "must be an MQTT topic filter"),
        ({"topic": "a/{thing}-{quantity}"}, "must be an entire level"),
        ({"topic": "a/x{thing}/{quantity}"}, "must be an entire level"),
        ({"topic": "a/{}/{quantity}"}, "must be an entire level"),
        ({"topic": "a/{a b}/{quantity}"}, "must be an entire level"),
        ({"topic": "a/{1}/{quantity}"}, "must be an entire level"),
        ({"topic": "a/{thing"}, "must be an entire level"),
        ({"topic": "{thing}/{thing}"}, "more than once"),
        ({"topic": "$share/g/{thing}/{quantity}"}, "must not be a shared subscription"),
        ({"topic": "$share/g/a", "thing": "t", "quantity": "q"}, "must not be a shared subscription"),
        ({"topic": "$queue/{thing}/{quantity}"}, "must not be a shared subscription"),
        ({"topic": "a/{thing}"}, "quantity is '{quantity}', but {quantity} is not a level of the topic 'a/{thing}'"),
        ({"topic": "a/{quantity}"}, "thing is '{thing}', but {thing} is not a level"),
        ({"topic": "{thing}/{quantity}", "thing": "{site}-{thing}"}, "{site} is not a level"),
        ({"topic": "{thing}/{quantity}", "thing": ""}, "at least 1 character"),
        ({"topic": "{thing}/{quantity}", "thing": "t" * 129}, "at most 128 characters"),
        ({"topic": "{thing}/{quantity}", "thing": "{thing}{thing}"}, "each at most once"),
        ({"topic": "{thing}/{quantity}", "thing": "{thing!r}"}, "must consist of text and names"),
        ({"topic": "{thing}/{quantity}", "thing": "{{thing}}"}, "must consist of text and names"),
        ({"topic": "{thing}/{quantity}", "quantity": "a}"}, "must consist of text and names"),
        ({"topic": "{thing}/{quantity}", "quantity": "\ud800"}, "Input should be a valid string"),
        ({"topic": "{thing}/{quantity}", "unit": "C"}, "Extra inputs"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_with_the_reason(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError) as error:
        TEMPLATES.validate_python({"format": "number"} | given)
    assert text in str(error.value)


def settings(topic: str, *numbers: str) -> Settings:
    given = [{"topic": one, "format": "number", "thing": "t", "quantity": "q"} for one in numbers]
    return Settings.model_validate({"mqtt": {"topic": topic}, "connector": {"topic": given}})


@pytest.mark.parametrize(
    ("topic", "numbers", "subscribed", "covered"),
    [
        ("machine/states", [], ["machine/states"], []),
        ("machine/states", ["plant/{thing}/+"], ["machine/states", "plant/+/+"], []),
        ("plant/#", ["plant/{thing}/t"], ["plant/#"], ["plant/+/t"]),
        ("plant/a/t", ["plant/{thing}/t"], ["plant/+/t"], ["plant/a/t"]),
        ("plant/+/t", ["plant/{thing}/t"], ["plant/+/t"], []),
        ("e", ["a/{thing}/t", "a/{thing}/+"], ["e", "a/+/+"], ["a/+/t"]),
        ("e", ["a/+/t", "a/#", "b"], ["e", "a/#", "b"], ["a/+/t"]),
        ("a/#", ["a/{x}/c", "a/b/{y}"], ["a/#"], ["a/+/c", "a/b/+"]),
        ("$share/g/e", [], ["$share/g/e"], []),
        ("$SYS/#", ["+/+"], ["$SYS/#", "+/+"], []),
        ("a", ["a/#"], ["a/#"], ["a"]),
    ],
)
def test_no_topic_matches_two_subscriptions(
    topic: str, numbers: list[str], subscribed: list[str], covered: list[str]
) -> None:
    found = settings(topic, *numbers)
    assert subscriptions(found.mqtt.topic, found.connector.topic) == (subscribed, covered)


@pytest.mark.parametrize("topic", ["$share/g/e", "$share/g/#", "$queue/e"])
def test_templates_are_refused_beside_a_shared_subscription(topic: str) -> None:
    """Each of the connectors that share the events would receive every message."""
    assert settings(topic).mqtt.topic == topic
    with pytest.raises(ValidationError, match=r"connector\.topic cannot be used while mqtt.topic is a shared"):
        settings(topic, "a/+")


@pytest.mark.parametrize(
    ("topic", "numbers", "text"),
    [
        ("plant/+/t", ["plant/a/+"], "mqtt.topic and connector.topic.0.topic overlap"),
        ("+/states", ["plant/#"], "mqtt.topic and connector.topic.0.topic overlap"),
        ("e", ["a/+/t", "a/b/+"], "connector.topic.0.topic and connector.topic.1.topic overlap"),
        ("e", ["a/#", "a/b"], "connector.topic.1.topic never applies, because connector.topic.0.topic matches"),
        ("e", ["a/{x}", "a/{y}"], "connector.topic.1.topic never applies"),
    ],
)
def test_subscriptions_that_could_deliver_a_message_twice_are_refused(
    topic: str, numbers: list[str], text: str
) -> None:
    with pytest.raises(ValidationError) as error:
        settings(topic, *numbers)
    assert text in str(error.value)


def test_an_error_in_the_settings_file_names_the_template(tmp_path: Path) -> None:
    file = tmp_path / "lsb.toml"
    number = '[[connector.topic]]\nformat = "number"\n'
    file.write_text(f'{number}topic = "a/{{thing}}/{{quantity}}"\n{number}topic = "{{thing}}x/{{quantity}}"\n')
    with pytest.raises(SettingsError) as error:
        load_settings(Settings, file)
    assert "connector.topic.1.number.topic: each {name} must be an entire level" in str(error.value)
    assert "LSB_CONNECTOR__TOPIC" in str(error.value)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "must be a table with format = 'number', 'senml', 'sparkplug' or 'raw'"),
        ({"format": "xml"}, "must be a table with format = 'number', 'senml', 'sparkplug' or 'raw'"),
        ({"format": ["raw"]}, "must be a table with format"),
        ({"format": "senml"}, "Field required"),
        ({"format": "senml", "topic": "a/{bn}"}, "{bn} comes from the message: use another name"),
        ({"format": "senml", "topic": "a", "thing": "{x}"}, "{x} is not a level of the topic 'a', nor {bn}, nor {n}"),
        ({"format": "sparkplug", "topic": "spBv2.0/#"}, "the topics of Sparkplug B begin with spBv1.0/"),
        ({"format": "sparkplug", "topic": "#"}, "the topics of Sparkplug B begin with spBv1.0/"),
        ({"format": "sparkplug", "topic": "spBv1.0/{group}/#"}, "{group} comes from the message"),
        ({"format": "sparkplug", "topic": "spBv1.0"}, "which matches no messages of nodes or devices"),
        ({"format": "sparkplug", "topic": "spBv1.0/+/+"}, "which matches no messages of nodes or devices"),
        ({"format": "sparkplug", "topic": "spBv1.0/+/NCMD/+"}, "which matches no messages of nodes or devices"),
        ({"format": "sparkplug", "topic": "spBv1.0/+/+/+/+/+"}, "which matches no messages of nodes or devices"),
        ({"format": "sparkplug", "thing": "{node}-{device}"}, "{device} must have a / before it"),
        ({"format": "sparkplug", "thing": "{device}/{node}"}, "{device} must have a / before it"),
        ({"format": "sparkplug", "thing": "{node}/{device}{metric}"}, "{device} must have a / before it"),
        ({"format": "sparkplug", "quantity": "{device}"}, "quantity is '{device}', but {device} must have a / before"),
        ({"format": "sparkplug", "rebirth": "perhaps"}, "valid boolean"),
        ({"format": "raw", "topic": "a/{x}", "kafka_topic": "k"}, "Field required"),
        ({"format": "raw", "topic": "a/{x}", "key": "{x}"}, "Field required"),
        ({"format": "raw", "topic": "a/{x}", "key": "{y}", "kafka_topic": "k"}, "key is '{y}', but {y} is not a level"),
        ({"format": "raw", "topic": "a/{x}", "key": "{x}", "kafka_topic": "k k"}, "topic"),
    ],
)
def test_a_format_that_cannot_be_used_is_refused_with_the_reason(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError) as error:
        TEMPLATES.validate_python(given)
    assert text in str(error.value)


def with_formats(*templates: tuple[str, str]) -> Settings:
    more = {"raw": {"kafka_topic": "k", "key": "k"}, "sparkplug": {}}
    topics = [{"format": kind, "topic": topic, **more[kind]} for kind, topic in templates]
    return Settings.model_validate({"connector": {"topic": topics}})


@pytest.mark.parametrize(
    "templates",
    [
        [("sparkplug", "spBv1.0/#")],
        [("sparkplug", "spBv1.0/+/DDATA/#"), ("sparkplug", "spBv1.0/#")],
        [("sparkplug", "spBv1.0/a/#"), ("raw", "spBv1.0/b/#")],
        [("sparkplug", "spBv1.0/+/+/+/#")],
        [
            ("sparkplug", "spBv1.0/a/NBIRTH/n"),
            ("sparkplug", "spBv1.0/a/DBIRTH/n/+"),
            ("sparkplug", "spBv1.0/a/DDATA/n/d"),
        ],
    ],
)
def test_templates_of_sparkplug_that_see_the_births_are_accepted(templates: list[tuple[str, str]]) -> None:
    assert len(with_formats(*templates).connector.topic) == len(templates)


@pytest.mark.parametrize(
    ("templates", "births"),
    [
        ([("sparkplug", "spBv1.0/+/DDATA/#")], "spBv1.0/+/NBIRTH/+"),
        ([("sparkplug", "spBv1.0/a/NDATA/n")], "spBv1.0/a/NBIRTH/n"),
        ([("sparkplug", "spBv1.0/+/DBIRTH/#")], "spBv1.0/+/NBIRTH/+"),
        ([("sparkplug", "spBv1.0/b/#"), ("sparkplug", "spBv1.0/a/NDATA/#")], "spBv1.0/a/NBIRTH/+"),
        ([("sparkplug", "spBv1.0/+/DDATA/#"), ("sparkplug", "spBv1.0/+/NBIRTH/#")], "spBv1.0/+/DBIRTH/+/+"),
        ([("raw", "spBv1.0/a/NBIRTH/+"), ("sparkplug", "spBv1.0/#")], "spBv1.0/+/NBIRTH/+"),
    ],
)
def test_templates_of_sparkplug_that_do_not_see_the_births_are_refused(
    templates: list[tuple[str, str]], births: str
) -> None:
    with pytest.raises(ValidationError) as error:
        with_formats(*templates)
    assert f"matches all births that its messages need: {births};" in str(error.value)


def test_raw_messages_go_to_no_topic_of_the_pipeline() -> None:
    raw = {"format": "raw", "topic": "a/{x}", "key": "{x}", "kafka_topic": "machine.late"}
    with pytest.raises(
        ValidationError, match=r"connector\.topic\.0\.kafka_topic must be another topic than topics\.late"
    ):
        Settings.model_validate({"connector": {"topic": [raw]}})


levels = st.lists(st.sampled_from(["", "a", "b", "$a", "+"]), min_size=1, max_size=3)
filters = st.tuples(levels, st.booleans()).map(lambda given: "/".join([*given[0], *["#"] * given[1]])) | st.just("#")

TOPICS = ["/".join(levels) for count in (1, 2, 3, 4) for levels in product(["", "a", "b", "$a", "c"], repeat=count)]


def matches(topic_filter: str, topic: str) -> bool:
    wanted, given = topic_filter.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in {"+", "#"}:
        return False
    if wanted[-1] == "#":
        wanted, given = wanted[:-1], given[: len(wanted) - 1]
    return len(wanted) == len(given) and all(one in {"+", level} for one, level in zip(wanted, given, strict=True))


@given(one=filters, other=filters)
def test_filters_overlap_or_cover_each_other_as_the_topics_that_match_them_say(one: str, other: str) -> None:
    left, right = ({topic for topic in TOPICS if matches(each, topic)} for each in (one, other))
    assert overlap(one, other) == bool(left & right)
    # +/# and # match the same topics. Only the one that is usually written counts as the wider.
    assert covers(one, other) == (right <= left and (one, other) != ("+/#", "#"))


@given(filters, filters)
def test_two_different_filters_never_cover_each_other(one: str, other: str) -> None:
    """Otherwise, neither would be subscribed to."""
    assert one == other or not (covers(one, other) and covers(other, one))
