"""Evaluates conditions on a JSON document: the logical expressions of JSONPath's filter selectors (RFC 9535, 2.3.5).

A condition compares paths (see `paths`) and literals with ``==``, ``!=``, ``<``, ``<=``, ``>`` and ``>=``, or tests
whether a path selects a value (``$.a``). ``!``, ``&&``, ``||`` and parentheses combine conditions. Function extensions
are not supported.

A condition is total: it is true or false for every document. Values of different types are unequal, and none of them
is less than the other. A path that selects nothing equals only another one that selects nothing.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, NamedTuple, NoReturn

from joiner.mapping.paths import BLANKS, MISSING, STRING, Path, read_path, string_value

CONDITION_LENGTH_MAX: Final = 2000
"""The maximum length of a condition in characters."""

DEPTH_MAX: Final = 32
"""How deeply parentheses can be nested."""

_Test = Callable[[Any], bool]
_Operand = Callable[[Any], Any]


class Condition(NamedTuple):
    """A parsed condition. ``paths``: the paths in it, on whose values alone it depends."""

    holds: _Test
    """Takes a decoded JSON document, in which numbers are of type int or Decimal."""
    paths: tuple[Path, ...]


_COMPARISON: Final = re.compile(r"==|!=|<=|>=|<|>")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,30})(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,3})?")
_WORD: Final = re.compile(r"(true|false|null)\b")
_WORDS: Final = {"true": True, "false": False, "null": None}


def parse_condition(text: str) -> Condition:
    """Parse a condition. Raises ValueError, which names the position, if it is not one."""
    if len(text) > CONDITION_LENGTH_MAX:
        message = f"the condition has {len(text)} characters, more than {CONDITION_LENGTH_MAX}"
        raise ValueError(message)
    parser = _Parser(text)
    test = parser.alternatives()
    parser.end()
    return Condition(test, tuple(parser.paths))


def parse_literal(text: str) -> str | None:
    """Return the value of a string literal such as ``'press 4'``, or None if ``text`` is not one.

    Raises ValueError if its escapes are invalid.
    """
    match = STRING.fullmatch(text)
    return None if match is None else string_value(match)


class _Parser:
    """A recursive-descent parser. Each method parses what its name says, from the current position."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self.paths: list[Path] = []

    def alternatives(self) -> _Test:
        """Parse conditions that are combined by ``||``."""
        parts = [self._conjunction()]
        while self._take("||"):
            parts.append(self._conjunction())
        return parts[0] if len(parts) == 1 else lambda document: any(part(document) for part in parts)

    def end(self) -> None:
        """Check that nothing follows."""
        self._skip_blanks()
        if self._at < len(self._text):
            self._fail("expected an operator or the end")

    def _conjunction(self) -> _Test:
        parts = [self._basic()]
        while self._take("&&"):
            parts.append(self._basic())
        return parts[0] if len(parts) == 1 else lambda document: all(part(document) for part in parts)

    def _basic(self) -> _Test:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._fail(f"more than {DEPTH_MAX} levels of parentheses")
        try:
            return self._negation_or_test()
        finally:
            self._depth -= 1

    def _negation_or_test(self) -> _Test:
        is_negated = self._take("!")
        if self._take("("):
            inner = self.alternatives()
            if not self._take(")"):
                self._fail("expected )")
            return (lambda document: not inner(document)) if is_negated else inner
        left, is_path = self._operand()
        self._skip_blanks()
        match = _COMPARISON.match(self._text, self._at)
        if match is not None:
            if is_negated:
                self._fail("put the comparison that ! negates into parentheses")
            self._at = match.end()
            right, _ = self._operand()
            compare = _COMPARE[match[0]]
            return lambda document: compare(left(document), right(document))
        if not is_path:
            self._fail("expected a comparison, because a literal is not a condition")
        return lambda document: (left(document) is MISSING) == is_negated

    def _operand(self) -> tuple[_Operand, bool]:
        """Parse a path or a literal. Return what evaluates it, and whether it is a path."""
        self._skip_blanks()
        if self._text.startswith("$", self._at):
            path, self._at = read_path(self._text, self._at)
            self.paths.append(path)
            return path.find, True
        literal: Any
        if (match := STRING.match(self._text, self._at)) is not None:
            literal = string_value(match)
        elif (match := _NUMBER.match(self._text, self._at)) is not None:
            literal = Decimal(match[0])
        elif (match := _WORD.match(self._text, self._at)) is not None:
            literal = _WORDS[match[0]]
        else:
            self._fail("expected a path such as $.type, a string in quotes, a number, true, false or null")
        self._at = match.end()
        return lambda _: literal, False

    def _take(self, symbol: str) -> bool:
        self._skip_blanks()
        # `!=` is no negation.
        if not self._text.startswith(symbol, self._at) or (symbol == "!" and self._text.startswith("!=", self._at)):
            return False
        self._at += len(symbol)
        return True

    def _skip_blanks(self) -> None:
        match = BLANKS.match(self._text, self._at)
        if match is not None:
            self._at = match.end()

    def _fail(self, expected: str) -> NoReturn:
        rest = self._text[self._at :]
        where = f"at {rest[:40]!r}" if rest else "at the end"
        message = f"{self._text!r} is not a condition {where}: {expected}"
        raise ValueError(message)


def _kind(value: Any) -> type | None:
    """Return the JSON type that a value has for comparisons; None for ``null``, arrays, objects and missing values."""
    if isinstance(value, bool):
        return bool
    if isinstance(value, int | Decimal):
        return int
    return str if isinstance(value, str) else None


def _is_equal(left: Any, right: Any) -> bool:
    kind = _kind(left)
    if kind is not _kind(right):
        return False
    if kind is not None:
        return bool(left == right)
    if left is MISSING or right is MISSING or left is None or right is None:
        return left is right
    # Binary data and numbers that are not finite, in other formats than JSON, are of none of these types.
    are_parts = isinstance(left, list | dict)
    return type(left) is type(right) and (_are_equal(left, right) if are_parts else bool(left == right))


def _are_equal(left: Any, right: Any) -> bool:
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_is_equal, left, right))
    return left.keys() == right.keys() and all(_is_equal(left[name], right[name]) for name in left)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def both(left: Any, right: Any) -> bool:
        return _kind(left) in {int, str} and _kind(left) is _kind(right) and compare(left, right)

    return both


def _or_equal(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    ordered = _ordered(compare)
    return lambda left, right: ordered(left, right) or _is_equal(left, right)


_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "==": _is_equal,
    "!=": lambda left, right: not _is_equal(left, right),
    "<": _ordered(operator.lt),
    ">": _ordered(operator.gt),
    "<=": _or_equal(operator.lt),
    ">=": _or_equal(operator.gt),
}
