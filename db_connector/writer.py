"""Writes batches to the database, retrying until each result is acknowledged or rejected.

This module uses neither Kafka nor HTTP. The clock and the wait are injected, so that tests need not sleep. A result is
dropped only if the database rejects that particular result.

If the database rejects some of the results in a request, it reports one reason for the whole request, and may or may
not have written the others. Therefore, a rejected request is split in half and each half is written again, until the
rejected results are isolated. A result that is written twice replaces itself.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from db_connector.sinks.sink import MisconfiguredError, RefusedError, TooLargeError, UnavailableError, WriteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from db_connector.sinks.sink import Sink

REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024
"""Maximum size of a request in bytes, before compression. InfluxDB 1.8 accepts up to 25 MB and resets the connection
for anything larger."""

_REPORT_EVERY_S: Final = 10.0
"""Seconds between two log lines about the same outage."""

_RETRY_AFTER_MAX_S: Final = 300.0
"""Upper limit on the wait that the database may request, so that a bogus value cannot stop the pipeline for a day."""

log = logging.getLogger(__name__)


class StoppedError(Exception):
    """The write was abandoned because the process is stopping; its results may or may not have been written."""


@dataclass(frozen=True)
class Refusal:
    """A result that the database will never accept: its index in the batch, and the reason given by the database."""

    index: int
    reason: str


class Writer:
    """Writes batches of lines, one at a time.

    ``wait(seconds)`` waits and returns whether the process should stop; ``clock()`` returns seconds.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        backoff_min_s: float,
        backoff_max_s: float,
        wait: Callable[[float], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sink = sink
        self._backoff_min_s, self._backoff_max_s = backoff_min_s, max(backoff_min_s, backoff_max_s)
        self._wait, self._clock = wait, clock
        self.failures = 0
        """Number of requests that failed or got no valid response."""
        self.is_unavailable = False
        """Whether the last request failed or got no valid response."""
        self._backoff_s = backoff_min_s
        self._unavailable_since_s: float | None = None
        self._reported_s: float | None = None

    def write(self, lines: Sequence[bytes]) -> list[Refusal]:
        """Write ``lines``. Return the rejected lines once all others have been acknowledged.

        Blocks while the database is unavailable. Raises `StoppedError` if ``wait`` returns true.
        """
        refusals: list[Refusal] = []
        pending = list(_requests(lines))[::-1]
        while pending:
            low, high = pending.pop()
            try:
                self._write_until_answered(lines[low:high])
            except (RefusedError, TooLargeError) as error:
                self._note_answer()
                if high - low == 1 or (isinstance(error, RefusedError) and error.refuses_all):
                    reason = str(error)
                    if high - low > 1:
                        reason += f" (reported for {high - low} results of one request)"
                    refusals += [Refusal(index, reason) for index in range(low, high)]
                else:
                    middle = (low + high) // 2
                    pending += [(middle, high), (low, middle)]
        return refusals

    def probe(self) -> float | None:
        """Send an empty write, to check whether the database accepts results. Failures are logged as usual.

        Returns None if the database accepts requests, otherwise the number of seconds until the next probe.
        """
        try:
            self.sink.probe()
        except (UnavailableError, MisconfiguredError) as error:
            return self._note_failure(error)
        except WriteError:
            pass  # the answer is about results, so the database accepts requests
        self._note_answer()
        return None

    def _write_until_answered(self, lines: Sequence[bytes]) -> None:
        while True:
            try:
                self.sink.write(lines)
            except (UnavailableError, MisconfiguredError, TooLargeError) as error:
                if isinstance(error, TooLargeError) and (error.is_own or len(lines) > 1):
                    raise
                if self._wait(self._note_failure(error)):
                    raise StoppedError from error
            else:
                self._note_answer()
                return

    def _note_failure(self, error: WriteError) -> float:
        """Count and log a failed request; return the seconds to wait."""
        now_s = self._clock()
        if self._unavailable_since_s is None:
            self._unavailable_since_s, self._reported_s = now_s, None
        self.failures, self.is_unavailable = self.failures + 1, True
        wait_s = self._backoff_s
        if isinstance(error, UnavailableError) and error.retry_after_s is not None:
            wait_s = min(max(wait_s, error.retry_after_s), _RETRY_AFTER_MAX_S)
        if self._reported_s is None or now_s - self._reported_s >= _REPORT_EVERY_S:
            level = logging.WARNING if isinstance(error, UnavailableError) else logging.ERROR
            log.log(
                level,
                "%s has not accepted results for %.0f s; they are kept in Kafka; next attempt in %.1f s: %s",
                self.sink.name,
                now_s - self._unavailable_since_s,
                wait_s,
                error,
            )
            self._reported_s = now_s
        self._backoff_s = min(self._backoff_s * 2, self._backoff_max_s)
        return wait_s

    def _note_answer(self) -> None:
        if self._unavailable_since_s is not None:
            outage_s = self._clock() - self._unavailable_since_s
            log.info("%s accepts results again, after %.1f s", self.sink.name, outage_s)
        self.is_unavailable, self._unavailable_since_s, self._backoff_s = False, None, self._backoff_min_s


def _requests(lines: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Split ``lines`` into ranges of at most `REQUEST_BYTES_MAX` bytes. A longer line gets its own range."""
    low = size = 0
    for index, line in enumerate(lines):
        if index > low and size + len(line) > REQUEST_BYTES_MAX:
            yield low, index
            low, size = index, 0
        size += len(line) + 1
    if lines:
        yield low, len(lines)


class Lines(Protocol):
    """A batch for the writer thread: any object that has ``lines``."""

    lines: list[bytes]


Batch = TypeVar("Batch", bound=Lines)


@dataclass(frozen=True)
class Outcome(Generic[Batch]):
    """The result of writing a batch. ``written`` is false if the write was abandoned."""

    batch: Batch
    written: bool
    refusals: list[Refusal]
    acknowledged_ns: int
    """Wall-clock time of the acknowledgement, in ns since the epoch."""
    took_s: float = 0.0
    """Duration of the write."""


class WriterThread(Generic[Batch]):
    """Runs a `Writer` in a thread, so that the service keeps polling Kafka while the database is slow or unavailable.

    Outcomes are returned in the order of the batches. The thread probes the database until it responds or the first
    results arrive, so that a wrong address or token is reported even if there is nothing to write. The thread is a
    daemon, so a hanging request does not keep the process alive.
    """

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self._batches: queue.SimpleQueue[Batch] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Outcome[Batch] | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()
        self.in_flight = 0
        """Number of batches whose outcome has not been retrieved yet."""

    def submit(self, batch: Batch) -> None:
        """Queue a batch. The caller limits how many are in flight."""
        self.in_flight += 1
        self._batches.put(batch)

    def outcome(self, timeout_s: float) -> Outcome[Batch] | None:
        """Return the next outcome, or None after ``timeout_s``. Re-raises unexpected errors from the writer."""
        try:
            outcome = self._outcomes.get(timeout=timeout_s) if timeout_s > 0 else self._outcomes.get_nowait()
        except queue.Empty:
            return None
        self.in_flight -= 1
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _run(self) -> None:
        probe_in_s: float | None = 0.0
        while True:
            try:
                batch = self._batches.get(timeout=probe_in_s)
            except queue.Empty:
                try:
                    probe_in_s = self.writer.probe()
                except BaseException as error:  # noqa: BLE001 - as below
                    self._outcomes.put(error)
                    return
                continue
            if batch.lines:
                probe_in_s = None  # from here on, the writes themselves report failures
            began_s = time.monotonic()
            try:
                refusals = self.writer.write(batch.lines)
            except StoppedError:
                self._outcomes.put(Outcome(batch, written=False, refusals=[], acknowledged_ns=0))
            except BaseException as error:  # noqa: BLE001 - raised again in the main thread
                self._outcomes.put(error)
                return
            else:
                took_s = time.monotonic() - began_s
                self._outcomes.put(
                    Outcome(batch, written=True, refusals=refusals, acknowledged_ns=time.time_ns(), took_s=took_s)
                )
