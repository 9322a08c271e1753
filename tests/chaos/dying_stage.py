"""Runs a Spark stage that loses its driver, a worker or all processes when a named point is reached for the n-th time.

``LSB_CHAOS_DIE=who:point:n LSB_CHAOS_DIED=file python -m tests.chaos.dying_stage spark …``. The dying process creates
the file first. Once the file exists, no other process dies, although the stage restarts dead workers. The production
code contains no hooks for this.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
from typing import Any, Final

from joiner.cli.main import main
from joiner.runtime.kafka.transaction import UnitTransactions
from joiner.runtime.kafka.unit_producer import UnitProducer
from joiner.runtime.runners.spark import query
from joiner.runtime.runners.spark.units import Units
from joiner.runtime.runners.spark.worker import StateCopy, UnitProcessor
from joiner.runtime.task.unit import Unit
from tests.chaos.dying import POINTS, Point, arm, flush_open_transaction
from tests.integration.services import signal_all, with_children

DRIVER: Final[dict[str, Point]] = {
    **{name: point for name, point in POINTS["joiner"].items() if point.owner in {UnitTransactions, UnitProducer}},
    # A batch is planned, but not sent to a worker.
    "planned": Point(Units, "next_turn", before=False, counts=lambda call: int(call.result != call.arguments[0])),
    # The batch is joined, but the driver has not received its outcome.
    "joined": Point(query.Query, "_take_batch", before=True),
    # Kafka has committed the batch, but Spark has not.
    "between-commits": Point(query.Query, "_take_batch", before=False),
}
WORKER: Final[dict[str, Point]] = {
    "before-join": Point(Unit, "apply", before=True),
    "after-join": Point(Unit, "apply", before=False),
    # Spark's state store has the state, but will not commit it.
    "stored": Point(StateCopy, "write", before=False),
}
WHO: Final = {"driver": DRIVER, "all": DRIVER, "worker": WORKER}


class _Death:
    def __init__(self, who: str, count: int) -> None:
        self._who = who
        self._left = count
        self._lock = threading.Lock()

    def arrive(self, owner: Any, arrivals: int) -> None:
        """Count arrivals. At the last one, die unless another process has died before."""
        with self._lock:
            self._left -= arrivals
            if not arrivals or self._left > 0:
                return
            flush_open_transaction(owner)
            if isinstance(owner, query.Query):
                _await_commits(owner)
            try:
                os.close(os.open(os.environ["LSB_CHAOS_DIED"], os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            doomed = with_children(os.getpid()) if self._who == "all" else [os.getpid()]
            signal_all(reversed(doomed), signal.SIGKILL)


def _await_commits(dying: query.Query) -> None:
    for served in dying._units.tasks.values():  # noqa: SLF001 - the point is inside
        if served.commit is not None:
            served.commit.written.exception()


def _arm_from_environment(who_may_die: set[str]) -> None:
    who, name, count = os.environ["LSB_CHAOS_DIE"].split(":")
    if who in who_may_die:
        arm(WHO[who][name], _Death(who, int(count)).arrive)


_arm_worker = functools.cache(lambda: _arm_from_environment({"worker"}))


class DyingProcessor(UnitProcessor):
    """Spark's operator. It arms the worker process in which it runs."""

    def init(self, handle: Any) -> None:
        """See `UnitProcessor.init`. Called for every task, but arms the process only once."""
        _arm_worker()
        super().init(handle)


if __name__ == "__main__":
    # Imported by the name under which workers find it; here, this module is __main__.
    from tests.chaos.dying_stage import DyingProcessor as Known

    vars(query)["UnitProcessor"] = Known
    _arm_from_environment({"driver", "all"})
    main()
