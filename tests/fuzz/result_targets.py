"""Fuzz targets for results in JSON: pairs and aligned rows, as the database connector reads them, and as input.

Start records are among them.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from broker.wire.records import decode_joined
from broker.wire.start_records import encode_start, read_start
from db_connector.sinks.points import LINE_BYTES_MAX, point_line
from db_connector.sinks.sink import UnrepresentableError
from joiner.runtime.task.decoding.messages import Messages
from joiner.runtime.task.unit import Unit
from tests.fuzz.mutation import Mutator
from tests.unit.joiner.runtime.joiner_inputs import BASE_MS, DATA, make_settings

JOINED: Final = {
    "thing": "a",
    "quantity": "power",
    "phenomenonTime": BASE_MS,
    "result": 2.5,
    "id": "power:0:1:2",
    "tie": "1.2",
    "left": {"quantity": "speed", "phenomenonTime": BASE_MS, "result": 1.0, "id": "e1"},
    "right": {"quantity": "torque", "phenomenonTime": BASE_MS, "result": 2.5, "id": "e2"},
}
ROW: Final = {
    "thing": "a",
    "quantity": "spindle",
    "phenomenonTime": BASE_MS,
    "result": 2.5,
    "id": "spindle:0:1",
    "values": {"speed": 1.0, "mode": None},
    "tie": "1",
}
_AGAIN: Final = make_settings(align=[{"name": "again", "driver": "spindle", "columns": {"power": {"rule": "linear"}}}])
"""The settings of an application that reads the results of another one."""


def joined(mutator: Mutator) -> bytes:
    """Return a pair, mostly with invalid parts."""
    result = mutator.one_of(2.5, 1, {"left": 1.0, "right": 2})
    return mutator.json({**JOINED, "result": result, "phenomenonTime": mutator.one_of(BASE_MS, 0.5, "2019-04-01")})


def aligned_row(mutator: Mutator) -> bytes:
    """Return an aligned row, mostly with invalid parts. Names of columns are hostile to the format of points."""
    count = mutator.one_of(50, 5_000) if mutator.is_large() else mutator.one_of(0, 1, 2, 5)
    name = mutator.one_of("c", "c", "result", "time", "a b", "a,b=c", 'a"b', "a\\", "\n", "é", "", "left")
    values: dict[str, Any] = {
        f"{name}{number or ''}": mutator.one_of(1.0, None, 7, -0.0, 1e308) for number in range(count)
    }
    row = {**ROW, "values": mutator.one_of(values, values, values, ROW["values"], [], None, {"c": {}}, {"c": "1"})}
    return mutator.json(row) if mutator.draw.random() < 0.6 else msgspec.json.encode(row)


def assert_clear(error: Exception) -> None:
    """Check that the error has a message."""
    assert str(error)


def make_point(value: bytes) -> str:
    """Make the line of a point, like `db_connector.kafka.results`, or a dead letter."""
    try:
        line = point_line(decode_joined(value), "joined", "ms")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, UnrepresentableError) as error:
        assert_clear(error)
        return "dead letter"
    assert b"\n" not in line
    assert len(line) <= LINE_BYTES_MAX
    return "point"


def read_row(value: bytes) -> str:
    """Make the point of a row, and check that another application joins the row, passes it over or rejects it."""
    unit = Unit(_AGAIN, 0, {DATA: 0})
    unit.apply({DATA: Messages.of([0], [BASE_MS + 1], [value])}, {DATA: 1})
    assert Unit.restore(_AGAIN, 0, unit.snapshot()).counts == unit.counts
    return make_point(value)


def starts(mutator: Mutator) -> bytes:
    """Return a start record, mostly with invalid parts."""
    count = 5_000 if mutator.is_large() else mutator.one_of(1, 1, 2, 5)
    vector = {f"machine.{number}": mutator.one_of(0, 5, 2**63 - 1) for number in range(count)}
    return mutator.json({"start": vector}) if mutator.draw.random() < 0.7 else encode_start(vector)


def read_starts(value: bytes) -> str:
    """Check that a start record is read as it is written, and that an application does not select it as input."""
    unit, vector = Unit(_AGAIN, 0, {DATA: 0}), read_start(value)
    effects = unit.apply({DATA: Messages.of([0], [BASE_MS + 1], [value])}, {DATA: 1})
    if vector is None:
        return "something else"
    assert read_start(encode_start(vector)) == vector
    assert unit.counts["not_selected"] == 1
    assert not effects.rejected
    return "start record"
