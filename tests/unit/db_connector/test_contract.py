"""The contract between the connector and its database, and an in-memory stand-in that passes the same tests.

`DatabaseContract` runs here against `FakeInflux`, and in tests/integration against the real server. The stand-in parses
line protocol as InfluxDB does: a backslash escapes the next character.
"""

# ruff: noqa: D101 - the names of tests, and of the parts of a stand-in, are descriptive enough

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec
import pytest

from broker.times import mean_text
from broker.wire.records import Joined, Side
from db_connector.sinks.points import point_line
from db_connector.sinks.sink import MisconfiguredError, Place, RefusedError, Result, Sink, WriteError

Fields = dict[str, float | str]
NASTY_NAMES = [
    "plain", "two words", " leading", "trailing ", "a,b", "a=b", 'a"b', '"', "a\\b", "C:\\temp\\x", "a\\,b",
    "a\\=b", "a\\\\ b", "=", ",", "a\tb", "a\rb", "\x00", "#a", "a#!", "é😀", "\u2028", "a\\nb",
    "a'b", "  ", 'a\\"b',
]  # fmt: skip


class Point(NamedTuple):
    """The identity of a point."""

    measurement: str
    tags: frozenset[tuple[str, str]]
    time_ns: int


class Stand(Protocol):
    """A database under test, with one short-lived bucket and one that does not exist. Its points can be read back."""

    database: Sink
    short_lived: Sink
    """A bucket that keeps points for an hour."""
    missing: Sink
    """A bucket that does not exist."""
    measurement: str
    """A measurement that no other test uses."""

    def points(self) -> dict[Point, Fields]: ...


