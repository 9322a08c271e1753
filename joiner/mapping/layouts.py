"""Finds the scalars of many JSON messages at once.

Messages that one program writes usually differ only in their scalars. A *layout* is everything else: the bytes between
the scalars, and whether each scalar is a string, a number or a word (``true``, ``false``, ``null``). It is learnt from
one message. Messages with the same layout are then recognised by compiled code, which compares the bytes between the
scalars and checks each scalar. Strings must be printable ASCII without escapes. A message that no layout matches is not
necessarily invalid: it is decoded by `reading`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
from numba import types

from broker.wire.columns import StringColumn
from broker.wire.compiled import BYTES, COLUMNS_OUT, INTS, compare_bytes, compiled
from joiner.mapping.documents import EXPONENT_LENGTH_MAX, NUMBER_LENGTH_MAX

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Ints = NDArray[np.int64]

STRING, NUMBER, WORD, LONG, FLOAT, DOUBLE, ENUM, OTHER = range(8)
"""The kinds of scalars: strings, and JSON numbers and words; and those of Avro and Protobuf."""

SCALARS_MAX: Final = 500
"""The maximum number of scalars, arrays and objects in a layout."""

LEARNT_BYTES_MAX: Final = 16 * 1024
"""The maximum size of a message from which a layout is learnt."""

_BLANKS: Final = re.compile(rb"[ \t\n\r]*")
_PLAIN: Final = re.compile(rb'"[ !#-\[\]-~]*"')
_TEXT: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NUMBER: Final = re.compile(rb"-?[0-9.eE+-]+")
_WORD: Final = re.compile(rb"true|false|null")
_strings: Final = msgspec.json.Decoder(str)

_QUOTE, _BACKSLASH, _SPACE, _DELETE = b'"\\ \x7f'
_ZERO, _NINE, _PLUS, _MINUS, _POINT, _EXPONENT, _EXPONENT_TOO = b"09+-.eE"
_TRUE, _FALSE, _NULL = (np.frombuffer(word, dtype=np.uint8) for word in (b"true", b"false", b"null"))
_MISSING: Final = -1
_NUMBER_LENGTH_MAX, _EXPONENT_LENGTH_MAX = NUMBER_LENGTH_MAX, EXPONENT_LENGTH_MAX


class Scalar(NamedTuple):
    """A place for a scalar in a layout. ``number``: its index among the layout's scalars."""

    number: int
    kind: int


class Opaque:
    """The type of `OPAQUE`."""


OPAQUE: Final = Opaque()
"""What is in a skeleton in the place of a value whose parts are not known: an array, a map, or what no path wants."""


class Found(NamedTuple):
    """What a program has found in n data. ``is_read``: which data were understood; the rest concerns these alone.

    A program reads data of one schema (see `joiner.mapping.avro.program` and `joiner.mapping.protobuf.program`).
    ``spans``: where each wanted scalar begins and ends, shape (2 * scalars, n). ``branches``: the branch of each part
    whose branch matters, shape (parts, n): which branch of a union it is, or whether it is there.
    """

    is_read: NDArray[np.bool_]
    spans: Ints
    branches: Ints


class Layout(NamedTuple):
    """A layout with n scalars.

    ``skeleton``: the decoded document with a `Scalar` in the place of each scalar. ``text``: the bytes between the
    scalars, n + 1 pieces; piece i ends at ``text_end[i]``. ``kinds``: the kind of each scalar.
    """

    skeleton: Any
    text: Bytes
    text_end: Ints
    kinds: Ints

    def match(self, values: StringColumn, rows: Ints) -> tuple[NDArray[np.bool_], Ints]:
        """Return which of the given rows have this layout, and where their scalars are.

        The second array has shape (2 * n, len(rows)): where each scalar begins and ends in ``values.data``, in rows
        that match. A string's quotes do not belong to it.
        """
        spans = np.zeros((2 * len(self.kinds) + 1, len(rows)), dtype=np.int64)
        start, end = values.start.take(rows), values.end.take(rows)
        _match(values.data, start, end, self.text, self.text_end, self.kinds, spans)
        return spans[-1] != 0, spans[:-1]


def learn_layout(value: bytes) -> Layout | None:
    """Return the layout of a valid JSON message, or None if it is unsuitable.

    It is if it is too large, if an object has a name twice, or if a string is not plain (see above).
    """
    if len(value) > LEARNT_BYTES_MAX:
        return None
    learner = _Learner(value)
    try:
        skeleton = learner.learn()
    except _UnsuitableError:
        return None
    edges = [0, *(edge for span in learner.spans for edge in span), len(value)]
    pieces = [value[begin:end] for begin, end in zip(edges[::2], edges[1::2], strict=True)]
    text_end = np.array([len(piece) for piece in pieces], dtype=np.int64).cumsum()
    return Layout(
        skeleton,
        np.frombuffer(b"".join(pieces), dtype=np.uint8),
        text_end,
        np.array(learner.kinds, dtype=np.int64),
    )


class _UnsuitableError(Exception):
    """The message has no layout."""


