"""Results on standard output: JSON lines for pipes, tested as a process between real Kafka and a pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from broker.wire.records import AlignedRow, encode
from tests.integration.db_connector_pipeline import Pipeline, db_connector_pipeline, pairs_of, values_of
from tests.integration.services import DEADLINE_S, MOMENT_S, ROOT, STOP_S

if TYPE_CHECKING:
    from tests.integration.conftest import InfluxdbAccess


@pytest.fixture
def pipeline(kafka: str, influxdb: InfluxdbAccess, tmp_path: Path) -> Iterator[Pipeline]:
    yield from db_connector_pipeline(kafka, influxdb, tmp_path)


@contextmanager
def started(pipeline: Pipeline) -> Iterator[subprocess.Popen[bytes]]:
    environment = {
        "LSB_KAFKA__BOOTSTRAP_SERVERS": pipeline.bootstrap,
        "LSB_TOPICS__OUT": pipeline.out,
        "LSB_TOPICS__REJECTED": pipeline.rejected,
        "LSB_DB_CONNECTOR__GROUP": pipeline.name,
    }
    command = [sys.executable, "-m", "db_connector", "--sink", "stdout"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, stdout=pipe, stderr=pipe) as process:
        pipeline.processes.append(process)
        try:
            yield process
        finally:
            process.kill()


def lines_of(process: subprocess.Popen[bytes], count: int) -> list[dict[str, Any]]:
    assert process.stdout is not None
    return [json.loads(process.stdout.readline()) for _ in range(count)]


def test_each_committed_result_is_a_line_and_a_restart_continues(pipeline: Pipeline) -> None:
    pairs = pairs_of(1_000, seed=1)
    row = AlignedRow("R 1", "spindle", 7, 9.0, "spindle:0:301", {"speed": None, "power": 2.5}, "1")
    pipeline.produce(values_of(pairs))
    pipeline.produce(values_of(pairs_of(100, seed=2)), abort=True)
    pipeline.produce([(0, encode(row)), (1, b"no result"), (2, b'{"mark": 1}')])
    with started(pipeline) as first:
        found = lines_of(first, 1_001)
        pipeline.wait_until_drained()
        first.terminate()
        rest, _log = first.communicate(timeout=DEADLINE_S)
    assert (rest, first.returncode) == (b"", 0)
    by_id = {one["id"]: one for one in found}
    assert by_id.pop("spindle:0:301") == {
        "thing": "R 1", "quantity": "spindle", "phenomenonTime": 7, "result": 9.0, "id": "spindle:0:301", "tie": "1",
        "values": {"speed": None, "power": 2.5},
    }  # fmt: skip
    assert by_id.keys() == {pair.id for pair, _twice_ns in pairs}
    for pair, twice_ns in pairs:
        one = by_id[pair.id]
        assert (one["thing"], one["quantity"], one["result"]) == (pair.thing, pair.quantity, pair.result)
        assert one.get("tie", "") == pair.tie
        assert one["phenomenonTime"] == pytest.approx(twice_ns / 2e6, rel=1e-15)
    assert len(pipeline.dead_letters()) == 1
    (more, _at), *_ = pairs_of(1, seed=3)
    pipeline.produce([(0, encode(more))])
    with started(pipeline) as second:
        assert [one["id"] for one in lines_of(second, 1)] == [more.id]
        second.terminate()
        assert second.wait(DEADLINE_S) == 0


def test_a_reader_that_has_seen_enough_ends_the_command(pipeline: Pipeline) -> None:
    pipeline.produce(values_of(pairs_of(5_000, seed=4)))
    with started(pipeline) as process:
        lines_of(process, 5)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        log = process.stderr.read().decode()
        assert process.wait(DEADLINE_S) == 0, log
    assert "the reader of standard output has ended" in log
    assert "Traceback" not in log


def test_a_reader_that_does_not_read_delays_no_stop(pipeline: Pipeline) -> None:
    pipeline.produce(values_of(pairs_of(5_000, seed=5)))
    with started(pipeline) as process:
        lines_of(process, 1)  # the pipe is full from here on
        process.terminate()
        assert process.wait(STOP_S + MOMENT_S) == 0
