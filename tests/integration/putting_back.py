"""Puts a dead letter back, as a process that dies or freezes at a point named in the environment.

``LSB_AT=point:KILL python -m tests.integration.putting_back CONFIG PARTITION OFFSET VALUE``: at the point, the process
sends itself SIGKILL or SIGSTOP. Without the variable, it does neither. It tries again if another process interferes,
and writes the outcome as JSON. The production code contains no hooks for this: the steps are wrapped.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from broker.settings import load_settings
from control.actions import reinjection
from control.actions.reinjection import PutBackError, put_back
from joiner.runtime.settings import JoinerSettings

POINTS: Final = {
    # The transactional id is initialised, and all others are fenced.
    "initialised": "_initialise",
    # What was put back before is known.
    "audited": "_read_audit",
    # The records are in the log, and the transaction is still open.
    "produced": "_write",
    "committed": "_commit",
}
_TRY_S: Final = 60.0


def arm(point: str, number: signal.Signals) -> None:
    """Make the process send itself a signal at the end of a step, once."""
    call = reinjection._Call  # noqa: SLF001 - the steps are private
    original: Callable[..., Any] = getattr(call, POINTS[point])
    is_armed = True

    def wrapped(owner: Any, *arguments: Any) -> Any:
        nonlocal is_armed
        result = original(owner, *arguments)
        if is_armed:
            is_armed = False
            if point == "produced":
                arguments[0].flush(20.0)
            # Sent to the process, SIGSTOP would go to its main thread, and this one would go on for a moment.
            signal.pthread_kill(threading.get_ident(), number)
        return result

    setattr(call, POINTS[point], wrapped)


def main() -> None:
    """Put the dead letter back."""
    if "LSB_AT" in os.environ:
        point, _, name = os.environ["LSB_AT"].partition(":")
        arm(point, signal.Signals[f"SIG{name}"])
    settings = load_settings(JoinerSettings, Path(sys.argv[1]))
    place, value = (int(sys.argv[2]), int(sys.argv[3])), sys.argv[4].encode()
    until_s = time.monotonic() + _TRY_S
    while True:
        try:
            (outcome,) = put_back(settings, [place], "ada", value)
        except PutBackError as error:
            sys.stderr.write(f"{error}\n")
            if time.monotonic() > until_s:
                raise
        else:
            sys.stdout.write(msgspec.json.encode(outcome).decode())
            return


if __name__ == "__main__":
    main()
