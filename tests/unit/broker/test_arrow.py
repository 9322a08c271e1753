"""Which Arrow messages are read, and which are refused before they can do harm?"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from broker.wire.arrow import results
from broker.wire.arrow.limits import EXPANDED_BYTES_MAX, ROWS_MAX, check_limits
from broker.wire.arrow.results import ResultColumns, decode_results, encode_results
from broker.wire.arrow.rows import encode_columns, encode_records, read_rows
from broker.wire.records import Record, Unreadable
from joiner.check.found.rows import rows_of
from joiner.check.verify.arrow_results import results_of

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


class Fragile(pa.ExtensionType):  # type: ignore[misc] # pyarrow has no annotations
    """A type whose code raises an error, as those of pandas do for damaged metadata."""

    def __init__(self) -> None:
        super().__init__(pa.string(), "tests.fragile")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> Fragile:
        raise KeyError(storage_type)


@pytest.mark.parametrize("column", ["thing", "further"])
@pytest.mark.parametrize("name", ["tests.fragile", "arrow.json", "unknown"])
def test_extension_types_are_read_as_the_types_that_store_them(column: str, name: str) -> None:
    whole = batch(further=pa.array(["x", "y"]))
    at = whole.schema.names.index(column)
    field = whole.schema.field(at).with_metadata({"ARROW:extension:name": name, "ARROW:extension:metadata": ""})
    value = stream(pa.RecordBatch.from_arrays(whole.columns, schema=whole.schema.set(at, field)))
    pa.register_extension_type(Fragile())
    try:
        assert read(value) == EXPECTED
        assert [row.record and row.record.thing for row in rows_of(value, 0, "ms")] == ["a", "a"]
        for decode in (decode_results, lambda value: results_of(value, "ms")):
            with pytest.raises(Unreadable):
                decode(value)
    finally:
        pa.unregister_extension_type("tests.fragile")


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
    with pytest.raises(Unreadable, match="thing is present more than once"):
        list(read_rows(stream(double), "ms"))


def test_the_number_of_rows_is_limited() -> None:
    half = batch(ROWS_MAX // 2)
    assert sum(len(rows) for rows in read_rows(stream(half, half), "ms")) == ROWS_MAX
    with pytest.raises(Unreadable, match=f"more than {ROWS_MAX} rows"):
        list(read_rows(stream(half, half, batch(1)), "ms"))
    with pytest.raises(Unreadable, match=f"more than {ROWS_MAX} rows"):
        list(read_rows(stream(batch(ROWS_MAX + 1)), "ms"))


def test_the_number_of_arrow_messages_is_limited() -> None:
    # A schema and a thousand batches are one message too many.
    one = batch(1)
    assert len(list(read_rows(stream(*[one] * 999), "ms"))) == 999
    with pytest.raises(Unreadable, match="more than 1000 Arrow messages"):
        check_limits(stream(*[one] * 1_000))


def test_a_number_of_rows_below_zero_is_a_corrupt_message() -> None:
    value, rows = stream(batch(12_345)), struct.pack("<q", 12_345)
    assert rows in value
    with pytest.raises(Unreadable, match="metadata is corrupt"):
        check_limits(value.replace(rows, struct.pack("<q", -1)))


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_message_that_would_expand_too_far_is_refused_before_it_does(compression: str | None) -> None:
    large = pa.array([" " * (EXPANDED_BYTES_MAX // 2), " " * (EXPANDED_BYTES_MAX // 2)])
    value = stream(batch(further=large), compression=compression)
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(Unreadable, match="when decompressed"):
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
    with pytest.raises(Unreadable, match="names in all rows"):
        list(read_rows(stream(batch(ROWS_MAX, thing=names)), "ms"))


def test_long_ids_of_few_values_are_limited_row_by_row() -> None:
    same = pa.DictionaryArray.from_arrays(pa.array(np.zeros(ROWS_MAX, dtype=np.int8)), pa.array(["x" * 300]))
    with pytest.raises(Unreadable, match="names in all rows"):
        list(read_rows(stream(batch(ROWS_MAX, id=same)), "ms"))


def _rows_with(name: str, count: int) -> Any:
    """Return a dictionary column of ``count`` rows that refer to one name, which is not the only one."""
    return pa.DictionaryArray.from_arrays(pa.array([1] * count, pa.int8()), pa.array(["a", name, None]))


@pytest.mark.parametrize("column", ["thing", "quantity", "id"])
@pytest.mark.parametrize("size", [300, EXPANDED_BYTES_MAX // 4])
def test_the_names_of_all_batches_of_a_message_are_limited_together(column: str, size: int) -> None:
    count = EXPANDED_BYTES_MAX // 4 // size
    quarter, one = (batch(rows, **{column: _rows_with("n" * size, rows)}) for rows in (count, 1))
    within = stream(*[quarter] * 4, compression="zstd")
    assert sum(len(rows) for rows in read_rows(within, "ms")) == len(rows_of(within, 0, "ms")) == 4 * count
    beyond = stream(*[quarter] * 4, one, compression="zstd")
    with pytest.raises(Unreadable, match="names in all rows"):
        list(read_rows(beyond, "ms"))
    with pytest.raises(Unreadable, match="names are too long"):
        rows_of(beyond, 0, "ms")


def test_large_names_that_do_not_occur_are_not_held_for_every_batch() -> None:
    shared = pa.array(["a", "n" * 1_000_000])
    part = batch(2, thing=pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), shared))
    found = list(read_rows(stream(*[part] * 20, compression="zstd"), "ms"))
    assert [rows.thing.names for rows in found] == [["a"]] * 20
    assert all(rows.valid.all() for rows in found)


@pytest.mark.parametrize("column", ["thing", "quantity", "join"])
def test_the_names_of_results_are_limited_row_by_row(column: str) -> None:
    count = 20
    zeros = np.zeros(count, dtype=np.int64)
    found = ResultColumns(zeros, np.ones(count), zeros, zeros, zeros, zeros, zeros, zeros)
    (value,) = encode_results(["a"], found, "power", "watts", 0, has_rows=False)
    with pa.ipc.open_stream(value) as reader:
        whole = reader.read_next_batch()
    at = whole.schema.names.index(column)
    for size, is_read in ((EXPANDED_BYTES_MAX // count, True), (EXPANDED_BYTES_MAX // count + 1, False)):
        names = pa.DictionaryArray.from_arrays(whole.column(at).indices, pa.array(["n" * size]))
        columns = [names if number == at else kept for number, kept in enumerate(whole.columns)]
        long = stream(pa.RecordBatch.from_arrays(columns, schema=whole.schema), compression="zstd")
        if is_read:
            assert len(decode_results(long).thing) == len(results_of(long, "ms")) == count
            continue
        for decode in (decode_results, lambda value: results_of(value, "ms")):
            with pytest.raises(Unreadable, match="names in all rows"):
                decode(long)


def test_results_of_any_number_of_units_leave_nothing_behind() -> None:
    zeros = np.zeros(1, dtype=np.int64)
    found = ResultColumns(zeros, np.ones(1), zeros, zeros, zeros, zeros, zeros, zeros)
    (value,) = encode_results(["a"], found, "power", "watts", 10_000, has_rows=False)
    decode_results(value)
    before = results._schema.cache_info().currsize  # noqa: SLF001 - what it keeps cannot be seen otherwise
    for unit in range(10_001, 10_011):
        assert decode_results(value.replace(b"10000", str(unit).encode())).unit == unit
    assert results._schema.cache_info().currsize == before  # noqa: SLF001


def test_a_message_that_holds_no_results_is_refused_with_the_reason() -> None:
    zeros = np.zeros(1, dtype=np.int64)
    found = ResultColumns(zeros, np.ones(1), zeros, zeros, zeros, zeros, zeros, zeros)
    (value,) = encode_results(["a"], found, "power", "watts", 0, has_rows=False)
    with pa.ipc.open_stream(value) as reader:
        whole = reader.read_next_batch()
    at = whole.schema.names.index("half")
    nulls = [pa.nulls(1, pa.bool_()) if number == at else kept for number, kept in enumerate(whole.columns)]
    for other, reason in (
        (batch(), "the message does not have the columns of results"),
        (whole.replace_schema_metadata(None), "schema does not contain the unit"),
        (pa.RecordBatch.from_arrays(nulls, schema=whole.schema), "a field of a result is null"),
    ):
        with pytest.raises(Unreadable, match=reason):
            decode_results(stream(other))


def test_batches_that_share_a_large_dictionary_hold_only_the_names_they_use() -> None:
    shared = pa.array([f"{number:x}" for number in range(ROWS_MAX)])
    numbers = [[7, None], [None, None], [ROWS_MAX - 1, 7]]
    parts = [batch(thing=pa.DictionaryArray.from_arrays(pa.array(some, pa.int32()), shared)) for some in numbers]
    found = list(read_rows(stream(*parts), "ms"))
    assert [len(rows.thing.names) for rows in found] == [1, 0, 2]
    labels = [[rows.thing.names[at] if at >= 0 else None for at in rows.thing.number.tolist()] for rows in found]
    assert labels == [["7", None], [None, None], ["ffff", "7"]]
    assert [rows.valid.tolist() for rows in found] == [[True, False], [False, False], [True, True]]


def test_a_dictionary_that_is_continued_is_refused() -> None:
    # Each continuation would copy the whole dictionary again.
    sink, names = pa.BufferOutputStream(), ["a", "b"]
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    parts = [batch(thing=pa.DictionaryArray.from_arrays(pa.array([0, 0]), pa.array(names[:count]))) for count in (1, 2)]
    with pa.ipc.new_stream(sink, parts[0].schema, options=options) as writer:
        for part in parts:
            writer.write_batch(part)
    with pytest.raises(Unreadable, match="delta dictionary"):
        list(read_rows(sink.getvalue().to_pybytes(), "ms"))


def test_a_dictionary_with_too_many_values_is_refused() -> None:
    names = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array([str(at) for at in range(ROWS_MAX + 1)]))
    with pytest.raises(Unreadable, match="values in a dictionary"):
        list(read_rows(stream(batch(thing=names)), "ms"))


def _with_former_compression(meta: bytes, kind: int, body_length: int) -> bytes:
    """Return the metadata of a batch as Arrow 0.17 wrote them: compression is named in the message's own metadata."""
    old = bytearray(meta)
    root = struct.unpack_from("<I", old)[0]
    at = root + struct.unpack_from("<H", old, root - struct.unpack_from("<i", old, root)[0] + 8)[0]
    part = at + struct.unpack_from("<I", old, at)[0]
    if kind == 2:
        at = part + struct.unpack_from("<H", old, part - struct.unpack_from("<i", old, part)[0] + 6)[0]
        batch_at = at + struct.unpack_from("<I", old, at)[0]
    else:
        batch_at = part
    members = batch_at - struct.unpack_from("<i", old, batch_at)[0]
    if struct.unpack_from("<H", old, members)[0] >= 12:
        struct.pack_into("<H", old, members + 10, 0)
    name, codec = b"ARROW:experimental_compression", b"zstd"
    new = bytearray(120)
    struct.pack_into("<I", new, 0, 20)
    struct.pack_into("<7H", new, 4, 14, 24, 20, 22, 12, 4, 16)
    struct.pack_into("<iqIIhBB", new, 20, 16, body_length, len(new) + part - 32, 44 - 36, 3, kind, 0)
    struct.pack_into("<II", new, 44, 1, 60 - 48)
    struct.pack_into("<4H", new, 52, 8, 12, 4, 8)
    struct.pack_into("<iII", new, 60, 8, 72 - 64, 108 - 68)
    struct.pack_into("<I31s", new, 72, len(name), name)
    struct.pack_into("<I5s", new, 108, len(codec), codec)
    return bytes(new + old)


