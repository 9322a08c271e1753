"""Is a fork that runs a service the same as a new interpreter that runs it?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration import services
from tests.integration.forked import Forked
from tests.integration.services import DEADLINE_S, ROOT, handles, kill, run_service, start_service, wait_until

PROGRAM: Final = "tests.integration.forked_program"


def told(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


@contextmanager
def waiting(log: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = start_service(PROGRAM, "wait", environment={}, log=log)
    try:
        wait_until(lambda: "}" in log.read_text(), "the program waits")
        yield process
    finally:
        kill(process)


def test_it_has_the_arguments_the_environment_and_the_files_of_a_new_interpreter() -> None:
    variable = {"LSB_TOLD": "yes", "PYTHONFAULTHANDLER": "1"}
    forked = run_service(PROGRAM, "a", "b c", environment=variable)
    command, environment = [sys.executable, "-m", PROGRAM, "a", "b c"], os.environ | variable
    new = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    one, other = told(forked.stdout), told(new.stdout)
    assert one.pop("random") != other.pop("random")
    assert one == other
    assert one["arguments"] == ["a", "b c"]
    assert one["tells_of_crashes"]
    assert (forked.returncode, forked.stderr) == (0, new.stderr)


def test_each_has_its_own_random_numbers() -> None:
    assert len({told(run_service(PROGRAM, environment={}).stdout)["random"] for _ in range(3)}) == 3


@pytest.mark.parametrize(("arguments", "status"), [((), 0), (("exit", "3"), 3), (("raise",), 1)])
def test_its_exit_status_is_that_of_the_program(arguments: tuple[str, ...], status: int) -> None:
    done = run_service(PROGRAM, *arguments, environment={})
    assert done.returncode == status
    assert ("ValueError: told so" in done.stderr) == (arguments == ("raise",))


def test_a_killed_one_has_the_status_of_the_signal_and_is_gone(tmp_path: Path) -> None:
    with waiting(tmp_path / "log") as process, waiting(tmp_path / "other") as other:
        assert isinstance(process, Forked) == (sys.platform == "linux")
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == -signal.SIGTERM
        assert not Path(f"/proc/{process.pid}").exists()
        process.kill()  # without effect
        assert process.poll() == -signal.SIGTERM
        assert other.poll() is None


def test_whoever_has_the_id_of_one_that_has_ended_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(services, "signal_all", lambda numbers, _: killed.extend(numbers))
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(DEADLINE_S)
    services.kill_with_children(process)
    assert killed == []


def test_an_interrupt_ends_it_and_not_the_next_one(tmp_path: Path) -> None:
    with waiting(tmp_path / "log") as process:
        assert handles(process, signal.SIGINT)
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) in {-signal.SIGINT, 130}
    assert run_service(PROGRAM, environment={}).returncode == 0


def test_with_other_variables_of_the_interpreter_a_new_one_is_started(tmp_path: Path) -> None:
    process = start_service(PROGRAM, environment={"PYTHONHASHSEED": "1"}, log=tmp_path / "log")
    assert not isinstance(process, Forked)
    assert process.wait(DEADLINE_S) == 0
