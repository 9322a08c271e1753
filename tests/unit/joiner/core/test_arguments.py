"""Are invalid arguments refused by name and index, without changing the buffer?"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import numpy as np
import pytest

from joiner import ALL_KEYS, ArgumentError, LocalStreamBuffer, SnapshotError
from joiner.core.arguments import KEY_MAX, TIME_MAX_NS, TIME_MIN_NS
from joiner.core.snapshot import VERSION


def column(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def filled() -> LocalStreamBuffer:
    buffer = LocalStreamBuffer(lateness_ns=5, tolerance_ns=100)
    buffer.push(left=(column(0, 1), column(10, 20), column(0, 4)), right=(column(0), column(12), column(7)))
    return buffer


NAT = np.iinfo(np.int64).min


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"left": (column(0), column(1))}, r"left must be \(keys, ts_ns, seq\) or .*, not 2 columns"),
        ({"left": (column(0), column(1, 2), column(9))}, "left ts_ns has 2 values, but left keys has 1"),
        ({"right": (column(0), column(1), column(8), column())}, "right identity has 0 values"),
        ({"left": (np.array([0.0]), column(1), column(9))}, "left keys must .* int64, not float64 .*at index 0 is"),
        ({"left": ([0], ["x"], [9])}, "left ts_ns must have dtype int64"),
        ({"left": (column(0).reshape(1, 1), column(1), column(9))}, "left keys must have one dimension, not 2"),
        ({"left": (column(0, -1), column(1, 1), column(9, 10))}, r"left keys\[1\] = -1 is out of range"),
        ({"right": (column(KEY_MAX + 1), column(1), column(9))}, r"right keys\[0\] = 16777216 is out of range"),
        ({"left": (column(0, 0), column(1, NAT), column(9, 10))}, r"left ts_ns\[1\] .*and not NaT"),
        ({"left": (column(0), column(TIME_MAX_NS + 1), column(9))}, r"left ts_ns\[0\]"),
        ({"left": (column(0), column(TIME_MIN_NS - 1), column(9))}, r"left ts_ns\[0\]"),
        (
            {"left": (column(0), column(1), column(4))},
            r"left seq\[0\] = 4 must be greater than 4, the last position of this stream",
        ),
        (
            {"left": (column(0, 0, 0), column(1, 1, 1), column(5, 7, 7))},
            r"left seq\[2\] = 7 must be greater than 7, the position before it",
        ),
        ({"left_watermarks": (column(-2), column(1), column(9))}, r"left_watermarks keys\[0\] = -2"),
        ({"right_watermarks": (column(0), column(NAT), column(9))}, r"right_watermarks ts_ns\[0\]"),
        (
            {"right_watermarks": (column(0), column(1), column(7))},
            r"right_watermarks seq\[0\] = 7 must be greater than",
        ),
        (
            {"left_watermarks": (column(0), column(1), column(9), column(1))},
            r"left_watermarks must be \(keys, ts_ns, seq\), not 4",
        ),
        (
            {"left": (column(0, 0), column(1, 1), column(8, 9)), "left_watermarks": (column(0), column(1), column(9))},
            r"left_watermarks seq\[0\] = 9 is also the position of a record",
        ),
        ({"left": (column(0), column(1), column(9), column(1))}, "left identity must be present in every batch"),
    ],
)
def test_what_cannot_be_pushed_is_refused_by_name_and_index_and_changes_nothing(
    arguments: dict[str, Any], text: str
) -> None:
    buffer = filled()
    before = buffer.snapshot()
    with pytest.raises(ArgumentError, match=text):
        buffer.push(**arguments)
    assert buffer.snapshot() == before
    # If one side is invalid, the records of the other side are not added either.
    if "left" not in arguments:
        with pytest.raises(ArgumentError, match=text):
            buffer.push(left=(column(3), column(30), column(9)), **arguments)
        assert buffer.snapshot() == before


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tolerance_ns": -1}, "tolerance_ns = -1 is outside"),
        ({"tolerance_ns": 1.5}, "tolerance_ns must be an integer number of nanoseconds, not 1.5"),
        ({"tolerance_ns": 2**63}, "tolerance_ns"),
        ({"lateness_ns": True}, r"lateness_ns \(left\) must be an integer"),
        ({"lateness_ns": (0, -1)}, r"lateness_ns \(right\) = -1"),
        ({"lateness_ns": (1, 2, 3)}, "lateness_ns must be one value or"),
        ({"direction": "sideways"}, "direction must be one of 'both', .*, not 'sideways'"),
        ({"driver": "nobody"}, "driver must be one of 'both', 'left', 'right', not 'nobody'"),
        ({"watermark_scope": "clock"}, "watermark_scope must be one of 'key', 'partition', not 'clock'"),
        ({"emit_unmatched": "all"}, "emit_unmatched must be one of 'none', .*, not 'all'"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        LocalStreamBuffer(**options)


def test_the_ends_of_every_range_are_accepted() -> None:
    buffer = LocalStreamBuffer(tolerance_ns=2**63 - 1, lateness_ns=(0, 2**63 - 1))
    ends = (column(0, 0), column(TIME_MIN_NS, TIME_MAX_NS), column(0, 2**62))
    step = buffer.push(left=ends, right=ends, left_watermarks=(column(ALL_KEYS), column(TIME_MIN_NS), column(1)))
    assert len(step.left_seq) + len(buffer.close().left_seq) == 2


def test_nothing_is_pushed_after_the_end() -> None:
    buffer = filled()
    buffer.close()
    with pytest.raises(ArgumentError, match="push after close"):
        buffer.push()
    with pytest.raises(ArgumentError, match="close after close"):
        buffer.close()
    with pytest.raises(ArgumentError, match="push after close"):
        LocalStreamBuffer.restore(buffer.snapshot()).push()


@pytest.mark.parametrize("data", [b"", b"short", b"\x00" * 100, json.dumps({"a": 1}).encode() * 9])
def test_bytes_that_are_no_snapshot_are_refused(data: bytes) -> None:
    with pytest.raises(SnapshotError, match="not a snapshot"):
        LocalStreamBuffer.restore(data)


def test_a_snapshot_that_is_cut_short_is_called_damaged() -> None:
    with pytest.raises(SnapshotError, match="the snapshot is damaged: it ends after 9 bytes"):
        LocalStreamBuffer.restore(filled().snapshot()[:9])


def test_damage_anywhere_in_a_snapshot_is_noticed() -> None:
    data = filled().snapshot()
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x20
        with pytest.raises(SnapshotError):
            LocalStreamBuffer.restore(bytes(damaged))
        with pytest.raises(SnapshotError):
            LocalStreamBuffer.restore(data[:at])


def test_a_snapshot_of_another_release_is_refused_by_its_version() -> None:
    data = bytearray(filled().snapshot())
    newer = f"format version {VERSION + 1}; this release reads only {VERSION}; use a newer release"
    for version, text in ((VERSION + 1, newer), (1, "format version 1; this release")):
        struct.pack_into("<H", data, 8, version)
        data[-4:] = struct.pack("<I", zlib.crc32(data[:-4]))
        with pytest.raises(SnapshotError, match=text):
            LocalStreamBuffer.restore(bytes(data))
