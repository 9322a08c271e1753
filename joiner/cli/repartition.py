"""``joiner repartition``: copies topics to repartition topics, without joining anything."""

from __future__ import annotations

import sys

from broker.commandline import end_on_signals
from broker.metrics import TelemetryServer
from joiner.runtime.clock import Clock
from joiner.runtime.repartition.repartitioner import Repartitioner, RepartitionMetrics
from joiner.runtime.settings import JoinerSettings


def repartition(settings: JoinerSettings, clock: Clock) -> int:
    """Repartition until stopped. Return the exit status: 2 if no ``[[stream]]`` has ``repartition = true``.

    Raises `TopicError` if a topic cannot be used as it is.
    """
    if not settings.repartitioned:
        print("no [[stream]] has repartition = true: there is nothing to repartition", file=sys.stderr)
        return 2
    telemetry = TelemetryServer(settings.metrics)
    repartitioner = Repartitioner(settings, clock, RepartitionMetrics(telemetry.readings))
    end_on_signals(repartitioner.stop, without="the end of the transaction")
    with telemetry:
        repartitioner.run(telemetry.heartbeat, strict=True)
    return 0
