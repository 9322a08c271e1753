"""For any layout and any message, mapped records are those that a plain reading with Python's json module gives."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.times import UNIT_NS
from broker.wire.records import Unreadable
from joiner.mapping.conditions import parse_condition
from joiner.mapping.paths import MISSING, parse_path
from joiner.mapping.reading import MappedTopic
from joiner.mapping.settings import StreamSettings
from joiner.runtime.task.decoding.factory import make_decoder
from joiner.runtime.task.decoding.intake import Intake
from joiner.runtime.task.decoding.keys import Keys
from tests.unit.joiner.runtime.joiner_inputs import Message, batch, make_settings

NAMES = st.sampled_from(["a", "b", "a b", "it's", 'say "x"', "", "é", "$", "[0]"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["1", "-2.5", "1e3", "01", "2024-01-01T00:00:00Z"])
)
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)
SEGMENTS = st.lists(NAMES | st.integers(-3, 3), max_size=4)


def path_of(segments: list[str | int]) -> str:
    """Return the text of a path."""
    quoted = [
        str(one) if isinstance(one, int) else "'" + one.replace("\\", r"\\").replace("'", r"\'") + "'"
        for one in segments
    ]
    return "$" + "".join(f"[{one}]" for one in quoted)


def find(document: Any, segments: list[str | int]) -> Any:
    """Return the value at a path in the most obvious way."""
    for segment in segments:
        try:
            if isinstance(document, list) is not isinstance(segment, int) or isinstance(document, str):
                return MISSING
            document = document[segment]
        except (IndexError, KeyError, TypeError):
            return MISSING
    return document


@given(DOCUMENTS, SEGMENTS)
def test_a_path_selects_what_indexing_does(document: Any, segments: list[str | int]) -> None:
    found, wanted = parse_path(path_of(segments)).find(document), find(document, segments)
    assert found is wanted or found == wanted


@st.composite
def messages(draw: st.DrawFn) -> tuple[dict[str, list[str | int]], Any]:
    """Draw the paths of a stream's fields, and a document that often has them."""
    fields = {name: draw(SEGMENTS) for name in ("key", "time", "value", "id")}
    document: Any = draw(DOCUMENTS)
    for name, segments in fields.items():
        if not draw(st.integers(0, 9)):
            continue
        good = {
            "key": st.text(min_size=1, max_size=3),
            "time": st.integers(0, 10**12),
            "value": st.floats(-9, 9),
            "id": st.integers(),
        }
        document = put(document, segments, draw(good[name]))
    return fields, document


def put(document: Any, segments: list[str | int], value: Any) -> Any:
    """Return the document with a value at a path, whatever was there."""
    if not segments:
        return value
    first, rest = segments[0], segments[1:]
    if isinstance(first, int):
        size = first + 1 if first >= 0 else -first
        found = document if isinstance(document, list) else []
        found = found + [None] * (size - len(found))
        found[first] = put(found[first], rest, value)
        return found
    found_object = dict(document) if isinstance(document, dict) else {}
    found_object[first] = put(found_object.get(first), rest, value)
    return found_object


def plain_reading(fields: dict[str, list[str | int]], text: str, unit: str) -> tuple[str, int, float, str] | None:
    """Return the thing, the time in ns, the value and the id of a message, or None if any of them is not usable."""
    document = json.loads(text, parse_float=Decimal)
    key, time, value, identity = (find(document, segments) for segments in fields.values())
    names = [str(one) for one in (key, identity) if isinstance(one, str | int) and not isinstance(one, bool)]
    if len(names) < 2 or not all(1 <= len(name) <= 256 for name in names):
        return None
    if isinstance(time, bool) or not isinstance(time, int | Decimal):
        return None
    time_ns = Decimal(time) * UNIT_NS[unit]
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return None
    if not isinstance(value, bool | int | Decimal | str):
        return None
    try:
        result = float(value)
    except (ValueError, OverflowError):
        return None
    return (names[0], int(time_ns), result, names[1]) if math.isfinite(result) and time_ns == int(time_ns) else None


