"""Starts and stops a single long-running child process, identified by its pid file.

The pid file contains both the id and the start time of the process, so a later process with the same id is never
mistaken for the child and killed. The child runs in its own session, so Ctrl-C in the terminal reaches
only the launcher, which then stops its children in order.

``servers`` defines the servers' commands and readiness checks.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

POLL_S: Final = 0.02
"""How often `wait_until` checks its condition: often enough to add no noticeable delay, but cheap even on two cores."""

_LOG_BYTES_MAX: Final = 20 * 1024 * 1024
"""A log file larger than this is rotated the next time the process starts. One old log file is kept."""

_KILL_DEADLINE_S: Final = 10.0


class _PidRecord(NamedTuple):
    """The identity of a process, as stored in the pid file."""

    pid: int
    started: str


def wait_until(condition: Callable[[], bool], deadline_s: float, poll_s: float = POLL_S) -> bool:
    """Wait up to ``deadline_s`` seconds for ``condition()`` to become true. Return whether it did.

    ``poll_s``: the time between checks.
    """
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(poll_s)
    return True


class Child:
    """A process identified by ``pid_file``. At most one instance runs at a time."""

    def __init__(self, pid_file: Path, log: Path) -> None:
        self._pid_file = pid_file
        self.log = log
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The id of the running process, or None."""
        record = self._read_record()
        return record.pid if record is not None and self._is_running(record) else None

    @property
    def paused(self) -> bool:
        """Whether the process is suspended by ``pause``."""
        pid = self.pid
        return pid is not None and _state(pid) == "T"

    def start(self, command: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> None:
        """Start ``command`` and append its output to the log.

        Raises OSError if the command cannot be run, and RuntimeError if the process is already running.
        """
        if self.pid is not None:
            raise RuntimeError(f"{self._pid_file}: already running as process {self.pid}")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > _LOG_BYTES_MAX:
            self.log.replace(self.log.with_name(self.log.name + ".1"))
        with self.log.open("ab") as out:
            popen = subprocess.Popen(
                command,
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._write_record(_PidRecord(popen.pid, _start_moment(popen.pid)))
        except BaseException:
            popen.kill()
            popen.wait()
            raise
        self._popen = popen

    def stop(self, deadline_s: float) -> bool:
        """Send SIGTERM and, if the process is still running after ``deadline_s``, SIGKILL.

        Return whether the process ended without SIGKILL, or was not running. Raises TimeoutError as `kill` does.
        """
        if self.pid is None:
            self._forget()
            return True
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        ended = wait_until(lambda: self.pid is None, deadline_s)
        if not ended:
            self.kill()
        self._forget()
        return ended

    def kill(self) -> None:
        """Send SIGKILL and wait for the process to end. Raises TimeoutError if it does not."""
        self._signal(signal.SIGKILL)
        if not wait_until(lambda: self.pid is None, _KILL_DEADLINE_S):
            raise TimeoutError(f"process {self.pid} of {self._pid_file} survived SIGKILL")
        self._forget()

    def pause(self) -> None:
        """Suspend the process with SIGSTOP; its connections stay open."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a suspended process with SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        pid = self.pid
        if pid is None:
            return
        # The process may end between the check and the signal.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def _is_running(self, record: _PidRecord) -> bool:
        if self._popen is not None and self._popen.pid == record.pid:
            # A child of this process that has ended remains a zombie until it is polled.
            return self._popen.poll() is None
        return _state(record.pid) not in ("", "Z", "X") and _start_moment(record.pid) == record.started

    def _read_record(self) -> _PidRecord | None:
        try:
            fields = json.loads(self._pid_file.read_text())
            return _PidRecord(int(fields["pid"]), str(fields["started"]))
        except (OSError, ValueError, KeyError, TypeError):
            # The pid file is missing, or a crash has truncated it. Without it, the process cannot be identified safely.
            return None

    def _write_record(self, record: _PidRecord) -> None:
        draft = self._pid_file.with_name(self._pid_file.name + ".new")
        draft.write_text(json.dumps(record._asdict()))
        draft.replace(self._pid_file)

    def _forget(self) -> None:
        if self._popen is not None:
            self._popen.wait()
            self._popen = None
        self._pid_file.unlink(missing_ok=True)


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat that follow the process name, which may contain spaces and parentheses."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _state(pid: int) -> str:
    """Return the state of a process as the letter that ``ps`` shows, or an empty string if there is no such process.

    For example, Z is a zombie and T a stopped process.
    """
    if not Path("/proc/self/stat").exists():
        return _ask_ps(pid, "state")[:1]
    fields = _stat_fields(pid)
    return fields[0] if fields else ""


def _start_moment(pid: int) -> str:
    """Return a string that identifies when a process started, or an empty string if there is no such process.

    The string combines the boot id with the clock ticks since boot. Without /proc, it is the start time printed by
    ``ps``.
    """
    fields = _stat_fields(pid)
    if not fields:
        return _ask_ps(pid, "lstart")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{fields[19]}"


def _ask_ps(pid: int, column: str) -> str:
    """Return one column of ``ps`` output for a process, or an empty string if there is no such process."""
    answer = subprocess.run(
        ["ps", "-o", f"{column}=", "-p", str(pid)],  # noqa: S607 - the path of ps varies
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout.strip()
