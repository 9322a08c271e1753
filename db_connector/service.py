"""The service's main loop: passes batches from Kafka to the writer, sends dead letters, and commits offsets.

Each batch goes through these steps, in order:

1. read a batch of committed results with `ResultReader.read`;
2. convert its results to lines, and keep the reason for each result that cannot be converted;
3. write the lines in the writer's thread until every point is acknowledged or rejected;
4. deliver the dead letters;
5. commit the offsets.

If the process is killed between two steps, the results are read again, and in a database they replace themselves. The
next batch is read while the current one is being written. While `IN_FLIGHT_MAX` batches are with the writer, the
partitions are paused; Kafka is still polled, so that this member stays in its group.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from broker.metrics import TelemetryServer
from db_connector.kafka.reader import ResultReader
from db_connector.metrics import WriteTimes, register_metrics
from db_connector.progress import Journal, Progress

if TYPE_CHECKING:
    import threading

    from db_connector.kafka.dead_letters import DeadLetterWriter
    from db_connector.kafka.results import Results
    from db_connector.settings import DbConnectorSettings
    from db_connector.writer import Outcome, WriterThread

IN_FLIGHT_MAX: Final = 2
"""Maximum number of batches passed to the writer: the one being written, and the next one."""

STOP_S: Final = 3.0
"""How long shutdown waits for outstanding acknowledgements. The whole shutdown takes at most 5 s."""

_WAIT_S: Final = 0.5

log = logging.getLogger(__name__)


class Service:
    """Writes the results from one consumer through one writer. `run` returns once ``stop`` is set."""

    def __init__(
        self,
        settings: DbConnectorSettings,
        writer: WriterThread[Results],
        dead_letters: DeadLetterWriter,
        stop: threading.Event,
        journal: Journal | None = None,
        telemetry: TelemetryServer | None = None,
    ) -> None:
        self._writer, self._dead_letters, self._stop, self._journal = writer, dead_letters, stop, journal
        self._telemetry = telemetry or TelemetryServer(settings.metrics)
        self._reader = ResultReader(
            settings, writer.writer.sink, stop, heartbeat=self._telemetry.heartbeat, on_assigned=self._report_readiness
        )
        self._has_abandoned = False
        """Whether a batch was abandoned at shutdown, so that no later batch may be committed."""
        self.progress = Progress()
        self._write_times = WriteTimes(self._telemetry)
        self._lags_seen: dict[int, int] = {}
        register_metrics(self._telemetry, self.progress, writer, lambda: self._lags_seen, lambda: self._reader.firsts)

    def run(self) -> None:
        """Run until ``stop`` is set. Raises `KafkaFailureError` or `DeliveryError` if an operator must act."""
        self._reader.subscribe()
        try:
            while not self._stop.is_set():
                self._step()
                if self._telemetry.is_look_due():
                    self._lags_seen = self._reader.lags()
                self.progress.report_when_due(lambda: sum(self._reader.lags().values()))
            self._finish(time.monotonic() + STOP_S)
        finally:
            self._reader.close()
            self.progress.report_end()

    def _step(self) -> None:
        self._settle_ready()
        if self._writer.in_flight >= IN_FLIGHT_MAX:
            if (outcome := self._writer.outcome(_WAIT_S)) is not None:
                self._settle(outcome)
            else:
                self._keep_alive()
            return
        self._reader.commit()
        results = self._reader.read(self._settle_ready)
        self.progress.results += results.records
        if results.spans:
            self._writer.submit(results)

    def _settle_ready(self) -> None:
        self._telemetry.heartbeat()
        while (outcome := self._writer.outcome(0)) is not None:
            self._settle(outcome)

    def _settle(self, outcome: Outcome[Results], deadline_s: float | None = None) -> None:
        """Send dead letters and commit offsets for a written batch, except for partitions that have been revoked.

        If a batch was abandoned, it and all later batches are ignored, because committing a later offset would
        acknowledge the abandoned batch as well.
        """
        self._has_abandoned = self._has_abandoned or not outcome.written
        if self._has_abandoned:
            return
        batch = outcome.batch
        if batch.lines:
            self._write_times.observe(outcome.took_s)
        if self._journal is not None and batch.lines:
            self._journal.write(
                outcome.acknowledged_ns, [(p, s.first, s.last) for p, s in batch.spans.items() if s.last >= 0]
            )
        dead_letters = self._send_dead_letters(outcome)
        while dead_letters and not self._dead_letters.delivered(_WAIT_S):
            if self._stop.is_set() if deadline_s is None else time.monotonic() >= deadline_s:
                self._has_abandoned = True
                return
            self._keep_alive()
        self._reader.acknowledge(batch)
        self.progress.count(len(batch.lines) - len(outcome.refusals), dead_letters)
        self._reader.commit()

    def _send_dead_letters(self, outcome: Outcome[Results]) -> int:
        """Queue a batch's dead letters, except those for revoked partitions, and return how many were queued."""
        batch = outcome.batch
        refused = [(batch.messages[r.index], r.reason, batch.ids[r.index]) for r in outcome.refusals]
        owned = [one for one in [*batch.unrepresentable, *refused] if self._reader.owns(one[0].partition(), batch)]
        for message, reason, identity in owned:
            self._dead_letters.send(message, reason, identity)
        return len(owned)

    def _keep_alive(self) -> None:
        self._telemetry.heartbeat()
        self._reader.keep_alive()

    def _report_readiness(self) -> None:
        """From now on, report the service as ready while the database accepts results. Called on each assignment."""
        self._telemetry.why_unready = lambda: (
            "the database does not accept results" if self._writer.writer.is_unavailable else ""
        )

    def _finish(self, deadline_s: float) -> None:
        while self._writer.in_flight and (left_s := deadline_s - time.monotonic()) > 0:
            if (outcome := self._writer.outcome(min(left_s, 0.1))) is not None:
                self._settle(outcome, deadline_s)
        self._reader.commit()
        while self._reader.commits.is_pending and time.monotonic() < deadline_s:
            self._reader.drain(0.05)
        if self._writer.in_flight:
            log.info("%d batches were not acknowledged; the next start reads them again", self._writer.in_flight)
