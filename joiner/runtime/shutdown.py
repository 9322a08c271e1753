"""Ending within seconds: on Ctrl-C or SIGTERM first politely, then, where Kafka does not answer, at once.

A thread waits for the signals, because the main thread may be inside a call to Kafka that only returns after its
timeout, and Python runs signal handlers nowhere else; the interpreter's wake-up descriptor is written at once.
Ending at once is safe at any moment: what a transaction has not committed is rolled back when the unit is claimed
next.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

GRACE_S: Final = 4.0
"""From the signal to the end, at most."""

_log = logging.getLogger(__name__)


def end_on_signals(stop: Callable[[], None]) -> None:
    """Call ``stop`` on the first SIGINT or SIGTERM; leave the process if it is still there `GRACE_S` later.

    To be called from the main thread.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: None)
    threading.Thread(target=_wait, args=(reader, stop), name="signals", daemon=True).start()


def leave(status: int) -> None:
    """End the process now, without waiting for threads that are still inside calls to Kafka."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(status)


def _wait(reader: int, stop: Callable[[], None]) -> None:
    received = os.read(reader, 1)[0]
    _log.info("%s: ending", signal.Signals(received).name)
    stop()
    time.sleep(GRACE_S)
    _log.warning("Kafka did not answer within %.0f s: ended without a last snapshot, nothing is lost", GRACE_S)
    leave(0)
