"""A process that has imported the services, and forks itself to run one of them. See `tests.integration.forked`.

It has one thread and no Kafka client, so that a fork is safe. It ends when the process that has started it ends.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from joiner.core.compiled import compile_declared

REQUEST_BYTES_MAX: Final = 1 << 20

_IMPORTED: Final = (
    *("broker.kafka.native.memory", "joiner.cli.main", "joiner.runtime.runners.process", "simulator.replay"),
    *("connector.bridge", "connector.session", "db_connector.service", "db_connector.writer", "control.server"),
    *("influxdb_client.client.influxdb_client", "psycopg"),
)
"""What the services import at their start, but no module that is itself run by ``python -m``."""

_COMPILED: Final = ("joiner.core", "joiner.alignment")
"""Packages whose compiled loops are loaded."""


class Request(NamedTuple):
    """What to run, and the file descriptors of its standard output, its standard error and its exit status."""

    content: dict[str, Any]
    files: tuple[int, int, int]

    def run(self) -> None:
        """Become that program, as ``python -m`` would run it."""
        out, errors, status = self.files
        os.close(status)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (out, 1), (errors, 2)):
            os.dup2(source, target)
            os.close(source)
        os.environ.clear()
        os.environ.update(self.content["environment"])
        if os.environ.get("PYTHONFAULTHANDLER"):
            faulthandler.enable()
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering="PYTHONUNBUFFERED" in os.environ)
        sys.argv = [self.content["module"], *self.content["arguments"]]
        runpy.run_module(self.content["module"], run_name="__main__", alter_sys=True)


class ForkServer:
    """Takes requests from a socket, and writes the exit status of each fork to the file of its request."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._running: dict[int, int] = {}
        """The files for the exit statuses, by process id."""
        self._woken, self._wake = os.pipe()

    def serve(self) -> Request | None:
        """Return what to run, in a fork, or None once the tests have ended."""
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, lambda *_: None)  # whoever has pressed Ctrl-C means the tests
        while True:
            wanted: list[socket.socket | int] = [self._requests, self._woken]
            ready, _, _ = select.select(wanted, [], [])
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._report()
            if self._requests in ready:
                text, files, _, _ = socket.recv_fds(self._requests, REQUEST_BYTES_MAX, 3)
                if not text:
                    return None
                out, errors, status = files
                request = Request(json.loads(text), (out, errors, status))
                # An interrupt that arrives before `_leave` would be lost in the fork.
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
                number = os.fork()
                if not number:
                    self._leave()
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
                if not number:
                    return request
                os.close(out)
                os.close(errors)
                self._running[number] = status
                self._requests.send(str(number).encode())

    def _report(self) -> None:
        """Report the forks that have ended."""
        with suppress(ChildProcessError):  # there are no more
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                number, status = ended
                file = self._running.pop(number)
                with suppress(BrokenPipeError):  # nobody waits for it
                    os.write(file, str(status).encode())
                os.close(file)

    def _leave(self) -> None:
        """Give up in a fork what belongs to the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._requests.close()
        for file in (self._woken, self._wake, *self._running.values()):
            os.close(file)


def main() -> None:
    """Serve requests from the socket whose file descriptor is the only argument."""
    for name in _IMPORTED:
        importlib.import_module(name)
    for package in _COMPILED:
        compile_declared(package)
    # A lock that another thread holds at a fork stays locked in it for ever.
    threads = [task.joinpath("comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    if len(threads) > 1:
        raise RuntimeError(f"what is imported has started threads, so that a fork is not safe: {threads}")
    gc.collect()
    gc.freeze()
    request = ForkServer(socket.socket(fileno=int(sys.argv[1]))).serve()
    if request is not None:
        request.run()


if __name__ == "__main__":
    main()
