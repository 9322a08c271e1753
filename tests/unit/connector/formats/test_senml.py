"""SenML packs: all examples of RFC 8428, what the base fields mean, and what is refused, skipped and limited."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.times import parse_time
from broker.wire.records import COPIES_MAX, QUANTITIES_MAX, Record, encode
from connector.formats.contents import NO_NUMBER, RETAINED, Context, Found
from connector.formats.events import Parser, dead_letter
from connector.formats.messages import MessageParser
from connector.templates import SenmlSettings

NOW_NS: Final = 1_700_000_000_123_456_789
senml_names = st.text(alphabet="a:/", max_size=4) | st.sampled_from(["urn:dev:a:", "urn:dev:", "Cel", ":Cel"])
NOW_MS: Final = 1_700_000_000_123
DEVICE: Final = "urn:dev:ow:10e2073a01080063"


def messages(time_unit: str = "ms", **template: Any) -> MessageParser:
    settings = SenmlSettings.model_validate({"format": "senml", "topic": "plant/{site}/senml", **template})
    return MessageParser([settings], Parser(time_unit, 2**18), Context(time_unit, 2**18, lambda: NOW_NS, "run"))


def parse(pack: object, *, is_retained: bool = False, **template: Any) -> Found:
    payload = pack if isinstance(pack, bytes) else json.dumps(pack).encode()
    return messages(**template).parse("plant/a/senml", payload, is_retained=is_retained)


def records(pack: object, **template: Any) -> list[Record]:
    found = parse(pack, **template)
    assert [refusal.reason for part in found.parts for refusal in part.refusals] == []
    return [record for part in found.parts for record in part.records]


def values(pack: object, **template: Any) -> list[tuple[str, str, Any, float]]:
    return [(one.thing, one.quantity, one.phenomenonTime, one.result) for one in records(pack, **template)]


def reason(pack: object, **template: Any) -> str:
    found = parse(pack, **template)
    (refusal,) = [refusal for part in found.parts for refusal in part.refusals]
    assert len(refusal.reason) <= 510
    return refusal.reason


def test_a_single_measurement_of_the_device_that_it_names() -> None:
    """RFC 8428, section 5.1.1."""
    assert values([{"n": DEVICE, "u": "Cel", "v": 23.1}]) == [(DEVICE, "Cel", NOW_MS, 23.1)]


def test_several_measurements_of_now() -> None:
    """RFC 8428, section 5.1.2."""
    pack = [{"bn": f"{DEVICE}:", "n": "voltage", "u": "V", "v": 120.1}, {"n": "current", "u": "A", "v": 1.2}]
    assert values(pack) == [(f"{DEVICE}:", "voltage", NOW_MS, 120.1), (f"{DEVICE}:", "current", NOW_MS, 1.2)]


def test_measurements_of_the_last_seconds_before_a_base_time() -> None:
    """RFC 8428, section 5.1.2: the second example, whose version is lower than that of the RFC."""
    first = (
        '{"bn":"urn:dev:ow:10e2073a0108006:","bt":1.276020076001e+09,"bu":"A","bver":5,"n":"voltage","u":"V","v":120.1}'
    )
    others = [
        f'{{"n":"current","t":{t},"v":{v}}}' for t, v in zip(range(-5, 0), (1.2, 1.3, 1.4, 1.5, 1.6), strict=True)
    ]
    pack = f'[{first},{",".join(others)},{{"n":"current","v":1.7}}]'.encode()
    thing, at = "urn:dev:ow:10e2073a0108006:", 1_276_020_076_001
    currents = [(thing, "current", at - 1000 * (5 - n), v) for n, v in enumerate((1.2, 1.3, 1.4, 1.5, 1.6, 1.7))]
    assert values(pack) == [(thing, "voltage", at, 120.1), *currents]


def test_measurements_without_names_differ_in_their_units() -> None:
    """RFC 8428, section 5.1.3, in part."""
    pack = [
        {"bn": DEVICE, "bt": 1.320067464e09, "bu": "%RH", "v": 20},
        {"u": "lon", "v": 24.30621},
        {"u": "lat", "v": 60.07965},
        {"t": 60, "v": 20.3},
        {"u": "lon", "t": 60, "v": 24.30622},
        {"u": "lat", "t": 60, "v": 60.07965},
        {"u": "%EL", "t": 150, "v": 98},
    ]
    at = 1_320_067_464_000
    assert values(pack) == [
        (DEVICE, "%RH", at, 20),
        (DEVICE, "lon", at, 24.30621),
        (DEVICE, "lat", at, 60.07965),
        (DEVICE, "%RH", at + 60_000, 20.3),
        (DEVICE, "lon", at + 60_000, 24.30622),
        (DEVICE, "lat", at + 60_000, 60.07965),
        (DEVICE, "%EL", at + 150_000, 98),
    ]


def test_resolved_records_mean_the_same() -> None:
    """RFC 8428, section 5.1.4: each record has all fields, and its name is that of the device."""
    pack = [
        {"n": DEVICE, "u": "%RH", "t": 1.320067464e09, "v": 20},
        {"n": DEVICE, "u": "lon", "t": 1.320067464e09, "v": 24.30621},
        {"n": DEVICE, "u": "%EL", "t": 1.320067614e09, "v": 98},
    ]
    assert [one[:2] for one in values(pack)] == [(DEVICE, "%RH"), (DEVICE, "lon"), (DEVICE, "%EL")]


def test_values_of_other_types_are_skipped_and_counted() -> None:
    """RFC 8428, section 5.1.5."""
    pack = [
        {"bn": f"{DEVICE}:", "n": "temp", "u": "Cel", "v": 23.1},
        {"n": "label", "vs": "Machine Room"},
        {"n": "open", "vb": False},
        {"n": "nfc-reader", "vd": "aGkgCg"},
    ]
    assert values(pack) == [(f"{DEVICE}:", "temp", NOW_MS, 23.1), (f"{DEVICE}:", "open", NOW_MS, 0)]
    assert parse(pack).skipped == {NO_NUMBER: 2}


def test_a_collection_of_several_devices() -> None:
    """RFC 8428, section 5.1.6."""
    pack = [
        {"bn": "2001:db8::2/", "bt": 1.320078429e09, "n": "temperature", "u": "Cel", "v": 25.2},
        {"n": "humidity", "u": "%RH", "v": 30},
        {"bn": "2001:db8::1/", "n": "temperature", "u": "Cel", "v": 12.3},
        {"n": "humidity", "u": "%RH", "v": 67},
    ]
    at = 1_320_078_429_000
    assert values(pack) == [
        ("2001:db8::2/", "temperature", at, 25.2),
        ("2001:db8::2/", "humidity", at, 30),
        ("2001:db8::1/", "temperature", at, 12.3),
        ("2001:db8::1/", "humidity", at, 67),
    ]
    assert [part.thing for part in parse(pack).parts] == ["2001:db8::2/", "2001:db8::1/"]


def test_settings_of_actuators() -> None:
    """RFC 8428, section 5.1.7. In the last two packs, the names are those of devices."""
    pack: list[dict[str, Any]] = [
        {"bn": f"{DEVICE}:"},
        {"n": "temp", "u": "Cel", "v": 23.1},
        {"n": "heat", "u": "/", "v": 1},
        {"n": "fan", "u": "/", "v": 0},
    ]
    thing = f"{DEVICE}:"
    assert values(pack) == [(thing, "temp", NOW_MS, 23.1), (thing, "heat", NOW_MS, 1), (thing, "fan", NOW_MS, 0)]
    assert parse(pack).skipped == {}
    pack = [{"bt": 1.320078429e09, "bu": "/", "n": "2001:db8::3", "v": 0.5}, {"n": "2001:db8::3", "t": 0.1, "v": 0}]
    at = 1_320_078_429_000
    assert values(pack, thing="{name}", quantity="light") == [
        ("2001:db8::3", "light", at, 0.5),
        ("2001:db8::3", "light", at + 100, 0),
    ]


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"bn": "dev1/", "n": "t"}, ("dev1/", "t")),
        ({"bn": "dev1:", "n": "t"}, ("dev1:", "t")),
        ({"bn": "dev1", "n": ":t"}, ("dev1:", "t")),
        ({"n": "dev1:t"}, ("dev1:", "t")),
        ({"bn": "dev1:t"}, ("dev1:", "t")),
        ({"bn": "dev1::", "n": "t"}, ("dev1::", "t")),
        ({"bn": "dev1:-", "n": "t_"}, ("dev1:", "-t_")),
        ({"bn": "hall/", "n": "dev1:t"}, ("hall/dev1:", "t")),
        ({"n": "hall/dev1"}, ("hall/", "dev1")),
        ({"n": DEVICE}, (DEVICE, "value")),
        ({"bn": DEVICE, "bu": "V"}, (DEVICE, "V")),
        ({"bn": DEVICE, "bu": "V", "u": "A"}, (DEVICE, "A")),
        ({"bn": DEVICE, "n": "_t"}, (f"{DEVICE}_t", "value")),
        ({"bn": f"{DEVICE}/", "n": "t"}, (f"{DEVICE}/", "t")),
        ({"n": f"{DEVICE}:t"}, (f"{DEVICE}:", "t")),
    ],
)
def test_a_name_is_split_after_its_last_separator_wherever_the_base_name_ends(
    fields: dict[str, str], names: tuple[str, str]
) -> None:
    ((thing, quantity, _, _),) = values([fields | {"v": 1}])
    assert (thing, quantity) == names


@given(
    names=st.lists(st.tuples(senml_names, senml_names), min_size=2, max_size=6),
    unit=st.sampled_from(["", "Cel", "a"]),
)
def test_names_are_the_same_exactly_if_their_things_and_quantities_are(names: list[tuple[str, str]], unit: str) -> None:
    pairs: dict[str, set[tuple[str, str]]] = {}
    for base, name in names:
        found = parse([{"bn": base, "n": name, "u": unit, "v": 1}])
        pairs.setdefault(base + name, set()).update(
            (one.thing, one.quantity) for part in found.parts for one in part.records
        )
    assert all(len(one) <= 1 for one in pairs.values())
    used = [pair for one in pairs.values() for pair in one]
    assert len(used) == len(set(used))


def test_a_template_may_use_the_whole_name() -> None:
    assert values([{"n": "a/b", "v": 1}], thing="{site}", quantity="{name}")[0][:2] == ("a", "a/b")
    assert values([{"n": "temp", "v": 1}], thing="{site}")[0][:2] == ("a", "temp")
    assert values([{"v": 1}], thing="{site}")[0][:2] == ("a", "value")
    assert values([{"bn": "dev:", "n": "t", "v": 1}], thing="{site}/{bn}", quantity="x{n}")[0][:2] == ("a/dev:", "xt")


@pytest.mark.parametrize(
    ("fields", "time"),
    [
        ({}, NOW_MS),
        ({"t": 0}, NOW_MS),
        ({"t": -0.5}, NOW_MS - 500),
        ({"t": -0.0001}, NOW_MS - 1),
        ({"bt": -10, "t": 3.25}, NOW_MS - 6750),
        ({"t": 2**28 - 1}, NOW_MS + (2**28 - 1) * 1000),
        ({"t": 2**28}, 2**28 * 1000),
        ({"bt": 1e9, "t": -1e9}, NOW_MS),
        ({"t": 1e-300}, NOW_MS),
        ({"bt": 1.5e9, "t": 0.123}, 1_500_000_000_123),
    ],
)
def test_a_time_is_absolute_or_relative_to_the_arrival(fields: dict[str, float], time: int) -> None:
    ((_, _, found, _),) = values([{"bn": "d:x", "v": 1} | fields])
    assert found == time


def test_an_absolute_time_is_exact_and_a_relative_one_is_rounded_down_to_the_unit() -> None:
    pack = b'[{"bn":"d:x","bt":1500000000.1234567,"v":1},{"t":1e-9,"v":2},{"bt":0,"v":3}]'
    exact, finer, now = records(pack, time_unit="s")
    assert encode(exact).count(b'"phenomenonTime":1500000000.1234567,') == 1
    assert parse_time(time_text(finer), "s") == 1_500_000_000_123_456_701
    assert now.phenomenonTime == NOW_NS // 10**9
    assert [part.time_ns for part in parse(pack).parts][:2] == [1_500_000_000_123_456_700, 1_500_000_000_123_456_701]


def test_a_base_value_is_added_and_booleans_are_numbers() -> None:
    pack = [{"bn": "d:x", "bv": 20, "v": 1}, {"v": 0.5}, {"vb": True}, {"bv": 0, "v": 2}]
    assert [one[3] for one in values(pack)] == [21, 20.5, 1, 2]
    assert records([{"bn": "d:x", "bv": 2**53 - 1, "v": 1}])[0].result == 2.0**53


def test_a_sum_is_skipped_and_base_fields_need_no_value() -> None:
    pack: list[dict[str, Any]] = [{"bn": "d:x", "bs": 5}, {"n": "x", "s": 7}, {"bt": 5, "bv": 2, "bver": 10}]
    assert (parse(pack).skipped, list(parse(pack).parts)) == ({NO_NUMBER: 1}, [])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": "y"},
        {"bv": 3, "n": "y"},
        {"bn": "d", "t": 1},
        {"bn": "d", "value": 1},
        {"battery": 5},
        {"V": 1, "N": ""},
    ],
)
def test_a_record_with_other_fields_than_base_fields_must_have_a_value(fields: dict[str, Any]) -> None:
    assert reason([fields]) == "record 0: it has no value (v, vb, vs, vd or s)"


def test_ids_of_absolute_times_are_those_of_the_payload_and_others_are_never_the_same() -> None:
    pack = b'[{"bn":"d:x","v":1},{"t":1500000000,"v":1},{"t":1500000000,"v":1}]'
    parser = messages()
    ids = []
    for topic in ("plant/a/senml", "plant/a/senml", "plant/b/senml"):
        found = parser.parse(topic, pack, is_retained=False)
        ids.append([record.id for part in found.parts for record in part.records])
    assert [one[0] for one in ids] == ["run-1-0", "run-2-0", "run-3-0"]
    assert ids[0][1:] == ids[1][1:]
    assert ids[0][1] != ids[2][1]
    assert ids[0][1] != ids[0][2]
    assert re.fullmatch("[0-9a-f]{32}-1", ids[0][1])


def test_of_a_retained_pack_only_records_with_absolute_times_are_used() -> None:
    pack = [{"bn": "d:x", "v": 1}, {"t": 1.5e9, "v": 2}, {"t": -1, "v": 3}]
    found = parse(pack, is_retained=True)
    assert [record.result for part in found.parts for record in part.records] == [2]
    assert found.skipped == {RETAINED: 2}
    assert parse([*pack, {"n": "s", "vs": "on"}], is_retained=True).skipped == {RETAINED: 2, NO_NUMBER: 1}


@pytest.mark.parametrize(
    ("pack", "text"),
    [
        (b"", "the payload is empty"),
        (b"{}", "not a SenML pack, which is a JSON array"),
        (b"[1]", "not a SenML pack"),
        (b"\xff", "not a SenML pack"),
        (b'[{"n":"\\ud800","v":1}]', "not a SenML pack"),
        (b"[]", "the pack has no records"),
        (b'[{"bn":"d:x","v":NaN}]', "not a SenML pack"),
        (b'[{"bn":"d:x","v":1,"v":2}]', "record 0: a field occurs more than once"),
        (b'[{"bn":"d:","n":"a:b","v":1,"v":2}]', "a field occurs more than once"),
        ([{"bn": 1, "v": 1}], "record 0: bn must be a string, not 1"),
        ([{"v": 1, "bn": "d:x"}, {"bt": "x", "v": 1}], "record 1: bt is a string, not a number"),
        ([{"bver": 11, "bn": "d:x", "v": 1}], "record 0: bver is 11, a later version than 10"),
        ([{"bver": "1", "bn": "d:x", "v": 1}], "bver is a string"),
        ([{"bn": "d:x", "v": 1}, {"x_": 1}], "record 1: the field 'x_' is an extension that must be understood"),
        ([{"bn": "d:x", "v": "1"}], "record 0: v is a string, not a number"),
        ([{"bn": "d:x", "vb": 1}], "vb must be true or false, not 1"),
        ([{"bn": "d:x", "v": 1, "vb": True}], "it has more than one value"),
        ([{"bn": "d:x", "v": 1, "vs": ""}], "it has more than one value"),
        ([{"bn": "d:x", "n": 5, "v": 1}], "n must be a string, not 5"),
        ([{"bn": "d:x", "t": None, "v": 1}], "t is null"),
        ([{"bn": "d:x", "t": 1e300, "v": 1}], "which is no usable time"),
        ([{"bn": "d:x", "t": 1e10, "v": 1}], "the time is outside the years"),
        (b'[{"bn":"d:x","v":1e999}]', "beyond the range"),
        ([{"bn": "d:x", "bv": 1.7e308, "v": 1.7e308}], "the sum of bv and v is beyond the range"),
        ([{"n": "temp", "v": 1}], "its name (bn and n) is 'temp', which gives no {bn}"),
        ([{"v": 1}], "its name (bn and n) is '', which gives no {bn}"),
        ([{"bn": "dev:", "v": 1}], "its name (bn and n) is 'dev:', which gives no {n}"),
        ([{"bn": f"{'d' * 299}:", "n": "t", "v": 1}], "has 300 characters, more than 256"),
        (b'[{"bn":"d:x","v":1,"q":' + b"[" * 31 + b"]" * 31 + b"}]", "nested more than 32 deep"),
        (b'[{"bn":"d:x","v":1,"v":1,"q":' + b'{"a":' * 31 + b"1" + b"}" * 31 + b"}]", "nested more than 32 deep"),
        ([{"bn": "d:x", "v": 1}] * (QUANTITIES_MAX + 1), f"the pack has {QUANTITIES_MAX + 1} records"),
        (b'[{"bn":"d:x","v":' + b"[" * 300, "further brackets"),
        (b'[{"x":' * 12_000, "records, or more than"),
        (b" " * 2**18 + b"[]", "more than events.event_bytes_max"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_with_the_reason(pack: object, text: str) -> None:
    assert text in reason(pack)


def test_unknown_fields_are_ignored() -> None:
    pack = b'[{"bn":"d:x","v":1,"l":{"a":' + b"[" * 29 + b"]" * 29 + b'},"\\u003a":2,"q":"\\"' + b"[" * 99 + b'"}]'
    assert values(pack) == [("d:", "x", NOW_MS, 1)]


def test_an_invalid_record_does_not_affect_the_others() -> None:
    pack = [{"bn": "d:x", "v": 1}, {"v": "x"}, {"vb": 7}, {"v": 2}]
    found = parse(pack)
    assert [record.result for part in found.parts for record in part.records] == [1, 2]
    assert "2 records of the pack are invalid; the first error: record 1: v is a string" in reason(pack)


def test_long_names_are_repeated_only_so_often() -> None:
    pack = json.dumps([{"bn": f"{'d' * 255}:x"}, *[{"v": 1}] * 5000], separators=(",", ":")).encode()
    assert f"more than {COPIES_MAX} times" in reason(pack)
    assert len(records([{"bn": f"{'d' * 248}:x"}, *[{"v": 1}] * 3])) == 3


PARSER: Final = messages(thing="{site}{bn}", quantity='"""{n}')
texts = st.text(max_size=8) | st.sampled_from(["\x01" * 250, "d:", "a/b", DEVICE])
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-3, 3)
fields = st.fixed_dictionaries(
    {},
    optional={
        "bn": texts, "bt": numbers, "bv": numbers, "bu": texts, "n": texts, "u": texts, "v": numbers,
        "vb": st.booleans(), "t": numbers, "vs": texts, "s": numbers, "x": st.none() | st.lists(numbers, max_size=2),
    },
)  # fmt: skip
packs = st.lists(fields, min_size=1, max_size=30).map(lambda pack: json.dumps(pack).encode())


