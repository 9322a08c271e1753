"""How a contender is run: what is timed, and what the machine did meanwhile."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from bench.contest.job import Contender, Limits
from bench.contest.running import runs
from bench.contest.running.runs import Task

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
