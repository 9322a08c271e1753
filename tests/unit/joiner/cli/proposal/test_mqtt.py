"""Are SenML and Sparkplug B in MQTT understood without a question, or with exactly one?"""

from __future__ import annotations

import json
import random
import tomllib
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.settings import MqttSettings
from connector.formats.payload import Metric
from connector.settings import Settings
from joiner.cli.proposal.mqtt import Heard, Templates, check_filter, mqtt_table, templates_of
from joiner.cli.proposal.samples import Question, Source, Table, UnusableSource
from joiner.cli.proposal.settings import Proposal, Tried, compose, try_out
from tests.unit.connector.formats.plant import birth, payload
from tests.unit.joiner.cli.proposal.sampled import NOW_NS, guessed

AT: Final = 1_700_000_000_000
THINGS: Final = 3
COUNT: Final = 20
OWN: Final = "machine/states"


def packs(levels: str = "senml") -> list[Heard]:
    """Return SenML packs of some devices."""
    draw, found = random.Random(1), []
    for number in range(COUNT):
        for thing in range(THINGS):
            base = {"bn": f"urn:dev:ow:{thing}:", "bt": (AT + 1000 * number + thing) / 1000}
            temperature = {"n": "temperature", "u": "Cel", "v": draw.uniform(0, 40)}
            humidity = {"n": "humidity", "u": "%RH", "t": 0.25, "v": draw.uniform(0, 100)}
            found.append(Heard(f"{levels}/{thing}", json.dumps([base | temperature, humidity]).encode()))
    return found


def sparkplug(*, with_births: bool = True) -> list[Heard]:
    """Return messages of a node of Sparkplug B and its devices, whose data has aliases."""
    found = [Heard("spBv1.0/plant/NBIRTH/cell", birth())]
    for thing in range(THINGS):
        speed = Metric(name=b"Spindle/Speed", alias=2 * thing, datatype=10, double_value=0, timestamp=AT)
        torque = Metric(name=b"Spindle/Torque", alias=2 * thing + 1, datatype=9, float_value=0, timestamp=AT)
        found.append(Heard(f"spBv1.0/plant/DBIRTH/cell/press-{thing}", payload(speed, torque, seq=thing + 1)))
    found = found if with_births else []
    for number in range(COUNT):
        for thing in range(THINGS):
            metrics = [
                Metric(alias=2 * thing, double_value=number, timestamp=AT + 1000 * number),
                Metric(alias=2 * thing + 1, float_value=number, timestamp=AT + 1000 * number + 250),
            ]
            seq = (1 + THINGS + number * THINGS + thing) % 256
            found.append(Heard(f"spBv1.0/plant/DDATA/cell/press-{thing}", payload(*metrics, seq=seq)))
    return found


def proposed(heard: list[Heard], *filters: str) -> tuple[Templates, Proposal, list[Tried]]:
    found = templates_of(heard, filters, OWN, NOW_NS, 3)
    topics = [guessed(found.source)]
    proposal = compose(topics, found.tables)
    return found, proposal, try_out(proposal, topics)


def test_senml_is_proposed_with_the_template_and_a_join_of_its_quantities() -> None:
    found, proposal, tried = proposed(packs(), "senml/#")
    settings = tomllib.loads(proposal.text)
    assert settings["connector"]["topic"] == [{"format": "senml", "topic": "senml/#"}]
    assert settings["topics"] == {"data": "machine.data", "partitions": 3}
    assert settings["events"] == {"time_unit": "ms"}
    assert [(one["left"], one["right"]) for one in settings["join"]] == [("temperature", "humidity")]
    assert [(one.name, len(one.things), sum(one.things.values()), one.rejected) for one in tried] == [
        ("temperature", THINGS, THINGS * COUNT, 0),
        ("humidity", THINGS, THINGS * COUNT, 0),
    ]
    assert tried[0].first_ns == AT * 1_000_000
    assert not found.notes


def test_sparkplug_is_proposed_with_the_names_in_its_births() -> None:
    found, proposal, tried = proposed(sparkplug(), "spBv1.0/#")
    settings = tomllib.loads(proposal.text)
    assert settings["connector"]["topic"] == [{"format": "sparkplug", "topic": "spBv1.0/#"}]
    assert [(one["left"], one["right"]) for one in settings["join"]] == [("Spindle/Speed", "Spindle/Torque")]
    # The values in the births are records too.
    expected = {f"plant/cell/press-{thing}": COUNT + 1 for thing in range(THINGS)}
    assert [one.things for one in tried] == [expected] * 2
    assert not found.notes