@given(payload=st.binary(max_size=200) | packs, site=texts, is_retained=st.booleans())
def test_a_pack_never_raises_and_becomes_at_most_a_hundred_times_its_bytes(
    payload: bytes, site: str, *, is_retained: bool
) -> None:
    topic = f"plant/{site.replace('/', '')}/senml"
    found = PARSER.parse(topic, payload, is_retained=is_retained)
    letters = [encode(dead_letter(refusal, topic)) for part in found.parts for refusal in part.refusals]
    to_kafka = [encode(one) + one.thing.encode() for part in found.parts for one in part.records]
    assert len(letters) <= 1
    assert sum(map(len, letters + to_kafka)) <= 100 * (len(payload) + len(topic.encode())) + 2048
    for part in found.parts:
        assert all(record.thing == part.thing for record in part.records)
        times = {parse_time(time_text(record), "ms") for record in part.records}
        assert times <= {part.time_ns}


def time_text(record: Record) -> bytes:
    time: Any = record.phenomenonTime
    return str(time).encode() if isinstance(time, int) else bytes(time)


@given(pack=st.lists(fields, min_size=1, max_size=20))
def test_each_record_with_a_value_is_used_refused_or_counted(pack: list[dict[str, Any]]) -> None:
    """Unless the whole pack is refused."""
    payload = json.dumps(pack).encode()
    found = PARSER.parse("plant/a/senml", payload, is_retained=False)
    used = sum(len(part.records) for part in found.parts)
    refused = [refusal.reason for part in found.parts for refusal in part.refusals]
    base_only = sum(1 for one in pack if one and one.keys() <= {"bn", "bt", "bu", "bv"})
    if not refused:
        assert used + sum(found.skipped.values()) + base_only == len(pack)
    elif used:
        assert used < len(pack)
