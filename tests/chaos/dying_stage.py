"""Runs a Spark stage of which an instance, the driver or everything dies when an instance reaches a named point.

``LSB_CHAOS_DIE=who:point:n LSB_CHAOS_DIED=file python -m tests.chaos.dying_stage spark …``. The n-th arrival counts;
without ``who``, the instance dies. The dying process creates the file first. Once the file exists, nothing else dies,
although Spark starts dead instances again. The production code contains no hooks for this.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any, Final

from joiner.cli.main import main
from joiner.runtime.runners.spark import stage
from joiner.runtime.runners.spark.instance import Outcome, StageOrder, run_instance
from tests.chaos.dying import POINTS, SOURCE_POINTS, TARGET_POINTS, arm, flush_open_transaction
from tests.integration.services import signal_all, with_children

WHO: Final = ("instance", "driver", "all")
_POINTS: Final = POINTS["joiner"] | SOURCE_POINTS | TARGET_POINTS
_DRIVER: Final = "LSB_CHAOS_DRIVER"


class _Death:
    def __init__(self, who: str, count: int) -> None:
        self._who = who
        self._left = count
        self._lock = threading.Lock()

    def arrive(self, owner: Any, arrivals: int) -> None:
        """Count arrivals. At the last one, kill who is to die, unless something has died before."""
        with self._lock:
            self._left -= arrivals
            if not arrivals or self._left > 0:
                return
            flush_open_transaction(owner)
            if died := os.environ.get("LSB_CHAOS_DIED"):
                try:
                    os.close(os.open(died, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    return
            driver = int(os.environ[_DRIVER])
            doomed = {"instance": [os.getpid()], "driver": [driver], "all": with_children(driver)}[self._who]
            # This process is the last, because it has to kill the others.
            signal_all(sorted(doomed, key=lambda number: number == os.getpid()), signal.SIGKILL)


def run_dying_instance(order: StageOrder, number: int, attempt: int) -> Outcome:
    """Run an instance in which the point is armed."""
    *who, name, count = os.environ["LSB_CHAOS_DIE"].split(":")
    arm(_POINTS[name], _Death(who[0] if who else "instance", int(count)).arrive)
    return run_instance(order, number, attempt)


if __name__ == "__main__":
    # Imported by the name under which workers find it; here, this module is __main__.
    from tests.chaos.dying_stage import run_dying_instance as known

    os.environ[_DRIVER] = str(os.getpid())
    vars(stage)["run_instance"] = known
    main()
