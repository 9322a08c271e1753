"""Sparkplug B: values of metrics, with payloads of another implementation, and what is refused."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.wire.records import QUANTITIES_MAX, encode
from connector.formats.contents import NO_NUMBER, RETAINED, Found
from connector.formats.events import dead_letter
from connector.formats.payload import Metric, decode, rebirth_payload
from tests.unit.connector.formats.plant import AT, NOW_NS, TEMPERATURE, Plant, birth, metric, payload, records

OTHERS: Final = {
    # What the library pysparkplug 0.6.1 encodes. It cannot be installed here: it needs paho-mqtt 1.
    "NBIRTH": (
        "0880d095ffbc3112120a0562645365711880d095ffbc312004580712210a144e6f646520436f6e74726f6c2f526562697274"
        "681880d095ffbc31200b7000121d0a0b74656d706572617475726510011880d095ffbc312009650000ac4112160a05737461"
        "746510021880d095ffbc31200c7a026f6e12140a04696e743810031880d095ffbc31200150fb0112160a05696e7431361004"
        "1880d095ffbc31200250d4fd0312180a05696e74333210051880d095ffbc3120035090ddfbff0f121d0a05696e7436341006"
        "1880d095ffbc312004588080808080e0ffffff0112150a0575696e743810071880d095ffbc31200550c80112170a0675696e"
        "74313610081880d095ffbc31200650e0d40312190a0675696e74333210091880d095ffbc31200750ffffffff0f121c0a0675"
        "696e743634100a1880d095ffbc312008588280808080808010121c0a06646f75626c65100b1880d095ffbc31200a699a9999"
        "999999b93f12110a026f6e100c1880d095ffbc31200b70011800"
    ),
    "DBIRTH": "08e4d095ffbc3112180a056c6576656c101418e4d095ffbc31200350fdffffff0f1801",
    "NDATA": "08e8d795ffbc311210100118e8d795ffbc312009650000b241120e100318e9d795ffbc31200150fa011802",
    "DDATA": "08ccd895ffbc311211101418ccd895ffbc31200350fcffffff0f12140a056c6576656c101418cdd895ffbc31200338011803",
    "NDEATH": "08d0df95ffbc3112120a0562645365711880d095ffbc3120045807",
}


def test_the_messages_of_another_implementation_are_read() -> None:
    plant = Plant()
    sent = {name: bytes.fromhex(text) for name, text in OTHERS.items()}
    node = plant.values("plant/NBIRTH/press", sent["NBIRTH"])
    assert {one[:1] + one[2:3] for one in node} == {("plant/press", AT)}
    assert [(quantity, result) for _, quantity, _, result in node] == [
        ("temperature", 21.5), ("int8", -5), ("int16", -300), ("int32", -70000), ("int64", -(2**40)), ("uint8", 200),
        ("uint16", 60000), ("uint32", 2**32 - 1), ("uint64", 2.0**53 + 2), ("double", 0.1), ("on", 1),
    ]  # fmt: skip
    assert plant.values("plant/DBIRTH/press/tank", sent["DBIRTH"]) == [("plant/press/tank", "level", AT + 100, -3)]
    assert plant.values("plant/NDATA/press", sent["NDATA"]) == [
        ("plant/press", "temperature", AT + 1000, 22.25),
        ("plant/press", "int8", AT + 1001, -6),
    ]
    found = plant.parse("plant/DDATA/press/tank", sent["DDATA"])
    assert [(one.quantity, one.result) for one in records(found)] == [("level", -4)]
    assert found.skipped == {NO_NUMBER: 1}
    assert (plant.messages.gaps, plant.asked()) == (0, [])
    assert plant.parse("plant/NDEATH/press", sent["NDEATH"]) == Found()
    assert "the birth of the node 'plant/press' is not known" in plant.reason("plant/NDATA/press", sent["NDATA"])


def test_strings_and_null_are_skipped_and_controls_are_ignored() -> None:
    plant = Plant()
    found = plant.parse(
        "g/NBIRTH/n",
        birth(
            metric("Node Control/Rebirth", datatype=11, boolean_value=False),
            metric("Device Control/Rate", datatype=3, int_value=5),
            metric("text", datatype=12, string_value=b"on"),
            metric("when", datatype=13, long_value=AT),
            metric("file", datatype=17, bytes_value=b"x"),
            metric("table", datatype=16, dataset_value=b""),
            metric("kind", datatype=19, template_value=b""),
            metric("array", datatype=22, bytes_value=b"x"),
            metric("null", datatype=9, is_null=True),
            metric("none", datatype=9),
            metric("passing", datatype=9, float_value=1, is_transient=True),
            metric("past", datatype=9, float_value=2, is_historical=True, timestamp=5),
        ),
    )
    assert [(one.quantity, one.phenomenonTime) for one in records(found)] == [("past", 5)]
    assert found.skipped == {NO_NUMBER: 9}


def test_the_names_of_the_topic_and_the_metric_make_the_record() -> None:
    plant = Plant(topic="spBv1.0/+/+/#", thing="{node}", quantity="{group}:{metric}")
    assert plant.values("g/NBIRTH/n", birth(TEMPERATURE))[0][:2] == ("n", "g:temperature")
    plant = Plant(thing="all/{device}/{node}")
    assert plant.values("g/NBIRTH/n", birth(TEMPERATURE))[0][0] == "all/n"
    device = payload(metric("level/max", datatype=10, double_value=1), seq=1)
    assert plant.values("g/DBIRTH/n/d", device)[0][:2] == ("all/d/n", "level/max")


@pytest.mark.parametrize(
    ("datatype", "fields", "value"),
    [
        (1, {"int_value": 251}, -5),
        (1, {"int_value": 2**32 - 5}, -5),
        (1, {"long_value": 2**64 - 5}, -5),
        (2, {"int_value": 2**16 - 1}, -1),
        (3, {"int_value": 2**31}, -(2**31)),
        (3, {"int_value": 2**31 - 1}, 2**31 - 1),
        (4, {"long_value": 2**64 - 1}, -1),
        (4, {"long_value": 2**63}, -(2.0**63)),
        (7, {"long_value": 2**32 - 1}, 2**32 - 1),
        (8, {"long_value": 2**64 - 1}, 2.0**64),
        (9, {"float_value": 0.5}, 0.5),
        (9, {"double_value": 0.5}, 0.5),
        (11, {"boolean_value": True}, 1),
        (11, {"int_value": 1}, 1),
        (0, {"double_value": 0.1}, 0.1),
    ],
)
def test_the_datatype_says_what_the_bits_mean(datatype: int, fields: dict[str, Any], value: float) -> None:
    at_birth = Plant().values("g/NBIRTH/n", birth(metric("x", datatype=datatype, **fields)))
    assert [one[3] for one in at_birth] == [value]
    plant = Plant()
    plant.parse("g/NBIRTH/n", birth(metric("x", datatype=datatype, alias=7)))
    for seq, data in enumerate((metric(alias=7, **fields), metric("x", **fields)), start=1):
        assert [one[3] for one in plant.values("g/NDATA/n", payload(data, seq=seq))] == [value]


def test_a_metric_has_its_own_time_else_that_of_the_payload_else_that_of_the_arrival() -> None:
    plain = metric("x", datatype=10, double_value=1)
    assert Plant().values("g/NBIRTH/n", birth(TEMPERATURE, plain))[1][2] == AT
    assert Plant().values("g/NBIRTH/n", payload(plain, timestamp=None))[0][2] == NOW_NS // 10**6


def test_a_value_that_a_rebirth_repeats_has_the_same_id() -> None:
    plant = Plant()
    (first,) = records(plant.parse("g/NBIRTH/n", birth(TEMPERATURE)))
    (again,) = records(plant.parse("g/NBIRTH/n", birth(TEMPERATURE, metric("new", datatype=9), bd_seq=2)))
    assert first == again
    assert re.fullmatch("[0-9a-f]{32}", first.id)
    (other,) = records(plant.parse("g/NDATA/n", payload(metric(alias=1, float_value=20.5, timestamp=AT + 1), seq=1)))
    assert other.id != first.id


@pytest.mark.parametrize("topic", ["g/NCMD/n", "g/DCMD/n/d", "STATE/host"])
def test_commands_and_states_are_ignored(topic: str) -> None:
    assert Plant().parse(topic, b"\xff") == Found()


@pytest.mark.parametrize("topic", ["g/STATE/n", "g/NDATA/n/d", "g/DDATA/n", "g/NDATA", "g/ndata/n", "", "g", "g/NCMD"])
def test_other_topics_are_refused(topic: str) -> None:
    assert Plant().reason(topic, b"") == "the MQTT topic is none of Sparkplug B"


@pytest.mark.parametrize("topic", ["/NBIRTH/n", "g/NBIRTH/", "g/DBIRTH/n/", "g/DDATA/n/", "g/DDATA//d"])
def test_empty_levels_are_refused_and_do_not_reach_the_metrics_of_the_node(topic: str) -> None:
    plant = Plant()
    plant.parse("g/NBIRTH/n", birth(TEMPERATURE))
    assert plant.reason(topic, payload(metric("x", alias=1, datatype=9), seq=1)) == "a name in the MQTT topic is empty"
    assert plant.values("g/NDATA/n", payload(metric(alias=1, float_value=8), seq=1))[0][1] == "temperature"


@pytest.mark.parametrize("name", ["a+", "#", "a\0"])
def test_names_to_which_nothing_can_be_published_are_refused(name: str) -> None:
    plant = Plant()
    assert "a character that MQTT does not allow" in plant.reason(f"{name}/NDATA/n", payload())
    assert plant.asked() == []


def test_a_retained_message_is_skipped() -> None:
    found = Plant().parse("g/NBIRTH/n", birth(TEMPERATURE), is_retained=True)
    assert (found.parts, found.skipped) == ((), {RETAINED: 1})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (b"\xff", "not a payload of Sparkplug B"),
        (b"{}", "not a payload of Sparkplug B"),
        (birth(metric(alias=1)), "the name of a metric in the birth is empty"),
        (birth(metric("x" * 257)), "has 257 characters, more than 256"),
        (birth(metric("x" * 2000)), "has 2000 bytes, more than 1024"),
        (birth(Metric(name=b"\xff")), "the name of a metric is not UTF-8"),
        (birth(metric("x", datatype=9, float_value=float("nan"))), "metric 'x' is nan, which is no number in JSON"),
        (birth(metric("x", datatype=10, double_value=float("inf"))), "metric 'x' is inf"),
        (birth(metric("", alias=1, datatype=9)), "the name of a metric in the birth is empty"),
        (birth(metric("x", int_value=5)), "metric 'x' has no datatype, neither here nor in the birth"),
        (birth(metric("x", datatype=9, float_value=1, timestamp=2**63)), "the time is outside the years"),
        (payload(*[metric("x", alias=1)] * (QUANTITIES_MAX + 1)), "the payload has more than 10000 metrics"),
        (b"\x20\x00" * (QUANTITIES_MAX + 1), "more than 10000 fields besides the metrics"),
        (b"\x12\xff\xff", "not a payload of Sparkplug B"),
        (b"\x80" * 30, "not a payload of Sparkplug B"),
        *[(bytes([2 << 3 | kind]), f"a field has the wire type {kind}") for kind in (3, 4, 6, 7)],
        (b"\x2b\x2c" + payload(*[metric("x")] * (QUANTITIES_MAX + 1)), "a field has the wire type 3"),
        (b"\x22\x12SPBV1.0_COMPRESSED\x2a\x01x", "the payload is compressed, which the connector does not read"),
        (b"\x00" * (2**18 + 1), "more than events.event_bytes_max"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(given: bytes, text: str) -> None:
    assert text in Plant().reason("g/NBIRTH/n", given)


def test_names_in_the_topic_are_limited() -> None:
    assert "a name in the MQTT topic has 257 characters" in Plant().reason(f"{'g' * 257}/NBIRTH/n", birth())
    long = Plant(thing="{group}{node}").reason(f"{'g' * 200}/NBIRTH/{'n' * 100}", birth(TEMPERATURE))
    assert "the thing in the MQTT topic has 300 characters, more than 256" in long


def test_an_invalid_metric_does_not_affect_the_others() -> None:
    nan, nor = (metric(name, datatype=9, float_value=float("nan")) for name in "xy")
    found = Plant().parse("g/NBIRTH/n", birth(nan, TEMPERATURE, nor))
    assert [one.quantity for one in records(found)] == ["temperature"]
    (refusal,) = [refusal for part in found.parts for refusal in part.refusals]
    assert refusal.reason.startswith("2 metrics of the message are invalid; the first error: metric 'x' is nan")


def test_long_names_are_repeated_only_so_often() -> None:
    plant = Plant()
    group, data = "g" * 240, metric(alias=1, float_value=1)
    plant.parse(f"{group}/NBIRTH/n", birth(metric("m" * 250, alias=1, datatype=9)))
    assert len(plant.values(f"{group}/NDATA/n", payload(data, seq=1))) == 1
    many = plant.reason(f"{group}/NDATA/n", payload(*[data] * 1000, seq=2))
    assert "the names in its records would take" in many


@pytest.mark.parametrize(
    ("datatype", "fields"),
    [
        (1, {"int_value": 256}),
        (1, {"int_value": 2**32 - 129}),
        (1, {"long_value": 2**32 - 1}),
        (2, {"int_value": 2**16}),
        (3, {"long_value": 2**32}),
        (4, {"int_value": 2**31}),
        (5, {"int_value": 256}),
        (5, {"int_value": 2**32 - 1}),
        (7, {"long_value": 2**32}),
        (11, {"int_value": 2}),
        (11, {"float_value": 1}),
        (3, {"float_value": 1}),
        (3, {"boolean_value": True}),
        (3, {"string_value": b"1"}),
        (9, {"int_value": 1}),
        (10, {"boolean_value": True}),
        (99, {"int_value": 1}),
    ],
)
def test_a_value_that_does_not_fit_its_datatype_is_refused(datatype: int, fields: dict[str, Any]) -> None:
    why = Plant().reason("g/NBIRTH/n", birth(metric("x", datatype=datatype, **fields)))
    assert f"metric 'x' has the datatype {datatype}, which its {next(iter(fields))} does not fit" in why


def test_values_without_a_time_have_ids_of_their_own() -> None:
    plant = Plant()
    plant.parse("g/NBIRTH/n", birth(TEMPERATURE))
    data = [payload(*[metric(alias=1, float_value=1)] * 2, seq=seq, timestamp=None) for seq in (1, 2)]
    assert len({one.id for given in data for one in records(plant.parse("g/NDATA/n", given))}) == 4


names = (
    st.none()
    | st.sampled_from(["temperature", "bdSeq", "x", "Node Control/Rebirth", "\x01" * 200])
    | st.text(max_size=5)
)
metrics = st.builds(
    lambda name, fields: metric(name, **fields),
    names,
    st.fixed_dictionaries(
        {},
        optional={
            "alias": st.integers(0, 5), "datatype": st.integers(0, 25), "timestamp": st.integers(0, 2**64 - 1),
            "is_null": st.booleans(), "int_value": st.integers(0, 2**32 - 1),
        },
    ) | st.fixed_dictionaries({"alias": st.integers(0, 3), "float_value": st.floats(width=32)}),
)  # fmt: skip
payloads = st.builds(lambda given, seq: payload(*given, seq=seq), st.lists(metrics, max_size=8), st.integers(0, 300))
kinds = st.sampled_from(
    ["g/NBIRTH/n", "g/NDATA/n", "g/NDEATH/n", "g/DBIRTH/n/d", "g/DDATA/n/d", "g/DDEATH/n/d", "/NDATA/"]
)


@given(st.lists(st.tuples(kinds, payloads | st.binary(max_size=60)), max_size=12))
def test_messages_never_raise_and_become_at_most_a_hundred_times_their_bytes(messages: list[tuple[str, bytes]]) -> None:
    plant = Plant()
    for topic, given_payload in messages:
        found = plant.parse(topic, given_payload)
        full = f"spBv1.0/{topic}"
        letters = [encode(dead_letter(refusal, full)) for part in found.parts for refusal in part.refusals]
        to_kafka = [encode(one) + one.thing.encode() for one in records(found)]
        assert len(letters) <= 1
        assert sum(map(len, letters + to_kafka)) <= 100 * (len(given_payload) + len(full)) + 2048


def test_a_request_is_what_the_specification_asks_for() -> None:
    assert rebirth_payload(1).hex() == "080112" + "1c" + "0a14" + b"Node Control/Rebirth".hex() + "1801200b7001"


def test_a_payload_at_the_limit_is_read() -> None:
    """The fields are counted before they are decoded, each with its kind of value."""
    given = payload(*[metric("x", alias=1, datatype=9, float_value=1)] * QUANTITIES_MAX)
    assert len(decode(given).metrics) == QUANTITIES_MAX
    further = b"\x39" + b"\x00" * 8 + b"\x45" + b"\x00" * 4 + b"\x4a\x01x"
    assert len(decode(further + birth(TEMPERATURE)).metrics) == 2
