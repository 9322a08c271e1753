"""A child process is identified by its pid file, and no other process is mistaken for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.stack.child import Child, wait_until

DEADLINE_S = 20.0
WAITS = "import sys; print('started', flush=True); sys.stdin.read(); import signal; signal.pause()"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('started', flush=True); signal.pause()"


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    made = Child(tmp_path / "pid", tmp_path / "log")
    yield made
    made.resume()
    made.stop(0.0)


def start(child: Child, program: str, folder: Path) -> int:
    child.start([sys.executable, "-c", program], folder=folder, environment=os.environ)
    assert wait_until(lambda: "started" in child.log.read_text(), DEADLINE_S)
    assert child.pid is not None
    return child.pid


def test_a_stopped_child_is_gone_and_so_is_its_pid_file(child: Child, tmp_path: Path) -> None:
    pid = start(child, WAITS, tmp_path)
    assert child.stop(DEADLINE_S)
    assert child.pid is None
    assert not (tmp_path / "pid").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_child_that_ignores_sigterm_is_killed_after_the_deadline(child: Child, tmp_path: Path) -> None:
    start(child, DEAF, tmp_path)
    assert not child.stop(0.2)
    assert child.pid is None


def test_a_paused_child_can_be_stopped(child: Child, tmp_path: Path) -> None:
    start(child, WAITS, tmp_path)
    child.pause()
    assert wait_until(lambda: child.paused, DEADLINE_S)
    assert child.stop(DEADLINE_S)


def test_another_launcher_finds_and_stops_the_same_process(child: Child, tmp_path: Path) -> None:
    pid = start(child, WAITS, tmp_path)
    again = Child(tmp_path / "pid", tmp_path / "log")
    assert again.pid == pid
    assert again.stop(DEADLINE_S)
    assert child.pid is None


def test_a_stranger_with_the_same_id_is_neither_ours_nor_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        (tmp_path / "pid").write_text(json.dumps({"pid": stranger.pid, "started": "another boot:1"}))
        ours = Child(tmp_path / "pid", tmp_path / "log")
        assert ours.pid is None
        assert ours.stop(DEADLINE_S)
        assert stranger.poll() is None
        stranger.communicate(b"\n")
    assert stranger.returncode == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', "12"])
def test_a_truncated_pid_file_names_no_process(tmp_path: Path, text: str) -> None:
    (tmp_path / "pid").write_text(text)
    assert Child(tmp_path / "pid", tmp_path / "log").pid is None


def test_a_child_is_not_started_twice(child: Child, tmp_path: Path) -> None:
    start(child, WAITS, tmp_path)
    with pytest.raises(RuntimeError, match="already running"):
        start(child, WAITS, tmp_path)


def test_a_log_is_continued_by_the_next_start(child: Child, tmp_path: Path) -> None:
    start(child, WAITS, tmp_path)
    child.stop(DEADLINE_S)
    child.start([sys.executable, "-c", "print('again')"], folder=tmp_path, environment=os.environ)
    assert wait_until(lambda: child.pid is None, DEADLINE_S)
    assert child.log.read_text() == "started\nagain\n"


def test_waiting_for_what_never_comes_ends_at_the_deadline() -> None:
    assert not wait_until(lambda: False, 0.05)
