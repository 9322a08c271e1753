"""Fuzz targets for Arrow: messages of records, which the joiner and the tester must read alike, and of results."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from broker.wire.arrow.results import decode_results
from broker.wire.arrow.rows import read_rows
from broker.wire.records import Record, Unreadable, decode_rejected, encode
from joiner.check.found.rows import rows_of
from joiner.check.verify.arrow_results import results_of
from joiner.runtime.task.decoding.messages import Messages
from joiner.runtime.task.unit import Unit
from tests.fuzz.mutation import Mutator
from tests.unit.joiner.runtime.arrow_inputs import settings_of
from tests.unit.joiner.runtime.joiner_inputs import BASE_MS, DATA, POWER

_SETTINGS: Final = [
    settings_of("arrow", {**POWER, "function": function, "emit_unmatched": "both"}, results=results)
    for function, results in (("product", "full"), ("product", "arrow"), ("both", "arrow"))
]
_NAMES: Final = ("a", "b", "speed", "torque", "é", "", "n" * 257, "\0", None)
_TIMES: Final = (0, -1, 10**18, 10**13, -(2**63), 2**63 - 1, None)
_RESULTS: Final = (1.5, -0.0, 1e308, float("nan"), float("inf"), None)


def assert_clear(error: Exception) -> None:
    """Check that the error has a message of one line."""
    assert str(error)
    assert "\n" not in str(error)


def arrow_message(mutator: Mutator) -> bytes:
    """Return a message of records, with odd values, types and bytes."""
    one_of, count = mutator.one_of, mutator.one_of(0, 1, 2, 8, 60, 70_000 if mutator.is_large() else 3)
    is_odd = mutator.draw.random() < 0.5

    def cells(good: Any, odd: Any) -> list[Any]:
        return [one_of(*odd) if is_odd and mutator.draw.random() < 0.2 else good(at) for at in range(count)]

    text = one_of(pa.string(), pa.string(), pa.large_string())
    columns = {
        "thing": pa.array(cells(lambda at: "ab"[at % 2], _NAMES), text),
        "quantity": pa.array(cells(lambda at: ("speed", "torque")[at % 2], _NAMES), text),
        "phenomenonTime": pa.array(
            cells(lambda at: BASE_MS + at, _TIMES),
            one_of(pa.int64(), pa.int64(), pa.timestamp("ms", tz="UTC"), pa.timestamp("ns", tz="UTC")),
        ),
        "result": pa.array(cells(float, _RESULTS), pa.float64()),
        "id": pa.array(cells(lambda at: f"e{at}", _NAMES), text),
    }
    for name in ("thing", "quantity", "id"):
        if mutator.draw.random() < 0.5:
            columns[name] = columns[name].dictionary_encode()
    if mutator.draw.random() < 0.2:
        del columns[one_of("id", "id", *columns)]
    sink = pa.BufferOutputStream()
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    options = pa.ipc.IpcWriteOptions(compression=one_of(None, None, "lz4", "zstd"))
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        for part in [batch] if mutator.draw.random() < 0.7 else [batch.slice(0, 1), batch.slice(1)]:
            writer.write_batch(part)
    return _damaged(mutator, bytes(sink.getvalue().to_pybytes()))


def _damaged(mutator: Mutator, value: bytes) -> bytes:
    """Return a value with a few bytes changed, mostly without changing its length, which would be noticed at once."""
    chance, found = mutator.draw.random(), bytearray(value)
    if chance < 0.3:
        return value
    if chance < 0.4:
        return mutator.data(value)
    for _ in range(mutator.one_of(1, 1, 2, 5)):
        at = mutator.draw.randrange(len(found))
        size = mutator.one_of(1, 1, 4, 8)
        found[at : at + size] = mutator.one_of(bytes(size), b"\xff" * size, mutator.draw.randbytes(size))
    return bytes(found[: len(value)])


def read_arrow(value: bytes) -> str:
    """Check that both readers agree on each row, and that a unit joins or rejects every row."""
    try:
        read = list(read_rows(value, "ms"))
    except Unreadable as error:
        assert_clear(error)
        _check_refused(value)
        read = None
    try:
        checked = rows_of(value, 5, "ms")
    except Unreadable:
        assert read is None, "the tester refuses the message"
        checked = []
    if read is not None:
        assert sum(map(len, read)) == len(checked)
        rows = ((part, at) for part in read for at in range(len(part)))
        for (part, at), row in zip(rows, checked, strict=True):
            assert bool(part.valid[at]) == (row.record is not None), row
            assert part.as_json(at, "ms") == row.shown
            assert part.valid[at] or part.reason(at)
            if row.record is not None:
                _check_row(part, at, row.record, row.time_ns)
    for settings in _SETTINGS:
        unit = Unit(settings, 0, {DATA: 5})
        effects = unit.apply({DATA: Messages.of([5], [BASE_MS], [value])}, {DATA: 6})
        assert effects.records == (len(checked) if read is not None else 1)
        assert Unit.restore(settings, 0, unit.snapshot()).snapshot() == unit.snapshot()
        for dead_letter in effects.rejected:
            assert decode_rejected(encode(dead_letter)) == dead_letter
    return "refused" if read is None else "rows" if all(row.record for row in checked) else "rows and dead letters"


def _check_row(part: Any, at: int, record: Record, time_ns: int) -> None:
    assert part.thing.names[part.thing.number[at]] == record.thing
    assert part.quantity.names[part.quantity.number[at]] == record.quantity
    assert int(part.ts_ns[at]) == time_ns
    assert float(part.result[at]) == record.result
    assert part.id is None or part.id[at].decode() in {record.id, ""}


def _check_refused(value: bytes) -> None:
    effects = Unit(_SETTINGS[0], 0, {DATA: 5}).apply({DATA: Messages.of([5], [BASE_MS], [value])}, {DATA: 6})
    assert len(effects.rejected) == 1 or value.startswith(b"{")


def results_message(mutator: Mutator) -> bytes:
    """Return a message of results, some with changed bytes."""
    settings = mutator.one_of(*_SETTINGS[1:])
    rows = [("a", ("speed", "torque")[at % 2], BASE_MS + at // 3, float(at)) for at in range(mutator.one_of(4, 9, 40))]
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    names = ["thing", "quantity", "phenomenonTime", "result"]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, (batch := pa.record_batch(columns, names=names)).schema) as writer:
        writer.write_batch(batch)
    value = bytes(sink.getvalue().to_pybytes())
    effects = Unit(settings, 0, {DATA: 0}).apply({DATA: Messages.of([0], [BASE_MS], [value])}, {DATA: 1})
    return _damaged(mutator, effects.joined.values[0])


def read_results(value: bytes) -> str:
    """Check that both readers agree on each result."""
    try:
        found = decode_results(value)
    except Unreadable as error:
        assert_clear(error)
        return "refused"
    assert [(one.id, one.tie) for one in results_of(value, "ms")] == list(zip(found.ids(), found.tie, strict=True))
    return "results"