class _Learner:
    """Walks through a valid message. Its nesting is limited (see `reading.DEPTH_MAX`)."""

    def __init__(self, value: bytes) -> None:
        self._value, self._at = value, 0
        self.spans: list[tuple[int, int]] = []
        self.kinds: list[int] = []
        self._count = 0

    def learn(self) -> Any:
        """Return the skeleton of the value at the current position."""
        self._count += 1
        if self._count > SCALARS_MAX:
            raise _UnsuitableError
        first = self._next()
        if first == b"{":
            return self._members()
        if first == b"[":
            return self._elements()
        if first == b'"':
            return self._scalar(STRING, _PLAIN)
        return self._scalar(WORD, _WORD) if first in b"tfn" else self._scalar(NUMBER, _NUMBER)

    def _members(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self._at += 1
        while self._next() != b"}":
            self._skip(b",")
            self._next()
            name: str = _strings.decode(self._take(_TEXT))
            if name in found:
                raise _UnsuitableError
            self._skip(b":")
            found[name] = self.learn()
        self._at += 1
        return found

    def _elements(self) -> list[Any]:
        found: list[Any] = []
        self._at += 1
        while self._next() != b"]":
            self._skip(b",")
            found.append(self.learn())
        self._at += 1
        return found

    def _scalar(self, kind: int, pattern: re.Pattern[bytes]) -> Scalar:
        begin = self._at
        self._take(pattern)
        inside = 1 if kind == STRING else 0
        self.spans.append((begin + inside, self._at - inside))
        self.kinds.append(kind)
        return Scalar(len(self.kinds) - 1, kind)

    def _next(self) -> bytes:
        """Skip blanks. Return the byte that follows."""
        match = _BLANKS.match(self._value, self._at)
        self._at = self._at if match is None else match.end()
        return self._value[self._at : self._at + 1]

    def _skip(self, symbol: bytes) -> None:
        if self._next() == symbol:
            self._at += 1

    def _take(self, pattern: re.Pattern[bytes]) -> bytes:
        match = pattern.match(self._value, self._at)
        if match is None:  # not valid JSON
            raise _UnsuitableError
        self._at = match.end()
        return match[0]


@compiled()
def _digits_end(data: Bytes, at: int, stop: int) -> int:
    """Return the position after the digits at ``at``, or `_MISSING` if there is none."""
    begin = at
    while at < stop and _ZERO <= data[at] <= _NINE:
        at += 1
    return at if at > begin else _MISSING


@compiled()
def _number_end(data: Bytes, at: int, stop: int) -> int:
    """Return the position after the JSON number at ``at``, or `_MISSING` if there is none."""
    if at < stop and data[at] == _MINUS:
        at += 1
    if at < stop and data[at] == _ZERO:
        at += 1
    else:
        at = _digits_end(data, at, stop)
    if at != _MISSING and at < stop and data[at] == _POINT:
        at = _digits_end(data, at + 1, stop)
    if at != _MISSING and at < stop and (data[at] == _EXPONENT or data[at] == _EXPONENT_TOO):
        at += 1
        if at < stop and (data[at] == _PLUS or data[at] == _MINUS):
            at += 1
        first = at
        at = _digits_end(data, at, stop)
        if at - first > _EXPONENT_LENGTH_MAX:
            at = _MISSING
    return at


@compiled()
def _word_end(data: Bytes, at: int, stop: int) -> int:
    """Return the position after ``true``, ``false`` or ``null`` at ``at``, or `_MISSING` if there is none of them."""
    for word in (_TRUE, _FALSE, _NULL):
        if len(word) <= stop - at:
            same = True
            for byte in range(len(word)):
                same = same and data[at + byte] == word[byte]
            if same:
                return at + len(word)
    return _MISSING


@compiled(types.void, BYTES, INTS, INTS, BYTES, INTS, INTS, COLUMNS_OUT)
def _match(data: Bytes, start: Ints, end: Ints, text: Bytes, text_end: Ints, kinds: Ints, spans: Ints) -> None:
    """Store in ``spans`` where the scalars of each row begin and end, and in its last row whether the row matches."""
    address, text_address = data.ctypes.data, text.ctypes.data
    for row in range(len(start)):
        at, stop, known, matches = start[row], end[row], 0, True
        for place in range(len(text_end)):
            length = text_end[place] - known
            if length > stop - at or compare_bytes(address + at, text_address + known, length) != 0:
                matches = False
                break
            at, known = at + length, text_end[place]
            if place == len(kinds):
                matches = at == stop
                break
            begin, kind = at, kinds[place]
            if kind == NUMBER:
                at = _number_end(data, at, min(stop, at + _NUMBER_LENGTH_MAX))
            elif kind == WORD:
                at = _word_end(data, at, stop)
            else:
                while at < stop and _SPACE <= data[at] < _DELETE and data[at] != _QUOTE and data[at] != _BACKSLASH:
                    at += 1
            if at == _MISSING:
                matches = False
                break
            spans[2 * place, row], spans[2 * place + 1, row] = begin, at
        spans[len(spans) - 1, row] = matches
