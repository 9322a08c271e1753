"""Is any column restored unchanged from its bytes?"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.times import parse_time
from broker.wire.columns import StringColumn
from broker.wire.records import Side, encode_lines
from joiner.core.snapshot import pack, unpack
from joiner.runtime.task.payloads import Rows
from joiner.runtime.task.unit_snapshot import restore_rows, save_rows

_INT64 = st.integers(-(2**63), 2**63 - 1)
_COLUMN = st.one_of(
    st.lists(_INT64, max_size=8),
    st.lists(st.sampled_from([-(2**63), -1, 0, 1, 2**62, 2**63 - 1]), max_size=8),
    st.tuples(_INT64, st.integers(1, 2**40), st.lists(st.integers(-5, 300), max_size=8)).map(
        lambda drawn: [(drawn[0] + drawn[1] * step + 2**63) % 2**64 - 2**63 for step in drawn[2]]
    ),
)


@settings(max_examples=300, deadline=None)
@given(columns=st.dictionaries(st.sampled_from("abc"), _COLUMN))
def test_columns_come_back_as_they_were(columns: dict[str, list[int]]) -> None:
    options, found = unpack(pack({"x": 1}, {name: np.array(one, dtype=np.int64) for name, one in columns.items()}))
    assert options == {"x": 1}
    assert {name: one.tolist() for name, one in found.items()} == columns


_TIMES = st.sampled_from([0, 5, -3, "1970-01-01T00:00:00.005Z", msgspec.Raw(b"0.5"), msgspec.Raw(b"5.0")])
_SHOWN = st.builds(
    Side, st.sampled_from(["q", "ü\n"]), _TIMES, st.floats(allow_nan=False, allow_infinity=False), st.text(min_size=1)
)


@settings(max_examples=300, deadline=None)
@given(shown=st.lists(_SHOWN, max_size=5))
def test_rows_come_back_as_they_were(shown: list[Side]) -> None:
    times: list[Any] = [one.phenomenonTime for one in shown]
    texts = [bytes(one) if isinstance(one, msgspec.Raw) else one for one in times]
    rows = Rows(
        np.arange(len(shown)) * 3,
        np.arange(len(shown)) % 2,
        np.array([parse_time(text, "ms") for text in texts], dtype=np.int64),
        np.array([one.result for one in shown], dtype=np.float64),
        StringColumn.of_lines(encode_lines(shown)),
    )
    found = restore_rows(save_rows(rows, "ms"), "ms")
    assert [column.tolist() for column in found[:-1]] == [column.tolist() for column in rows[:-1]]
    assert found.shown.each() == [msgspec.json.encode(one) for one in shown]
