"""Shuts a process down within seconds of Ctrl-C or SIGTERM, forcibly if it does not exit on its own.

Python runs signal handlers only in the main thread, which may be inside a call to Kafka that returns only after its
timeout. A separate thread therefore waits for signals: it reads the interpreter's wake-up file descriptor, to which
every signal is written immediately. A forced exit is safe at any time, because the next claim of a unit aborts its open
transaction.

Some calls of the Kafka client, such as ``subscribe`` and ``assign``, keep the interpreter's lock while they wait for a
thread of the library. If such a call never returns, no Python thread runs any more. A timer of `faulthandler`, which
needs no lock, then ends the process.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from broker.commandline import leave

GRACE_S: Final = 5.0
"""The maximum time from the signal to the exit, for a plain process."""

_LOCKED_S: Final = 2.0
"""How much later the process is ended if no Python thread runs any more. It then prints where each thread is."""

_log = logging.getLogger(__name__)


def end_on_signals(stop: Callable[[], None], grace_s: float = GRACE_S) -> None:
    """Call ``stop`` on the first SIGINT or SIGTERM, and exit forcibly if still running ``grace_s`` seconds later.

    The exit status is then 0, or 1 if a call keeps the interpreter's lock.
    Must be called from the main thread.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: None)
    threading.Thread(target=_wait, args=(reader, stop, grace_s), name="signals", daemon=True).start()


def _wait(reader: int, stop: Callable[[], None], grace_s: float) -> None:
    received = os.read(reader, 1)[0]
    # Without a standard error that has a descriptor, as after `2>&-`, there is no such timer.
    with suppress(RuntimeError, OSError, ValueError):
        faulthandler.dump_traceback_later(grace_s + _LOCKED_S, exit=True)
    _log.info("%s: stopping", signal.Signals(received).name)
    stop()
    time.sleep(grace_s)
    # The cause may be Kafka, a Spark cluster, or a joining function.
    _log.warning(
        "still running after %.0f s: exiting without waiting for the final snapshots; no data is lost",
        grace_s,
    )
    leave(0)
