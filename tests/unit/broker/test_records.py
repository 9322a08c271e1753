"""Which values are decoded as records or watermarks, and why all others are refused."""

from __future__ import annotations

import random

import pytest

from broker.wire.records import (
    BRACKETS_MAX,
    RECORD_BYTES_MAX,
    REJECTED_BYTES_MAX,
    Record,
    Unreadable,
    Watermark,
    decode_data,
    decode_rejected,
    encode,
    pair_id,
    reject,
)

GOOD = b'{"thing":"a","quantity":"q","phenomenonTime":1554096460415,"result":1.5,"id":"x"}'


def changed(old: bytes, new: bytes) -> bytes:
    assert old in GOOD
    return GOOD.replace(old, new)


@pytest.mark.parametrize(
    ("value", "time_ns"),
    [
        (GOOD, 1554096460415 * 10**6),
        (GOOD + b"\n", 1554096460415 * 10**6),
        (changed(b"1554096460415", b"0.25"), 250_000),
        (changed(b"1554096460415", b'"1970-01-01T00:00:01+00:00"'), 10**9),
        (changed(b"1.5", b"-3"), 1554096460415 * 10**6),
        (changed(b'"x"', b'"x","more":{"a":[1,{}]}'), 1554096460415 * 10**6),
    ],
)
def test_a_record_survives_being_kept_and_read_again(value: bytes, time_ns: int) -> None:
    record, found_ns = decode_data(value, "ms")
    assert isinstance(record, Record)
    assert found_ns == time_ns
    again, again_ns = decode_data(encode(record), "ms")
    assert encode(again) == encode(record)
    assert again_ns == time_ns


@pytest.mark.parametrize(
    ("value", "watermark"),
    [
        (b'{"mark":5}', Watermark(5)),
        (b'{"mark":5,"quantity":"q"}', Watermark(5, "q")),
        (b'{"mark":"1970-01-01T00:00:00.005Z","thing":"a"}', Watermark("1970-01-01T00:00:00.005Z", None, "a")),
    ],
)
def test_a_watermark_is_read(value: bytes, watermark: Watermark) -> None:
    assert decode_data(value, "ms") == (watermark, 5_000_000)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "is null"),
        (b"", "is empty"),
        (GOOD[:-1], "not a JSON object"),
        (GOOD + b"x", "not a JSON object"),
        (b"\x00\x01", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b"\xef\xbb\xbf" + GOOD, "not a JSON object"),
        (changed(b'"a"', b'"\xff"'), "utf-8"),
        (changed(b'"thing"', b'"Thing"'), "missing required field `thing`"),
        (changed(b'"a"', b"1"), r"Expected `str`, got `int` - at `\$.thing`"),
        (changed(b'"a"', b'""'), "length >= 1"),
        (changed(b'"q"', b'"' + b"q" * 257 + b'"'), "length <= 256"),
        (changed(b"1.5", b"NaN"), "not a JSON object"),
        (changed(b"1.5", b"-Infinity"), "not a JSON object"),
        (changed(b"1.5", b"1e999"), "out of range"),
        (changed(b"1.5", b"null"), "got `null`"),
        (changed(b"1554096460415", b"null"), "neither a number nor an ISO-8601"),
        (changed(b"1554096460415", b"[1]"), "neither a number nor an ISO-8601"),
        (changed(b"1554096460415", b"-62135596800000"), "1678-2261"),
        (b'{"mark":1,"result":2}', "missing required field `thing`"),
        (b'{"mark":1.5}', "Expected `int | str`"),
        (b'{"mark":1,"unit":3}', "unknown field `unit`"),
        (b'{"mark":1,"thing":"\xff"}', "utf-8"),
        (b'{"x":' + b"[" * 30_000, "brackets"),
        (changed(b'"x"', b'"x","y":' + b"[" * BRACKETS_MAX + b"]" * BRACKETS_MAX), "brackets"),
        (changed(b'"x"', b'"x","y":"' + b"y" * RECORD_BYTES_MAX + b'"'), "more than 65536"),
    ],
)
def test_what_is_neither_is_refused_with_the_reason(value: bytes | None, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        decode_data(value, "ms")


def test_brackets_up_to_the_limit_are_read_at_any_depth_of_the_call_stack() -> None:
    depth = BRACKETS_MAX - 1
    record, _ = decode_data(changed(b'"x"', b'"x","y":' + b"[" * depth + b"]" * depth), "ms")
    assert isinstance(record, Record)


@pytest.mark.parametrize("seed", range(3))
def test_no_bytes_at_all_do_anything_but_be_read_or_refused(seed: int) -> None:
    draw = random.Random(seed)
    pieces = [
        b'"',
        b"{",
        b"}",
        b"[",
        b",",
        b":",
        b"\\",
        b"\xff",
        b"\xed\xa0\x80",
        b"1e9",
        b"-",
        b"null",
        b"\\ud800",
        b"0",
    ]
    bases = [GOOD, b'{"mark":1,"thing":"a"}', changed(b"1554096460415", b"15.5"), changed(b"1554096460415", b'"2019-"')]
    outcomes: set[type] = set()
    for _ in range(10_000):
        value = bytearray(draw.choice(bases))
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(len(value) + 1)
            value[at : at + draw.choice([0, 0, 1, 2, 5])] = draw.choice(pieces)
        try:
            entry, _ = decode_data(bytes(value), "ms")
            outcomes.add(type(entry))
            encode(entry)
        except Unreadable:
            outcomes.add(Unreadable)
    assert outcomes == {Record, Watermark, Unreadable}


@pytest.mark.parametrize(
    ("value", "encoding"),
    [(b"text", "utf-8"), (b"\xff\x00", "base64"), (None, "utf-8"), (b"\xc3\xa4" * 40_000, "utf-8")],
)
def test_a_dead_letter_has_the_reason_the_position_and_the_hash_of_the_input(
    value: bytes | None, encoding: str
) -> None:
    dead_letter = reject(value, "why", source="me", topic="t", partition=2, offset=7)
    assert dead_letter.id == "t:2:7"
    assert dead_letter.length == len(value or b"")
    assert dead_letter.encoding == encoding
    assert len(dead_letter.value.encode()) <= REJECTED_BYTES_MAX * 4 // 3 + 4
    assert decode_rejected(encode(dead_letter)) == dead_letter


def test_a_payload_without_a_place_is_named_by_its_hash() -> None:
    assert (
        reject(b"x", "why", source="me", topic="t").id == f"mqtt:{reject(b'x', 'w', source='', topic='').sha256[:32]}"
    )


def test_a_pair_is_named_by_join_unit_and_offsets() -> None:
    assert pair_id("power", 3, 10, 11) == "power:3:10:11"
