"""Records of the control topic are decoded as they were encoded, and skipped if the reader does not know them."""

from __future__ import annotations

import json

import pytest

from joiner.runtime.control import (
    FORMAT_VERSION,
    Back,
    Cancelled,
    Ready,
    Record,
    Refused,
    Released,
    Request,
    Resumed,
    Stop,
    decode,
    encode,
)

_OF_UNIT = {"move": "m", "unit": 4, "to": "green", "instance": "host"}
RECORDS: list[Record] = [
    Request(move="m", units=[0, 4], to="green"),
    Cancelled(move="m", units=[4]),
    Ready(**_OF_UNIT),  # type: ignore[arg-type] # mixed types
    Released(**_OF_UNIT),  # type: ignore[arg-type] # as above
    Resumed(**_OF_UNIT, late_ms=12),  # type: ignore[arg-type] # as above
    Refused(**_OF_UNIT, why="no"),  # type: ignore[arg-type] # as above
    Back(**_OF_UNIT),  # type: ignore[arg-type] # as above
    Stop(run="5d3a"),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    assert decode(encode(record)) == record
    written = json.loads(encode(record))
    assert written["kind"] == type(record).__struct_config__.tag
    assert decode(json.dumps(written | {"later": 1}).encode()) == record


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\xff",
        b"[]",
        b'{"kind":"request"}',
        b'{"kind":"waltz","format":1,"move":"m"}',
        b"[" * 100_000,
        json.dumps(json.loads(encode(RECORDS[0])) | {"format": FORMAT_VERSION + 1}).encode(),
    ],
)
def test_what_is_not_known_is_passed_over(value: bytes | None) -> None:
    assert decode(value) is None
