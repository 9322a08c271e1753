"""Tests the Java peers: compares their results with the expected ones, and checks the commands that start them."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.contest.contenders import CONTENDERS
from bench.contest.job import Job
from bench.contest.running.outputs import pairs_of
from bench.contest.workload.expected import compare, expect
from bench.contest.workload.inputs import AVRO, DRIVER_AND_COLUMNS, QUANTITIES, ROWS, Workload, make
from bench.harness.other_layout import SCHEMA
from bench.peers.jvm import flink_joins, programs, spark_joins, streams_joins
from broker.settings import KafkaSettings
from broker.stack.errors import StackError

ENGINES = {"streams": streams_joins, "flink": flink_joins, "spark": spark_joins}


needs_javac = pytest.mark.skipif(shutil.which("javac") is None, reason="javac is missing")


@pytest.fixture(scope="module")
def classpath(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Compile Spark's program, and the shared rule with it, against the jars of the installed Spark."""
    jars = f"{programs.pyspark_jars()}/*"
    return f"{programs.compile_java('spark', tmp_path_factory.mktemp('classes'), jars, print)}:{jars}"


def listed(classpath: str, workloads: list[Workload], *given: str) -> list[list[tuple[int, int]]]:
    """Return the pairs that the rule in Java writes for each workload, given its records in order.

    ``given``: the arguments of the program.
    """
    lines: list[bytes] = []
    for workload in workloads:
        values = [message["value"] for _, message in workload.messages(0, len(workload))]
        lines += [*(map(base64.b64encode, values) if workload.is_avro else values), b""]
    java = ["java", "-cp", classpath, "common.Listing", *given]
    ran = subprocess.run(java, input=b"\n".join([*lines, b""]), capture_output=True, check=True)
    found: list[list[tuple[int, int]]] = [[]]
    for line in ran.stdout.splitlines():
        if line:
            found[-1] += [(left, right) for left, right, _ in pairs_of([line])]
        else:
            found.append([])
    return found[: len(workloads)]


def with_ties(seed: int, quantities: tuple[str, ...] = QUANTITIES) -> Workload:
    """Return a workload of two things in which many records have equal times."""
    draw = np.random.default_rng(seed)
    rows = 40
    nothing = np.zeros(2, dtype=np.int64)
    time_ms = np.sort(draw.integers(0, 15, rows))
    side = draw.integers(0, len(quantities), rows)
    thing = draw.integers(0, 2, rows)
    return Workload("ties", "", ["a", "b"], nothing, thing, side, time_ms, quantities=quantities)


@needs_javac
@pytest.mark.parametrize("order", ["arrival", "passed"])
def test_the_rule_in_java_finds_the_expected_pairs_once(order: str, classpath: str) -> None:
    names = ("alternating", "rates 1:10", "rates 1:1000", "bursts and gaps", "varying gaps", "skew", "recorded")
    workloads = [*(make(name, 3_000) for name in names), *map(with_ties, range(60))]
    check(workloads, listed(classpath, workloads, ",".join(QUANTITIES), order))


@needs_javac
def test_avro_is_read_in_java_as_the_same_records_are_in_json(classpath: str) -> None:
    in_avro, in_json = make(AVRO, 3_000), make("alternating", 3_000)
    arguments = (",".join(QUANTITIES), "arrival")
    found = listed(classpath, [in_avro, replace(with_ties(1), is_avro=True)], *arguments, SCHEMA)
    check([in_avro, with_ties(1)], found)
    assert found == listed(classpath, [in_json, with_ties(1)], *arguments)


@needs_javac
def test_a_message_without_the_id_of_a_schema_is_not_read_as_avro_in_java(classpath: str) -> None:
    java = ["java", "-cp", classpath, "common.Listing", ",".join(QUANTITIES), "arrival", SCHEMA]
    for message in (b"{}", b"\0\0\0\0", b"\1\0\0\0\1"):
        ran = subprocess.run(java, input=base64.b64encode(message) + b"\n", capture_output=True, check=False)
        assert b"does not begin with a byte 0" in ran.stderr
        assert ran.returncode


@needs_javac
@pytest.mark.parametrize("order", ["arrival", "passed"])
def test_the_rule_in_java_makes_the_expected_rows_once(order: str, classpath: str) -> None:
    workloads = [make(ROWS, 3_000), *(with_ties(seed, DRIVER_AND_COLUMNS) for seed in range(60))]
    check(workloads, listed(classpath, workloads, ",".join(DRIVER_AND_COLUMNS), order))


def check(workloads: list[Workload], results: list[list[tuple[int, int]]]) -> None:
    for workload, pairs in zip(workloads, results, strict=True):
        left, right = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        found = compare(expect(workload), left, right)
        assert (found.missing, found.excess, found.double) == (0, 0, 0), workload.name
        assert found.found > 0


@needs_javac
def test_a_program_is_compiled_once_and_again_when_its_jars_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "One.java"
    source.write_text("final class One {}")
    monkeypatch.setattr(programs, "sources", lambda _: [source])
    place = programs.compile_java("one", tmp_path / "peers", "a", print)
    assert [path.name for path in place.iterdir()] == ["One.class"]
    monkeypatch.setattr(programs, "Parts", None)
    assert programs.compile_java("one", tmp_path / "peers", "a", print) == place
    with pytest.raises(TypeError):
        programs.compile_java("one", tmp_path / "peers", "b", print)


def test_without_a_compiler_the_reason_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(StackError, match="javac is missing; on Debian and Ubuntu: apt-get install"):
        programs.compile_java("spark", tmp_path, "", print)


