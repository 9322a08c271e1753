"""The peers in Python: their own rules against the expected results, without the packages of their engines.

For Flink, whose rule is SQL: the tables that it is given.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from bench.contest.workload.inputs import Workload, make
from bench.harness.other_layout import SCHEMA
from tests.unit.bench.test_jvm_peers import check, with_ties

ENGINE = ("bytewax", *(f"bytewax.{name}" for name in ("connectors.kafka", "dataflow", "operators", "recovery", "run")))


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the peer in bytewax with stand-ins for the packages of its environment."""
    for name in (*ENGINE, "bytewax.connectors", "bytewax.operators.windowing", "orjson"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    monkeypatch.delitem(sys.modules, "bench.peers.bytewax_window", raising=False)
    yield importlib.import_module("bench.peers.bytewax_window")
    sys.modules.pop("bench.peers.bytewax_window")


def pairs_by_hand(peer: Any, workload: Workload) -> list[tuple[int, int]]:
    """Return the pairs that the peer writes for a workload, given its records in order."""
    states: dict[str, Any] = {}
    found = []
    for _, message in workload.messages(0, len(workload)):
        record = json.loads(message["value"])
        states[record["thing"]], pairs = peer.meet(states.get(record["thing"]), record)
        found += [(int(left["id"]), int(right["id"])) for left, right in pairs]
    return found


def test_the_rule_in_bytewax_finds_the_expected_pairs_once(peer: Any) -> None:
    names = ("alternating", "rates 1:10", "rates 1:1000", "bursts and gaps", "varying gaps", "skew", "recorded")
    workloads = [*(make(name, 3_000) for name in names), *map(with_ties, range(60))]
    check(workloads, [pairs_by_hand(peer, workload) for workload in workloads])


def test_the_rule_in_bytewax_ignores_a_record_that_is_older_than_the_newest(peer: Any) -> None:
    def record(quantity: str, time_ms: int) -> dict[str, Any]:
        return {"thing": "a", "quantity": quantity, "phenomenonTime": time_ms, "id": f"{time_ms}"}

    state, _ = peer.meet(None, record("speed", 20))
    assert peer.meet(state, record("torque", 10)) == (state, [])
    assert state.now[1] == []


@pytest.fixture
def flink(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the peer in Flink SQL with stand-ins for the packages of its environment."""
    for name in ("pyflink", "pyflink.common", "pyflink.table"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    monkeypatch.delitem(sys.modules, "bench.peers.flink_interval", raising=False)
    yield importlib.import_module("bench.peers.flink_interval")
    sys.modules.pop("bench.peers.flink_interval")


def setup_of(flink: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *given: str) -> Any:
    for name in ("connector", "format"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / f"{name}.jar").touch()
    jars = ["--jars", str(tmp_path / "connector"), *given]
    monkeypatch.setattr(sys, "argv", ["flink_interval.py", "host:1", "data", "out", *jars])
    return flink.Setup.of(flink._options())  # noqa: SLF001 - as its command does


def test_flink_reads_avro_with_its_own_format_from_the_registry(
    flink: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = ("--jars", str(tmp_path / "format"), "--registry", "http://host:2/path")
    setup = setup_of(flink, monkeypatch, tmp_path, *given)
    assert [Path(jar).name for jar in setup.config["pipeline.jars"].split(";")] == ["connector.jar", "format.jar"]
    table, _, insert = flink.statements(setup, "w", "l")
    assert "'format' = 'avro-confluent', 'avro-confluent.url' = 'http://host:2/path'" in table
    for field in _fields(json.loads(SCHEMA)):
        assert re.search(rf"\b{field}\b", table)
    for column in ("thing", "quantity", "phenomenonTime", "`result`", "id"):
        assert f"{column} AS " in table
    assert setup.sink["value.format"] == "json"
    assert insert == flink.statements(setup_of(flink, monkeypatch, tmp_path / "other"), "w", "l")[2]


def test_flink_reads_json_unless_there_is_a_registry(
    flink: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    setup = setup_of(flink, monkeypatch, tmp_path)
    assert [Path(jar).name for jar in setup.config["pipeline.jars"].split(";")] == ["connector.jar"]
    assert "'format' = 'json'" in flink.statements(setup, "w", "l")[0]


def _fields(schema: Any) -> Iterator[str]:
    for field in schema["fields"]:
        yield field["name"]
        if isinstance(field["type"], dict):
            yield from _fields(field["type"])
