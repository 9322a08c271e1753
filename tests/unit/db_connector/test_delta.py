"""Results in a Delta Lake table: the contract of all sinks, and each result once, whatever is written again.

A table is a folder, so these tests use the real library and need no server.
"""

# ruff: noqa: D101 - the names of tests, and of the parts of a stand-in, are descriptive enough

from __future__ import annotations

import math
import os
import random
import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pydantic import ValidationError

from broker.wire.records import AlignedRow
from db_connector.settings import DeltaSettings
from db_connector.sinks.delta import DeltaSink
from db_connector.sinks.sink import MisconfiguredError, Place, UnavailableError, WriteError
from db_connector.writer import Writer
from tests.unit.db_connector.sink_contract import Identity, SinkContract, Stored, place
from tests.unit.db_connector.test_contract import joined


def sink_at(path: Path | str, topic_id: str = "topic-1") -> DeltaSink:
    sink = DeltaSink(DeltaSettings.model_validate({"path": str(path)}), "ms")
    sink.begin(topic_id)
    return sink


def stored_in(path: Path) -> Stored:
    """Return all rows, after checking the columns that say the same."""
    found: Stored = {}
    if not DeltaTable.is_deltatable(str(path)):
        return found
    for row in DeltaTable(str(path)).to_pyarrow_table().to_pylist():
        names = ("join_name", "thing", "quantity", "time_ns", "half", "tie")
        key = Identity(*(row[name] for name in names))
        assert key not in found, "stored twice"
        time = row["time"]
        assert (time.date(), time.hour) == (row["date"], row["hour"])
        assert pa.scalar(time, pa.timestamp("us", "UTC")).cast(pa.int64()).as_py() == key.time_ns // 1000
        assert row["id"].startswith(key.join)
        values = {"result": row["result"], "left": row["left_value"], "right": row["right_value"]}
        found[key] = {
            name: value for name, value in (values | dict(row["row_values"] or ())).items() if value is not None
        }
    return found


class Stand:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "joined"
        self.sink = sink_at(self.path)
        file = folder / "file"
        file.write_text("")
        self.missing = sink_at(file / "table")

    def stored(self) -> Stored:
        return stored_in(self.path)


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)


class TestTheSink(SinkContract):
    @pytest.fixture
    def sink_stand(self, stand: Stand) -> Stand:
        return stand


def lines_of(sink: DeltaSink, numbers: range, partition: int = 0) -> list[bytes]:
    pairs = [joined(f"R{partition}", twice_ns=2_000_000 * n, identity=f"power:{partition}:{n}:{n}") for n in numbers]
    return [sink.encode(pair, place(n, partition)) for n, pair in zip(numbers, pairs, strict=True)]


@pytest.mark.parametrize("seed", range(20))
def test_each_result_is_stored_once_whatever_is_read_again_in_whatever_batches(stand: Stand, seed: int) -> None:
    """Each process continues anywhere before the end of what is stored, and may have died after its commit."""
    chance = random.Random(seed)
    ends, total = {0: 0, 1: 0}, 300
    while min(ends.values()) < total:
        sink = sink_at(stand.path)
        at = {number: chance.randint(0, end) for number, end in ends.items()}
        for _ in range(chance.randint(1, 5)):
            batch: list[bytes] = []
            for number in chance.sample([0, 1], chance.randint(1, 2)):
                until = min(total, at[number] + chance.randint(0, 60))
                batch += lines_of(sink, range(at[number], until), number)
                at[number] = until
                ends[number] = max(ends[number], until)
            sink.write(batch)
    assert len(stand.stored()) == 2 * total


def test_a_batch_may_be_split_anywhere_also_within_a_message(stand: Stand) -> None:
    rows = [
        stand.sink.encode(joined(twice_ns=2_000_000 * row, identity=f"power:0:{row}:1"), Place(0, 7 << 16 | row))
        for row in range(10)
    ]
    stand.sink.write(rows[:4])
    stand.sink.write(rows[:6])
    stand.sink.write(rows[4:])
    assert len(stand.stored()) == 10


def test_two_processes_that_write_the_same_partition_store_each_result_once(stand: Stand) -> None:
    """As after a rebalance, when the former owner is still writing its last batch."""
    old, new = sink_at(stand.path), sink_at(stand.path)
    old.write(lines_of(old, range(10)))
    new.write(lines_of(new, range(5, 40)))
    old.write(lines_of(old, range(10, 30)))
    new.write(lines_of(new, range(40, 50)))
    assert len(stand.stored()) == 50


