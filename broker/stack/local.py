"""The local stack: Kafka, an MQTT broker and InfluxDB in one folder, started and stopped together.

    <folder>/stack.env             environment variables with the servers' addresses, one KEY=VALUE per line
    <folder>/stack/<server>/log    the log of a server
    <folder>/stack/<server>/data   the data of a server, which is kept when the server is stopped
    <folder>/parts/                downloaded programs, unless $LSB_CACHE names another folder

The command line is built on this module; tests use it as a library (see ``ephemeral_stack``).
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from broker.stack.errors import MissingPartsError, StackError
from broker.stack.parts import Parts, Say, parts_folder
from broker.stack.registry import Registry
from broker.stack.servers import Influxdb, Kafka, Mqtt, Server

DEFAULT_FOLDER: Final = Path(".lsb")


def _say_nothing(line: str) -> None:
    del line


class LocalStack:
    """Kafka, an MQTT broker and InfluxDB, with all of their files in ``folder``.

    ``parts`` is the folder for downloaded programs (default: see `parts_folder`). ``usual_ports``: whether to use the
    ports 9092, 1883 and 8086 if they are free. Otherwise, any free ports are used. ``say`` is called with one line of
    text for each step. As a context manager, the stack starts all servers on entry and stops them on exit.
    """

    def __init__(
        self,
        folder: Path = DEFAULT_FOLDER,
        *,
        parts: Path | None = None,
        usual_ports: bool = True,
        say: Say = _say_nothing,
    ) -> None:
        self.folder = folder.absolute()
        self._say = say
        self._parts = Parts(parts or parts_folder(self.folder), say)
        place = self.folder / "stack"
        self.kafka = Kafka(place / "kafka", self._parts, usual_ports=usual_ports)
        self.mqtt = Mqtt(place / "mqtt", self._parts, usual_ports=usual_ports)
        self.influxdb = Influxdb(place / "influxdb", self._parts, usual_ports=usual_ports)
        self.registry = Registry(place / "registry", self._parts, usual_ports=usual_ports)
        """For tests and benchmarks: not one of `servers`, so it starts only if it is named."""

    @property
    def servers(self) -> tuple[Server, ...]:
        """All servers, in data-flow order."""
        return (self.mqtt, self.kafka, self.influxdb)

    @property
    def environment_file(self) -> Path:
        """The file to which ``up`` writes the environment variables with the servers' addresses."""
        return self.folder / "stack.env"

    def up(self, servers: Sequence[Server] = ()) -> None:
        """Start the given servers (default: all) in parallel, and wait until they are ready.

        If required programs are missing, raises ``MissingPartsError`` with the full list before starting anything. If a
        server fails to start, or on `cancel` or KeyboardInterrupt, the servers started by this call are stopped again,
        and the error propagates.
        """
        chosen = tuple(servers) or self.servers
        to_start = [server for server in chosen if server.pid is None]
        _check_parts(to_start)
        try:
            self._for_each(self._start, chosen)
        except BaseException:
            for server in to_start:
                server.stop()
            raise
        self.write_environment()

    def fetch(self, servers: Sequence[Server] = ()) -> None:
        """Download or build the programs of the given servers (default: all) in parallel. Start nothing.

        Raises errors as `up` does.
        """
        chosen = tuple(servers) or self.servers
        _check_parts(chosen)
        self._for_each(lambda server: server.fetch(), chosen)

    def cancel(self) -> None:
        """Make the current or next call to `up` or `fetch` raise `CancelledError`.

        This may be called from another thread or a signal handler.
        """
        self._parts.cancel.set()

    def down(self, servers: Sequence[Server] = ()) -> None:
        """Stop the given servers (default: all); their data is kept."""
        chosen = tuple(servers) or (*self.servers, *([self.registry] if self.registry.pid is not None else []))
        with ThreadPoolExecutor(max_workers=len(chosen)) as pool:
            for work in [pool.submit(self._stop, server) for server in chosen]:
                work.result()
        self.write_environment()

    def wipe(self) -> None:
        """Remove the data of all servers. Raises `StackError` if a server is running."""
        for server in self.servers:
            server.wipe()

    def environment(self) -> dict[str, str]:
        """Return the environment variables that tell clients where to find the running servers."""
        running = [server for server in self.servers if server.pid is not None]
        return {name: value for server in running for name, value in server.settings.items()}

    def write_environment(self) -> None:
        """Write the environment variables for clients to ``stack.env``. Remove the file if no server is running."""
        lines = [f"{name}={value}\n" for name, value in self.environment().items()]
        if not lines:
            self.environment_file.unlink(missing_ok=True)
            return
        draft = self.environment_file.with_name("stack.env.new")
        draft.write_text("".join(lines))
        draft.replace(self.environment_file)

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def _for_each(self, do: Callable[[Server], None], servers: Sequence[Server]) -> None:
        """Call ``do`` with each of the servers, in parallel. If a call fails, cancel the others and raise its error."""
        with ThreadPoolExecutor(max_workers=len(servers)) as pool:
            works = [pool.submit(do, server) for server in servers]
            try:
                _wait_for_all(works)
            except BaseException:
                self._parts.cancel.set()
                wait(works)
                self._parts.cancel.clear()
                raise

    def _start(self, server: Server) -> None:
        if server.pid is not None and not server.paused:
            server.wait_ready()
            self._say(f"{server.name:9} already running  {server.address}  log {shown(server.log)}")
            return
        server.fetch()
        begin = time.monotonic()
        server.start()
        server.resume()
        server.wait_ready()
        took_s = time.monotonic() - begin
        self._say(f"{server.name:9} ready in {took_s:.1f} s  {server.address}  log {shown(server.log)}")

    def _stop(self, server: Server) -> None:
        if server.pid is None:
            self._say(f"{server.name:9} was not running")
            return
        begin = time.monotonic()
        how = "stopped" if server.stop() else "did not stop and was killed"
        self._say(f"{server.name:9} {how} after {time.monotonic() - begin:.1f} s")


