"""Starts services as forks of a process that has imported them, because most of the time of a start is imports.

A fork is a process of its own, with its own memory, clients, threads and signals. What is not tested this way is that a
new interpreter can import the service. `tests.packaging`, the pipeline of `tests.chaos`, the workers of `joiner run
--processes` and the commands in the tutorial start new interpreters.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

_ROOT: Final = Path(__file__).parents[2]

_STATUS_BYTES_MAX: Final = 16
_ANSWER_S: Final = 120.0
"""How long the server may take to start. Imports take seconds, and the first time on a machine, loops are compiled."""


class Forked(subprocess.Popen[bytes]):
    """A fork, with the methods of `subprocess.Popen`. It is no child of this process, but of the server.

    ``status``: the file to which the server writes its exit status.
    """

    def __init__(self, args: Sequence[str], pid: int, status: int) -> None:
        # The constructor of the base class would start a program.
        self.args = args
        self.pid = pid
        self.returncode = None
        self.stdin = self.stdout = self.stderr = None
        self._child_created = True
        self._sigint_wait_secs = 0.25
        self._status = status
        self._reading = threading.Lock()

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        return self._ended(0.0)

    def _wait(self, timeout: float | None) -> int:
        status = self._ended(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def _ended(self, within_s: float | None) -> int | None:
        if self.returncode is None and self._is_reported(within_s):
            with self._reading:
                if self.returncode is None:
                    status = os.read(self._status, _STATUS_BYTES_MAX)
                    os.close(self._status)
                    # Without the server, nobody knows how the process has ended.
                    self.returncode = os.waitstatus_to_exitcode(int(status)) if status else 1
        return self.returncode

    def _is_reported(self, within_s: float | None) -> bool:
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        return bool(poll.poll(None if within_s is None else 1000 * within_s))


class _Server:
    """The server of this process, once something has been started."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def request(self, content: bytes, files: Sequence[int]) -> int:
        """Send a request with file descriptors. Return the id of the new process."""
        if self._socket is None:
            self._socket = self._start()
        socket.send_fds(self._socket, [content], files)
        return int(self._socket.recv(_STATUS_BYTES_MAX))

    def _start(self) -> socket.socket:
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.fork_server", str(its.fileno())],
                cwd=_ROOT,
                # Without threads of its own, so that a fork is safe.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
            )
        mine.settimeout(_ANSWER_S)
        atexit.register(self._end)
        return mine

    def _end(self) -> None:
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait()


_server: Final = _Server()


def start_forked(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], out: IO[bytes], errors: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Run ``python -m module`` in the root folder with exactly this environment, and these files as its output."""
    command = [sys.executable, "-m", module, *arguments]
    if not _can_be_forked(environment):
        return subprocess.Popen(
            command, cwd=_ROOT, env=dict(environment), stdin=subprocess.DEVNULL, stdout=out, stderr=errors
        )
    content = json.dumps({"module": module, "arguments": arguments, "environment": dict(environment)}).encode()
    status, its_status = os.pipe()
    try:
        with _server.lock:
            number = _server.request(content, [out.fileno(), errors.fileno(), its_status])
    finally:
        os.close(its_status)
    return Forked(command, number, status)


def _can_be_forked(environment: Mapping[str, str]) -> bool:
    """Return whether an environment differs from that of the server only in variables that are read after the start."""
    if sys.platform != "linux":
        return False
    changed = environment.items() ^ os.environ.items()
    return all(name.startswith("LSB_") or name == "PYTHONUNBUFFERED" for name, _ in changed)
