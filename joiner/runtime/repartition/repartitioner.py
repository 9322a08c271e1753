"""The loop that repartitions: reads, copies and commits, and starts over after an error."""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException

from broker.kafka.errors import is_denied
from broker.kafka.topics import TopicError, TopicFacts, ensure_topics
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.clients import describe, make_admin
from joiner.runtime.kafka.topics import TopicWatch, check_sources, repartition_topic_specs, retention_warnings
from joiner.runtime.model import UnitStopped
from joiner.runtime.repartition.copies import CopyRefused, CopyWriter
from joiner.runtime.repartition.hanging import HangingTransactions
from joiner.runtime.repartition.prior import CopyScans, RepartitionError, Stopped, read_prior
from joiner.runtime.repartition.source import SourceReader

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from broker.metrics import Readings
    from joiner.runtime.settings import JoinerSettings

_WAIT_MIN_S: Final = 0.2
_WAIT_MAX_S: Final = 10.0
"""How long to wait after an error: each time twice as long, up to the maximum."""

_LOOK_S: Final = 1.0
"""The time between two looks for a topic that does not exist, and between two updates of the lags."""

_READ_S: Final = 1.0
"""The longest wait for messages. `application.commit_interval` may be minutes, and the loop must notice a stop."""

_REPORT_S: Final = 10.0

_STUCK_S: Final = 300.0
"""After how long without a turn the loop counts as stuck: several requests in a row may each take half a minute."""

_log = logging.getLogger(__name__)


class RepartitionMetrics:
    """The metrics of a process that repartitions. The loop's thread updates them, and others read them."""

    def __init__(self, readings: Readings) -> None:
        self.copied: Counter[tuple[str, ...]] = Counter()
        self.lags: Mapping[tuple[str, ...], float] = {}
        self.refused: Counter[tuple[str, ...]] = Counter()
        self.transactions = self.errors = 0
        counter = readings.counter
        copied = "Messages copied to a repartition topic, by the topic they come from."
        counter("lsb_joiner_repartitioned", copied, self.copied.copy, ("topic",))
        counter("lsb_joiner_repartition_transactions", "Transactions committed.", lambda: self.transactions)
        counter("lsb_joiner_repartition_errors", "Errors after which copying started over.", lambda: self.errors)
        refused = "Attempts to copy a message that the repartition topic refuses, by the topic it comes from."
        counter("lsb_joiner_repartition_refused", refused, self.refused.copy, ("topic",))
        lag = "Offsets of a topic that this process has still to copy."
        readings.gauge("lsb_joiner_repartition_lag", lag, lambda: self.lags, ("topic",))


