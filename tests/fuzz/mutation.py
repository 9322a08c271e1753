"""Corrupts valid input: its structure, to test a parser's rules, and its bytes, to test a parser's assumptions."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, Final

_TEXTS: Final = (
    *(
        "null",
        "true",
        "false",
        "{}",
        "[]",
        '""',
        "-",
        "-0",
        "-0.0",
        "0e5",
        "01",
        "+1",
        "1.",
        "1_0",
        "NaN",
        "-Infinity",
    ),
    *("1e400", "-1e400", "1e-400", "5e-324", "1.7976931348623157e308", "0.1", "1e5", "1E-5", "9007199254740993"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809"),
    *("18446744073709551615", "18446744073709551616", "9" * 30, "9" * 400, "9" * 5000, "-" + "9" * 5000),
    *("0." + "0" * 3000 + "1", "1e-" + "9" * 3000, "1e" + "9" * 3000),
    *('"2019-04-01T05:26:20Z"', '"2019-04-01T05:26:20.123456789+02:00"', '"2019-02-30T05:26:20Z"', '"+5"'),
    *('"2019-04-01T05:26:60Z"', '"9999-12-31T23:59:59Z"', '"0001-01-01T00:00:00Z"', '"2019-04-01"', '"1e3"'),
    *('"2019-04-01T05:26:20.' + "0" * 5000 + 'Z"', '"1677-09-21T00:12:43Z"', '"2262-04-11T23:47:17Z"'),
    *(r'"\ud800"', r'"\udc00\ud800"', r'"\ud83d\ude00"', r'"\u0000"', r'"\u12"', r'"\x"', r'"a\\"', r'"\u000a"'),
    *('"a b"', '"a,b"', '"a=b"', '"#!~#"', '"a\\\\ b"', '"' + "n" * 256 + '"', '"' + "n" * 257 + '"'),
    *('"' + "é" * 256 + '"', '"' + r"\u0001" * 256 + '"', '"\ud800"', '"\n"', '"\x00"', '"\x7f"', '"', "'a'", "a"),
    *("[" * 50 + "]" * 50, "[" * 300 + "]" * 300, "[" * 3000, '{"a":' * 300 + "1" + "}" * 300, '{"a":1,"a":2}'),
    *("[1,2]", '{"left":1,"right":2}', '{"left":1e400,"right":null}', "[0.5]"),
)
_NO_TEXTS: Final = (b'"\xff"', b'"\xc0\x80"', b"\xef\xbb\xbf1", b"\x00")

ODD: Final = (*(text.encode("utf-8", "surrogatepass") for text in _TEXTS), *_NO_TEXTS)
"""Replacements for a JSON value."""

_BYTES: Final = (
    b"",
    b"\0",
    b"\xff",
    b'"',
    b"\\",
    b",",
    b":",
    b"{",
    b"}",
    b"[",
    b"]",
    b"0",
    b"9",
    b"e",
    b"-",
    b"\n",
    b"=",
)

_LARGE: Final = 200
"""One in this many cases is large."""


class Mutator:
    """Generates invalid input. All choices come from one random number generator, so that cases are repeatable."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    def json(self, value: Any) -> bytes:
        """Return a value as JSON with parts replaced, removed, repeated or renamed, sometimes with altered bytes."""
        text = self._render(value, 1.0 / (1 + _size(value)))
        return self.data(text) if self.draw.random() < 0.3 else text

    def data(self, good: bytes) -> bytes:
        """Return the data with a few bytes changed, inserted, removed or repeated."""
        draw, found = self.draw, bytearray(good)
        for _ in range(draw.choice((1, 1, 1, 2, 4))):
            begin = draw.randint(0, len(found))
            end = min(len(found), begin + draw.choice((0, 1, 1, 2, 8, 64)))
            match draw.randrange(5):
                case 0:
                    found[begin:end] = draw.choice(_BYTES)
                case 1:
                    found[begin:end] = draw.randbytes(end - begin)
                case 2:
                    del found[begin:]
                case 3:
                    found[begin:begin] = found[begin:end] * draw.choice((1, 2, 50))
                case _:
                    found[begin:end] = draw.choice(ODD)
        return bytes(found)

    def one_of(self, *values: Any) -> Any:
        """Return one of the values."""
        return self.draw.choice(values)

    def is_large(self) -> bool:
        """Decide at random whether this case is large."""
        return self.draw.randrange(_LARGE) == 0

    def _render(self, value: Any, chance: float) -> bytes:
        if self.draw.random() < chance:
            return self.draw.choice(ODD)
        if isinstance(value, dict):
            members = [(json.dumps(name).encode(), self._render(one, chance)) for name, one in value.items()]
            return b"{" + b",".join(name + b":" + text for name, text in self._shuffled(members, chance)) + b"}"
        if isinstance(value, list):
            return b"[" + b",".join(self._render(one, chance) for one in value) + b"]"
        return json.dumps(value).encode()

    def _shuffled(self, members: list[tuple[bytes, bytes]], chance: float) -> list[tuple[bytes, bytes]]:
        draw = self.draw
        if members and draw.random() < chance:
            at = draw.randrange(len(members))
            match draw.randrange(4):
                case 0:
                    del members[at]
                case 1:
                    members.append(members[at])
                case 2:
                    members[at] = (draw.choice(ODD), members[at][1])
                case _:
                    draw.shuffle(members)
        return members


def _size(value: Any) -> int:
    """Return the number of parts of a JSON value."""
    inner: Sequence[Any] = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_size, inner))