@given(messages(), st.sampled_from(sorted(UNIT_NS)))
def test_records_are_those_of_a_plain_reading(drawn: tuple[dict[str, list[str | int]], Any], unit: str) -> None:
    fields, document = drawn
    text = json.dumps(document, ensure_ascii=len(json.dumps(document)) % 2 == 0)
    paths = {name: path_of(segments) for name, segments in fields.items()}
    topic = MappedTopic([StreamSettings.model_validate({"name": "s", "topic": "t", "time_unit": unit, **paths})], "ns")
    try:
        ((record, ts_ns),) = topic.read(text.encode(), 0, 0)
    except Unreadable:
        wanted = plain_reading(fields, text, unit)
        iso_or_outside = wanted is None or not -9_214_646_400 * 10**9 <= wanted[1] < 9_214_646_400 * 10**9
        assert iso_or_outside, wanted
        return
    wanted = plain_reading(fields, text, unit)
    if isinstance(find(document, fields["time"]), str):
        return  # ISO-8601 times are tested with `broker.times`
    assert wanted == (record.thing, ts_ns, record.result, record.id)


def exact(document: Any) -> Any:
    """Return a document as it is decoded: numbers that are not integers are decimals."""
    return json.loads(json.dumps(document), parse_float=Decimal)


OPERATORS = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
OPERANDS = st.tuples(st.just("path"), SEGMENTS) | st.tuples(st.just("literal"), SCALARS.map(exact))
COMPARISONS = st.tuples(OPERATORS, OPERANDS, OPERANDS) | st.tuples(st.just("exists"), SEGMENTS)
CONDITIONS = st.recursive(
    COMPARISONS,
    lambda inner: st.tuples(st.sampled_from(["&&", "||"]), inner, inner) | st.tuples(st.just("!"), inner),
    max_leaves=5,
)


def text_of(condition: Any) -> str:
    """Return a condition as text, with parentheses around every part."""
    match condition:
        case ("path" | "exists", segments):
            return path_of(segments)
        case ("literal", value):
            return json.dumps(value, default=str) if not isinstance(value, Decimal) else str(value)
        case ("!", inner):
            return f"!({text_of(inner)})"
        case ("&&" | "||" as word, left, right):
            return f"({text_of(left)}) {word} ({text_of(right)})"
        case (operator, left, right):
            return f"{text_of(left)} {operator} {text_of(right)}"
    raise AssertionError(condition)


def comparable(value: Any) -> Any:
    """Return what is equal for two values if and only if RFC 9535 says that they are equal."""
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return "number", Fraction(value)
    if isinstance(value, list):
        return "array", [comparable(one) for one in value]
    if isinstance(value, dict):
        return "object", {name: comparable(one) for name, one in value.items()}
    return type(value).__name__, value


def is_less(left: tuple[str, Any], right: tuple[str, Any]) -> bool:
    """Return whether one comparable value is less than another: only numbers and strings can be."""
    return left[0] == right[0] and left[0] in {"number", "str"} and bool(left[1] < right[1])


def is_true(condition: Any, document: Any) -> bool:
    """Evaluate a condition in the most obvious way."""
    match condition:
        case ("exists", segments):
            return find(document, segments) is not MISSING
        case ("!", inner):
            return not is_true(inner, document)
        case ("&&", left, right):
            return is_true(left, document) and is_true(right, document)
        case ("||", left, right):
            return is_true(left, document) or is_true(right, document)
    operator, *operands = condition
    left, right = (comparable(find(document, value) if kind == "path" else value) for kind, value in operands)
    holds: dict[str, bool] = {
        "==": left == right,
        "!=": left != right,
        "<": is_less(left, right),
        ">": is_less(right, left),
        "<=": is_less(left, right) or left == right,
        ">=": is_less(right, left) or left == right,
    }
    return holds[operator]


@given(DOCUMENTS.map(exact), CONDITIONS)
def test_a_condition_is_evaluated_as_the_rfc_says(document: Any, condition: Any) -> None:
    assert parse_condition(text_of(condition)).holds(document) is is_true(condition, document)


def decoded(intakes: list[Intake]) -> tuple[Any, ...]:
    """Return everything that was decoded, in the order of the log."""
    columns: dict[Any, list[Any]] = {}
    for intake in intakes:
        for target, side in intake.sides.items():
            rows = side.rows()
            columns.setdefault(target, []).extend(
                zip(*(column.tolist() for column in rows[:4]), rows.shown.each(), strict=True)
            )
    letters = [letter for intake in intakes for letter in intake.rejected]
    return repr(columns), letters, sum(one.records for one in intakes), sum(one.not_selected for one in intakes)


