"""The peers in Python: their own rules against the expected results, without the packages of their engines."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any
from unittest.mock import MagicMock

import pytest

from bench.contest.workload.inputs import Workload, make
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
