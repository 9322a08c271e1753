"""The demo waits for exactly as many records and dead letters as the connector writes for the events file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.settings import EventSettings
from connector.formats.events import Parser
from demo.flow import parts_in

EVENTS = EventSettings(event_bytes_max=1024)
GOOD: dict[str, Any] = {"Thing": "R0815", "Timestamp": 1554096460415, "id": "e1", "speed": 288.2, "torque": 3, "c": 0}


def event(**changes: object) -> bytes:
    """Return the valid event with members replaced, or omitted if None is given."""
    return json.dumps({name: value for name, value in {**GOOD, **changes}.items() if value is not None}).encode()


def raw(member: str, text: str) -> bytes:
    """Return the valid event with the JSON text of one member replaced."""
    texts = {name: json.dumps(value) for name, value in GOOD.items()} | {member: text}
    return ("{" + ",".join(f'"{name}":{value}' for name, value in texts.items()) + "}").encode()


ROWS = [
    pytest.param(event(), 3, id="good"),
    pytest.param(event(Timestamp="2019-04-01T05:27:40.415Z"), 3, id="time as text"),
    pytest.param(raw("Timestamp", "1554096460415.5"), 3, id="time a decimal"),
    pytest.param(event() + b"\r", 3, id="Windows line ending"),
    pytest.param(event(Thing=None), 1, id="no Thing"),
    pytest.param(event(Timestamp=None), 1, id="no Timestamp"),
    pytest.param(event(id=None), 1, id="no id"),
    pytest.param(event(speed=None, torque=None, c=None), 1, id="no quantity"),
    pytest.param(event(Thing=815), 1, id="Thing a number"),
    pytest.param(event(id=7), 1, id="id a number"),
    pytest.param(event(Thing=""), 1, id="Thing empty"),
    pytest.param(event(id="x" * 257), 1, id="id too long"),
    pytest.param(event(Timestamp="soon"), 1, id="time a word"),
    pytest.param(event(Timestamp=True), 1, id="time a boolean"),
    pytest.param(event(Timestamp=10**18), 1, id="time out of range"),
    pytest.param(raw("speed", "NaN"), 1, id="NaN"),
    pytest.param(raw("speed", "-Infinity"), 1, id="Infinity"),
    pytest.param(raw("speed", '1,"speed":2'), 1, id="a quantity twice"),
    pytest.param(raw("speed", "1e400"), 3, id="beyond float64, among valid ones"),
    pytest.param(event(speed="288.2"), 3, id="a string, among valid ones"),
    pytest.param(raw("speed", "null"), 3, id="null, among valid ones"),
    pytest.param(event(speed=[1], torque={"a": 1}, c=False), 3, id="no valid one"),
    pytest.param(event(**{"": 1}), 4, id="a quantity without a name"),
    pytest.param(event(**{"n" * 257: 1}), 4, id="a name too long"),
    pytest.param(event()[:-9], 1, id="truncated"),
    pytest.param(b"", 1, id="blank"),
    pytest.param(b"  \t", 1, id="white space"),
    pytest.param(b"null", 1, id="null alone"),
    pytest.param(b"[" + event() + b"]", 1, id="array"),
    pytest.param(event() + event(), 1, id="two events"),
    pytest.param(b"\xff\xfe\x00", 1, id="binary"),
    pytest.param(b'{"a":' + b"[" * 500 + b"]" * 500 + b"}", 1, id="deep"),
    pytest.param(event() + b" " * (1024 - len(event())), 3, id="as long as allowed"),
    pytest.param(event() + b" " * (1025 - len(event())), 1, id="a byte longer than allowed"),
]


def made_by_the_connector(payload: bytes) -> int:
    parsed = Parser(EVENTS.time_unit, EVENTS.event_bytes_max).parse(payload)
    return len(parsed.records) + len(parsed.refusals)


@pytest.mark.parametrize(("row", "parts"), ROWS)
def test_a_line_counts_as_the_connector_counts_it(row: bytes, parts: int, tmp_path: Path) -> None:
    file = tmp_path / "events.json"
    file.write_bytes(row + b"\n")
    assert made_by_the_connector(row) == parts
    assert parts_in(file, EVENTS) == (1, parts)


@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n\n"])
def test_a_file_counts_as_the_sum_of_its_lines_blank_ones_too(end: bytes, tmp_path: Path) -> None:
    rows = [row for parameters in ROWS for row in parameters.values[:1] if isinstance(row, bytes)]
    file = tmp_path / "events.json"
    file.write_bytes(b"\n".join(rows) + end)
    rows += [b""] * max(0, len(end) - 1)
    assert parts_in(file, EVENTS) == (len(rows), sum(map(made_by_the_connector, rows)))
