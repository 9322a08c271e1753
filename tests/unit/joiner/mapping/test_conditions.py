"""For which documents is a condition true?"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from joiner.mapping.conditions import CONDITION_LENGTH_MAX, DEPTH_MAX, parse_condition, parse_literal

DOCUMENT: dict[str, Any] = {
    "type": "spindle",
    "rpm": 1500,
    "load": Decimal("0.50"),
    "on": True,
    "none": None,
    "list": [1, {"a": 2}],
    "same": [Decimal("1.0"), {"a": 2}],
    "quote": 'it\'s "so"',
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("$.type == 'spindle'", True),
        ('$.type == "spindle"', True),
        ("$.type != 'spindle'", False),
        ("'spindle' == $.type", True),
        ("$.rpm > 1000 && $.rpm <= 1500", True),
        ("$.rpm >= 1500.0", True),
        ("$.load == 5e-1", True),
        ("$.rpm < 1000 || $.load < 1", True),
        ("!($.rpm < 1000)", True),
        ("!$.missing", True),
        ("$.none", True),
        ("$.missing", False),
        ("$.on == true && $.none == null", True),
        ("$.on == 1", False),
        ("$.rpm == '1500'", False),
        ("$.rpm < 'x'", False),
        ("$.rpm != 'x'", True),
        ("$.missing == $.absent", True),
        ("$.missing == null", False),
        ("$.missing <= $.absent", True),
        ("$.missing < $.absent", False),
        ("$.none <= null", True),
        ("$.on < true", False),
        ("$.list == $.same", True),
        ("$.list[1] == $.same[1]", True),
        ("$.list[1] == $.same", False),
        ("$.type > 'spin' && $.type < 'spine'", True),
        ('$.quote == "it\'s \\"so\\""', True),
        (r"$.quote == 'it\'s " + '"so"' + "'", True),
        (r"$.type == '\u0073pindle'", True),
        # && binds more strongly than ||.
        ("$.on || $.missing && $.missing", True),
        ("($.on || $.missing) && $.missing", False),
        (" $ ", True),
    ],
)
def test_a_condition_is_true_or_false(text: str, holds: bool) -> None:  # noqa: FBT001 - a parameter of a table
    assert parse_condition(text).holds(DOCUMENT) is holds


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "at the end: expected a path"),
        ("'a'", "a literal is not a condition"),
        ("$.a ==", "at the end"),
        ("$.a = 1", "at '= 1'"),
        ("$.a == 1 1", "expected an operator or the end"),
        ("($.a", r"expected \)"),
        ("$.a & $.b", "at '& \\$\\.b'"),
        ("$.a == $.b == $.c", "expected an operator or the end"),
        ("length($.a) > 1", "expected a path"),
        ("$.a == 'open", "expected a path"),
        (r"$.a == '\x'", "not a valid string"),
        (r"$.a == '\ud800'", "not a valid string"),
        ("$.a == truest", "expected a path"),
        ("$.a == 01", "expected an operator"),
        ("(" * (DEPTH_MAX + 1) + "$.a" + ")" * (DEPTH_MAX + 1), "levels"),
        ("(" * 2000, "levels"),
        ("!$.a == 1", "parentheses"),
        ("!!$.a", "expected a path"),
        (r"$.a == '\"'", "needs no escape"),
        ("$.a \u00a0== 1", "expected an operator"),
        ("$.a" + " " * CONDITION_LENGTH_MAX, "characters"),
    ],
)
def test_anything_else_is_refused_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_condition(text)


def test_a_literal_is_a_string_in_quotes() -> None:
    assert parse_literal("'press 4'") == "press 4"
    assert parse_literal('"press 4"') == "press 4"
    assert parse_literal("$.a") is None
    assert parse_literal("press") is None
