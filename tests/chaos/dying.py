"""Runs a service that kills itself with SIGKILL when it reaches a named point in its code for the n-th time.

``LSB_CHAOS_DIE=point:n python -m tests.chaos.dying joiner run …``. With ``LSB_CHAOS_SIGNAL=STOP`` it freezes instead.
The production code contains no hooks for this: the methods in question are wrapped before the service starts.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from connector.acknowledgement import Ledger
from connector.bridge import Bridge
from connector.session import MqttSession
from db_connector.kafka.offsets import OffsetCommits
from db_connector.kafka.results import Results
from db_connector.service import Service
from joiner.cli.merging.output import MergedOutput
from joiner.cli.merging.restoring import Restoring
from joiner.runtime.control import Ready, Released, Resumed
from joiner.runtime.kafka.control_log import ControlLog
from joiner.runtime.kafka.transaction import UnitTransactions
from joiner.runtime.kafka.unit_producer import UnitProducer
from joiner.runtime.migration.handover import Handover
from joiner.runtime.ownership.claim import Claimer
from joiner.runtime.task.unit import Unit
from simulator.mqtt.publishing import Publisher

_FLUSH_S: Final = 2.0
_CONTROL_FLUSH_S: Final = 20.0
_SIGNAL: Final = signal.Signals[f"SIG{os.environ.get('LSB_CHAOS_SIGNAL', 'KILL')}"]


class Call(NamedTuple):
    """A method call: its arguments and its result. The result is None before the call."""

    arguments: tuple[Any, ...]
    options: dict[str, Any]
    result: Any = None


class Point(NamedTuple):
    """A point at which a service may die: just ``before`` or just after a call of ``owner.method``.

    ``counts`` returns how many arrivals a call counts as; the default is one.
    """

    owner: type
    method: str
    before: bool
    counts: Callable[[Call], int] = lambda _call: 1


def _produces(end: str) -> Callable[[Call], int]:
    """Return a function that counts only calls that write a state record whose key ends with ``end``."""
    return lambda call: int(str(call.arguments[1]).endswith(end))


POINTS: Final[dict[str, dict[str, Point]]] = {
    "joiner": {
        # The transactional id is initialised, but the claim is not written.
        "initialised": Point(UnitTransactions, "init", before=False),
        # The state is being rebuilt, without output.
        "replaying": Point(Unit, "apply", before=False, counts=lambda call: int("silent" in call.options)),
        "joined": Point(Unit, "apply", before=False),
        # The results are in the log, and the transaction is still open.
        "produced": Point(UnitProducer, "write_all", before=False, counts=lambda call: len(call.arguments[0])),
        # All chunks are written, but the manifest is not.
        "within-snapshot": Point(UnitProducer, "write", before=True, counts=_produces("/manifest")),
        "before-offsets": Point(UnitProducer, "write", before=False, counts=_produces("/progress")),
        "before-commit": Point(UnitProducer, "commit", before=True),
        "after-commit": Point(UnitProducer, "commit", before=False),
    },
    "connector": {
        "message": Point(Bridge, "_accept", before=True, counts=lambda call: len(call.arguments[0])),
        "sent": Point(Bridge, "_accept", before=False),
        # Kafka has acknowledged the records, but the connector has acknowledged nothing to MQTT.
        "kafka-acknowledged": Point(Ledger, "release", before=False, counts=lambda call: len(call.result)),
        "mqtt-acknowledged": Point(MqttSession, "acknowledge", before=False),
    },
    "db_connector": {
        "message": Point(Results, "add", before=True),
        # InfluxDB has acknowledged the points, but the offsets are not committed.
        "database-acknowledged": Point(Service, "_settle", before=True),
        "before-commit": Point(OffsetCommits, "commit", before=True),
        "after-commit": Point(OffsetCommits, "commit", before=False),
    },
    "simulator": {
        "message": Point(Publisher, "send", before=True),
        "sent": Point(Publisher, "send", before=False),
        "acknowledged": Point(Publisher, "_acknowledge", before=False),
    },
}
"""The points at which a service may die, by the service's module."""


def _writes_of(kind: type) -> Callable[[Call], int]:
    """Return a function that counts only calls that write this kind of record to the control topic."""
    return lambda call: int(isinstance(call.arguments[0], kind))


def _releases(call: Call) -> int:
    return int(call.arguments[1].on_the_way is not None)


