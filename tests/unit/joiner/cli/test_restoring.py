"""Restoring what was merged: partitions side by side, until it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
        self.fences = {("state", number): number for number in range(_PARTITIONS)}
        self.awaited: dict[int, dict[Any, int]] = {}
        patch.setattr(restoring, "make_reader", lambda *_given, **_more: SimpleNamespace(close=lambda: None))
        patch.setattr(restoring, "read_progress", self._read)
        patch.setattr(Restoring, "_output", lambda _restoring, output, *_given: self._restore(output))

    def fence(self) -> dict[Any, int]:
        return self.fences

    def wait_until_ended(self, fences: dict[Any, int], _reader: object) -> None:
        (number,) = fences.values()
        self.awaited[number] = fences

    def _read(self, *given: Any) -> dict[str, Any]:
        assert given[-1] in self.awaited, "what an earlier process has begun has ended"
        self.all_read.wait(_LIMIT_S)
        assert self.released.wait(_LIMIT_S)
        return {}

    def _restore(self, output: Any) -> Any:
        self.restored.append(output)
        return output


def run(logs: Any, pool: ThreadPoolExecutor, continues: Callable[[], bool] = lambda: True) -> dict[Any, Any]:
    settings = make_settings(partitions=_PARTITIONS, application={"replicas": 2})
    return Restoring(settings, SystemClock(), {}, 10, continues).run(pool, logs)


def test_partitions_are_restored_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs(monkeypatch)

    def release() -> None:
        logs.all_read.wait(_LIMIT_S)
        logs.released.set()

    with ThreadPoolExecutor(_PARTITIONS + 1) as pool:
        pool.submit(release)
        found = run(logs, pool)
    outputs = make_settings(partitions=_PARTITIONS).output_topics.values()
    assert found == {place: place for place in ((topic, at) for topic in outputs for at in range(_PARTITIONS))}
    assert logs.awaited.keys() == set(range(_PARTITIONS))


def test_a_stop_ends_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs(monkeypatch)
    with ThreadPoolExecutor(_PARTITIONS) as pool:
        with pytest.raises(Stopped):
            run(logs, pool, lambda: logs.all_read.n_waiting < _PARTITIONS)
        logs.all_read.wait(_LIMIT_S)
        logs.released.set()
    assert logs.restored == []


def test_an_error_of_one_partition_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs(monkeypatch)

    def fail(fences: dict[Any, int], reader: object) -> None:
        logs.wait_until_ended(fences, reader)
        if 1 in fences.values():
            raise OSError

    failing = SimpleNamespace(fence=logs.fence, wait_until_ended=fail)
    with ThreadPoolExecutor(_PARTITIONS) as pool:
        with pytest.raises(OSError):  # noqa: PT011 - it has no message
            run(failing, pool)
        logs.all_read.abort()
        logs.released.set()
    assert logs.restored == []