class Repartitioner:
    """Repartitions topics until it is stopped. Any number of processes share the partitions."""

    def __init__(self, settings: JoinerSettings, clock: Clock, metrics: RepartitionMetrics) -> None:
        self._settings, self._clock, self._metrics = settings, clock, metrics
        self._stop = threading.Event()
        self._beat: Callable[[], None] = lambda: None
        self._beat_s = clock.monotonic_s()
        self._wait_s = _WAIT_MIN_S
        self._reported_s = -math.inf
        self._warned: set[str] = set()
        self._scans = CopyScans()

    def stop(self) -> None:
        """Ask it to stop. Safe to call from a signal handler."""
        self._stop.set()

    def run(self, beat: Callable[[], None] = lambda: None, *, strict: bool = False) -> None:
        """Copy messages until stopped. Errors are logged, and then it starts over. ``beat`` is called in each turn.

        ``strict``: whether to raise `TopicError` instead if a topic cannot be used as it is.
        """
        self._beat = beat
        while not self._is_over():
            try:
                self._copy()
            except Stopped:
                return
            except TopicError as error:
                if strict:
                    raise
                self._start_over(error)
            except CopyRefused as error:
                self._metrics.refused[error.topic,] += 1
                self._start_over(error)
            except (KafkaException, RepartitionError, UnitStopped) as error:
                self._start_over(error)
            except Exception as error:  # noqa: BLE001 - the thread must not end, because nobody would copy
                _log.exception("repartitioning: an unexpected error")
                self._start_over(error)

    def why_stuck(self) -> str:
        """Return why the loop counts as stuck, or an empty string. Thread-safe."""
        stuck_s = self._clock.monotonic_s() - self._beat_s
        return f"repartitioning has been stuck for {stuck_s:.0f} s" if stuck_s > _STUCK_S else ""

    def _start_over(self, error: Exception) -> None:
        if self._is_over():
            return
        self._metrics.errors += 1
        why = describe(error).replace("\n", "; ")
        if isinstance(error, KafkaException) and is_denied(error.args[0]):
            why += f" (topics: {', '.join(name for pair in self._settings.repartitioned.items() for name in pair)})"
        _log.warning("repartitioning: %s; starting over in %.1f s", why, self._wait_s)
        self._pause(self._wait_s)
        self._wait_s = min(2 * self._wait_s, _WAIT_MAX_S)

    def _is_over(self) -> bool:
        self._beat_s = self._clock.monotonic_s()
        self._beat()
        return self._stop.is_set()

    def _pause(self, seconds: float) -> None:
        until_s = self._clock.monotonic_s() + seconds
        while not self._is_over() and (left_s := until_s - self._clock.monotonic_s()) > 0:
            self._stop.wait(min(left_s, _LOOK_S))

    def _copy(self) -> None:
        """Copy messages until stopped, or until an error."""
        settings = self._settings
        admin = make_admin(settings.kafka)
        facts = self._wait_for_topics(admin)
        if facts is None:
            return
        prior = read_prior(settings, facts, self._clock, self._is_over, self._scans)
        watch = TopicWatch(admin, facts, self._clock, may_grow=settings.repartitioned.keys())
        hanging = HangingTransactions(admin, settings, self._clock)
        read_s = min(settings.application.commit_interval / 1e9, _READ_S)
        with (
            closing(CopyWriter(settings, facts, self._clock)) as writer,
            closing(SourceReader(settings, facts, self._clock, prior)) as reader,
        ):
            names = ", ".join(settings.repartitioned)
            _log.info("repartitioning %s as a member of the group %s", names, settings.repartition_group)
            look_s = -math.inf
            while not self._is_over():
                try:
                    watch.check()
                except TopicError as error:
                    # The remedy is another one than that of the joiner. The next session finds it.
                    message = f"{str(error).partition(':')[0]}; looking at it again"
                    raise RepartitionError(message) from error
                hanging.check()
                parts = reader.read(read_s)
                if offsets := reader.offsets():
                    writer.commit(parts, offsets, reader.consumer)
                    self._wait_s = _WAIT_MIN_S
                    self._metrics.transactions += 1
                    for part in parts:
                        self._metrics.copied[part.topic,] += len(part.messages)
                if (now_s := self._clock.monotonic_s()) - look_s > _LOOK_S:
                    look_s = now_s
                    self._metrics.lags = {(topic,): lag for topic, lag in reader.lags().items()}

    def _wait_for_topics(self, admin: AdminClient) -> dict[str, TopicFacts] | None:
        """Create the repartition topics, and wait for the topics to copy. Return the facts of all, or None if stopped.

        Raises `TopicError` if a topic cannot be used as it is, and KafkaException.
        """
        settings = self._settings
        created = ensure_topics(admin, repartition_topic_specs(settings))
        while not self._is_over():
            found = check_sources(admin, settings)
            if missing := [topic for topic in settings.repartitioned if topic not in found]:
                if (now_s := self._clock.monotonic_s()) - self._reported_s > _REPORT_S:
                    self._reported_s = now_s
                    _log.warning("repartitioning: waiting for topics that do not exist: %s", ", ".join(missing))
                self._pause(_LOOK_S)
                continue
            for warning in set(retention_warnings(admin, settings)) - self._warned:
                self._warned.add(warning)
                _log.warning("repartitioning: %s", warning)
            return {**found, **created}
        return None
