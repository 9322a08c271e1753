"""The loop that merges: reads the replicas, writes what is new, and starts over after an error."""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException

from broker.kafka.replicas import merged_topic, replica_name
from broker.kafka.topics import (
    TopicSpec,
    control_topic_spec,
    data_topic_specs,
    ensure_topics,
    state_topic_spec,
    wait_for_topics,
)
from joiner.cli.merging.leadership import Leadership
from joiner.cli.merging.restoring import SIDE_BY_SIDE, Restoring, Stopped
from joiner.cli.merging.session import Session
from joiner.library.merging.protocol import REMEMBERED_MAX
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.clients import KAFKA_LOG, describe, make_admin
from joiner.runtime.kafka.topics import TopicReplaced, TopicWatch

if TYPE_CHECKING:
    from broker.metrics import Readings
    from joiner.runtime.settings import JoinerSettings

_WAIT_MIN_S: Final = 0.2
_WAIT_MAX_S: Final = 10.0
"""How long to wait after an error: each time twice as long, up to the maximum."""

_CALM_S: Final = 60.0
"""If no error occurs for this time, including the wait, the next one is the first again."""

_LOOK_S: Final = 1.0
"""The time between two updates of the metrics."""

_SHORT: Final = {"segment.bytes": str(1024 * 1024), "delete.retention.ms": "60000"}
"""Settings that keep the state topic short, all of which is read before merging begins.

Compaction keeps the marker of each transaction for ``delete.retention.ms``, which is a day by default. With fifty
transactions a second, that is 300 MB per partition. It also keeps tombstones for as long, but this topic has none.
"""

_log = logging.getLogger(__name__)


class MergeMetrics:
    """The metrics of a process that merges. The loop's thread updates them, and others read them."""

    def __init__(self, readings: Readings) -> None:
        self.verdicts: Mapping[tuple[str, ...], float] = {}
        self.leads: Mapping[tuple[str, ...], float] = {}
        self.lead_ms: Mapping[tuple[str, ...], float] = {}
        self.complete: Mapping[tuple[str, ...], float] = {}
        self.partitions: Mapping[tuple[str, ...], float] = {}
        self.remembered: Mapping[tuple[str, ...], float] = {}
        self.merging = self.waiting = self.transactions = self.errors = 0
        counter, gauge = readings.counter, readings.gauge
        what = (
            "Messages of a replica, by what was done with them: deliver (it was first), known (another one was), "
            "ignored (it is not accepted) or wait (memory is full)."
        )
        counter("lsb_joiner_merge_messages", what, lambda: self.verdicts, ("topic", "replica", "verdict"))
        what = "Ids of which a replica was first and another one second, of a sample of all."
        counter("lsb_joiner_merge_leads", what, lambda: self.leads, ("topic", "replica"))
        what = "How much later the second ones were, in total, by when Kafka appended the messages."
        counter("lsb_joiner_merge_lead_seconds", what, self._lead_s, ("topic", "replica"))
        counter("lsb_joiner_merge_transactions", "Transactions committed.", lambda: self.transactions)
        counter("lsb_joiner_merge_errors", "Errors after which merging started over.", lambda: self.errors)
        gauge("lsb_joiner_merge_active", "Whether this process merges (1) or waits (0).", lambda: self.merging)
        what = "Partitions in which a replica is complete, so that it can deliver all results without the others."
        gauge("lsb_joiner_merge_complete", what, lambda: self.complete, ("topic", "replica"))
        gauge("lsb_joiner_merge_partitions", "Partitions that are merged.", lambda: self.partitions, ("topic",))
        gauge("lsb_joiner_merge_remembered", "Ids that are remembered.", lambda: self.remembered, ("topic",))
        what = "Partitions that are not read because memory is full and a complete replica is waited for."
        gauge("lsb_joiner_merge_waiting", what, lambda: self.waiting)

    def end_session(self) -> None:
        """Forget what was true while this process merged. What another one finds must not be mixed with that."""
        self.merging = self.waiting = 0
        self.complete, self.partitions, self.remembered = {}, {}, {}

    def _lead_s(self) -> Mapping[tuple[str, ...], float]:
        return {labels: sum_ms / 1e3 for labels, sum_ms in self.lead_ms.items()}