def test_compression_that_only_former_releases_wrote_does_not_evade_the_limits() -> None:
    count = ROWS_MAX
    long = pa.array(["x" * 300] * count)
    value, at, crafted = stream(batch(count, id=long), compression="zstd"), 0, b""
    while (length := struct.unpack_from("<i", value, at + 4)[0]) > 0:
        meta, at = value[at + 8 : at + 8 + length], at + 8 + length
        root = struct.unpack_from("<I", meta)[0]
        members = root - struct.unpack_from("<i", meta, root)[0]
        kind = meta[root + struct.unpack_from("<H", meta, members + 6)[0]]
        body_at = struct.unpack_from("<H", meta, members + 10)[0] if members + 10 < root else 0
        size = struct.unpack_from("<q", meta, root + body_at)[0] if body_at else 0
        if kind in {2, 3}:
            meta = _with_former_compression(meta, kind, size)
        crafted += struct.pack("<Ii", 0xFFFFFFFF, len(meta)) + meta + value[at : at + size]
        at += size
    with pa.ipc.open_stream(crafted) as reader:
        assert reader.read_all().nbytes > EXPANDED_BYTES_MAX, "pyarrow expands it"
    with pytest.raises(Unreadable, match="no longer writes"):
        list(read_rows(crafted, "ms"))


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
