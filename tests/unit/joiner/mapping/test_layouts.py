"""Are the scalars of messages with the same layout found, and is nothing else accepted?"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from broker.wire.columns import StringColumn
from joiner.mapping.layouts import NUMBER, SCALARS_MAX, STRING, WORD, Layout, Scalar, learn_layout

FIRST = b' {"a" : "x", "b": [1.5, true, {"c": null}], "d":{}, "e":[ ] , "\\u00e9": -0.1e+2}\n'


def learn(value: bytes) -> Layout:
    found = learn_layout(value)
    assert found is not None
    return found


def scalars_of(layout: Layout, value: bytes) -> list[bytes] | None:
    """Return the scalars of a message, or None if it does not have the layout."""
    values = StringColumn.of([b"before", value, b"behind"])
    matches, spans = layout.match(values, np.array([1]))
    if not matches[0]:
        return None
    return [values.data[spans[n, 0] : spans[n + 1, 0]].tobytes() for n in range(0, len(spans), 2)]


def test_a_layout_is_learnt_from_one_message() -> None:
    layout = learn(FIRST)
    assert layout.kinds.tolist() == [STRING, NUMBER, WORD, WORD, NUMBER]
    assert layout.skeleton == {
        "a": Scalar(0, STRING),
        "b": [Scalar(1, NUMBER), Scalar(2, WORD), {"c": Scalar(3, WORD)}],
        "d": {},
        "e": [],
        "é": Scalar(4, NUMBER),
    }
    assert scalars_of(layout, FIRST) == [b"x", b"1.5", b"true", b"null", b"-0.1e+2"]


@pytest.mark.parametrize(
    ("old", "new", "scalars"),
    [
        (b'"x"', b'""', [b"", b"1.5", b"true", b"null", b"-0.1e+2"]),
        (b'"x"', b'"[{,:}]"', [b"[{,:}]", b"1.5", b"true", b"null", b"-0.1e+2"]),
        (b"true", b"false", [b"x", b"1.5", b"false", b"null", b"-0.1e+2"]),
        (b"true", b"null", [b"x", b"1.5", b"null", b"null", b"-0.1e+2"]),
        (b"1.5", b"0", [b"x", b"0", b"true", b"null", b"-0.1e+2"]),
        (b"1.5", b"-10E-7", [b"x", b"-10E-7", b"true", b"null", b"-0.1e+2"]),
    ],
)
def test_other_scalars_of_the_same_kinds_match(old: bytes, new: bytes, scalars: list[bytes]) -> None:
    assert scalars_of(learn(FIRST), FIRST.replace(old, new, 1)) == scalars


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"x"', b"1"),
        (b'"x"', b'"\\n"'),
        (b'"x"', b'"\xc3\xa9"'),
        (b'"x"', b'"\x1f"'),
        (b'"x"', b'"\x7f"'),
        (b'"x"', b'"x'),
        (b"1.5", b"01"),
        (b"1.5", b"1."),
        (b"1.5", b".5"),
        (b"1.5", b"+1"),
        (b"1.5", b"1e"),
        (b"1.5", b"1e+"),
        (b"1.5", b"-"),
        (b"1.5", b""),
        (b"1.5", b"1.5x"),
        (b"1.5", b'"1.5"'),
        (b"true", b"True"),
        (b"true", b"tru"),
        (b"true", b"truee"),
        (b"true", b"1"),
        (b'"a" :', b'"a":'),
        (b'"c"', b'"C"'),
        (b"\n", b""),
        (b"\n", b"\n\n"),
        (b"\n", b"x"),
    ],
)
def test_nothing_else_matches(old: bytes, new: bytes) -> None:
    changed = FIRST.replace(old, new, 1)
    assert changed != FIRST
    assert scalars_of(learn(FIRST), changed) is None


@pytest.mark.parametrize("size", range(len(FIRST)))
def test_a_message_that_is_cut_off_does_not_match(size: int) -> None:
    assert scalars_of(learn(FIRST), FIRST[:size]) is None


@pytest.mark.parametrize("value", [b"1", b'"a"', b"null", b"[]", b"{}", b"[[[1]]]"])
def test_any_json_value_has_a_layout(value: bytes) -> None:
    layout = learn(value)
    assert len(scalars_of(layout, value) or []) == len(layout.kinds)


@pytest.mark.parametrize(
    "document",
    [
        *('{"a": 1, "a": 2}', '[{"b": 1, "\\u0062": 2}]', json.dumps([1] * (SCALARS_MAX + 1))),
        # They would not match their own.
        *('{"unit": "°C"}', '{"unit": "\\u00b0C"}', '["\x7f"]'),
    ],
)
def test_some_messages_have_no_layout(document: str) -> None:
    assert learn_layout(document.encode()) is None


def test_rows_that_do_not_match_leave_the_others_alone() -> None:
    values: list[Any] = [b'{"a":1}', b'{"a":"1"}', b'{"a":22}', b"", b'{"b":1}']
    matches, spans = learn(values[0]).match(StringColumn.of(values), np.arange(5))
    assert matches.tolist() == [True, False, True, False, False]
    assert (spans[1] - spans[0])[matches].tolist() == [1, 2]
