"""Shuts a process down within seconds of Ctrl-C or SIGTERM, forcibly if it does not exit on its own.

Python runs signal handlers only in the main thread, which may be inside a call to Kafka that returns only after its
timeout. A separate thread therefore waits for signals: it reads the interpreter's wake-up file descriptor, to which
every signal is written immediately. A forced exit is safe at any time, because the next claim of a unit aborts its open
transaction.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Final

from broker.commandline import leave

GRACE_S: Final = 5.0
"""The maximum time from the signal to the exit, for a plain process."""

_log = logging.getLogger(__name__)


def end_on_signals(stop: Callable[[], None], grace_s: float = GRACE_S) -> None:
    """Call ``stop`` on the first SIGINT or SIGTERM, and exit forcibly if still running ``grace_s`` seconds later.

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
    _log.info("%s: stopping", signal.Signals(received).name)
    stop()
    time.sleep(grace_s)
    # The cause may be Kafka, a Spark cluster, or a joining function.
    _log.warning(
        "still running after %.0f s: exiting without waiting for the final snapshots; no data is lost",
        grace_s,
    )
    leave(0)
