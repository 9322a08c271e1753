"""Is a start record read as it was written, and is nothing else taken for one?"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.wire.records import Late, Record, Rejected, Watermark, encode, is_watermark, reject
from broker.wire.start_records import encode_start, read_start
from joiner.runtime.kafka.pending_markers import BEGINNING, identity_of

TOPICS = st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True)
VECTORS = st.dictionaries(TOPICS, st.integers(0, 2**63 - 1), max_size=5)


@given(vector=VECTORS)
def test_a_start_record_is_read_as_it_was_written(vector: dict[str, int]) -> None:
    value = encode_start(vector)
    assert json.loads(value) == {"start": vector}
    assert read_start(value) == vector
    assert not is_watermark(value)
    assert identity_of(value) == ("" if vector else BEGINNING), "a claim must not mistake it for output"


WRONG: list[Any] = [
    {"start": {"a": -1}},
    {"start": {"a": 2**63}},
    {"start": {"a": 1.5}},
    {"start": {"a": "1"}},
    {"start": {"": 1}},
    {"start": {"a" * 250: 1}},
    {"start": 5},
    {"start": None},
    {"start": {"a": 1}, "mark": 5},
    {"start": {"a": 1}, "thing": "x"},
    [{"start": {"a": 1}}],
    "start",
    {"thing": "start", "quantity": "start", "phenomenonTime": 1, "result": 1.0, "id": "start"},
]


@pytest.mark.parametrize("content", WRONG, ids=lambda content: json.dumps(content)[:40])
def test_no_other_json_is_a_start_record(content: Any) -> None:
    assert read_start(json.dumps(content).encode()) is None


@pytest.mark.parametrize("value", [None, b"", b"{", b'{"start":', b'{"start": {"a": 1}} x', b'\xff{"start": {"a": 1}}'])
def test_what_is_no_json_is_no_start_record(value: bytes | None) -> None:
    assert read_start(value) is None


@given(text=st.text(min_size=1, max_size=9).map(lambda text: f'"start"{text}'))
def test_no_output_is_a_start_record_whatever_its_texts(text: str) -> None:
    record = Record(text, "start", 1, 1.0, text)
    outputs: list[Record | Watermark | Late | Rejected] = [
        record,
        Watermark(1, "start", text),
        Late(text, text, "join", "start", "start", 0, 1, record),
        reject(b'{"start": {"a": 1}}', text, source="start", topic="start"),
    ]
    assert [read_start(encode(one)) for one in outputs] == [None] * len(outputs)
