"""Does a supervisor run as many workers as it should, whatever happens to them?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.settings import SettingsError
from joiner.runtime.clock import SystemClock
from joiner.runtime.control import MemberRecord, Scale
from joiner.runtime.runners.workers import supervisor
from joiner.runtime.runners.workers.supervisor import IN_USE_STATUS, Command, WorkerSupervisor

DEADLINE_S = 30.0
LIVES = (
    "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print(1, flush=True); signal.pause()"
)


class Running:
    """A supervisor in a thread. Each worker notes its name and process id in a folder when it starts."""

    def __init__(self, folder: Path, count: int, program: str = LIVES) -> None:
        self.folder, self.program = folder, program
        self.orders: list[MemberRecord] = []
        self.reports: list[tuple[int, int]] = []
        self.ended: list[tuple[str, str]] = []
        self.supervisor = WorkerSupervisor(
            "w",
            count,
            self.command,
            SystemClock(),
            orders=lambda: [self.orders.pop()] if self.orders else [],
            report=lambda running, wanted: self.reports.append((running, wanted)),
            report_end=lambda name, run: self.ended.append((name, run)),
        )
        self.status: list[int] = []
        self.is_over = threading.Event()
        # A daemon, so that a test that fails ends.
        self.thread = threading.Thread(
            target=lambda: self.status.append(self.supervisor.run(self.is_over)), daemon=True
        )
        self.thread.start()

    def command(self, name: str, number: int) -> Command:
        file = f"open({str(self.folder)!r} + f'/{name}.{number}.{{os.getpid()}}', 'w')"
        noted = f"import os; print(os.environ['LSB_WORKER_RUN'], end='', file={file}, flush=True); "
        return Command([sys.executable, "-c", noted + self.program], {"NUMBER": str(number)})

    def starts(self, name: str) -> list[int]:
        return [int(path.suffix[1:]) for path in self.folder.glob(f"{name}.*")]

    def runs(self, name: str) -> set[str]:
        """Return the ids of the runs of a worker that have been noted."""
        return {run for path in self.folder.glob(f"{name}.*") if (run := path.read_text())}

    def stop(self) -> int:
        self.is_over.set()
        self.thread.join(DEADLINE_S)
        return self.status[0]


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_BACK_OFF_S", (0.05, 0.2))
    monkeypatch.setattr(supervisor, "_LOOK_S", 0.01)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path, 2)
    yield made
    made.stop()


def is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_worker_that_ends_is_started_again_and_all_stop_with_the_supervisor(running: Running) -> None:
    wait_until(lambda: (2, 2) in running.reports)
    wait_until(lambda: len(running.starts("w-1")) == len(running.starts("w-2")) == 1)
    os.kill(running.starts("w-1")[0], signal.SIGKILL)
    wait_until(lambda: len(running.starts("w-1")) == 2)
    assert running.stop() == 0
    assert not any(is_alive(one) for name in ("w-1", "w-2") for one in running.starts(name))
    assert len(running.starts("w-2")) == 1


def test_the_end_of_each_run_of_a_worker_is_reported(running: Running) -> None:
    wait_until(lambda: len(running.runs("w-1")) == len(running.runs("w-2")) == 1)
    (run,) = running.runs("w-1")
    os.kill(running.starts("w-1")[0], signal.SIGKILL)
    wait_until(lambda: ("w-1", run) in running.ended)
    wait_until(lambda: len(running.runs("w-1")) == 2)
    running.orders.append(Scale(site="plain", instance="w", processes=1))
    wait_until(lambda: any(name == "w-2" for name, _ in running.ended))
    running.stop()
    runs = {(name, run) for name in ("w-1", "w-2") for run in running.runs(name)}
    assert set(running.ended) == runs
    assert len(runs) == 3


def test_the_number_of_workers_follows_the_orders_for_this_supervisor(running: Running) -> None:
    wait_until(lambda: (2, 2) in running.reports)
    running.orders.append(Scale(site="plain", instance="another", processes=9))
    running.orders.append(Scale(site="plain", instance="w", processes=3))
    wait_until(lambda: (3, 3) in running.reports)
    wait_until(lambda: all(len(running.starts(name)) == 1 for name in ("w-1", "w-2", "w-3")))
    running.orders.append(Scale(site="plain", instance="w", processes=1))
    wait_until(lambda: (1, 1) in running.reports)
    wait_until(lambda: not any(is_alive(one) for name in ("w-2", "w-3") for one in running.starts(name)))
    assert is_alive(running.starts("w-1")[0])


def test_a_worker_that_rejects_its_settings_ends_all(tmp_path: Path) -> None:
    made = Running(tmp_path, 2, "import sys; sys.exit(2)")
    made.thread.join(DEADLINE_S)
    assert made.status == [2]


def test_a_worker_whose_name_another_process_has_taken_ends_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = Running(tmp_path, 2, f"import os, sys; os.environ['NUMBER'] == '0' and sys.exit({IN_USE_STATUS}); {LIVES}")
    made.thread.join(DEADLINE_S)
    assert made.status == [IN_USE_STATUS]
    assert len(made.starts("w-1")) == 1
    assert not any(is_alive(one) for one in made.starts("w-2"))
    assert "another process has started under the name of worker w-1" in caplog.text


def test_settings_that_become_wrong_later_end_no_other_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "_RUNS_S", 0.0)
    running = Running(tmp_path, 1)
    wait_until(lambda: (1, 1) in running.reports and len(running.starts("w-1")) == 1)
    running.program = "raise SystemExit(2)"
    running.supervisor.want(2, "a test")
    wait_until(lambda: len(running.starts("w-2")) >= 2)
    assert is_alive(running.starts("w-1")[0])
    assert "worker w-2 has ended (status 2)" in caplog.text
    assert running.stop() == 0


def test_a_worker_that_cannot_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start, refusals = WorkerSupervisor._start, [OSError("no process left"), SettingsError("the port is too high")]  # noqa: SLF001

    def refuse(self: WorkerSupervisor, worker: Any, number: int) -> subprocess.Popen[bytes]:
        if refusals:
            raise refusals.pop(0)
        return start(self, worker, number)

    monkeypatch.setattr(WorkerSupervisor, "_start", refuse)
    running = Running(tmp_path, 1)
    wait_until(lambda: (1, 1) in running.reports)
    assert "not started: no process left" in caplog.text
    assert "not started: the port is too high" in caplog.text
    assert running.stop() == 0


def test_a_worker_that_ends_at_once_is_started_less_and_less_often(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = Running(tmp_path, 1, "import sys; sys.exit(1)")
    wait_until(lambda: len(caplog.messages) >= 4)
    made.stop()
    assert [message.rpartition("restarting it in ")[2] for message in caplog.messages[:4]] == [
        "0.1 s",
        "0.1 s",
        "0.2 s",
        "0.2 s",
    ]


def test_a_worker_ends_when_its_supervisor_does(tmp_path: Path) -> None:
    worker = (
        "import threading; from joiner.runtime.runners.workers.supervisor import stop_with_supervisor; "
        "over = threading.Event(); stop_with_supervisor(over.set); print(1, flush=True); over.wait(60)"
    )
    supervisor = (
        "import os, subprocess, sys; os.environ['LSB_SUPERVISOR'] = str(os.getpid()); "
        f"subprocess.Popen([sys.executable, '-c', {worker!r}]); "
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", supervisor], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path.cwd()
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        process.kill()
        # The worker holds the pipe open until it ends.
        assert process.stdout.read() == b""
