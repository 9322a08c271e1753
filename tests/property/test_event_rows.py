"""The connector and the checker parse events independently, with the same result for every row.

The tester counts the rows of a file with `joiner.check.verify.events.parse_row`, and looks for the records that
`connector.formats.events.Parser` made from them. If the two disagreed on a row, the tester would falsely report a loss.
"""

from __future__ import annotations

import hashlib
import json
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.wire.records import BRACKETS_MAX, NAME_LENGTH_MAX, decode_data, encode
from connector.formats.events import Parser, Refusal
from joiner.check.verify.events import Quantity, parse_row

BYTES_MAX: Final = 20_000
PARSERS: Final = {unit: Parser(unit, BYTES_MAX) for unit in ("s", "ms", "us", "ns")}
HEAD: Final = b'"Thing":"R0815","Timestamp":1554096460415,"id":"e1"'


def assert_agreement(payload: bytes, unit: str = "ms") -> tuple[int, int]:
    """Check that both parse ``payload`` identically. Return the numbers of its records and of its dead letters."""
    parsed = PARSERS[unit].parse(payload)
    row = parse_row(payload, unit, BYTES_MAX)
    records = [
        Quantity(record.thing, record.quantity, record.id, parsed.time_ns, record.result) for record in parsed.records
    ]
    assert sorted(row.quantities) == sorted(records)
    for record in parsed.records:
        assert decode_data(encode(record), unit)[1] == parsed.time_ns
    assert sorted(row.refused) == sorted(identity_begin(payload, refusal) for refusal in parsed.refusals)
    return len(records), len(row.refused)


def identity_begin(payload: bytes, refusal: Refusal) -> str:
    """Return the identity of a dead letter, without the hash at the end of a long name."""
    whole = f"mqtt:{hashlib.sha256(payload).hexdigest()[:32]}"
    return whole if refusal.identity is None else refusal.identity[: len(whole) + 1 + NAME_LENGTH_MAX]


def members(texts: bytes) -> bytes:
    """Return a valid event with ``texts`` as its quantities."""
    return b"{" + HEAD + b"," + texts + b"}"


def several(count: int, value: bytes) -> bytes:
    """Return ``count`` quantities with the same value."""
    return b",".join(b'"%x":%s' % (number, value) for number in range(count))


def long_names(quantities: int, character: bytes = b"t") -> bytes:
    """Return an event whose ``Thing`` and ``id`` have the maximum length."""
    name = character * NAME_LENGTH_MAX
    return b'{"Thing":"%s","Timestamp":0,"id":"%s",%s}' % (name, name, several(quantities, b"1"))


def nested(brackets: int) -> bytes:
    """Return an event with one valid and one invalid quantity, and a given total number of brackets."""
    depth = brackets - 1
    return members(b'"a":1,"b":' + b"[" * depth + b"]" * depth)