class Merger:
    """Merges the outputs of an application's replicas until it is stopped."""

    def __init__(
        self, settings: JoinerSettings, clock: Clock, metrics: MergeMetrics, remembered_max: int = REMEMBERED_MAX
    ) -> None:
        self._settings, self._clock, self._metrics, self._remembered_max = settings, clock, metrics, remembered_max
        self._stop = threading.Event()
        self._totals: Counter[tuple[str, ...]] = Counter()
        self._leads: Counter[tuple[str, ...]] = Counter()
        self._lead_ms: Counter[tuple[str, ...]] = Counter()
        """The verdicts and leads of earlier sessions."""
        self._wait_s, self._erred_s = _WAIT_MIN_S, -math.inf
        """How long to wait after the next error, and when the last one was."""
        self.is_ready = False
        """Whether it merges, or waits for its turn."""

    def stop(self) -> None:
        """Ask it to stop. Safe to call from a signal handler."""
        self._stop.set()

    def run(self, beat: Callable[[], None] = lambda: None) -> None:
        """Merge until stopped. ``beat`` is called in each turn. Kafka's errors are logged, and then it starts over.

        Raises KafkaException for an error at the start that waiting cannot fix, such as a denied access, `TopicError`
        if a topic cannot be used as it is, `MergeError` if results were lost or cannot be merged, and
        `broker.settings.SettingsError` if a secret cannot be read.
        """

        def is_stopped() -> bool:
            beat()
            return self._stop.is_set()

        wait_for_topics(self._settings.kafka, merge_topics(self._settings), is_stopped, _log, KAFKA_LOG)
        while not self._stop.is_set():
            try:
                # The topic that the group assigns must exist.
                ensure_topics(make_admin(self._settings.kafka), merge_topics(self._settings))
                with closing(Leadership(self._settings, self._clock)) as leadership:
                    self._merge_in_turn(leadership, beat)
            except KafkaException as error:
                self._start_over(error, beat)

    def _merge_in_turn(self, leadership: Leadership, beat: Callable[[], None]) -> None:
        """Merge whenever this process should. Raises KafkaException."""

        def continues() -> bool:
            beat()
            return not self._stop.is_set() and leadership.check()

        while not self._stop.is_set():
            if not continues():
                self.is_ready = True
                continue
            self.is_ready = False
            try:
                with suppress(Stopped):
                    self._merge(continues)
            except TopicReplaced as change:
                # The next session finds out what this means, and what an operator should do.
                _log.warning("topics were deleted or recreated: %s; starting over", ", ".join(change.topics))
            finally:
                self.is_ready = False
                self._metrics.end_session()

    def _start_over(self, error: KafkaException, beat: Callable[[], None]) -> None:
        self.is_ready = False
        self._metrics.errors += 1
        now_s = self._clock.monotonic_s()
        if now_s - self._erred_s > _CALM_S:
            # A process that only waits for its turn has no other success than that nothing happens.
            self._wait_s = _WAIT_MIN_S
        _log.warning("merging: %s; starting over in %.1f s", describe(error), self._wait_s)
        self._erred_s, until_s = now_s, now_s + self._wait_s
        while not self._stop.is_set() and self._clock.monotonic_s() < until_s:
            beat()
            self._stop.wait(_WAIT_MIN_S)
        self._wait_s = min(2 * self._wait_s, _WAIT_MAX_S)

    def _merge(self, continues: Callable[[], bool]) -> None:
        """Merge until stopped, until another process should merge, or until an error.

        Raises `TopicReplaced` if a topic is another one now.
        """
        settings = self._settings
        admin = make_admin(settings.kafka)
        facts = ensure_topics(admin, merge_topics(settings))
        watch = TopicWatch(admin, facts, self._clock)
        with _pool(settings.topics.partitions) as pool:
            restoring = Restoring(settings, self._clock, facts, self._remembered_max, pool, continues)
            session = Session(settings, self._clock, facts, restoring)
        with closing(session):
            _log.info("merging %d replicas of %s", settings.application.replicas, settings.application.name)
            self.is_ready, self._metrics.merging, look_s = True, 1, -math.inf
            try:
                while continues():
                    watch.check()
                    if session.turn():
                        self._wait_s = _WAIT_MIN_S
                        self._metrics.transactions += 1
                    if (now_s := self._clock.monotonic_s()) - look_s > _LOOK_S:
                        look_s = now_s
                        self._observe(session)
            finally:
                leads, lead_ms = session.leads()
                self._totals += session.verdicts()
                self._leads, self._lead_ms = self._leads + leads, self._lead_ms + lead_ms

    def _observe(self, session: Session) -> None:
        self._metrics.verdicts = self._totals + session.verdicts()
        leads, lead_ms = session.leads()
        self._metrics.leads, self._metrics.lead_ms = self._leads + leads, self._lead_ms + lead_ms
        self._metrics.waiting = session.waiting()
        complete: Counter[tuple[str, ...]] = Counter()
        partitions: Counter[tuple[str, ...]] = Counter()
        remembered: Counter[tuple[str, ...]] = Counter()
        for (topic, _), merged in session.partitions.items():
            complete.update((topic, str(replica)) for replica in merged.union.complete)
            partitions[topic,] += 1
            remembered[topic,] += merged.union.remembered
        self._metrics.complete, self._metrics.partitions, self._metrics.remembered = complete, partitions, remembered


@contextmanager
def _pool(partitions: int) -> Iterator[Executor]:
    """Return threads for restoring. Whoever waits for Kafka in them is not waited for at the end."""
    pool = ThreadPoolExecutor(min(partitions, SIDE_BY_SIDE), "restoring")
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def merge_topics(settings: JoinerSettings) -> list[TopicSpec]:
    """Return the topics of all replicas' outputs, those into which they are merged, and the state topic of merging."""
    outputs = settings.output_topics.values()
    replicas = range(settings.application.replicas)
    names = [replica_name(topic, replica) for topic in outputs for replica in replicas]
    names += [merged_topic(topic) for topic in outputs]
    specs = {spec.name: spec for spec in data_topic_specs(settings.topics, names)}
    state = state_topic_spec(f"{settings.application.name}.merged", settings.topics)
    return [
        *(specs[name] for name in names),
        replace(state, initial=state.initial | _SHORT),
        control_topic_spec(settings.application.name, settings.topics),
    ]
