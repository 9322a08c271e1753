"""The command ``joiner merge``."""

from __future__ import annotations

import sys

from broker.commandline import end_on_signals
from broker.metrics import TelemetryServer
from joiner.cli.merging.merger import MergeMetrics, Merger
from joiner.library.merging.partition import MergeError
from joiner.runtime.clock import Clock
from joiner.runtime.settings import JoinerSettings


def merge(settings: JoinerSettings, clock: Clock, remembered_max: int) -> int:
    """Merge the outputs of the replicas until stopped. Return the exit status.

    Raises `broker.kafka.topics.TopicError` if a topic cannot be used as it is, and KafkaException for an error at the
    start that waiting cannot fix.
    """
    if settings.application.results == "arrow":
        print("application.results is 'arrow', which cannot be merged: choose 'full' or 'compact'", file=sys.stderr)
        return 2
    telemetry = TelemetryServer(settings.metrics)
    merger = Merger(settings, clock, MergeMetrics(telemetry.readings), remembered_max)
    telemetry.why_unready = lambda: "" if merger.is_ready else "starting, or Kafka cannot be reached"
    end_on_signals(merger.stop, without="the end of the transaction")
    with telemetry:
        try:
            merger.run(telemetry.heartbeat)
        except MergeError as error:
            print(f"joiner: {error}", file=sys.stderr)
            return 1
    return 0
