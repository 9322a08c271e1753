"""How a contender is run: what is timed, and what the machine did meanwhile."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from bench.contest import __main__ as contest
from bench.contest.job import Contender, Limits
from bench.contest.plan import QUICK
from bench.contest.running import outputs, runs
from bench.contest.running.runs import Task
from bench.contest.running.watch import Watch
from bench.harness.processes import Machine, Sample, machine_cpu, others_cores
from bench.harness.report import code_commit, java_version

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class _StoppedError(Exception):
    pass


@pytest.mark.parametrize("measure", [runs.throughput, runs.recovery])
def test_the_clock_starts_once_the_contender_is_installed(
    measure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    class Job:
        folder = tmp_path / "job"

    def commands(_: Any) -> list[list[str]]:
        order.append("installed")
        return [["true"]]

    def watch(*_: Any) -> None:
        order.append("clock started")

    @contextmanager
    def nothing(*_: Any) -> Iterator[None]:
        yield

    def at_work(given: Any, job: Any) -> Any:
        if isinstance(given, Contender):
            given.commands(job)
        raise _StoppedError

    monkeypatch.setattr(runs, "_prepare", lambda *_: (None, Job(), None))
    monkeypatch.setattr(runs, "_end_of", lambda *_: None)
    monkeypatch.setattr(runs, "tidy", nothing)
    monkeypatch.setattr(runs, "Watch", watch)
    monkeypatch.setattr(runs, "at_work", at_work)
    arena: Any = None
    with pytest.raises(_StoppedError):
        measure(arena, Task(Contender("one", "", commands), "alternating", 1, Limits()))
    assert order == ["installed", "clock started"]


def test_cpu_time_that_is_nobodys_is_that_of_other_programs() -> None:
    found = others_cores(Machine(busy_s=12.0, idle_s=7.0, steal_s=1.0), known_s=10.0, passed_s=10.0)
    assert found == {"foreign_cores": 0.2, "steal_cores": 0.1, "idle_cores": 0.7, "foreign_share": 3.0 / 20.0}
    assert others_cores(Machine(9.99, 10.0, 0.0), known_s=10.0, passed_s=10.0)["foreign_cores"] == 0.0


def test_the_machines_cpu_time_leaves_out_interrupts() -> None:
    assert machine_cpu("cpu  100 200 300 400 50 7 8 25 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n") == Machine(6.0, 4.5, 0.25)


def test_what_others_used_is_that_of_the_measured_part() -> None:
    nobody: Any = None
    watch = Watch(nobody, nobody, Limits(), lambda *_: False)
    watch.samples = [
        Sample(0.0, 0.0, 0.0, 0.0, Machine(0.0, 0.0, 0.0)),
        Sample(10.0, 0.0, 0.0, 0.0, Machine(20.0, 0.0, 0.0)),
        Sample(20.0, 10.0, 4.0, 2.0, Machine(37.0, 3.0, 0.0)),
    ]
    assert watch.between(10.0, 20.0) == (10.0, 4.0)
    assert watch.others_between(10.0, 20.0)["foreign_cores"] == pytest.approx(0.1)
    assert watch.others_between(0.0, 10.0)["foreign_share"] == 1.0


def test_the_results_are_counted_again_when_the_broker_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy:
        left = 3

        def get_watermark_offsets(self, *_: Any, **__: Any) -> tuple[int, int]:
            self.left -= 1
            if self.left >= 0:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - its public name
            return 0, 7

    now_s = iter(range(0, 10_000, 5))
    clock = SimpleNamespace(monotonic=lambda: next(now_s), sleep=lambda _: None)
    busy: Any = Busy()
    job: Any = SimpleNamespace(out="out", partitions=2)
    monkeypatch.setattr(outputs, "time", clock)
    assert outputs.count_results(busy, job) == 14
    busy.left = 1_000_000
    with pytest.raises(KafkaException):
        outputs.count_results(busy, job)


def test_the_version_of_java_is_the_one_that_java_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert java_version() == "unknown"
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.15\" 2025-04-15' >&2\n")
    java.chmod(0o755)
    assert java_version() == "17.0.15"


def test_the_commit_is_the_last_one_that_changed_code(tmp_path: Path) -> None:
    def git(*given: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", *who, *given]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    assert code_commit(tmp_path) == "unknown"
    git("init", "-q")
    (tmp_path / "bench" / "results").mkdir(parents=True)
    for path in ("bench/one.py", "bench/results/one.json"):
        (tmp_path / path).write_text("1")
        git("add", "-A")
        git("commit", "-q", "-m", path)
    before = git("rev-parse", "--short", "HEAD^").strip()
    (tmp_path / "bench" / "results" / "one.json").write_text("2")
    assert code_commit(tmp_path) == before
    (tmp_path / "bench" / "one.py").write_text("2")
    assert code_commit(tmp_path) == f"{before}-dirty"


@pytest.mark.parametrize(
    ("costs", "took_s", "runs_made"),
    [([3.0, 2.0, 1.5, 1.49, 1.0], 1.0, 4), ([3.0, 3.1], 1.0, 2), ([5.0, 4.0, 3.0, 2.0, 1.0], 50.0, 3)],
)
def test_the_broker_is_warmed_up_until_it_gets_no_faster_or_two_minutes_are_over(
    costs: list[float], took_s: float, runs_made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[float] = []

    def throughput(*_: Any) -> dict[str, Any]:
        made.append(costs[len(made)])
        return {"records_per_s": 1.0, "is_through": True, "kafka_cpu_s_per_million": made[-1]}

    class Arena:
        def forget(self, *_: Any) -> None:
            pass

    arena: Any = Arena()
    monkeypatch.setattr(contest, "throughput", throughput)
    monkeypatch.setattr(contest, "time", SimpleNamespace(monotonic=lambda: took_s * len(made)))
    contest.warm_up(arena, QUICK)
    assert len(made) == runs_made