def test_both_standards_on_all_topics_have_a_template_each_that_the_connector_accepts() -> None:
    _, proposal, tried = proposed([*packs(), *sparkplug()], "#")
    settings = tomllib.loads(proposal.text)
    assert settings["connector"]["topic"] == [
        {"format": "sparkplug", "topic": "spBv1.0/#"},
        {"format": "senml", "topic": "#"},
    ]
    assert len(tried) == 4
    assert accepted(settings)


def accepted(settings: dict[str, Any]) -> bool:
    """Return whether the connector has templates with these settings. Raises if it does not accept them."""
    given = {name: value for name, value in settings.items() if name in Settings.model_fields}
    return bool(Settings(**given).connector.topic)


def test_other_messages_below_a_filter_are_not_read_as_senml() -> None:
    heard = [*packs("plant/senml"), Heard("plant/oven/temperature", b"21.5"), Heard("plant/x", b"[1]")]
    found, proposal, _ = proposed(heard, "plant/#")
    settings = tomllib.loads(proposal.text)
    assert [one["topic"] for one in settings["connector"]["topic"]] == [f"plant/senml/{one}" for one in range(THINGS)]
    assert found.notes == ["2 of 62 MQTT messages are on topics that no template matches"]
    assert accepted(settings)


def test_a_filter_that_another_one_covers_gets_no_template() -> None:
    _, proposal, _ = proposed(packs("plant/senml"), "plant/senml/+", "plant/#")
    assert tomllib.loads(proposal.text)["connector"]["topic"] == [{"format": "senml", "topic": "plant/#"}]


@pytest.mark.parametrize(
    ("given", "topics"),
    [
        (["spBv1.0/plant/#"], ["spBv1.0/plant/#"]),
        (["spBv1.0/plant/#", "spBv1.0/other/#"], ["spBv1.0/plant/#"]),
        (["spBv1.0/+/DDATA/#", "spBv1.0/+/NBIRTH/+", "spBv1.0/+/DBIRTH/#"], ["spBv1.0/#"]),
        (["spBv1.0/#", "spBv1.0/plant/#"], ["spBv1.0/#"]),
        (["+/plant/#"], ["spBv1.0/#"]),
    ],
)
def test_a_filter_of_sparkplug_is_kept_if_it_includes_the_births(given: list[str], topics: list[str]) -> None:
    _, proposal, _ = proposed(sparkplug(), *given)
    settings = tomllib.loads(proposal.text)
    assert [one["topic"] for one in settings["connector"]["topic"]] == topics
    assert accepted(settings)


def test_filters_that_the_connector_would_refuse_are_told() -> None:
    with pytest.raises(UnusableSource, match=r"the MQTT filters senml/\+ and \+/1 overlap"):
        templates_of(packs(), ["senml/+", "+/1"], OWN, NOW_NS, 3)
    with pytest.raises(UnusableSource, match=r"the MQTT filters \+/1 and senml/\+ overlap"):
        templates_of(packs(), ["senml/+"], "+/1", NOW_NS, 3)


def test_without_births_one_question_has_the_lines_to_write() -> None:
    with pytest.raises(Question) as question:
        templates_of(sparkplug(with_births=False), ["spBv1.0/#"], OWN, NOW_NS, 3)
    first, *lines = str(question.value).splitlines()
    assert first.startswith("which quantities are to be joined? The 60 MQTT messages have no values that can be used: ")
    assert "--listen SECONDS" in first
    assert "the birth of the node 'plant/cell' is not known" in first
    assert "asks for it" not in first
    assert tomllib.loads("\n".join(lines)) == {"connector": {"topic": [{"format": "sparkplug", "topic": "spBv1.0/#"}]}}


def test_messages_of_other_formats_are_told_with_what_to_do() -> None:
    with pytest.raises(UnusableSource, match=r"on 2 MQTT topics \(a, b\) are neither SenML nor Sparkplug B: forward"):
        templates_of([Heard("a", b"1"), Heard("b", b"{}"), Heard("a", b"2")], ["#"], OWN, NOW_NS, 3)


