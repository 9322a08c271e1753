"""Restoring what was merged: partitions side by side, until it is stopped."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Final

import pytest

from joiner.cli.merging import restoring
from joiner.cli.merging.restoring import Restoring, Stopped
from joiner.runtime.clock import SystemClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings

_PARTITIONS: Final = 3
_LIMIT_S: Final = 20.0


class Logs:
    """Stands in for Kafka. All partitions must be read at the same time, and reading ends once it is released."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.all_read, self.released = threading.Barrier(_PARTITIONS + 1), threading.Event()
        self.restored: list[Any] = []
        self.awaited: set[int] = set()
        patch.setattr(restoring, "make_reader", lambda *_given, **_more: SimpleNamespace(close=lambda: None))
        patch.setattr(restoring, "read_progress", self._read)
        patch.setattr(Restoring, "_output", lambda _restoring, output, *_given: self._restore(output))

    def wait_until_ended(self, number: int, _reader: object) -> None:
        self.awaited.add(number)

    def _read(self, *given: Any) -> dict[str, Any]:
        assert given[-1] in self.awaited, "what an earlier process has begun has ended"
        self.all_read.wait(_LIMIT_S)
        assert self.released.wait(_LIMIT_S)
        return {}

    def _restore(self, output: Any) -> Any:
        self.restored.append(output)
        return output


def restoring_of(pool: Executor, continues: Callable[[], bool] = lambda: True) -> Restoring:
    settings = make_settings(partitions=_PARTITIONS, application={"replicas": 2})
    return Restoring(settings, SystemClock(), {}, 10, pool, continues)


def test_partitions_are_restored_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs(monkeypatch)

    def release() -> None:
        logs.all_read.wait(_LIMIT_S)
        logs.released.set()

    with ThreadPoolExecutor(_PARTITIONS + 1) as pool:
        pool.submit(release)
        found: dict[Any, Any] = restoring_of(pool).run(logs.wait_until_ended)
    outputs = make_settings(partitions=_PARTITIONS).output_topics.values()
    assert found == {place: place for place in ((topic, at) for topic in outputs for at in range(_PARTITIONS))}


def test_a_stop_ends_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs(monkeypatch)
    with ThreadPoolExecutor(_PARTITIONS) as pool:
        with pytest.raises(Stopped):
            restoring_of(pool, lambda: logs.all_read.n_waiting < _PARTITIONS).run(logs.wait_until_ended)
        logs.all_read.wait(_LIMIT_S)
        logs.released.set()
    assert logs.restored == []


def test_an_error_of_one_partition_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs(monkeypatch)

    def fail(number: int, reader: object) -> None:
        logs.wait_until_ended(number, reader)
        if number == 1:
            raise OSError

    with ThreadPoolExecutor(_PARTITIONS) as pool:
        with pytest.raises(OSError):  # noqa: PT011 - it has no message
            restoring_of(pool).run(fail)
        logs.all_read.abort()
        logs.released.set()
    assert logs.restored == []


def test_an_error_keeps_nothing_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for transactions holds a producer, which would otherwise live until the next garbage collection."""
    Logs(monkeypatch)

    class Output:
        def wait_until_ended(self, _number: int, _reader: object) -> None:
            raise OSError

    output = Output()
    kept = weakref.ref(output)
    gc.disable()
    try:
        with ThreadPoolExecutor(_PARTITIONS) as pool, suppress(OSError):
            restoring_of(pool).run(output.wait_until_ended)
        del output
        assert kept() is None
    finally:
        gc.enable()