ROWS: Final = [
    # name, row, records, dead letters
    ("good", members(b'"a":1,"b":-2.5e3'), 2, 0),
    ("white space", b" \t\r\n{ " + HEAD + b' ,\n"a" : 1 , "b"\t:\r2 } \r\n', 2, 0),
    ("empty", b"", 0, 1),
    ("white space alone", b" \t", 0, 1),
    ("no quantity", b"{" + HEAD + b"}", 0, 1),
    ("name repeated", members(b'"a":1,"a":1'), 0, 1),
    ("name repeated in escapes", members(b'"a":1,"\\u0061":1'), 0, 1),
    ("Thing repeated", members(b'"Thing":"R0815","a":1'), 0, 1),
    ("name repeated in a value", members(b'"a":1,"b":{"a":1,"a":2}'), 1, 1),
    ("name repeated in a value's value", members(b'"a":1,"b":[{"x":{"a":1,"a":2}}]'), 1, 1),
    ("name repeated here and in a value", members(b'"a":1,"a":{"b":1,"b":2}'), 0, 1),
    ("half a surrogate pair in a value", members(b'"a":1,"b":"\\ud800"'), 0, 1),
    ("the other half in a value", members(b'"a":1,"b":"\\uDC00"'), 0, 1),
    ("halves in the wrong order", members(b'"a":1,"b":"\\udc00\\ud800"'), 0, 1),
    ("half a surrogate pair in an array", members(b'"a":1,"b":[0,"\\ud800"]'), 0, 1),
    ("half a surrogate pair in a nested name", members(b'"a":1,"b":{"\\ud800":1}'), 0, 1),
    ("half a surrogate pair in a name", members(b'"a":1,"\\ud800":2'), 0, 1),
    ("a surrogate pair in a name", members(b'"a":1,"\\ud83d\\ude00":2'), 2, 0),
    ("a surrogate pair in a value", members(b'"a":1,"b":"\\ud83d\\ude00"'), 1, 1),
    ("an escaped backslash before ud800", members(b'"a":1,"\\\\ud800":2'), 2, 0),
    ("a surrogate in UTF-8", members(b'"a":1,"b":"\xed\xa0\x80"'), 0, 1),
    ("invalid UTF-8 in a value", members(b'"a":1,"b":"\xff"'), 0, 1),
    ("invalid UTF-8 in an array", members(b'"a":1,"b":["\xff"]'), 0, 1),
    ("invalid UTF-8 in a name", members(b'"a":1,"\xff":2'), 0, 1),
    ("too long UTF-8", members(b'"a":1,"b":"\xc0\x80"'), 0, 1),
    ("UTF-8 beyond Unicode", members(b'"a":1,"b":"\xf4\x90\x80\x80"'), 0, 1),
    ("a control character in a value", members(b'"a":1,"b":"\x01"'), 0, 1),
    ("a line break in an array", members(b'"a":1,"b":["\n"]'), 0, 1),
    ("a control character in a name", members(b'"a":1,"\x1f":2'), 0, 1),
    ("DEL in a name", members(b'"a":1,"\x7f":2'), 2, 0),
    ("NUL escaped in a name", members(b'"a":1,"\\u0000":2'), 2, 0),
    ("an unknown escape in a value", members(b'"a":1,"b":"\\x"'), 0, 1),
    ("half an escape in a value", members(b'"a":1,"b":"\\u00"'), 0, 1),
    ("a strange digit in an escape", members(b'"a":1,"b":"\\u00_1"'), 0, 1),
    ("byte order mark", b"\xef\xbb\xbf" + members(b'"a":1'), 0, 1),
    ("UTF-16", members(b'"a":1').decode().encode("utf-16-le"), 0, 1),
    ("NaN", members(b'"a":1,"b":NaN'), 0, 1),
    ("Infinity in an array", members(b'"a":1,"b":[-Infinity]'), 0, 1),
    ("beyond float64", members(b'"a":1,"b":1e400'), 1, 1),
    ("an integer beyond float64", members(b'"a":1,"b":-' + b"9" * 400), 1, 1),
    ("an integer of 5000 digits", members(b'"a":1,"b":' + b"9" * 5000), 1, 1),
    ("a nested integer of 5000 digits", members(b'"a":1,"b":[' + b"9" * 5000 + b"]"), 1, 1),
    ("a decimal of 5000 digits", members(b'"a":1,"b":0.' + b"9" * 5000), 2, 0),
    ("an exponent of 5000 digits", members(b'"a":1,"b":1e-' + b"9" * 5000), 2, 0),
    ("a time of 5000 digits", b'{"Thing":"R","id":"e","Timestamp":' + b"9" * 5000 + b',"a":1}', 0, 1),
    ("zeros", members(b'"a":-0,"b":-0.0,"c":0e5,"d":0E-999'), 4, 0),
    ("integers about 2^53", members(b'"a":9007199254740992,"b":9007199254740993,"c":-9007199254740993'), 3, 0),
    ("integers about 2^64", members(b'"a":18446744073709551615,"b":18446744073709551616,"c":1e19'), 3, 0),
    ("the ends of float64", members(b'"a":5e-324,"b":1.7976931348623157e308,"c":2e-324'), 3, 0),
    ("halfway between two floats", members(b'"a":9007199254740993.0,"b":1.00000000000000011102230246251565404'), 2, 0),
    ("a leading zero", members(b'"a":01'), 0, 1),
    ("a leading plus", members(b'"a":+1'), 0, 1),
    ("a bare point", members(b'"a":1.'), 0, 1),
    ("a bare minus", members(b'"a":1,"b":-'), 0, 1),
    ("a nested bare minus", members(b'"a":1,"b":[-]'), 0, 1),
    ("an underscore", members(b'"a":1_0'), 0, 1),
    ("a foreign digit", members('"a":٣'.encode()), 0, 1),
    ("a comma too many", members(b'"a":1,'), 0, 1),
    ("a nested comma too many", members(b'"a":1,"b":[1,]'), 0, 1),
    ("nothing between commas", members(b'"a":1,,"b":2'), 0, 1),
    ("a name that is a number", members(b'"a":1,2:3'), 0, 1),
    ("a number as Thing", b'{"Thing":1.5,"Timestamp":1,"id":"e","a":1}', 0, 1),
    ("a decimal time", b'{"Thing":"R","Timestamp":1.25e3,"id":"e","a":1}', 1, 0),
    ("a time of minus zero", b'{"Thing":"R","Timestamp":-0,"id":"e","a":1}', 1, 0),
    ("a time in escapes", b'{"Thing":"R","Timestamp":"2019-04-01T05:26:20\\u005a","id":"e","a":1}', 1, 0),
    ("a time that is a number as text", b'{"Thing":"R","Timestamp":"17","id":"e","a":1}', 0, 1),
    ("names at their longest", members(b'"' + b"n" * 256 + b'":1,"' + "é".encode() * 256 + b'":2'), 2, 0),
    ("names too long", members(b'"' + b"n" * 257 + b'":1,"a":2,"":3'), 1, 2),
    ("as many brackets as allowed", nested(BRACKETS_MAX), 1, 1),
    ("one more bracket", nested(BRACKETS_MAX + 1), 0, 1),
    ("brackets in names", members(b'"' + b"[" * 128 + b'":1,"' + b"{" * 128 + b'":2'), 0, 1),
    ("about as deep as a parser goes", nested(980), 0, 1),
    ("deeper than any parser goes", nested(9000), 0, 1),
    (
        "a time as long as allowed",
        b'{"Thing":"R","id":"e","Timestamp":"2019-04-01T05:26:20.12345678900000+00:00","a":1}',
        1,
        0,
    ),
    ("a longer time", b'{"Thing":"R","id":"e","Timestamp":"2019-04-01T05:26:20.123456789000000+00:00","a":1}', 0, 1),
    ("as many bad quantities as get their own dead letters", members(several(16, b"null") + b',"good":1'), 1, 16),
    ("one more bad quantity", members(several(17, b"null") + b',"good":1'), 1, 1),
    ("names too long for so many records", long_names(105), 0, 1),
    ("names just short enough", long_names(104), 104, 0),
    ("escaped names too long for so many records", long_names(69, b"\\u0001"), 0, 1),
    ("escaped names just short enough", long_names(68, b"\\u0001"), 68, 0),
    ("as large as allowed", members(b'"a":1,"b":2').ljust(BYTES_MAX), 2, 0),
    ("too large", members(b'"a":1,"b":2').ljust(BYTES_MAX + 1), 0, 1),
]


