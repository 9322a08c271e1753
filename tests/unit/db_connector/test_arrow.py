"""Do many results in one message, as Arrow, become the points that they would become as JSON?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from broker.times import mean_text
from broker.wire.arrow.results import ResultColumns, decode_results, encode_results
from broker.wire.records import Joined, Side, encode
from db_connector.kafka.results import ResultRow, Results
from db_connector.sinks.points import point_line

LEFT_NS = [1_554_096_460_000_000_000, -5, 7, 1_554_096_460_000_000_001]
RIGHT_NS = [1_554_096_460_000_000_001, -4, 7, 1_554_096_460_000_000_001]
TIES = [(0, 0), (0, 0), (2, 1), (0, 3)]


def message(value: bytes) -> Any:
    return SimpleNamespace(
        value=lambda: value, key=lambda: None, topic=lambda: "machine.out", partition=lambda: 3, offset=lambda: 7
    )


def arrow(things: list[str], values: list[Any], *, has_rows: bool = True) -> bytes:
    count = len(values)
    seq = np.arange(count, dtype=np.int64) + ((9 << 16) if has_rows else 9)
    times = (np.array(column[:count], dtype=np.int64) for column in (LEFT_NS, RIGHT_NS))
    ties = (np.array([tie[side] for tie in TIES[:count]], dtype=np.int64) for side in (0, 1))
    columns = ResultColumns(np.arange(count, dtype=np.int64) % len(things), np.array(values), seq, seq, *times, *ties)
    (value,) = encode_results(things, columns, "power", "p", 3, has_rows=has_rows)
    return value


def as_json(things: list[str], values: list[Any], *, has_rows: bool = True) -> list[bytes]:
    side, found = Side("q", 1, 1.0, "e"), []
    for at, value in enumerate(values):
        position = f"9.{at}" if has_rows else str(9 + at)
        time: Any = msgspec.Raw(mean_text(LEFT_NS[at], RIGHT_NS[at], "ms").encode())
        result = {"left": value[0], "right": value[1]} if isinstance(value, tuple) else value
        tie = f"{TIES[at][0]}-{TIES[at][1]}" if any(TIES[at]) else ""
        identity = f"power:3:{position}:{position}"
        found.append(encode(Joined(things[at % len(things)], "p", time, result, identity, side, side, tie)))
    return found


def results_of(*values: bytes) -> Results:
    results = Results()
    for value in values:
        results.add(message(value), lambda pair, _place: point_line(pair, "joined", "ms"), "ms")
    return results


@pytest.mark.parametrize("has_rows", [True, False])
@pytest.mark.parametrize("values", [[1.5, 2.5, -0.0, 1e300], [(1.0, 2.0), (3.0, 4.0)]])
def test_the_points_are_those_of_results_in_json(values: list[Any], *, has_rows: bool) -> None:
    things = ["R1", 'é, "odd" = thing']
    one_by_one = results_of(*as_json(things, values, has_rows=has_rows))
    together = results_of(arrow(things, values, has_rows=has_rows))
    assert together.lines == one_by_one.lines
    assert together.ids == one_by_one.ids
    assert (together.records, together.message_count) == (len(values), 1)
    assert not together.unrepresentable


def test_a_result_without_a_point_is_a_dead_letter_of_its_own() -> None:
    results = results_of(arrow(["fine", "new\nline"], [1.0, 2.0, 3.0]))
    assert len(results.lines) == 2
    ((row, reason, identity),) = results.unrepresentable
    assert isinstance(row, ResultRow)
    assert "has a newline" in reason
    assert identity == "power:3:9.1:9.1"
    assert (row.topic(), row.partition(), row.offset(), row.key()) == ("machine.out", 3, 7, None)
    assert msgspec.json.decode(row.value())["thing"] == "new\nline"


@pytest.mark.parametrize("value", [b"no Arrow", arrow(["a"], [1.0])[:-40]])
def test_a_message_that_is_not_of_results_is_one_dead_letter(value: bytes) -> None:
    results = results_of(value)
    ((given, reason, identity),) = results.unrepresentable
    assert (given.value(), identity, results.lines) == (value, None, [])
    assert "Arrow" in reason


@pytest.mark.parametrize(
    "value",
    [
        b'{"mark":5,"quantity":"p","thing":"a"}',
        b'{"mark":"1970-01-01T00:00:00.0005Z"}',
        b'{"start":{"machine.data":5}}',
    ],
)
def test_a_watermark_or_a_start_record_is_left_out_and_its_offset_counts_as_read(value: bytes) -> None:
    results = results_of(value)
    assert (results.lines, results.unrepresentable, results.message_count) == ([], [], 1)


@pytest.mark.parametrize("value", [b'{"mark":5,"unit":3}', b'{"mark":1.5}', b'{"mark":5}x'])
def test_a_message_that_is_no_right_watermark_is_a_dead_letter(value: bytes) -> None:
    assert len(results_of(value).unrepresentable) == 1


def test_only_the_first_results_are_decoded_if_no_more_are_wanted() -> None:
    assert decode_results(arrow(["a"], [1.0, 2.0, 3.0]), 1).ids() == ["power:3:9.0:9.0"]
