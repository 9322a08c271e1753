"""Is a message decoded the same way in a batch and alone?"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from broker.times import TIME_MAX_NS, TIME_MIN_NS
from broker.wire.columns import glue
from joiner.runtime.task.decoding import decoder
from joiner.runtime.task.decoding.decoder import TopicDecoder
from joiner.runtime.task.decoding.intake import Intake
from joiner.runtime.task.decoding.keys import Keys
from joiner.runtime.task.decoding.messages import Messages
from joiner.runtime.task.emit import mean_time, mean_times
from joiner.runtime.task.payloads import Rows
from tests.unit.joiner.runtime.joiner_inputs import BASE_MS, DATA, GAP, POWER, make_settings

_DAY_MS = 86_400_000
_PLAIN = st.fixed_dictionaries(
    {
        "thing": st.sampled_from(["a", "b", "c", "ä"]),
        "quantity": st.sampled_from(["speed", "torque", "command", "other"]),
        "phenomenonTime": st.integers(BASE_MS - 5, BASE_MS + 5),
        "result": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-5, 5),
        "id": st.text(min_size=1, max_size=5),
    }
)
_ODD_TIMES = st.sampled_from(
    [
        f"{BASE_MS}",
        "2019-04-01T05:26:20Z",
        BASE_MS + 0.5,
        BASE_MS + 2 * _DAY_MS,
        BASE_MS + _DAY_MS,
        -(10**13),
        2**63,
        2**70,
        True,
    ]
)
_ODD = st.sampled_from(
    [
        None,
        b"",
        b" ",
        b"\n",
        b"{",
        b"[]",
        b'{"mark":%d}' % BASE_MS,
        b'{"mark":%d,"quantity":"speed","thing":"a"}' % BASE_MS,
        b'{"thing":"a","quantity":"speed","phenomenonTime":1,"result":1,"id":"x"}\n' * 2,
        b'{"thing":"a",\n"quantity":"speed","phenomenonTime":1,"result":1,"id":"x"}',
        b'{"thing":"a","quantity":"speed","phenomenonTime":1,"result":1,"id":"x"} ',
        b'{"thing":"a","quantity":"speed","phenomenonTime":1,"result":1,"id":"x","more":'
        + b"[" * 300
        + b"]" * 300
        + b"}",
        b'{"thing":"a","quantity":"speed","phenomenonTime":1,"result":1,"id":"x","pad":"' + b"p" * 70_000 + b'"}',
        b'{"thing":"\xff","quantity":"speed","phenomenonTime":1,"result":1,"id":"x"}',
        b'\xef\xbb\xbf{"thing":"a","quantity":"speed","phenomenonTime":1,"result":1,"id":"x"}',
    ]
)


def _as_bytes(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()


_VALUES = st.lists(
    st.one_of(
        _PLAIN.map(_as_bytes),
        _PLAIN.map(_as_bytes),
        _PLAIN.map(_as_bytes),
        st.tuples(_PLAIN, _ODD_TIMES).map(lambda drawn: _as_bytes(drawn[0] | {"phenomenonTime": drawn[1]})),
        _ODD,
    ),
    max_size=20,
)
_WHOLE = {"name": "whole", "left": {"topic": DATA}, "right": {"topic": "b", "quantity": "q"}, "output": "w"}


def _read(values: list[bytes | None], joins: list[dict[str, Any]], partitions: int) -> tuple[Any, ...]:
    """Return the decoded batch in a form that can be compared, with the key numbers that were assigned."""
    keys = Keys(0, partitions)
    reader = TopicDecoder(make_settings(*joins, partitions=partitions), DATA, 0, keys)
    times = [BASE_MS + at % 2 for at in range(len(values))]
    found: Intake = reader.decode(Messages.of(range(len(values)), times, values))
    sides = {
        target: [
            msgspec.json.encode(column)
            for column in [*_columns(side.rows()), _tolist(side.watermarks() or ()), _tolist(side.columns() or ())]
        ]
        for target, side in sorted(found.sides.items())
    }
    dead_letters = [msgspec.to_builtins(dead_letter) for dead_letter in found.rejected]
    return sides, dead_letters, found.not_selected, found.watermarks, keys.things


def _columns(rows: Rows) -> list[Any]:
    return [*_tolist(rows[:-1]), rows.shown.each()]


def _tolist(columns: Iterable[NDArray[Any]]) -> list[Any]:
    return [column.tolist() for column in columns]


@settings(max_examples=300, deadline=None)
@given(
    values=_VALUES,
    joins=st.sampled_from([[POWER], [POWER, GAP], [_WHOLE], [POWER, _WHOLE]]),
    partitions=st.sampled_from([1, 2]),
    singly=st.sampled_from([1, 3, 16]),
)
def test_a_message_becomes_the_same_together_with_others_and_alone(
    values: list[bytes | None], joins: list[dict[str, Any]], partitions: int, singly: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder, "_SINGLY", singly)
        found = _read(values, joins, partitions)
        patch.setattr(TopicDecoder, "_decode_together", lambda *_: False)
        assert found == _read(values, joins, partitions)


_RECORD = b'{"thing":"a","quantity":"sp\\u0065ed","phenomenonTime":%d,"result":1,"id":"x"}' % BASE_MS


@pytest.mark.parametrize(
    "values",
    [
        [_RECORD + b" " + _RECORD, b" "],
        [b"\r", _RECORD + b"\t" + _RECORD],
        [_RECORD[:12], _RECORD[12:] + _RECORD],
        [_RECORD[:-1] + b',"more":', b"{}}" + _RECORD],
        [_RECORD[:-1] + b',"more":[{}', b",{}]}" + _RECORD],
        [_RECORD[:-1] + b',"more":"{}', b'{"}' + _RECORD],
    ],
)
def test_messages_that_are_records_only_together_are_refused(values: list[bytes | None]) -> None:
    _, dead_letters, *_ = found = _read(values, [POWER], 1)
    assert len(dead_letters) == len(values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TopicDecoder, "_decode_together", lambda *_: False)
        assert found == _read(values, [POWER], 1)


_TIMES = st.integers(TIME_MIN_NS, TIME_MAX_NS) | st.integers(-5, 5) | st.integers(-5, 5).map(lambda ms: ms * 10**6)


@settings(max_examples=300, deadline=None)
@given(pairs=st.lists(st.tuples(_TIMES, _TIMES), min_size=1, max_size=4), unit=st.sampled_from(["ns", "us", "ms", "s"]))
def test_the_mean_of_many_times_is_that_of_each(pairs: list[tuple[int, int]], unit: str) -> None:
    left, right = np.array(pairs, dtype=np.int64).T
    expected = [mean_time(one, other, unit) for one, other in pairs]
    assert glue(*mean_times(left, right, unit)).each() == [msgspec.json.encode(mean) for mean in expected]