def test_processes_that_write_different_partitions_at_the_same_time_lose_nothing(stand: Stand) -> None:
    def write(partition: int) -> None:
        sink = sink_at(stand.path)
        writer = Writer(sink, backoff_min_s=0.01, backoff_max_s=0.1, wait=lambda _s: False)
        for begin in range(0, 100, 10):
            writer.write(lines_of(sink, range(begin, begin + 10), partition))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stand.stored()) == 300


def test_offsets_of_a_topic_that_was_created_again_are_not_those_of_the_former_one(stand: Stand) -> None:
    stand.sink.write(lines_of(stand.sink, range(10)))
    later = sink_at(stand.path, "topic-2")
    pair = joined("other", identity="power:0:1:1")
    later.write([later.encode(pair, place(3))])
    assert len(stand.stored()) == 11


def test_a_table_with_other_columns_is_an_operators_mistake_at_each_attempt(stand: Stand) -> None:
    DeltaTable.create(str(stand.path), schema=pa.schema([("id", pa.string()), ("result", pa.int64())]))
    for _ in range(2):
        with pytest.raises(MisconfiguredError, match=r"does not have the columns date, hour, .*result, .*delta\.path"):
            stand.sink.write(lines_of(stand.sink, range(1)))


def test_a_table_that_disappears_is_not_replaced_by_an_empty_one(stand: Stand) -> None:
    stand.sink.write(lines_of(stand.sink, range(3)))
    gone = stand.path.with_name("gone")
    stand.path.rename(gone)
    with pytest.raises(WriteError):
        stand.sink.write(lines_of(stand.sink, range(3, 6)))
    for _ in range(2):
        with pytest.raises(MisconfiguredError, match="has disappeared: restore it"):
            stand.sink.write(lines_of(stand.sink, range(3, 6)))
        with pytest.raises(MisconfiguredError, match="has disappeared: restore it"):
            stand.sink.probe()
    shutil.rmtree(stand.path, ignore_errors=True)
    gone.rename(stand.path)
    stand.sink.write(lines_of(stand.sink, range(3, 6)))
    assert len(stand.stored()) == 6


def test_a_failure_after_a_conflict_is_unavailability(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = sink_at(stand.path), sink_at(stand.path)
    old.write(lines_of(old, range(3)))
    new.write(lines_of(new, range(6)))

    def fail(_table: DeltaTable) -> None:
        raise OSError("the disk is away")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "update_incremental", fail)
        with pytest.raises(UnavailableError, match="the disk is away"):
            old.write(lines_of(old, range(3, 6)))
    old.write(lines_of(old, range(3, 6)))
    assert len(stand.stored()) == 6


def test_each_transaction_is_durable_before_it_is_acknowledged(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()
    sync = os.fsync

    def note(descriptor: int) -> None:
        synced.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    stand.sink.write(lines_of(stand.sink, range(3)))
    (file,) = stand.path.glob("date=*/hour=*/*.parquet")
    log = stand.path / "_delta_log"
    wanted = {str(path) for path in (file, file.parent, log / f"{1:020}.json", log, stand.path)}
    assert wanted <= synced
    synced.clear()
    sink_at(stand.path).probe()
    assert wanted <= synced, "the process before may have died before that"


@pytest.mark.parametrize("path", ["s3://key:secret@bucket/t", "s3://bucket/t?secret=x", "s3://a b/t", "", "x" * 1001])
def test_a_path_is_plain(path: str) -> None:
    with pytest.raises(ValidationError):
        DeltaSettings.model_validate({"path": path})


def test_a_path_does_not_depend_on_the_folder_in_which_a_process_starts() -> None:
    assert Path(DeltaSettings().path).is_absolute()
    assert DeltaSettings.model_validate({"path": "s3://bucket/t"}).path == "s3://bucket/t"


def test_negative_zero_stays_negative(stand: Stand) -> None:
    row = AlignedRow("R", "a", 1, -0.0, "a:0:1", {"x": -0.0})
    stand.sink.write([stand.sink.encode(row, place(0))])
    (values,) = stand.stored().values()
    assert [math.copysign(1, value) for value in values.values()] == [-1, -1]