TARGET_POINTS: Final[dict[str, Point]] = {
    # The state is built, but not yet reported.
    "warmed": Point(Handover, "_prepare", before=False, counts=lambda call: int(call.result is not None)),
    "after-ready-record": Point(ControlLog, "write", before=False, counts=_writes_of(Ready)),
    # First the transactional id is initialised, then the claim is written; the state is still behind the checkpoint.
    "claiming": Point(UnitTransactions, "init", before=False),
    "claimed": Point(Claimer, "claim", before=False),
    "before-resumed-record": Point(ControlLog, "write", before=True, counts=_writes_of(Resumed)),
}
"""The points in a joiner that is the target of a move."""

SOURCE_POINTS: Final[dict[str, Point]] = {
    "before-release-commit": Point(UnitTransactions, "commit", before=True, counts=_releases),
    "after-release-commit": Point(UnitTransactions, "commit", before=False, counts=_releases),
    "after-released-record": Point(ControlLog, "write", before=False, counts=_writes_of(Released)),
}
"""The points in a joiner that is the source of a move."""

MERGER_POINTS: Final[dict[str, Point]] = {
    # Whoever merged before is fenced, but what it committed is not read yet.
    "merge-fenced": Point(MergedOutput, "fence", before=False),
    "merge-restored": Point(Restoring, "run", before=False),
    # The results are in the log, and the transaction is still open.
    "merge-written": Point(MergedOutput, "write", before=False),
    "merge-before-commit": Point(MergedOutput, "commit", before=True),
    "merge-after-commit": Point(MergedOutput, "commit", before=False),
}
"""The points in a process that merges replicas."""

_MAINS: Final = {
    "joiner": ("joiner.cli.main", "main"),
    "connector": ("connector.__main__", "main"),
    "db_connector": ("db_connector.__main__", "main"),
    "simulator": ("simulator.replay", "main"),
}


def flush_open_transaction(owner: Any) -> None:
    """Flush the records of an open transaction, or of the control topic, to Kafka."""
    if isinstance(owner, ControlLog):
        # The control log waits for only a second by itself, and a process that dies or freezes cannot retry.
        owner._appender.flush(_CONTROL_FLUSH_S)  # noqa: SLF001 - reaches into the joiner on purpose
        return
    if isinstance(owner, MergedOutput):
        owner._producer.flush(_FLUSH_S)  # noqa: SLF001 - as above
        return
    producer = owner._producer if isinstance(owner, UnitTransactions) else owner  # noqa: SLF001 - reaches into the joiner on purpose
    if isinstance(producer, UnitProducer):
        producer._client.flush(_FLUSH_S)  # noqa: SLF001 - as above


class _Death:
    """Kills the process at the ``count``-th arrival."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._lock = threading.Lock()

    def arrive(self, owner: Any, arrivals: int) -> None:
        """Count arrivals. At the last one, flush the open transaction to Kafka and die."""
        if not arrivals:
            return
        with self._lock:
            self._left -= arrivals
            if self._left > 0 or self._left + arrivals <= 0:
                return
            flush_open_transaction(owner)
            os.kill(os.getpid(), _SIGNAL)


def arm(point: Point, arrive: Callable[[Any, int], None]) -> None:
    """Wrap the point so that each call passes its owner and its number of arrivals to ``arrive``."""
    original: Callable[..., Any] = getattr(point.owner, point.method)

    @functools.wraps(original)
    def wrapped(owner: Any, *arguments: Any, **options: Any) -> Any:
        if point.before:
            arrive(owner, point.counts(Call(arguments, options)))
        result = original(owner, *arguments, **options)
        if not point.before:
            arrive(owner, point.counts(Call(arguments, options, result)))
        return result

    setattr(point.owner, point.method, wrapped)


def main() -> None:
    """Arm the point named in the environment, then run the service named on the command line."""
    service = sys.argv[1]
    name, _, count = os.environ["LSB_CHAOS_DIE"].partition(":")
    points = POINTS[service] | (TARGET_POINTS | SOURCE_POINTS | MERGER_POINTS if service == "joiner" else {})
    point = points.get(name)
    if point is None:
        raise SystemExit(f"{service} has no point {name!r}: {', '.join(points)}")
    arm(point, _Death(int(count)).arrive)
    module, function = _MAINS[service]
    sys.exit(getattr(importlib.import_module(module), function)(sys.argv[2:]))


if __name__ == "__main__":
    main()