@given(st.lists(st.binary(max_size=40) | st.none() | DOCUMENTS, max_size=8), st.data())
def test_how_messages_are_batched_changes_nothing(drawn: list[Any], data: st.DataObject) -> None:
    """Layouts that were learnt from earlier batches do not matter, either."""
    streams = [
        {"name": "speed", "topic": "t", "key": "'a'", "time": "kafka.timestamp", "value": path_of(data.draw(SEGMENTS))},
        {"name": "torque", "topic": "t", "key": "$.a", "time": "$.b", "value": "$", "where": "$ < 5 || $.a"},
    ]
    settings = make_settings(stream=streams)
    documents = [one for one in drawn for _ in range(data.draw(st.integers(1, 3)))]
    values = [one if one is None or isinstance(one, bytes) else encoded(varied(one, data.draw)) for one in documents]
    given_messages = [Message(number, 1_700_000_000_000, value) for number, value in enumerate(values)]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=3)))

    def read(edges: list[int]) -> tuple[Any, ...]:
        decoder = make_decoder(settings, "t", 0, Keys(0, 1))
        parts = zip([0, *edges], [*edges, len(values)], strict=True)
        return decoded([decoder.decode(batch(given_messages[begin:end])) for begin, end in parts])

    assert read([]) == read(cuts) == read([*range(len(values))])


@given(messages(), st.lists(st.integers(0, 5), max_size=12), st.data())
def test_messages_of_the_same_layout_are_read_as_one_by_one(
    drawn: tuple[dict[str, list[str | int]], Any], repeats: list[int], data: st.DataObject
) -> None:
    """Columns of many messages hold the same records as `MappedTopic` returns for each."""
    fields, document = drawn
    paths = {name: path_of(segments) for name, segments in fields.items()}
    optional = {} if data.draw(st.booleans()) else {"where": f"{paths['value']} != 1 && {path_of(data.draw(SEGMENTS))}"}
    streams = [{"name": "speed", "topic": "t", **paths, **optional}, {"name": "torque", "topic": "t", **paths}]
    settings = make_settings(stream=streams, application={"max_future_skew": "36500d"})
    documents = [document, *(varied(document, data.draw) for _ in repeats)]
    values = [encoded(one, ensure_ascii=data.draw(st.booleans())) for one in documents]
    given_messages = [Message(number, 1_000, value) for number, value in enumerate(values)]
    intake = make_decoder(settings, "t", 0, Keys(0, 1)).decode(batch(given_messages))
    one_by_one = MappedTopic(settings.stream, "ms")
    wanted: list[tuple[str, int, int, float, str]] = []
    refused: list[tuple[int, str]] = []
    for number, value in enumerate(values):
        try:
            wanted += [
                (one.record.quantity, number, one.ts_ns, one.record.result, one.record.id)
                for one in one_by_one.read(value, number, 1_000)
            ]
        except Unreadable as reason:
            refused.append((number, str(reason)))
    assert [(letter.offset, letter.reason) for letter in intake.rejected] == refused
    found = []
    for (_, place), side in intake.sides.items():
        rows = side.rows()
        name = ("speed", "torque")[place]
        shown = [json.loads(text) for text in rows.shown.each()]
        assert all(one["quantity"] == name for one in shown)
        assert [one["result"] for one in shown] == rows.result.tolist()
        found += [
            (name, seq, ts_ns, result, one["id"])
            for seq, ts_ns, result, one in zip(
                rows.seq.tolist(), rows.ts_ns.tolist(), rows.result.tolist(), shown, strict=True
            )
        ]
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))


_RAW = "raw number: "
"""Precedes a number that is written into a message exactly as it is here."""

TOKENS = st.sampled_from(["-0", "-0.0", "1E5", "1.0e-3", "1e+2", "5e-324", "1e400", "0.10", "12345678901234567890"])


def encoded(document: Any, *, ensure_ascii: bool = True) -> bytes:
    """Return a document as a message."""
    text = json.dumps(document, ensure_ascii=ensure_ascii)
    return re.sub(f'"{_RAW}([^"]*)"', r"\1", text).encode()


def varied(document: Any, draw: Any) -> Any:
    """Return a document with the same structure, in which some scalars are others."""
    if isinstance(document, dict):
        return {name: varied(value, draw) for name, value in document.items()}
    if isinstance(document, list):
        return [varied(value, draw) for value in document]
    if draw(st.integers(0, 3)):
        return document
    kinds: list[tuple[Any, Any]] = [
        (bool | None, st.sampled_from([True, False, None])),
        (
            int | float,
            st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TOKENS.map(_RAW.__add__),
        ),
        (str, st.text(max_size=4) | st.sampled_from(["", "2024-01-01T00:00:00Z"])),
    ]
    return draw(next(others for kind, others in kinds if isinstance(document, kind)))
