"""The database's side of the connector: a batch is written until each of its points is acknowledged or
refused.

Knows neither Kafka nor HTTP, and takes its clock and its waiting from outside, so that a test never sleeps.
What it must not do: give a point up for any reason but the database's refusal of that very point.

A database that refuses some points of a request says so of the request, names one reason, and may or may
not have written the others. So a refused request is halved and written again until the refused points stand
alone; points written twice overwrite themselves.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from db_connector.database import MisconfiguredError, RefusedError, TooLargeError, UnavailableError, WriteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from db_connector.database import Database

NO_POINTS: Final = b"# nothing\n"
"""A comment of line protocol: InfluxDB checks who asks and whether there is the bucket, and writes nothing."""

REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of one request before compression. InfluxDB 1.8 takes 25 MB; beyond, it resets the connection."""

_SAY_AGAIN_S: Final = 10.0
"""Seconds between two lines of log about the same trouble."""

_RETRY_AFTER_MAX_S: Final = 300.0
"""Longest wait that a database may ask for: a slip in its answer must not stop the pipeline for a day."""

_REASONS_OF_ALL: Final = ("field type conflict", "points beyond retention policy")
"""Refusals that are worded alike for every point of a request."""

log = logging.getLogger(__name__)


class StoppedError(Exception):
    """The write was given up because the process ends; nothing is known of its points."""


@dataclass(frozen=True)
class Refusal:
    """A point that the database will never take: its index in the batch, and the database's words."""

    index: int
    reason: str


