"""Compares documents, and messages of mapped streams that are read in bulk with those that are read one by one."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple
from unittest.mock import patch

from hypothesis import strategies as st

from broker.wire.records import Unreadable
from joiner.mapping.framing import SchemaTable
from joiner.mapping.reading import MappedTopic
from joiner.runtime.task.decoding.factory import make_decoder
from joiner.runtime.task.decoding.keys import Keys
from tests.unit.joiner.runtime.joiner_inputs import Message, batch, make_settings


def plain(document: Any) -> Any:
    """Return a document in a form that can be compared, with NaN equal to itself."""
    if isinstance(document, dict):
        return {name: plain(one) for name, one in document.items()}
    if isinstance(document, list):
        return [plain(one) for one in document]
    if isinstance(document, bool):
        return repr(document)
    if isinstance(document, Decimal | float | int):
        return str(Decimal(document).normalize()) if math.isfinite(document) else repr(float(document))
    return document


def damaged(draw: Any, message: bytes, hostile: Sequence[bytes], others: Sequence[bytes | None]) -> Any:
    """Draw a message as it is, with some damage, or another one.

    ``hostile``: what is inserted. ``others``: what is there instead of the message.
    """
    at = draw(st.integers(0, len(message)))
    match draw(st.integers(0, 19)):
        case 0:
            return message[:at]
        case 1:
            return message[:at] + draw(st.sampled_from(hostile)) + message[at:]
        case 2:
            return message[:at] + draw(st.binary(min_size=1, max_size=2)) + message[at + 1 :]
        case 3:
            return message + b"\0"
        case 4:
            return draw(st.sampled_from(others))
    return message


class Counts(NamedTuple):
    """How many messages have been read in bulk, and how many one by one."""

    in_bulk: int = 0
    one_by_one: int = 0

    def plus(self, more: Counts) -> Counts:
        """Return the sum."""
        return Counts(self.in_bulk + more.in_bulk, self.one_by_one + more.one_by_one)

    @property
    def share(self) -> float:
        """The share of the messages that have been read in bulk."""
        return self.in_bulk / max(1, sum(self))


def assert_read_alike(streams: list[dict[str, Any]], table: SchemaTable, values: Sequence[bytes | None]) -> Counts:
    """Check that messages of the topic ``t`` have the same records and are refused for the same reasons.

    ``streams``: ``speed`` and ``torque``, in this order. Returns how the messages were read.
    """
    far = {"max_future_skew": "106000d"}
    joined = make_settings(stream=streams, registry={"url": "http://registry"}, application=far)
    messages = [Message(number, 1_000, value) for number, value in enumerate(values)]
    keys = Keys(0, 1)
    with patch.object(MappedTopic, "read", autospec=True, side_effect=MappedTopic.read) as reading:
        intake = make_decoder(joined, "t", 0, keys, table).decode(batch(messages))
    one_by_one = MappedTopic(joined.mapped_streams("t"), "ms", table)
    wanted, refused, not_selected = [], [], 0
    for number, value in enumerate(values):
        try:
            records = one_by_one.read(value, number, 1_000)
            not_selected += not records
            wanted += [
                (one.record.quantity, number, one.ts_ns, one.record.thing, repr(one.record.result), one.record.id)
                for one in records
            ]
        except Unreadable as reason:
            refused.append((number, str(reason)))
    assert [(letter.offset, letter.reason) for letter in intake.rejected] == refused
    assert intake.not_selected == not_selected
    found = []
    for (_, place), side in intake.sides.items():
        rows, name = side.rows(), ("speed", "torque")[place]
        shown = [json.loads(text) for text in rows.shown.each()]
        assert [repr(float(one["result"])) for one in shown] == [repr(value) for value in rows.result.tolist()]
        found += [
            (name, seq, ts_ns, keys.things[key], repr(result), one["id"])
            for seq, ts_ns, key, result, one in zip(
                rows.seq.tolist(), rows.ts_ns.tolist(), rows.key.tolist(), rows.result.tolist(), shown, strict=True
            )
        ]
    assert sorted(found) == sorted(wanted)
    return Counts(len(values) - reading.call_count, reading.call_count)