def joined(
    thing: str = "R0815",
    quantity: str = "power",
    twice_ns: int = 2_000_000,
    result: float | dict[str, float] = 1.5,
    identity: str = "power:0:1:2",
    tie: str = "",
) -> Joined:
    """Return a pair whose mean time is half of ``twice_ns``, in ms."""
    mean = msgspec.Raw(mean_text(twice_ns // 2, twice_ns - twice_ns // 2, "ms").encode())
    side = Side(quantity, 1, 1.0, "e")
    return Joined(thing, quantity, mean, result, identity, side, side, tie)


def expected(pair: Joined, measurement: str, twice_ns: int) -> tuple[Point, Fields]:
    """Return the point and the fields expected for ``pair``."""
    tags = {("thing", pair.thing), ("quantity", pair.quantity), ("join", pair.id.partition(":")[0])}
    tags |= {("half", "1")} if twice_ns % 2 else set()
    tags |= {("tie", pair.tie)} if pair.tie else set()
    values = pair.result if isinstance(pair.result, dict) else {"result": pair.result}
    return Point(measurement, frozenset(tags), twice_ns // 2), dict(values)


class DatabaseContract:
    """The guarantees that the writer relies on."""

    def test_a_field_of_another_type_is_refused_by_name(self, stand: Stand) -> None:
        stand.database.write([f'{stand.measurement},thing=x result="text" 1'.encode()])
        with pytest.raises(RefusedError, match="field type conflict") as refused:
            stand.database.write([point_line(joined(), stand.measurement, "ms")])
        assert refused.value.refuses_all
        assert list(stand.points().values()) == [{"result": "text"}]

    def test_it_is_told_whether_all_points_were_refused(self, stand: Stand) -> None:
        stand.database.write([f'{stand.measurement},thing=x result="text" 1'.encode()])
        lines = [point_line(joined(twice_ns=2_000_000 * n), stand.measurement, "ms") for n in range(5)]
        with pytest.raises(RefusedError) as refused:
            stand.database.write(lines)
        assert refused.value.refuses_all
        with pytest.raises(RefusedError) as partly:
            stand.database.write([lines[0], f"{stand.measurement},thing=y left=1.0 1".encode()])
        assert not partly.value.refuses_all

    def test_a_line_that_cannot_be_parsed_is_refused(self, stand: Stand) -> None:
        with pytest.raises(RefusedError, match="unable to parse"):
            stand.database.write([f"{stand.measurement},thing= result=1 1".encode()])
        assert stand.points() == {}

    def test_a_point_older_than_the_retention_is_refused(self, stand: Stand) -> None:
        with pytest.raises(RefusedError, match="points beyond retention policy"):
            stand.short_lived.write([point_line(joined(), stand.measurement, "ms")])

    def test_a_database_that_does_not_exist_is_an_operators_fault(self, stand: Stand) -> None:
        with pytest.raises(MisconfiguredError, match="create the database"):
            stand.missing.write([point_line(joined(), stand.measurement, "ms")])


class FakeInflux:
    """An in-memory InfluxDB with parsing, field types, retention, partial writes and scripted failures."""

    name = "InfluxDB"
    place = "the memory"
    target = "joined in memory"

    def __init__(self, oldest_ns: int | None = None) -> None:
        self.stored: dict[Point, Fields] = {}
        self.types: dict[tuple[str, str], type] = {}
        self.oldest_ns = oldest_ns
        self.failures: list[WriteError] = []
        """The errors that the next writes raise, one per write."""
        self.refuses: Callable[[Point], str] = lambda _point: ""
        """Returns the reason to refuse a point, or an empty string."""
        self.requests: list[int] = []
        """The number of lines in each parsed request."""

    def begin(self, topic_id: str) -> None: ...

    def encode(self, result: Result, _place: Place) -> bytes:
        return point_line(result, "joined", "ms")

    def probe(self) -> None:
        self.write([])

    def close(self) -> None: ...

    def write(self, given: Sequence[bytes]) -> None:
        if self.failures:
            raise self.failures.pop(0)
        lines = split_lines(b"\n".join(given).decode())
        self.requests.append(len(lines))
        reasons: list[str] = []
        unparsed: list[str] = []
        for line in lines:
            try:
                point, fields = parse_line(line)
            except ValueError as error:
                unparsed.append(f"unable to parse '{line}': {error}")
                continue
            reason = self._reason(point, fields)
            if reason:
                reasons.append(reason)
            else:
                self.stored.setdefault(point, {}).update(fields)
                self.types.update({(point.measurement, name): type(value) for name, value in fields.items()})
        if reasons:
            is_shared = any(text in reasons[0] for text in ("field type conflict", "points beyond retention policy"))
            refuses_all = is_shared and len(reasons) == len(lines)
            raise RefusedError(f"partial write: {reasons[0]} dropped={len(reasons)}", refuses_all=refuses_all)
        if unparsed:
            raise RefusedError("\n".join(unparsed))

    def _reason(self, point: Point, fields: Fields) -> str:
        if self.oldest_ns is not None and point.time_ns < self.oldest_ns:
            return "points beyond retention policy"
        for name, value in fields.items():
            if self.types.get((point.measurement, name), type(value)) is not type(value):
                return f'field type conflict: input field "{name}" on measurement "{point.measurement}"'
        return self.refuses(point)


def split_lines(body: str) -> list[str]:
    """Split a body into lines. A newline inside a quoted field does not end a line."""
    lines, start, at = [], 0, 0
    in_fields = quoted = False
    while at < len(body):
        character = body[at]
        if character == "\\":
            at += 2
            continue
        in_fields = in_fields or character == " "
        if in_fields and character == '"':
            quoted = not quoted
        if character == "\n" and not quoted:
            lines.append(body[start:at])
            start, in_fields = at + 1, False
        at += 1
    return [line for line in [*lines, body[start:]] if line]


def parse_line(line: str) -> tuple[Point, Fields]:
    """Parse a line of line protocol as InfluxDB does. Raise ValueError if it is invalid."""
    key_end = _unescaped(line, " ", 0)
    measurement, *tags = _split(line[:key_end], ",")
    pairs = []
    for tag in tags:
        parts = _split(tag, "=")
        if len(parts) != 2 or not all(parts):
            raise ValueError("missing tag value" if len(parts) == 2 else "invalid tag format")
        pairs.append((_plain(parts[0]), _plain(parts[1])))
    if pairs != sorted(set(pairs)):
        raise ValueError("tags are not in order")
    fields, at = _fields(line, key_end + 1)
    return Point(_plain(measurement), frozenset(pairs), int(line[at:])), fields


def _fields(line: str, at: int) -> tuple[Fields, int]:
    fields: Fields = {}
    while True:
        equals = _unescaped(line, "=", at)
        name, at = _plain(line[at:equals]), equals + 1
        if line[at] == '"':
            text, at = _quoted(line, at + 1)
            fields[name] = text
        else:
            end = at + next(i for i, c in enumerate(line[at:]) if c in ", ")
            number = float(line[at:end])
            if not math.isfinite(number) or not any(c in line[at:end] for c in ".e"):
                raise ValueError("invalid float")
            fields[name], at = number, end
        if line[at] == " ":
            return fields, at + 1
        at += 1


def _quoted(line: str, at: int) -> tuple[str, int]:
    text = ""
    while line[at] != '"':
        if line[at] == "\\" and line[at + 1] in '"\\':
            at += 1
        text += line[at]
        at += 1
    return text, at + 1


def _unescaped(text: str, what: str, start: int) -> int:
    at = text.index(what, start)
    while at and text[at - 1] == "\\":
        at = text.index(what, at + 1)
    return at


def _split(text: str, separator: str) -> list[str]:
    parts, start = [], 0
    for at, character in enumerate(text):
        if character == separator and not (at and text[at - 1] == "\\"):
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def _plain(text: str) -> str:
    return text.replace("\\,", ",").replace("\\ ", " ").replace("\\=", "=")


class FakeStand:
    def __init__(self) -> None:
        self.database: Sink
        self.database = self._fake = FakeInflux()
        self.short_lived: Sink = FakeInflux(oldest_ns=10**18)
        missing = FakeInflux()
        missing.failures = [MisconfiguredError("HTTP 404: database not found; create the database")]
        self.missing: Sink = missing
        self.measurement = "joined"

    def points(self) -> dict[Point, Fields]:
        return self._fake.stored


@pytest.fixture
def stand() -> FakeStand:
    return FakeStand()


class TestTheStandIn(DatabaseContract):
    """The stand-in passes the contract tests."""