@pytest.mark.parametrize(("payload", "records", "refused"), [pytest.param(*row, id=name) for name, *row in ROWS])
def test_connector_and_checker_make_of_an_odd_row_what_the_rules_say(
    payload: bytes, records: int, refused: int
) -> None:
    assert assert_agreement(payload) == (records, refused)


def mostly(usual: st.SearchStrategy[bytes], odd: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Generate usual values in nine of ten cases. A row with only odd members would be refused at the first of them."""
    return st.sampled_from([usual] * 9 + [odd]).flatmap(lambda chosen: chosen)


def one_of_these(*pieces: bytes) -> st.SearchStrategy[bytes]:
    return st.sampled_from(pieces)


def in_array(values: list[bytes]) -> bytes:
    return b"[" + b",".join(values) + b"]"


def in_object(parts: list[tuple[bytes, bytes]]) -> bytes:
    return b"{" + b",".join(name + b":" + value for name, value in parts) + b"}"


ODD_STRINGS: Final = (
    rb'"\u0061"',
    rb'"\ud800"',
    rb'"\uDC00x"',
    rb'"\ud83d\ude00"',
    rb'"\ud83d\u0061"',
    rb'"\\ud800"',
    rb'"\x"',
    rb'"\u12"',
    rb'"\"\\\/\b\f\n\r\t"',
    rb'"\u0000"',
    *(b'"' + inner + b'"' for inner in (b"\0", b"\n", b"\x7f", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xe2\x82")),
    b'"',
    b"'a'",
    b"a",
)

# There are few names, so that some are repeated, with and without an escape.
usual_names = one_of_these(*(b'"%c"' % dead_letter for dead_letter in b"abcdefghijkl:["), rb'"\u0061"', b'"\xc3\xa9"')
names = st.sampled_from(["", "Thing", "n" * 256, "n" * 257, "é" * 257]) | st.text(max_size=4) | st.text(st.characters())
strings = one_of_these(*ODD_STRINGS) | st.builds(
    lambda text, ascii_only: json.dumps(text, ensure_ascii=ascii_only).encode(errors="surrogatepass"),
    names,
    st.booleans(),
)

digits = st.text("0123456789", min_size=1, max_size=25)
numbers = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "-"]),
    st.integers(0, 2**66) | digits.map(lambda text: text.lstrip("0") or "0"),
    st.just("") | digits.map(".{}".format),
    st.just("")
    | st.builds("{}{}{}".format, st.sampled_from("eE"), st.sampled_from(["", "-", "+"]), st.integers(0, 400)),
).map(str.encode)
usual_numbers = (
    st.integers(-(2**54), 2**54).map(lambda number: b"%d" % number)
    | st.floats(allow_nan=False, allow_infinity=False).map(lambda number: repr(number).encode())
    | numbers
)
no_json = one_of_these(
    *(b"NaN", b"-Infinity", b"01", b"1.", b".5", b"+1", b"1e", b"0x1", b"1_0", b"-", b"", b"True", b"nul")
)
odd_leaves = (
    one_of_these(b"true", b"false", b"null", b'"NaN"', b'"1"', rb'"\ud83d\ude00"', b'"\xc3\xa9"', b'""')
    | one_of_these(b"-0", b"-0.0", b"1e400", b"-1e-400", b"9" * 400, b"-" + b"9" * 5000, b"0." + b"9" * 5000)
    | usual_numbers
)
leaves = odd_leaves | mostly(strings, no_json)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3).map(in_array)
        | st.lists(st.tuples(mostly(usual_names, strings), inner), max_size=3).map(in_object)
    ),
    max_leaves=5,
)
towers = st.builds(
    lambda floors, text: text[0] * floors + text[1] + text[2] * floors,
    st.sampled_from([1, 2, 100, 253, 254, 255, 256, 900, 960, 990, 1100, 3000]),
    st.sampled_from([(b"[", b"", b"]"), (b'{"a":', b"1", b"}"), (b'[{"a":', b'"', b"}]"), (b"[", b"", b"")]),
)
values = mostly(trees, towers)
quantities = st.tuples(mostly(usual_names, strings), usual_numbers | values)
times = (
    st.integers(-(2**63), 2**63).map(lambda number: b"%d" % number)
    | st.datetimes(timezones=st.timezones()).map(lambda time: b'"%s"' % time.isoformat().encode())
    | one_of_these(
        b"1.5", b"-0", b"-0.0", b"1e3", b"1e-3", b'"2019-04-01T05:26:20.123456789Z"', rb'"1999-01-01T00:00\u005a"'
    )
    | one_of_these(b'"17"', b'""', b"9" * 5000, b"1e99999", b"1e-99999", b"1.0000000001")
    | numbers
)
spaces = mostly(one_of_these(b"", b" ", b"\t", b"\r\n"), one_of_these(b"\x0b", b"\xc2\xa0", b"\0"))


@st.composite
def rows(draw: st.DrawFn) -> bytes:
    """Generate an event whose members may be odd, repeated, missing, and in any order."""
    parts = [
        (b'"Thing"', draw(mostly(one_of_these(b'"R0815"', b'"R:[0]"', rb'"\u00e9"'), values))),
        (b'"id"', draw(mostly(one_of_these(b'"e1"', b'"\xc3\xa9"'), values))),
        (b'"Timestamp"', draw(mostly(st.just(b"1554096460415"), mostly(times, values)))),
        *draw(st.lists(quantities, min_size=1, max_size=4, unique_by=lambda part: part[0])),
    ]
    change = draw(st.sampled_from(["none", "none", "none", "order", "repeat", "leave out", "space"]))
    if change == "order":
        parts = draw(st.permutations(parts))
    elif change == "repeat":
        parts.append(draw(st.sampled_from(parts)))
    elif change == "leave out":
        parts.remove(draw(st.sampled_from(parts)))
    elif change == "space":
        before, behind = draw(spaces), draw(spaces)
        parts = [(before + name + behind, behind + value + before) for name, value in parts]
        return behind + in_object(parts) + before
    return in_object(parts)


ODD_PIECES: Final = (
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b'"',
        b"\\",
        b"\\u",
        b"\\ud800",
        b"-",
        b"0",
        b"e",
        b".",
        b" ",
        b"\xff",
        b"\0",
    ),
    *(b'"a":1,', b',"a":1', b"NaN", b"null", b"\xef\xbb\xbf"),
)


@st.composite
def damaged_rows(draw: st.DrawFn) -> bytes:
    """Generate a row with one or two random changes."""
    row = draw(rows())
    for _ in range(draw(st.integers(1, 2))):
        start = draw(st.integers(0, len(row)))
        stop = min(len(row), start + draw(st.integers(0, 4)))
        after_accident = {
            "flip": row[:start] + bytes(byte ^ (1 << draw(st.integers(0, 7))) for byte in row[start:stop]) + row[stop:],
            "lose": row[:start] + row[stop:],
            "insert": row[:start] + draw(one_of_these(*ODD_PIECES, *ODD_STRINGS)) + row[start:],
            "replace": row[:start] + draw(st.binary(max_size=4)) + row[stop:],
            "double": row[:stop] + row[start:],
            "cut": row[:start],
        }
        row = after_accident[draw(st.sampled_from(sorted(after_accident)))]
    return row


@settings(max_examples=300)
@given(rows() | damaged_rows(), st.sampled_from(sorted(PARSERS)))
def test_connector_and_checker_make_the_same_of_any_row(payload: bytes, unit: str) -> None:
    assert_agreement(payload, unit)


@given(st.binary(max_size=50) | values)
@example(b"")
def test_connector_and_checker_make_the_same_of_any_bytes(payload: bytes) -> None:
    assert_agreement(payload)
