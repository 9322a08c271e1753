"""Are columns of records and results encoded and decoded exactly as single records and results are?"""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from broker.wire.bulk import JoinedColumns, PlainRecords, encode_joined, encode_sides, find_fields, read_plain
from broker.wire.columns import StringColumn
from broker.wire.numbers import read_numbers
from broker.wire.records import (
    NAME_LENGTH_MAX,
    Joined,
    Record,
    Side,
    Unreadable,
    decode_data,
    decode_sides,
    encode,
    encode_lines,
    pair_id,
)

_NAMES = st.text("aZ09 .:-_/~", min_size=1, max_size=9) | st.text(min_size=1, max_size=3)
_NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(json.dumps),
    st.integers(-(10**20), 10**20).map(str),
    st.sampled_from(["0", "-0", "-0.0", "1e5", "1E+5", "1e-400", "1e400", "0.1e1", "12345678901234567890.5"]),
    st.text("0123456789+-.eE", min_size=1, max_size=6),
)
_TIMES = st.integers(-5, 10**18).map(str) | st.sampled_from(["0", "-0", "01", "1.0", "1e3", "9" * 19, '"x"', "true"])
_BLANKS = st.sampled_from(["", " ", "\n\t\r "])
_OTHERS = st.sampled_from(['"more":1', '"thing":"a"', '"result":null', "", '"mark":1'])


@st.composite
def _values(draw: st.DrawFn) -> bytes:
    """Generate the value of a record, possibly malformed."""
    escape = draw(st.booleans())
    names = [json.dumps(draw(_NAMES), ensure_ascii=escape) for _ in range(3)]
    fields = [f'"{name}":{text}' for name, text in zip(("thing", "quantity", "id"), names, strict=True)]
    fields += [f'"phenomenonTime":{draw(_TIMES)}', f'"result":{draw(_NUMBERS)}']
    fields = draw(st.permutations(fields)) if draw(st.booleans()) else fields
    if draw(st.integers(0, 9)) == 0:
        fields.insert(draw(st.integers(0, 5)), draw(_OTHERS))
    blank = draw(_BLANKS)
    whole = blank + "{" + blank + f"{blank},{blank}".join(one.replace(":", blank + ":" + blank, 1) for one in fields)
    whole += blank + "}" + blank
    cut = draw(st.integers(0, len(whole) * 10))
    return whole[:cut].encode(errors="surrogatepass")


@settings(max_examples=1000, deadline=None)
@given(value=_values())
@example(b'{"thing":"' + b"a" * NAME_LENGTH_MAX + b'","quantity":"q","phenomenonTime":1,"result":1,"id":"x"}')
@example(b'{"thing":"' + b"a" * (NAME_LENGTH_MAX + 1) + b'","quantity":"q","phenomenonTime":1,"result":1,"id":"x"}')
@example(b'{"thing":"a","quantity":"q","phenomenonTime":1,"result":1,"id":""}')
@example(b'{"thing":"\x7f","quantity":"q","phenomenonTime":1,"result":1,"id":"x"}')
@example(b'{"thing":"\xff","quantity":"q","phenomenonTime":1,"result":1,"id":"x"}')
@example(b'{"thing":"a\n","quantity":"q","phenomenonTime":1,"result":1,"id":"x"}')
@example(b'{"thing":"a","quantity":"q","phenomenonTime":1,"result":1,"id":"x",}')
@example(b'{"thing":"a" "quantity":"q","phenomenonTime":1,"result":1,"id":"x"}')
@example(b'{"thing":"a","quantity":"q","phenomenonTime":1,"result":1,"id":"x"}}')
@example(b"{}")
@example(b"{")
@example(b"")
def test_what_is_read_as_plain_is_the_record_that_the_wire_form_says(value: bytes) -> None:
    plain = read_plain(StringColumn.of([value, value]))
    if plain is None:
        return
    try:
        record, _ = decode_data(value, "ns")
    except Unreadable as reason:
        raise AssertionError(value) from reason
    assert isinstance(record, Record)
    assert plain.thing.each() == [record.thing.encode()] * 2
    assert (plain.time.tolist(), plain.result.value.tolist()) == ([record.phenomenonTime] * 2, [record.result] * 2)
    side = Side(record.quantity, record.phenomenonTime, record.result, record.id)
    shown = encode_sides(plain.quantity, plain.time_digits, plain.result.encoded, plain.id)
    assert shown.each() == [msgspec.json.encode(side)] * 2
    again = find_fields(shown, with_thing=False)
    assert again is not None
    assert (again.quantity.each()[1], again.id.each()[1]) == (record.quantity.encode(), record.id.encode())


