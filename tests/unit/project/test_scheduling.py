"""Test processes get files as `tests.scheduling` says: each test is run once, and those on servers come first."""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from types import SimpleNamespace
from typing import Any, Final

import pytest

from tests.scheduling import FileScheduling, yield_to_servers

SERVERS: Final = ("chaos/test_a", "integration/test_b", "integration/test_c", "spark/test_d", "spark/test_e")
OTHERS: Final = ("property/test_f", "property/test_g", "simulation/test_h", "packaging/test_i")
LENGTHS: Final = dict(zip((*SERVERS, *OTHERS), (1, 5, 2, 3, 1, 1, 4, 2, 1), strict=True))


class Options:
    """The options of a run, as pytest has them."""

    def __init__(self, processes: int, *, fill_waits: bool) -> None:
        self._known: dict[str, Any] = {"tx": [f"{processes}*popen"], "fill_waits": fill_waits}
        self.option = SimpleNamespace(loadscopereorder=False)

    def getvalue(self, name: str) -> Any:
        return self._known[name]

    def getoption(self, name: str, default: Any) -> Any:
        return self._known.get(name, default)


class Process:
    """A test process. It runs a test only if it knows the next one, or that there is none."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.queue: list[int] = []

    def shutdown(self) -> None:
        self.shutting_down = True

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.queue += indices


def all_of(*files: str) -> list[str]:
    return [f"tests/{file}.py::test_{number}" for file in files for number in range(LENGTHS[file])]


def played(tests: list[str], processes: int, *, fills: bool) -> dict[str, list[str]]:
    """Return the tests that each process has run, in its order. Each takes a turn for a test."""
    scheduling = FileScheduling(Options(processes, fill_waits=fills))
    nodes = [Process(f"gw{number}") for number in range(processes)]
    for node in nodes:
        scheduling.add_node(node)
        scheduling.add_node_collection(node, tests)
    scheduling.schedule()
    ran: dict[str, list[str]] = defaultdict(list)
    for node in itertools.islice(itertools.cycle(nodes), 10 * len(tests) * processes):
        if len(node.queue) > 1 or (node.queue and node.shutting_down):
            index = node.queue.pop(0)
            ran[node.gateway.id].append(tests[index])
            scheduling.mark_test_complete(node, index)
    assert not any(node.queue for node in nodes), "a process waits for ever"
    assert all(node.shutting_down for node in nodes)
    return ran


def is_on_servers(test: str) -> bool:
    return test.removeprefix("tests/").startswith(("chaos/", "integration/", "spark/"))


@pytest.mark.parametrize("fills", [False, True])
@pytest.mark.parametrize("processes", [1, 2, 3, 4])
@pytest.mark.parametrize("files", [(*OTHERS, *SERVERS), OTHERS, SERVERS, SERVERS[:1]])
def test_each_test_is_run_once(files: tuple[str, ...], processes: int, *, fills: bool) -> None:
    tests = all_of(*files)
    ran = played(tests, processes, fills=fills)
    assert sorted(itertools.chain(*ran.values())) == sorted(tests)


def test_one_process_runs_no_tests_on_servers_and_the_others_run_these_first() -> None:
    ran = played(all_of(*OTHERS, *SERVERS), 3, fills=True)
    assert not any(map(is_on_servers, ran["gw2"]))
    for name in ("gw0", "gw1"):
        assert [*map(is_on_servers, ran[name])] == sorted(map(is_on_servers, ran[name]), reverse=True)


def test_without_the_option_files_keep_their_order() -> None:
    tests = all_of(*OTHERS, *SERVERS)
    assert played(tests, 1, fills=False) == {"gw0": tests}


def test_files_that_share_a_spark_session_are_run_by_the_same_process() -> None:
    ran = played(all_of(*OTHERS, *SERVERS), 3, fills=False)
    assert sum(any(test.startswith("tests/spark/") for test in some) for some in ran.values()) == 1


@pytest.mark.parametrize(
    ("process", "fills", "lower"), [(None, False, 0), ("gw2", False, 0), ("gw1", True, 0), ("gw2", True, 1)]
)
def test_only_the_process_that_fills_waits_lowers_its_priority(
    monkeypatch: pytest.MonkeyPatch, process: str | None, lower: int, *, fills: bool
) -> None:
    lowered: list[int] = []
    monkeypatch.setattr(os, "nice", lowered.append)
    for name, value in (("PYTEST_XDIST_WORKER", process), ("PYTEST_XDIST_WORKER_COUNT", process and "3")):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    config: Any = SimpleNamespace(getoption=lambda _name, **_default: fills)
    yield_to_servers(config)
    assert len(lowered) == lower