def options_of(engine: str, *given: str) -> list[str]:
    """Return the arguments that a script passes to its program."""
    passed: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        command = [f"{engine}_joins.py", "host:1", "data", "out", "--classpath", "classes", "--state", "/state", *given]
        patch.setattr(sys, "argv", command)
        patch.setattr(os, "execv", lambda _, command: passed.extend(command))
        patch.setattr(shutil, "which", lambda name: f"/bin/{name}")
        ENGINES[engine].main()
    return passed


@pytest.mark.parametrize("engine", ENGINES)
def test_every_variant_changes_a_setting(engine: str) -> None:
    # Flink's variants of the alignment change nothing without it, and those of the fetches differ from its default.
    orders = [("--order", "arrival"), ("--order", "timers")] if engine == "flink" else [()]
    for name in ENGINES[engine].VARIANTS:
        is_best = [options_of(engine, *order, "--variant", name) == options_of(engine, *order) for order in orders]
        assert all(is_best) == (name == "best")
    best = options_of(engine)
    main = best[best.index("-cp") + 2]
    assert best[best.index("-cp") + 1] == "classes"
    assert [path for path in programs.sources(engine) if path.parent.name == engine and path.stem == main.split(".")[1]]


def test_kafka_streams_gets_its_join_its_window_and_its_settings() -> None:
    given = options_of("streams", "--join", "window", "--width-ms", "8", "--lateness-ms", "3", "--variant", "rocksdb")
    first = given.index("streams.Joins") + 1
    assert given[first : first + 6] == ["window", "data", "out", "rocksdb", "8", "3"]
    assert {"application.id=out", "bootstrap.servers=host:1", "processing.guarantee=exactly_once_v2"} <= set(given)


def test_flink_waits_for_the_watermark_when_records_are_out_of_order() -> None:
    for lateness, order, drift in (("0", "arrival", "0"), ("500", "timers", "1000")):
        given = options_of("flink", "--lateness-ms", lateness)
        first = given.index("flink.Joins") + 1
        assert given[first : first + 5] == [order, "host:1", "data", "out", lateness]
        assert f"drift_ms={drift}" in given


def test_flink_fetches_less_at_a_time_only_with_alignment() -> None:
    for order, polled, fetched in (("arrival", 10_000, 1 << 20), ("timers", 2_000, 256 << 10)):
        given = options_of("flink", "--order", order)
        assert {f"source.max.poll.records={polled}", f"source.max.partition.fetch.bytes={fetched}"} <= set(given)


def test_flink_keeps_its_jars_outside_the_folder_whose_size_is_measured() -> None:
    (scratch,) = [word for word in options_of("flink") if word.startswith("io.tmp.dirs=")]
    assert Path("/state") not in [Path(scratch.partition("=")[2]), *Path(scratch.partition("=")[2]).parents]


@pytest.mark.parametrize(("engine", "prefix"), [("streams", "producer."), ("flink", "sink."), ("spark", "sink.")])
def test_every_producer_has_the_settings_of_the_joiners(engine: str, prefix: str) -> None:
    wanted = {"compression.type": "lz4", "linger.ms": "5", "batch.size": "1000000", "buffer.memory": str(128 << 20)}
    given = options_of(engine)
    assert {f"{prefix}{name}={value}" for name, value in wanted.items()} <= set(given)
    assert sum(word.startswith(f"{prefix}linger.ms=") for word in given) == 1


@pytest.mark.parametrize(
    "name", [name for name in CONTENDERS if name.startswith(("Kafka Str", "Flink by", "Spark by"))]
)
def test_the_sink_of_every_peer_in_java_is_tried(name: str) -> None:
    tried = {one.name.partition(": ")[2] for one in CONTENDERS[name].variants}
    assert {"sink-256k", "sink-default"} <= tried
    assert tried & {"small-fetches", "large-fetches", "batches of 800,000"}


@pytest.mark.parametrize("name", [name for name in CONTENDERS if name.startswith("Spark by")])
def test_every_trial_of_spark_in_java_starts_another_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "command", lambda *_: ["spark_joins.py", "--classpath", "classes"])
    job = Job(KafkaSettings(bootstrap_servers="host:1"), Path("/job"), "job", "data", 1)
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: started.append(command))
    monkeypatch.setattr(shutil, "which", lambda program: f"/bin/{program}")
    for one in (CONTENDERS[name], *CONTENDERS[name].variants):
        ((_, *script),) = one.commands(job)
        monkeypatch.setattr(sys, "argv", script)
        spark_joins.main()
    assert len(set(map(tuple, started))) == len(started) > 1


@pytest.mark.parametrize("engine", ["flink", "spark"])
def test_an_engine_that_makes_aligned_rows_is_given_their_quantities(engine: str) -> None:
    assert "quantities=load,speed" in options_of(engine, "--quantities", "load,speed")
    assert not [word for word in options_of(engine) if word.startswith("quantities=")]


@pytest.mark.parametrize("engine", ["flink", "streams"])
def test_an_engine_that_reads_avro_is_given_the_schema(engine: str) -> None:
    assert f"schema={SCHEMA}" in options_of(engine, "--schema", SCHEMA)
    assert not [word for word in options_of(engine) if word.startswith("schema=")]


def test_spark_gets_its_order_and_its_batch() -> None:
    given = options_of("spark", "--order", "arrival", "--batch", "7")
    first = given.index("spark.Joins") + 1
    assert given[first : first + 7] == ["arrival", "host:1", "data", "out", "/state", "0", "7"]
