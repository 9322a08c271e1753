"""Are mistakes in ``[[stream]]`` reported, and does each of its settings change the fingerprint?"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from joiner.runtime.kafka.topics import application_topics
from tests.unit.joiner.runtime.joiner_inputs import make_settings

SPEED: dict[str, Any] = {"name": "speed", "topic": "plant", "key": "$.id", "time": "$.ts", "value": "$.rpm"}
TORQUE: dict[str, Any] = {**SPEED, "name": "torque", "value": "$.nm"}
COPIED = SPEED | {"repartition": True}


def test_a_join_names_a_stream_and_reads_its_topic() -> None:
    settings = make_settings(stream=[SPEED])
    assert settings.input_topics == ["machine.data", "plant"]
    assert settings.selection(settings.join[0].left) == {"topic": "plant", "quantity": "speed"}
    assert [stream.name for stream in settings.mapped_streams("plant")] == ["speed"]
    assert settings.mapped_streams("machine.data") == []


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"stream": [SPEED, SPEED]}, "more than one [[stream]] is named 'speed'"),
        ({"stream": [SPEED | {"name": "other"}]}, "no join and no align reads the [[stream]] 'other'"),
        ({"stream": [SPEED | {"topic": "machine.data"}]}, "a [[stream]] cannot be in topics.data ('machine.data')"),
        ({"stream": [SPEED], "topics": {"data_format": "arrow"}}, "cannot be combined with a [[stream]]"),
        ({"stream": [SPEED | {"topic": "machine.out"}]}, "both read and written"),
        ({"stream": [SPEED | {"key": "id"}]}, "a path starts with $"),
        ({"stream": [SPEED | {"key": "''"}]}, "a key has 1 to 256 characters, not 0"),
        ({"stream": [SPEED | {"key": "'" + "x" * 257 + "'"}]}, "not 257"),
        ({"stream": [SPEED | {"key": "'x'"}], "partitions": 2}, "the same key in all messages"),
        ({"stream": [SPEED | {"time": "kafka.timestamp", "id": "$.id"}]}, "cannot be combined with an id"),
        ({"stream": [SPEED | {"time": "kafka.timestamp", "time_unit": "s"}]}, "time_unit is for times in messages"),
        ({"stream": [SPEED | {"time": "kafka.time"}]}, "a path starts with $"),
        ({"stream": [SPEED | {"key": "kafka.header"}]}, "a path starts with $"),
        ({"stream": [COPIED, TORQUE | {"repartition": True, "key": "$.other"}]}, "different keys ($.id, $.other)"),
        (
            {"stream": [COPIED | {"topic": "plant" * 29}], "application": {"name": "a" * 99}},
            "more than 249 characters",
        ),
        ({"stream": [COPIED | {"topic": "machine.out"}]}, "'machine.out' is both read and written"),
        (
            {"stream": [COPIED], "topics": {"out": "lsb.plant.repartition"}},
            "'lsb.plant.repartition' is both read and written",
        ),
        ({"stream": [COPIED | {"topic": "machine_out"}]}, "differ only in '.' and '_'"),
        ({"stream": [SPEED | {"value": "$.a.*"}]}, "is not a path at '.*'"),
        ({"stream": [SPEED | {"where": "$.a = 1"}]}, "is not a condition at '= 1'"),
        ({"stream": [SPEED | {"unit": "ms"}]}, "unit"),
        ({"stream": [SPEED | {"format": "avro"}]}, "a [[stream]] has the format 'avro', which needs registry.url"),
        ({"stream": [SPEED | {"format": "protobuf"}]}, "has the format 'protobuf', which needs registry.url"),
        ({"stream": [SPEED | {"format": "xml"}]}, "'json', 'avro', 'json_schema' or 'protobuf'"),
        (
            {"stream": [SPEED, SPEED | {"name": "torque", "format": "json_schema"}]},
            "the streams of the topic 'plant' have different formats (json, json_schema)",
        ),
        ({"registry": {"url": "ftp://registry"}}, "must be an http:// or https:// URL"),
        ({"registry": {"url": "http://registry/é"}}, "in a path, write é as %C3%A9"),
        ({"registry": {"url": "http://re..gistry"}}, "must be an http:// or https:// URL with a host"),
        ({"registry": {"url": f"http://{'r' * 64}.plant"}}, "must be an http:// or https:// URL with a host"),
        ({"registry": {"url": "http://me:secret@registry"}}, "must not contain a user name or password"),
        ({"registry": {"url": "http://registry", "user": "a:b"}}, "user"),
        ({"registry": {"url": "http://registry", "timeout": "1h"}}, "must be from 100ms to 30s"),
        ({"registry": {"url": "http://registry", "unknown_schema": "guess"}}, "'stop' or 'reject'"),
    ],
)
def test_mistakes_are_reported(sections: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError) as refused:
        make_settings(**sections)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("left", "reason"),
    [
        ({"topic": "plant"}, "select such a stream by name instead of the whole topic"),
        ({"topic": "plant", "quantity": "rpm"}, "select such a stream by name instead of 'rpm'"),
        (
            {"topic": "elsewhere", "quantity": "torque"},
            "the [[stream]] 'torque' is in the topic 'plant', not in 'elsewhere'",
        ),
    ],
)
def test_a_topic_is_read_in_one_way(left: dict[str, Any], reason: str) -> None:
    join = {"name": "power", "left": left, "right": "speed", "output": "p"}
    more = {"name": "more", "left": "torque", "right": "speed", "output": "q"}
    with pytest.raises(ValidationError) as refused:
        make_settings(join, more, stream=[SPEED, TORQUE])
    assert reason in str(refused.value)


def test_a_stream_and_the_data_topic_have_no_records_in_common() -> None:
    join = {"name": "power", "left": "speed", "right": {"topic": "machine.data"}, "output": "p"}
    assert make_settings(join, stream=[SPEED]).input_topics == ["machine.data", "plant"]
    both = {"name": "power", "left": "speed", "right": {"topic": "plant", "quantity": "speed"}, "output": "p"}
    with pytest.raises(ValidationError, match="a record may be on both sides"):
        make_settings(both, stream=[SPEED])


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "other"},
        {"key": "$.machine"},
        {"key": "kafka.key"},
        {"time": "kafka.timestamp"},
        {"time_unit": "s"},
        {"value": "$.torque"},
        {"id": "$.id"},
        {"where": "$.rpm > 0"},
    ],
)
def test_each_setting_of_a_stream_changes_the_results(change: dict[str, Any]) -> None:
    base, changed = make_settings(stream=[SPEED, TORQUE]), make_settings(stream=[SPEED | change, TORQUE])
    assert base.fingerprint() != changed.fingerprint()
    assert base.fingerprint() == make_settings(stream=[TORQUE, SPEED | {"time_unit": "ms"}]).fingerprint()


def test_keys_are_read_only_of_the_topics_that_need_them() -> None:
    lab = TORQUE | {"topic": "lab", "key": "kafka.key"}
    assert make_settings(stream=[SPEED, TORQUE]).keyed_topics == frozenset()
    assert make_settings(stream=[SPEED, lab]).keyed_topics == {"lab"}


def test_the_joiner_reads_the_copy_of_a_topic_that_is_repartitioned() -> None:
    both = [COPIED, TORQUE | {"repartition": True}]
    settings = make_settings(stream=both, application={"name": "app"})
    copy = "app.plant.repartition"
    assert settings.input_topics == [copy]
    assert settings.repartitioned == {"plant": copy}
    assert [stream.name for stream in settings.mapped_streams(copy)] == ["speed", "torque"]
    assert settings.mapped_streams("plant") == []
    assert settings.selection(settings.join[0].left) == {"topic": copy, "quantity": "speed"}
    assert make_settings(stream=[stream | {"key": "kafka.key"} for stream in both]).keyed_topics == {
        "lsb.plant.repartition"
    }


def test_a_stream_that_is_repartitioned_can_be_selected_by_its_own_topic() -> None:
    join = {"name": "j", "left": {"topic": "plant", "quantity": "speed"}, "right": "torque", "output": "o"}
    settings = make_settings(join, stream=[COPIED, TORQUE | {"topic": "lab"}])
    assert settings.selection(settings.join[0].left) == {"topic": "lsb.plant.repartition", "quantity": "speed"}
    with pytest.raises(ValidationError, match="select such a stream by name instead of the whole topic"):
        make_settings(join | {"left": {"topic": "lsb.plant.repartition"}}, stream=[COPIED, TORQUE | {"topic": "lab"}])


def test_a_key_that_all_messages_have_is_allowed_if_they_are_repartitioned() -> None:
    make_settings(stream=[COPIED | {"key": "'x'"}], partitions=2)


def test_repartitioning_changes_the_fingerprint_and_its_absence_does_not() -> None:
    plain = make_settings(stream=[SPEED])
    assert plain.fingerprint() != make_settings(stream=[COPIED]).fingerprint()
    assert "repartition" not in plain.semantics()["streams"]["speed"]


def test_the_topics_to_create_are_the_copies_and_other_topics_say_how_to_get_one() -> None:
    settings = make_settings(stream=[COPIED, TORQUE | {"topic": "lab"}], partitions=4)
    specs = {spec.name: spec for spec in application_topics(settings)}
    assert "plant" not in specs
    copy = specs["lsb.plant.repartition"]
    assert (copy.partitions, copy.copy_of) == (4, "plant")
    assert copy.required == {"cleanup.policy": "delete", "message.timestamp.type": "CreateTime"}
    assert "`joiner reset`, which deletes it" in (copy.remedy or "")
    assert "repartition = true" in (specs["lab"].remedy or "")
    assert specs["machine.out"].remedy is None


def test_the_format_of_earlier_releases_leaves_the_semantics_as_they_were() -> None:
    (plain,) = make_settings(stream=[SPEED]).stream
    assert "format" not in plain.semantics("ms")
    (framed,) = make_settings(stream=[SPEED | {"format": "json_schema"}]).stream
    assert framed.semantics("ms") == plain.semantics("ms") | {"format": "json_schema"}
    assert make_settings(stream=[plain]).fingerprint() != make_settings(stream=[framed]).fingerprint()


def test_where_the_schemas_are_does_not_change_the_results() -> None:
    avro = [SPEED | {"format": "avro"}]
    one = make_settings(stream=avro, registry={"url": "http://one"})
    other = make_settings(stream=avro, registry={"url": "http://two/path", "unknown_schema": "reject"})
    assert one.fingerprint() == other.fingerprint()


def test_the_order_of_the_sections_does_not_matter() -> None:
    one, other = (make_settings(stream=streams) for streams in ([SPEED, TORQUE], [TORQUE, SPEED]))
    assert one.mapped_streams("plant") == other.mapped_streams("plant")
    assert one.fingerprint() == other.fingerprint()
