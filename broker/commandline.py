"""Code shared by all commands of the pipeline: version, missing packages, signals, garbage collection, and the exit.

Every command imports this module first, so it depends only on the standard library. `joiner.spark` has its own error
message, because it can also run from a zip that contains only ``joiner``, without this package.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final, NoReturn

VERSION: Final = "0.1.0"
"""Same as the version in pyproject.toml. Repeated here because the container images run from source, without package
metadata."""

DISTRIBUTIONS: Final = {
    "anyio": "anyio",
    "argon2": "argon2-cffi",
    "confluent_kafka": "confluent-kafka",
    "deltalake": "deltalake",
    "fastapi": "fastapi",
    "google": "protobuf",
    "grpc_tools": "grpcio-tools",
    "influxdb_client": "influxdb-client",
    "llvmlite": "llvmlite",
    "msgspec": "msgspec",
    "nicegui": "nicegui",
    "paho": "paho-mqtt",
    "pandas": "pandas",
    "prometheus_client": "prometheus-client",
    "psycopg": "psycopg",
    "py4j": "pyspark",
    "pyarrow": "pyarrow",
    "pydantic": "pydantic",
    "pydantic_settings": "pydantic-settings",
    "pyspark": "pyspark",
    "starlette": "fastapi",
    "structlog": "structlog",
    "uvicorn": "uvicorn",
}
"""Maps import names of optional dependencies to the names of their pip packages. They belong to the extras ``service``,
``sparkplug``, ``protobuf``, ``arrow``, ``delta``, ``spark`` and ``control``."""

_WRONG_USAGE: Final = 2

GRACE_S: Final = 5.0
"""The maximum time from the first signal to the exit, for a joiner."""

_LOCKED_S: Final = 2.0
"""How much later a process is ended if no Python thread runs any more. It then prints where each thread is."""

_log = logging.getLogger(__name__)


def version_of(command: str) -> str:
    """Return the output of ``<command> --version``."""
    return f"{command} {VERSION}"


def describe_missing(package: str, extra: str) -> str:
    """Return an error message that says how to install a missing package from an extra.

    ``package`` is the package's import name, a key of `DISTRIBUTIONS`.
    """
    command = f"pip install 'localstreambuffer[{extra}]'"
    return f"{DISTRIBUTIONS[package]} is not installed: {command} (in the repository: make setup)"


@contextmanager
def imports_of(command: str, extra: str = "service") -> Iterator[None]:
    """Exit with a helpful message if an import in this context fails because a package from ``extra`` is missing.

    The message is one line, and the exit status is 2. ``--version`` still works. Other errors propagate.

    The garbage collector is off within this context. Afterwards, it ignores all objects created up to that point,
    because they live as long as the process. This cuts a third off the run time of a short command.
    """
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in DISTRIBUTIONS:
            raise
        if sys.argv[1:] == ["--version"]:
            print(version_of(command))
            sys.exit(0)
        print(f"{command}: {describe_missing(package, extra)}", file=sys.stderr)
        sys.exit(_WRONG_USAGE)
    finally:
        gc.freeze()
        if is_collecting:
            gc.enable()


class Stop:
    """A flag set by SIGINT or SIGTERM. A second signal stops the process immediately."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self, *_: object) -> None:
        """Handle either signal."""
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

    def is_requested(self) -> bool:
        """Return whether a signal has arrived."""
        return self.requested


@contextmanager
def signals_to(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Call ``handler``, such as a `Stop`, when SIGINT or SIGTERM arrives, even if the process was to ignore them."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def end_on_signals(stop: Callable[[], None], grace_s: float = GRACE_S, without: str = "the final snapshots") -> None:
    """Call ``stop`` on the first SIGINT or SIGTERM, and exit forcibly if still running ``grace_s`` seconds later.

    The exit status is then 0, or 1 if a call keeps the interpreter's lock. A forced exit must be safe at any time.
    ``without``: what is not waited for, for the log. Must be called from the main thread.

    Python runs signal handlers only in the main thread, which may be inside a call to Kafka that returns only after its
    timeout. A separate thread therefore waits for signals: it reads the interpreter's wake-up file descriptor, to which
    every signal is written immediately.

    Some calls of the Kafka client, such as ``subscribe`` and ``assign``, keep the interpreter's lock while they wait
    for a thread of the library. If such a call never returns, no Python thread runs any more. A timer of
    `faulthandler`, which needs no lock, then ends the process.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: None)
    threading.Thread(target=_end, args=(reader, stop, grace_s, without), name="signals", daemon=True).start()


def _end(reader: int, stop: Callable[[], None], grace_s: float, without: str) -> None:
    received = os.read(reader, 1)[0]
    # Without a standard error that has a descriptor, as after `2>&-`, there is no such timer.
    with suppress(RuntimeError, OSError, ValueError):
        faulthandler.dump_traceback_later(grace_s + _LOCKED_S, exit=True)
    _log.info("%s: stopping", signal.Signals(received).name)
    stop()
    time.sleep(grace_s)
    _log.warning("still running after %.0f s: exiting without waiting for %s; no data is lost", grace_s, without)
    leave(0)


def tune_gc() -> None:
    """Make garbage collection rare, for programs that create no reference cycles.

    It took 40% of the CPU time of the connector.
    """
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)


def leave(status: int) -> NoReturn:
    """Exit immediately: neither wait for threads that are inside calls to Kafka, nor run exit handlers.

    Such a thread keeps its Kafka client running, and the exit handlers of OpenSSL free what that client still uses: one
    in 60 processes that Kafka refused over TLS crashed instead of returning its exit status.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # as after `>&-`
            with suppress(OSError, ValueError):
                stream.flush()
    os._exit(status)
