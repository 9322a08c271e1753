"""Which value of a document does a path select?"""

from __future__ import annotations

from typing import Any

import pytest

from joiner.mapping.paths import MISSING, SEGMENTS_MAX, parse_path

DOCUMENT: dict[str, Any] = {"a": {"b c": [1, 2, {"é": 3}], "": 4, "it's": 5, '"': 6}, "n": None, "s": "text"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("$", DOCUMENT),
        ("$.a['b c'][0]", 1),
        ("$.a['b c'][-2]", 2),
        ('$["a"]["b c"][2].é', 3),
        ("$.a['']", 4),
        (r"$.a['it\'s']", 5),
        (r'$.a["\""]', 6),
        ("$[ 'n' ]", None),
        ("$ .a ['b c'] [0]", 1),
        (r"$.a['b c'][2]['\u00e9']", 3),
        ("$.s", "text"),
        ("$.s.t", MISSING),
        ("$.s[0]", MISSING),
        ("$.a[0]", MISSING),
        ("$.a['b c'][3]", MISSING),
        ("$.a['b c'][-4]", MISSING),
        ("$.x", MISSING),
        ("$.n.x", MISSING),
    ],
)
def test_a_path_selects_one_value_or_none(path: str, value: object) -> None:
    assert parse_path(path).find(DOCUMENT) is value or parse_path(path).find(DOCUMENT) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "starts with \\$"),
        ("a.b", "starts with \\$"),
        ("$.", "at '\\.'"),
        ("$..a", "at '\\.\\.a'"),
        ("$. a", "at '\\. a'"),
        ("$" + ".a" * 1000, "2001 characters"),
        ("$.*", "at '\\.\\*'"),
        ("$.a-b", "at '-b'"),
        ("$[a]", "at '\\[a\\]'"),
        ("$[01]", "at"),
        ("$['\n']", "not a valid string"),
        (r"$['\"']", "needs no escape"),
        ("$[-0]", "at"),
        ("$['a'", "at"),
        ("$[?(@.a)]", "at"),
        ("$[0:1]", "at"),
        ("$[9999999999999999]", "too large"),
        ("$" + ".a" * (SEGMENTS_MAX + 1), f"more than {SEGMENTS_MAX}"),
    ],
)
def test_anything_else_is_refused_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_path(text)
