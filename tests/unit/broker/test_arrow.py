"""Which Arrow messages are read, and which are refused before they can do harm?"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from broker.wire.arrow.limits import EXPANDED_BYTES_MAX, ROWS_MAX, check_limits
from broker.wire.arrow.results import decode_results
from broker.wire.arrow.rows import encode_columns, encode_records, read_rows
from broker.wire.records import Record, Unreadable

BASE_MS = 1_554_096_460_000


def stream(*batches: Any, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def columns(count: int = 2, **others: Any) -> dict[str, Any]:
    given = {
        "thing": pa.array(["a"] * count, pa.string()),
        "quantity": pa.array(["speed"] * count, pa.string()),
        "phenomenonTime": pa.array([BASE_MS + at for at in range(count)], pa.int64()),
        "result": pa.array([1.5] * count, pa.float64()),
    }
    return given | others


def batch(count: int = 2, **others: Any) -> Any:
    given = {name: column for name, column in columns(count, **others).items() if column is not None}
    return pa.record_batch(list(given.values()), names=list(given))


def read(value: bytes, time_unit: str = "ms") -> list[tuple[str | None, str | None, int, float, bytes]]:
    found = []
    for rows in read_rows(value, time_unit):
        assert rows.valid.all()
        ids = [b""] * len(rows) if rows.id is None else rows.id.each()
        found += [
            (rows.thing.names[thing], rows.quantity.names[quantity], ts_ns, result, identity)
            for thing, quantity, ts_ns, result, identity in zip(
                rows.thing.number.tolist(),
                rows.quantity.number.tolist(),
                rows.ts_ns.tolist(),
                rows.result.tolist(),
                ids,
                strict=True,
            )
        ]
    return found


EXPECTED = [("a", "speed", (BASE_MS + at) * 10**6, 1.5, b"") for at in range(2)]


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_message_is_read_whatever_its_compression(compression: str | None) -> None:
    assert read(stream(batch(), compression=compression)) == EXPECTED


@pytest.mark.parametrize(
    "others",
    [
        {"thing": pa.array(["a", "a"], pa.large_string())},
        {"thing": pa.array(["a", "a"]).dictionary_encode()},
        {"thing": pa.DictionaryArray.from_arrays(pa.array([1, 3], pa.uint8()), pa.array(["x", "a", None, "a"]))},
        {"phenomenonTime": pa.array([BASE_MS, BASE_MS + 1], pa.timestamp("ms", tz="Europe/Berlin"))},
        {"phenomenonTime": pa.array([BASE_MS * 1000, BASE_MS * 1000 + 1000], pa.timestamp("us", tz="UTC"))},
        {"further": pa.array([[1], [2, 3]])},
        {"id": pa.array([None, None], pa.string())},
        {"id": pa.array([None, None], pa.string()).dictionary_encode()},
    ],
)
def test_columns_may_have_any_of_these_types(others: dict[str, Any]) -> None:
    assert read(stream(batch(**others))) == EXPECTED


def test_slices_and_several_batches_are_one_message() -> None:
    whole = batch(5, id=pa.array(["v", "w", None, "y", "z"]))
    expected = [
        ("a", "speed", (BASE_MS + at) * 10**6, 1.5, one) for at, one in enumerate([b"v", b"w", b"", b"y", b"z"])
    ]
    assert read(stream(whole.slice(0, 2), whole.slice(2))) == expected
    firsts = [rows.first for rows in read_rows(stream(whole.slice(0, 2), whole.slice(2)), "ms")]
    assert firsts == [0, 2]
    assert next(read_rows(stream(batch(0)), "ms")).valid.tolist() == []


def test_nanoseconds_are_exact() -> None:
    times = pa.array([BASE_MS * 10**6 + 1, BASE_MS * 10**6 + 2], pa.timestamp("ns", tz="UTC"))
    assert [row[2] for row in read(stream(batch(phenomenonTime=times)))] == [BASE_MS * 10**6 + 1, BASE_MS * 10**6 + 2]


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ({"thing": None}, "column thing is missing"),
        ({"result": pa.array([1, 2])}, "column result has the type int64"),
        ({"thing": pa.array([b"a", b"b"])}, "column thing has the type binary"),
        ({"thing": pa.array([1, 2]).dictionary_encode()}, "column thing has the type dictionary"),
        ({"phenomenonTime": pa.array([1, 2], pa.timestamp("ms"))}, "has no time zone"),
        ({"phenomenonTime": pa.array(["a", "b"])}, "phenomenonTime has the type string"),
        ({"id": pa.array([1, 2])}, "column id has the type int64"),
    ],
)
def test_a_message_with_wrong_columns_is_refused(others: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        list(read_rows(stream(batch(**others)), "ms"))


def test_a_column_that_is_there_twice_is_refused() -> None:
    given = columns()
    double = pa.record_batch([*given.values(), given["thing"]], names=[*given, "thing"])
    with pytest.raises(Unreadable, match="thing is there more than once"):
        list(read_rows(stream(double), "ms"))


def test_the_number_of_rows_is_limited() -> None:
    half = batch(ROWS_MAX // 2)
    assert sum(len(rows) for rows in read_rows(stream(half, half), "ms")) == ROWS_MAX
    with pytest.raises(Unreadable, match=f"more than {ROWS_MAX} rows"):
        list(read_rows(stream(half, half, batch(1)), "ms"))
    with pytest.raises(Unreadable, match=f"more than {ROWS_MAX} rows"):
        list(read_rows(stream(batch(ROWS_MAX + 1)), "ms"))


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_message_that_would_expand_too_far_is_refused_before_it_does(compression: str | None) -> None:
    large = pa.array([" " * (EXPANDED_BYTES_MAX // 2), " " * (EXPANDED_BYTES_MAX // 2)])
    value = stream(batch(further=large), compression=compression)
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(Unreadable, match="when expanded"):
        list(read_rows(value, "ms"))
    assert pa.default_memory_pool().max_memory() == before


def test_a_size_that_is_a_lie_is_refused() -> None:
    value = stream(batch(2000), compression="lz4")
    sizes = [at for at in range(len(value) - 8) if struct.unpack_from("<q", value, at) == (16_000,)]
    assert sizes
    for size in (-2, 2**62, 15_999, 16_001):
        for at in sizes:
            lie = value[:at] + struct.pack("<q", size) + value[at + 8 :]
            with pytest.raises(Unreadable):
                list(read_rows(lie, "ms"))


def test_long_names_of_few_values_are_limited_row_by_row() -> None:
    names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(ROWS_MAX, dtype=np.int8)), pa.array(["n" * 300]))
    with pytest.raises(Unreadable, match="names of its rows"):
        list(read_rows(stream(batch(ROWS_MAX, thing=names)), "ms"))


def test_a_dictionary_with_too_many_values_is_refused() -> None:
    names = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array([str(at) for at in range(ROWS_MAX + 1)]))
    with pytest.raises(Unreadable, match="values in a dictionary"):
        list(read_rows(stream(batch(thing=names)), "ms"))


def test_every_damage_of_a_message_is_read_or_refused() -> None:
    whole = stream(batch(3, thing=pa.array(["a", "b", "a"]).dictionary_encode(), id=pa.array(["x", "y", None])))
    for at in range(len(whole)):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x81]) + whole[at + 1 :]):
            for decode in (lambda value: list(read_rows(value, "ms")), decode_results):
                with suppress(Unreadable):
                    decode(damaged)


def test_what_is_neither_json_nor_arrow_is_refused() -> None:
    for value in (b"", b"\0" * 100, b"\xff" * 100, b"ARROW1", b"x"):
        with pytest.raises(Unreadable, match="not an Arrow IPC stream"):
            check_limits(value)


def test_records_are_written_as_they_are_read() -> None:
    records = [Record("a", "speed", BASE_MS, 1.5, "x"), Record("b", "torque", BASE_MS, 2.5, "é")]
    times = [BASE_MS * 10**6, BASE_MS * 10**6 + 1]
    expected = [("a", "speed", times[0], 1.5, b"x"), ("b", "torque", times[1], 2.5, "é".encode())]
    assert read(encode_records(records, times, "ms")) == expected
    assert read(encode_records(records[:1], times[:1], "ms")) == expected[:1]
    assert read(encode_columns(["a"], ["speed"], [BASE_MS], [1.5])) == EXPECTED[:1]