class Writer:
    """Writes batches of lines, one at a time.

    ``wait(seconds)`` waits and returns whether the process is to end meanwhile; ``clock()`` gives seconds.
    """

    def __init__(
        self,
        database: Database,
        *,
        backoff_min_s: float,
        backoff_max_s: float,
        wait: Callable[[float], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._backoff_min_s, self._backoff_max_s = backoff_min_s, max(backoff_min_s, backoff_max_s)
        self._wait, self._clock = wait, clock
        self.failures = 0
        """Requests that the database has not answered, or not as a database does."""
        self.is_away = False
        """Whether the last one was such."""
        self._backoff_s = backoff_min_s
        self._away_since: float | None = None
        self._said: float | None = None

    def write(self, lines: Sequence[bytes]) -> list[Refusal]:
        """Write ``lines``; returns the refused ones by index once all others are acknowledged.

        Waits as long as the database is away. Raises `StoppedError` where ``wait`` says so.
        """
        refusals: list[Refusal] = []
        pending = list(_requests(lines))[::-1]
        while pending:
            low, high = pending.pop()
            try:
                self._until_answered(b"\n".join(lines[low:high]), high - low)
            except (RefusedError, TooLargeError) as error:
                self._answered()
                if high - low == 1 or _refuses_all(error, high - low):
                    reason = str(error)
                    if high - low > 1:
                        reason += f" (said of {high - low} points in one request)"
                    refusals += [Refusal(index, reason) for index in range(low, high)]
                else:
                    middle = (low + high) // 2
                    pending += [(middle, high), (low, middle)]
        return refusals

    def ask(self) -> float | None:
        """Ask whether the database takes points, by a write of none; what is wrong is told as it is of a write.

        Returns None once it has answered, else the seconds after which to ask again.
        """
        try:
            self._database.write(NO_POINTS)
        except (UnavailableError, MisconfiguredError) as error:
            return self._failed(error)
        except WriteError:
            pass  # an answer, which blames the points: it read them
        self._answered()
        return None

    def _until_answered(self, body: bytes, points: int) -> None:
        while True:
            try:
                self._database.write(body)
            except (UnavailableError, MisconfiguredError, TooLargeError) as error:
                if isinstance(error, TooLargeError) and (error.is_own or points > 1):
                    raise
                if self._wait(self._failed(error)):
                    raise StoppedError from error
            else:
                self._answered()
                return

    def _failed(self, error: WriteError) -> float:
        """Note and tell that the database takes nothing; returns the seconds to wait."""
        now = self._clock()
        if self._away_since is None:
            self._away_since, self._said = now, None
        self.failures, self.is_away = self.failures + 1, True
        wait_s = self._backoff_s
        if isinstance(error, UnavailableError) and error.retry_after_s is not None:
            wait_s = min(max(wait_s, error.retry_after_s), _RETRY_AFTER_MAX_S)
        if self._said is None or now - self._said >= _SAY_AGAIN_S:
            level = logging.WARNING if isinstance(error, UnavailableError) else logging.ERROR
            log.log(
                level,
                "InfluxDB takes no points for %.0f s, nothing is lost, next attempt in %.1f s: %s",
                now - self._away_since,
                wait_s,
                error,
            )
            self._said = now
        self._backoff_s = min(self._backoff_s * 2, self._backoff_max_s)
        return wait_s

    def _answered(self) -> None:
        if self._away_since is not None:
            log.info("InfluxDB takes points again, after %.1f s", self._clock() - self._away_since)
        self.is_away, self._away_since, self._backoff_s = False, None, self._backoff_min_s


def _requests(lines: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Ranges of ``lines`` of at most `REQUEST_BYTES_MAX`, or of one line."""
    low = size = 0
    for index, line in enumerate(lines):
        if index > low and size + len(line) > REQUEST_BYTES_MAX:
            yield low, index
            low, size = index, 0
        size += len(line) + 1
    if lines:
        yield low, len(lines)


def _refuses_all(error: RefusedError | TooLargeError, points: int) -> bool:
    return (
        isinstance(error, RefusedError)
        and error.dropped == points
        and any(reason in str(error) for reason in _REASONS_OF_ALL)
    )


class Lines(Protocol):
    """What is handed to the writer's thread: anything that carries lines."""

    lines: list[bytes]


Batch = TypeVar("Batch", bound=Lines)


@dataclass(frozen=True)
class Outcome(Generic[Batch]):
    """A batch after its write. ``written`` is false where the process ended before it was known."""

    batch: Batch
    written: bool
    refusals: list[Refusal]
    acknowledged_ns: int
    """Wall clock at the acknowledgement, ns since the epoch."""
    took_s: float = 0.0
    """From when the write began."""


class WriterThread(Generic[Batch]):
    """A `Writer` in a thread of its own, so that Kafka is served while the database is slow or away.

    Outcomes come in the order of the batches. Until the first point, it asks whether the database takes any, so
    that a wrong address or token is told also where there is nothing to write; a point does not wait for that. The
    thread is a daemon: a request that hangs does not keep the process from ending.
    """

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self._batches: queue.SimpleQueue[Batch] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Outcome[Batch] | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="influxdb-writer", daemon=True)
        self._thread.start()
        self.in_flight = 0
        """Batches whose outcome has not been taken yet."""

    def submit(self, batch: Batch) -> None:
        """Hand a batch over. The caller bounds how many are in flight."""
        self.in_flight += 1
        self._batches.put(batch)

    def outcome(self, timeout_s: float) -> Outcome[Batch] | None:
        """The next outcome, or None after ``timeout_s``. Raises what the writer raised unexpectedly."""
        try:
            outcome = self._outcomes.get(timeout=timeout_s) if timeout_s > 0 else self._outcomes.get_nowait()
        except queue.Empty:
            return None
        self.in_flight -= 1
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _run(self) -> None:
        ask_in_s: float | None = 0.0
        while True:
            try:
                batch = self._batches.get(timeout=ask_in_s)
            except queue.Empty:
                try:
                    ask_in_s = self.writer.ask()
                except BaseException as error:  # noqa: BLE001 - as below
                    self._outcomes.put(error)
                    ask_in_s = None
                continue
            if batch.lines:
                ask_in_s = None  # from here on, the writes themselves show it
            began_s = time.monotonic()
            try:
                refusals = self.writer.write(batch.lines)
            except StoppedError:
                self._outcomes.put(Outcome(batch, written=False, refusals=[], acknowledged_ns=0))
            except BaseException as error:  # noqa: BLE001 - handed to the main thread, which ends by it
                self._outcomes.put(error)
            else:
                took_s = time.monotonic() - began_s
                self._outcomes.put(
                    Outcome(batch, written=True, refusals=refusals, acknowledged_ns=time.time_ns(), took_s=took_s)
                )