@settings(max_examples=1000, deadline=None)
@given(values=st.lists(_values(), min_size=2, max_size=4), data=st.data())
def test_records_laid_out_alike_or_not_are_read_as_each_alone(values: list[bytes], data: st.DataObject) -> None:
    # Copies, some with a byte changed, because two drawn records rarely have the same layout.
    for value in values[:2]:
        copy = bytearray(value)
        if copy and data.draw(st.booleans()):
            copy[data.draw(st.integers(0, len(copy) - 1))] = data.draw(st.sampled_from(b'"\\{[ ,:}e.-09a'))
        values.insert(data.draw(st.integers(0, len(values))), bytes(copy))
    alone = [read_plain(StringColumn.of([value])) for value in values]
    together = read_plain(StringColumn.of(values))
    assert (together is None) == (None in alone)
    if together is not None:
        assert _columns(together) == [list(chain(*column)) for column in zip(*map(_columns, alone), strict=True)]


def _columns(records: PlainRecords | None) -> list[list[Any]]:
    assert records is not None
    thing, quantity, identity, time, time_digits, (value, encoded) = records
    strings = [column.each() for column in (thing, quantity, identity, time_digits, encoded)]
    return [*strings, time.tolist(), value.tolist()]


_DECIMALS = st.from_regex(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,19})?", fullmatch=True)


@settings(max_examples=2000, deadline=None)
@given(texts=st.lists(_DECIMALS | _NUMBERS, min_size=1, max_size=4))
@example(texts=["0.001", "0.0009", "0.0", "-0.0", "-0", "0", "0.00", "288.20", "288.2", "-1.5", "288", "00", "1."])
@example(texts=["999999999999999", "999999999999999.0", "9999999999999999", "0.000000000000000001", "123456789.123456"])
def test_a_number_is_the_double_that_the_parser_reads_and_its_json_that_of_the_encoder(texts: list[str]) -> None:
    for some in (texts, *([text] for text in texts)):
        found = read_numbers(StringColumn.of([text.encode() for text in some]))
        try:
            expected = [msgspec.json.decode(text, type=float) for text in some]
        except msgspec.DecodeError:
            assert found is None
            continue
        assert found is not None
        assert [value.hex() for value in found.value.tolist()] == [value.hex() for value in expected]
        assert found.encoded.each() == [msgspec.json.encode(value) for value in expected]


@settings(max_examples=300, deadline=None)
@given(
    texts=st.lists(st.text("aZ09 .:-_/~", min_size=1, max_size=9), min_size=3, max_size=3),
    time=st.integers(-(10**17), 10**17),
    result=st.floats(allow_nan=False, allow_infinity=False),
)
def test_records_as_the_connector_writes_them_are_plain(texts: list[str], time: int, result: float) -> None:
    thing, quantity, identity = texts
    assert read_plain(StringColumn.of([encode(Record(thing, quantity, time, result, identity))])) is not None


_SIDES = st.builds(
    Side,
    st.text(min_size=1),
    st.integers(0, 10**17),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(min_size=1),
)
_SEQ = st.integers(0, 2**62)
_RESULTS = st.floats(allow_nan=False, allow_infinity=False)
_PAIRS = st.tuples(
    st.text(min_size=1),
    st.integers(0, 2**62),
    _RESULTS | st.fixed_dictionaries({"left": _RESULTS, "right": _RESULTS}),
    _SEQ,
    _SEQ,
    _SIDES,
    _SIDES,
    st.integers(0, 2),
    st.integers(0, 2),
)


def _json(values: list[Any]) -> StringColumn:
    return StringColumn.of_lines(encode_lines(values))


def _int64(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


@settings(max_examples=300, deadline=None)
@given(
    pairs=st.lists(_PAIRS, min_size=1, max_size=4),
    output=st.text(min_size=1),
    join=st.text(min_size=1),
    compact=st.booleans(),
)
def test_results_have_the_bytes_that_each_has_alone(
    pairs: list[tuple[Any, ...]], output: str, join: str, *, compact: bool
) -> None:
    thing, time, result, left_seq, right_seq, left, right, one, other = map(list, zip(*pairs, strict=True))
    columns = JoinedColumns(
        _json(thing),
        [_int64(time), StringColumn.repeated(b"", len(time))],
        _json(result),
        [_int64(left_seq)],
        [_int64(right_seq)],
        None if compact else (_json(left), _json(right)),
        _int64(one),
        _int64(other),
    )
    expected = []
    for thing, time, result, left_seq, right_seq, left, right, one, other in pairs:
        tie = f"{one}-{other}" if one or other else ""
        identity = pair_id(join, 5, left_seq, right_seq)
        one_side, other_side = (None, None) if compact else (left, right)
        expected.append(encode(Joined(thing, output, time, result, identity, one_side, other_side, tie)))
    assert encode_joined(columns, output, join, 5).each() == expected


@settings(max_examples=300, deadline=None)
@given(sides=st.lists(_SIDES, max_size=4))
def test_sides_come_back_from_their_lines(sides: list[Side]) -> None:
    assert encode_lines(decode_sides(encode_lines(sides))) == encode_lines(sides)