@contextlib.contextmanager
def ephemeral_stack(*, parts: Path | None = None, say: Say = _say_nothing) -> Iterator[LocalStack]:
    """Yield a stack that uses a temporary folder and free ports. Stop and remove it at the end.

    The stack is not started yet. Its programs come from ``parts`` (default: the download folder of the persistent
    stack). A separate keeper process stops the servers even if this process is killed.
    """
    folder = Path(tempfile.mkdtemp(prefix="lsb-"))
    stack = LocalStack(folder, parts=parts or parts_folder(DEFAULT_FOLDER), usual_ports=False, say=say)
    keeper = subprocess.Popen(
        [sys.executable, "-m", "broker.stack", "keep", "--dir", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield stack
    finally:
        stack.down()
        shutil.rmtree(folder, ignore_errors=True)
        # Close the keeper's standard input. The keeper finds no servers left to stop, and exits.
        keeper.communicate()


def _check_parts(servers: Sequence[Server]) -> None:
    """Raise ``MissingPartsError`` with all programs that the servers lack."""
    problems = [problem for server in servers if (problem := server.problem()) is not None]
    if problems:
        # Two servers may lack the same program.
        raise MissingPartsError(list(dict.fromkeys(problems)))


def _wait_for_all(works: Sequence[Future[None]]) -> None:
    """Wait for all futures to complete. If one fails, raise its exception without waiting for the rest."""
    done, _ = wait(works, return_when=FIRST_EXCEPTION)
    errors = [error for work in done if (error := work.exception()) is not None]
    if errors:
        raise next((error for error in errors if isinstance(error, StackError)), errors[0])


def shown(path: Path) -> str:
    """Format a path for display to the user. Paths inside the current folder are shown relative to it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
