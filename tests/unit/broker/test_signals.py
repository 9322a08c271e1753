"""Does a service end after a signal, whatever it hangs in, and does it say why?"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

DEADLINE_S: Final = 60

_HANGS: Final = """
import ctypes
import logging
import os
import signal
import threading

from broker.commandline import end_on_signals

logging.basicConfig(level="INFO", format="%(message)s")
stopping = threading.Event()
end_on_signals(stopping.set, grace_s={grace_s})
os.kill(os.getpid(), signal.SIGTERM)
stopping.wait()
ctypes.{library}(None).sleep(1000)
"""
_CALL: Final = _HANGS[: _HANGS.index("ctypes.{")].count("\n") + 1
"""The line of the call that hangs."""


def hang_in(library: str, grace_s: float) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", _HANGS.format(library=library, grace_s=grace_s)]
    return subprocess.run(program, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def test_a_forced_exit_does_not_blame_kafka_because_spark_may_be_what_has_not_ended() -> None:
    ended = hang_in("CDLL", 0.1)
    assert ended.returncode == 0
    assert ended.stderr.splitlines() == [
        "SIGTERM: stopping",
        "still running after 0 s: exiting without waiting for the final snapshots; no data is lost",
    ]


def test_a_call_that_lets_no_other_thread_run_cannot_keep_a_process_alive() -> None:
    # A function of a PyDLL keeps the interpreter's lock.
    # The thread must not get to its own exit before the call.
    ended = hang_in("PyDLL", 3.0)
    assert ended.returncode == 1
    assert f'File "<string>", line {_CALL} in <module>' in ended.stderr
