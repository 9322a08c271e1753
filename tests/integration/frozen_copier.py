"""The joiner's commands, in a process that stops itself (SIGSTOP) while it copies its first messages.

After it has been continued, copying them takes ``FROZEN_COPYING_S`` seconds.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from threading import Event

from joiner.cli.main import main
from joiner.runtime.repartition.copies import CopyWriter
from joiner.runtime.repartition.merging import Part

_copy = CopyWriter._copy  # noqa: SLF001 - the moment to stop at is inside the transaction


def _stop_and_copy(self: CopyWriter, parts: Sequence[Part]) -> None:
    if parts:
        CopyWriter._copy = _copy  # type: ignore[method-assign]  # noqa: SLF001 - as above
        os.kill(os.getpid(), signal.SIGSTOP)
        _copy(self, parts)
        # The client learns in the background that it is no longer a member. This is not a wait for that, but the length
        # of copying.
        Event().wait(float(os.environ["FROZEN_COPYING_S"]))
    else:
        _copy(self, parts)


if __name__ == "__main__":
    CopyWriter._copy = _stop_and_copy  # type: ignore[method-assign]  # noqa: SLF001 - as above
    main()