def test_packs_that_cannot_be_used_are_noted() -> None:
    broken = json.dumps([{"bn": "urn:dev:ow:1:", "n": "temperature", "v": 1, "vb": True}]).encode()
    found, _, _ = proposed([*packs(), Heard("senml/1", broken)], "senml/#")
    assert found.notes[0].startswith("1 of 61 MQTT messages could not be used completely: record 0: ")


def test_a_retained_message_of_sparkplug_is_skipped_as_by_the_connector() -> None:
    retained = [one._replace(is_retained=True) for one in sparkplug()]
    with pytest.raises(Question, match="have no values that can be used"):
        templates_of(retained, ["spBv1.0/#"], OWN, NOW_NS, 3)


def test_a_time_in_the_past_needs_no_question_because_senml_has_one_unit() -> None:
    heard = [
        Heard("senml/1", json.dumps([{"bn": "urn:dev:ow:1:", "n": name, "bt": 3e8 + at, "v": at}]).encode())
        for at in range(9)
        for name in ("temperature", "humidity")
    ]
    _, proposal, _ = proposed(heard, "senml/#")
    assert "# A time, for example, is 300000000000, which is 1979-07-05T05:20:00Z if in ms" in proposal.text


def test_what_the_connector_writes_is_understood_from_its_topic() -> None:
    """The topic, rather than MQTT, is looked at if the connector runs already."""
    source = templates_of(packs(), ["senml/#"], OWN, NOW_NS, 3).source._replace(time_unit=None)
    topics = [guessed(Source("machine.data", 3, source.samples))]
    assert topics[0].is_own
    assert [one.rejected for one in try_out(compose(topics), topics)] == [0, 0]


@pytest.mark.parametrize("text", ["", "a/#/b", "a+", "$share/group/a", "a/{thing}", "}"])
def test_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        check_filter(text)


def test_the_settings_of_mqtt_are_proposed_without_the_password() -> None:
    assert mqtt_table(MqttSettings()) == []
    given = {"host": "mqtt", "port": 8883, "username": "me", "topic": "plant/states"}
    (table,) = mqtt_table(MqttSettings.model_validate({**given, "password": "s3cret"}))
    assert table.values == given
    assert "LSB_MQTT__PASSWORD" in table.comments[0]
    assert "s3cret" not in str(table)
    assert mqtt_table(MqttSettings.model_validate({"password_file": "/secret"})) == [
        Table("[mqtt]", {"password_file": "/secret"}, [])
    ]


TOPICS: Final = st.sampled_from(
    ["senml/1", "plant/2", "a", "spBv1.0/g/NBIRTH/n", "spBv1.0/g/DDATA/n/d", "spBv1.0/", "{x}"]
)


def payloads() -> st.SearchStrategy[bytes]:
    values = (
        st.floats(allow_nan=False, allow_infinity=False)
        | st.booleans()
        | st.sampled_from(["", "a", "urn:dev:ow:1:"])
        | st.none()
    )
    names = st.sampled_from(["bn", "n", "v", "t", "bt", "vb", "vs", "bver", "x_"])
    records = st.lists(st.dictionaries(names, values, max_size=4), max_size=3)
    usual = st.just([{"bn": "urn:dev:ow:1:", "n": "a", "v": 1, "bt": 1.7e9}, {"n": "b", "v": 2}])
    return st.binary(max_size=30) | st.builds(lambda one: json.dumps(one).encode(), records | usual)


@given(
    st.lists(st.builds(Heard, TOPICS, payloads(), st.booleans()), min_size=1, max_size=8),
    st.lists(st.sampled_from(["#", "senml/#", "plant/+", "spBv1.0/#", "a"]), min_size=1, max_size=3),
)
def test_whatever_is_heard_the_proposal_can_be_loaded_by_both_services(heard: list[Heard], filters: list[str]) -> None:
    """Or the reason why there is none can be told to a user."""
    try:
        found = templates_of(heard, filters, OWN, NOW_NS, 3)
        topics = [guessed(found.source)]
        proposal = compose(topics, found.tables)
    except (UnusableSource, Question):
        return
    assert sum(sum(one.things.values()) for one in try_out(proposal, topics)) > 0
    assert accepted(tomllib.loads(proposal.text))
