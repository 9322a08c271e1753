"""Starts services as forks of a process that has imported them, because most of the time of a start is imports.

A fork is a process of its own, with its own memory, clients, threads and signals. What is not tested this way is that a
new interpreter can import the service. `tests.packaging`, `tests/unit/broker/test_commandline.py`, the first starts in
the pipeline of `tests.chaos`, the workers of `joiner run --processes` and the commands in the tutorial start new
interpreters.
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
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

_ROOT: Final = Path(__file__).parents[2]

_STATUS_BYTES_MAX: Final = 16
_ANSWER_S: Final = 120.0
"""How long the server may take to start. Imports take seconds, and the first time on a machine, loops are compiled."""
_END_S: Final = 20.0

_READ_LATER: Final = frozenset(
    {"PYTHONUNBUFFERED", "PYTHONFAULTHANDLER", "BROKER_HOST", "BROKER_PORT", "PYTEST_CURRENT_TEST"}
)
"""Variables without the project's prefix in which forks may differ, because they are read after the start or never."""

_SERVERS_MAX: Final = 2
"""The first Spark session changes the variables of the tests for good. More servers would cost more than they save."""


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
        # Not before, because another thread may be waiting for it, and its number would be given to another file.
        weakref.finalize(self, os.close, status)

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
                    # Without the server, nobody knows how the process has ended.
                    self.returncode = os.waitstatus_to_exitcode(int(status)) if status else 1
        return self.returncode

    def _is_reported(self, within_s: float | None) -> bool:
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        return bool(poll.poll(None if within_s is None else 1000 * within_s))


class _Server:
    """A process that forks services. It is started by the first request."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.end)

    def request(self, content: bytes, files: Sequence[int]) -> int:
        """Send a request with file descriptors. Return the id of the new process."""
        if self._socket is None:
            self._socket = self._start()
        try:
            socket.send_fds(self._socket, [content], files)
            answer = self._socket.recv(_STATUS_BYTES_MAX)
        except OSError:
            # An answer that comes later would be taken for that to the next request.
            self.end()
            raise
        if not answer:
            self.end()
            raise RuntimeError("the process that forks services has ended; its own output says why")
        return int(answer)

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
        return mine

    def end(self) -> None:
        """End the server, if it is running. The next request starts it again."""
        if self._socket is None or self._process is None:
            return
        self._socket.close()
        self._socket = None
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_servers: Final[dict[frozenset[tuple[str, str]], _Server]] = {}
"""The servers, by the variables that a fork takes over from them."""
_asking: Final = threading.Lock()


def start_forked(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], out: IO[bytes], errors: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Run ``python -m module`` in the root folder with exactly this environment, and these files as its output."""
    command = [sys.executable, "-m", module, *arguments]
    with _asking:
        server = _server_for(environment)
        if server is not None:
            content = json.dumps({"module": module, "arguments": arguments, "environment": dict(environment)}).encode()
            status, its_status = os.pipe()
            try:
                number = server.request(content, [out.fileno(), errors.fileno(), its_status])
            except BaseException:
                os.close(status)
                raise
            finally:
                os.close(its_status)
            return Forked(command, number, status)
    return subprocess.Popen(
        command, cwd=_ROOT, env=dict(environment), stdin=subprocess.DEVNULL, stdout=out, stderr=errors
    )


def _server_for(environment: Mapping[str, str]) -> _Server | None:
    """Return a server whose forks can have this environment, or None if a new interpreter is necessary."""
    inherited = _inherited(environment)
    if sys.platform != "linux" or inherited != _inherited(os.environ):
        return None
    if inherited not in _servers and len(_servers) < _SERVERS_MAX:
        _servers[inherited] = _Server()
    return _servers.get(inherited)


def _inherited(environment: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """Return the variables that a fork must have in common with its server."""
    return frozenset(
        (name, value) for name, value in environment.items() if not name.startswith("LSB_") and name not in _READ_LATER
    )
