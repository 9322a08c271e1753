"""Consumes results from Kafka; handles partition assignments, start offsets, errors, fencing and pauses.

Reading starts at a partition's committed offset if that offset was committed for the same target database, otherwise at
the beginning of the log. Each assignment of a partition gets a number. Offsets of a batch that was consumed under an
earlier assignment are not committed, because another member may have read the partition in the meantime.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from broker.kafka.group_member import give_partitions_back, member_config
from broker.kafka.replicas import replica_of
from db_connector.kafka.dead_letters import SOURCE
from db_connector.kafka.lag import Lag
from db_connector.kafka.offsets import KAFKA_LOG, OffsetCommits
from db_connector.kafka.results import Results, Span
from db_connector.kafka.target import start_of, target_of
from db_connector.progress import RateLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from confluent_kafka import Message

    from db_connector.settings import DbConnectorSettings
    from db_connector.sinks.sink import Sink

PREFETCH_KB: Final = 32 * 1024
"""Kilobytes that librdkafka may prefetch. Together with the batches in flight, this bounds memory use."""

_END_OF_PARTITION: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 - that is how the client names its own codes
_FATAL: Final = KafkaError._FATAL  # noqa: SLF001 - as above
_OFFSET_NOT_IN_LOG: Final = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001 - as above

_CLOSE_S: Final = 1.0
_FENCED_AGAIN_SESSIONS: Final = 3
"""If this member is fenced twice within this many session timeouts, another process must be using its instance name."""
_RETRY_S: Final = 0.5
_SLICE_S: Final = 0.5
"""The longest time that a single call waits for messages."""
_ASK_KAFKA_S: Final = 2.0
"""Timeout for requesting committed offsets. Signals do not interrupt requests, and shutdown must take at most 5 s."""
_WARN_EVERY_S: Final = 10.0

log = logging.getLogger(__name__)


class KafkaFailureError(Exception):
    """A Kafka error that only an operator can resolve. The message says what happened and what to do."""


class ResultReader:
    """The consumer of the result topic.

    ``on_assigned`` is called after each assignment, and ``heartbeat`` while a callback waits for Kafka. Setting
    ``stop`` ends the wait.
    """

    def __init__(
        self,
        settings: DbConnectorSettings,
        sink: Sink,
        stop: threading.Event,
        *,
        heartbeat: Callable[[], None],
        on_assigned: Callable[[], None],
    ) -> None:
        self._settings, self._own = settings, settings.db_connector
        self._topic, self._target, self._encode = settings.results_topic, target_of(sink), sink.encode
        self._stop, self._heartbeat, self._on_assigned = stop, heartbeat, on_assigned
        self._warnings, self._lag = RateLimit(_WARN_EVERY_S), Lag(self._topic)
        self.commits = OffsetCommits(self._topic, self._target, self._warnings)
        self._assignment, self._fenced_s = 0, float("-inf")
        self._assignments: dict[int, int] = {}
        """The number of the current assignment, per partition."""
        self._next: dict[int, int] = {}
        """The offset after the last record read, per partition."""
        self._retry_at_s: dict[int, float] = {}
        """Partitions that failed at their next offset, and when to read them again.

        Until then their records are discarded, because after an error the client may continue at any offset.
        """
        self._read_ahead: list[Message] = []
        """Messages that arrived while paused, or would have made a batch too large."""
        self._paused = self._is_closing = False
        self.firsts: Counter[int] = Counter()
        """Merged messages read, by the replica that was first. It is replaced, not changed."""
        self._results_per_message = 1
        """Results per message in the last batch, used to size the next one to about ``batch_records`` results."""
        self._consumer = self._make_consumer()

    def subscribe(self) -> None:
        """Join the group."""
        lost = partial(self._revoked, how="were lost because the group removed this member")
        self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=lost)

    def read(self, meanwhile: Callable[[], None]) -> Results:
        """Read the next batch: up to about ``batch_records`` results, or fewer if no more arrive within ``linger``.

        ``meanwhile`` is called every half second of the linger, and may pause the partitions. Resumes the partitions
        that `keep_alive` has paused. Raises `KafkaFailureError`.
        """
        if self._paused:
            self._consumer.resume(self._consumer.assignment())
            self._paused = False
        self._retry_failed_partitions()
        wanted = max(1, self._own.batch_records // self._results_per_message)
        for number, slice_s in enumerate(slices_of(self._own.linger / 1e9)):
            if number:
                meanwhile()
            missing = wanted - len(self._read_ahead)
            # Poll even if the batch is full, so that the client's callbacks run. They may drop some of its messages.
            arrived = self._consumer.consume(max(1, missing), slice_s if missing > 0 else 0.0)
            self._read_ahead += arrived
            if len(self._read_ahead) >= wanted or _has_failed(arrived) or self._paused or self._stop.is_set():
                break
        found, self._read_ahead = self._read_ahead, []
        results = self._sort(found)
        if self._own.merged:
            self.firsts = self.firsts + _firsts_of(found[: len(found) - len(self._read_ahead)])
        if results.message_count:
            self._results_per_message = max(1, results.records // results.message_count)
        return results

    def keep_alive(self, timeout_s: float = 0.1) -> None:
        """Pause the partitions and poll, to stay in the group. Records that still arrive go into the next batch."""
        if not self._paused:
            self._consumer.pause(self._consumer.assignment())
            self._paused = True
        self.drain(timeout_s)

    def drain(self, timeout_s: float) -> None:
        """Run the client's callbacks. Messages that arrive meanwhile go into the next batch."""
        arrived = self._consumer.consume(1, timeout_s)
        self._read_ahead += arrived  # a callback may have replaced the list

    def owns(self, partition: int | None, batch: Results) -> bool:
        """Return whether this member has owned the partition without interruption since the batch was consumed."""
        return partition is not None and self._assignments.get(partition) == batch.spans[partition].assignment

    def acknowledge(self, batch: Results) -> None:
        """Mark every result of the batch as written or dead-lettered, so that `commit` commits its offsets."""
        for number, span in batch.spans.items():
            if self.owns(number, batch):
                self.commits.acknowledged[number] = span.next_offset

    def commit(self) -> None:
        """Commit the acknowledged offsets; see `OffsetCommits.commit`."""
        self.commits.commit(self._consumer)

    def lags(self) -> dict[int, int]:
        """Return the lag of each partition for which it is known; see `Lag.of`."""
        return self._lag.of(self._consumer, self.commits.acknowledged, paused=self._paused)

    def close(self) -> None:
        """Leave the consumer group, waiting at most two seconds."""
        self._is_closing = True
        give_partitions_back(self._consumer)
        # Close in a thread, because leaving the group waits for the coordinator, which may be unavailable.
        closing = threading.Thread(target=self._consumer.close, name="consumer-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)

    def _make_consumer(self) -> Consumer:
        return Consumer({**_consumer_config(self._settings), "on_commit": self.commits.on_commit}, logger=KAFKA_LOG)

    def _sort(self, messages: list[Message]) -> Results:
        results = Results()
        for at, message in enumerate(messages):
            if results.records >= self._own.batch_records:
                # Each message in this batch holds more results than those in the previous batch did.
                self._read_ahead = messages[at:]
                break
            error = message.error()
            number, offset = message.partition(), message.offset()
            if error is not None and error.code() != _END_OF_PARTITION:
                if error.code() == _FATAL and "instance" in error.str():
                    self._rejoin(error)
                    return Results()
                self._handle(error, number)
                continue
            assignment = self._assignments.get(-1 if number is None else number)
            if number is None or offset is None or assignment is None or number in self._retry_at_s:
                continue
            span = results.spans.setdefault(number, Span(assignment))
            if error is not None:
                # If a transaction marker follows the last record, the end of the partition is past that marker.
                span.next_offset = self._next[number] = offset
                continue
            span.extend(offset)
            self._next[number] = offset + 1
            results.add(message, self._encode, self._settings.events.time_unit)
        return results

    def _handle(self, error: KafkaError, partition: int | None) -> None:
        """Schedule a retry of the partition that failed, if any. Raises `KafkaFailureError` if a retry cannot help."""
        if error.code() == _OFFSET_NOT_IN_LOG and partition not in self._assignments:
            return  # it arrived while this member was stopping, so `_assigned` has given it no offset
        if error.code() == _OFFSET_NOT_IN_LOG and partition not in self._retry_at_s:
            raise KafkaFailureError(
                f"{self._topic} partition {partition}: the committed offset of group {self._own.group} is not in the "
                f"log ({error.str()}): results were deleted before they were written, or the topic was recreated. To "
                "continue with the remaining results, stop the whole group, delete its offsets and start it again: "
                f"kafka-consumer-groups --delete-offsets --group {self._own.group} --topic {self._topic}"
            )
        # Errors that arrive as consumer events can be recognised as fatal only by their code; `fatal()` is not set.
        if error.fatal() or error.code() == _FATAL:
            raise KafkaFailureError(f"the Kafka client failed: {error.str()}")
        if partition in self._assignments:
            # After an error, the client may skip records, such as those in a corrupt batch.
            self._retry_at_s.setdefault(partition, time.monotonic() + _RETRY_S)
            if self._warnings.allows():
                at = self._next[partition]
                log.warning(
                    "%s partition %s cannot be read at %s, retrying: %s",
                    self._topic, partition, f"offset {at}" if at >= 0 else "its beginning", error.str(),
                )  # fmt: skip
        elif self._warnings.allows():
            log.warning("Kafka: %s", error.str())

    def _retry_failed_partitions(self) -> None:
        """Re-read each failed partition from the offset of its error once its back-off has elapsed."""
        now_s = time.monotonic()
        for number in [number for number, due_s in self._retry_at_s.items() if due_s <= now_s]:
            # Do not use `seek`: it fails for a partition that has stopped at an offset beyond the error.
            place = TopicPartition(self._topic, number, self._next[number])
            self._consumer.incremental_unassign([place])
            self._consumer.incremental_assign([place])
            # Drop prefetched records, because they come after the error.
            self._read_ahead = [message for message in self._read_ahead if message.partition() != number]
            del self._retry_at_s[number]

    def _rejoin(self, error: KafkaError) -> None:
        """Rejoin the group after this member has been fenced. Raises `KafkaFailureError` if it was fenced recently.

        Either another process uses the same instance name, or the client fenced itself: its session expired, and it
        rejoined under the same name while a commit from its previous session was still in flight.
        """
        now_s, before_s = time.monotonic(), self._fenced_s
        if now_s - before_s < _FENCED_AGAIN_SESSIONS * self._own.session_timeout / 1e9:
            raise KafkaFailureError(
                f"another process in group {self._own.group} is running as instance {self._own.instance!r}"
                f" ({error.str()}): give each process its own db_connector.instance"
            )
        self._fenced_s = now_s
        log.warning("the group has fenced instance %r; rejoining", self._own.instance)
        self.close()
        # Batches in flight are still written, but not acknowledged, so they are read again.
        self._lag.drop(tuple(self._assignments))
        self.commits.reset()
        for state in (self._assignments, self._next, self._retry_at_s, self._read_ahead):
            state.clear()
        self._paused = self._is_closing = False
        self._consumer = self._make_consumer()
        self.subscribe()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Start reading each partition at its committed offset, or at the beginning if it has none.

        ``auto.offset.reset`` is not used for this, because it would also start at the beginning if the committed offset
        were no longer in the log, which would hide the loss of results.
        """
        if self._stop.is_set() or self._is_closing:
            return  # the library assigns the partitions, and revokes them again
        known: list[TopicPartition] | None = None
        while known is None:
            self._heartbeat()
            try:
                known = consumer.committed(partitions, timeout=_ASK_KAFKA_S)
            except KafkaException as error:
                if self._stop.wait(_RETRY_S):
                    return
                if self._warnings.allows():
                    log.warning("the committed offsets cannot be read yet: %s", error.args[0].str())
        for place in known:
            self._assignment += 1
            self._assignments[place.partition] = self._assignment
        self._on_assigned()
        starts = [
            TopicPartition(self._topic, place.partition, start_of(place, self._target, self._own.group))
            for place in known
        ]
        consumer.incremental_assign(starts)
        self._next.update({start.partition: start.offset for start in starts})
        self._lag.begin(starts)
        # The client keeps a partition paused while it is not assigned.
        (consumer.pause if self._paused else consumer.resume)(starts)
        shown = ", ".join(f"{p.partition} from {p.offset if p.offset >= 0 else 'the beginning'}" for p in starts)
        log.info("%s: partitions %s", self._topic, shown or "none")

    def _revoked(self, _: Consumer, partitions: list[TopicPartition], how: str = "move to another member") -> None:
        """Forget these partitions and their unacknowledged records; the next owner will read those records again."""
        numbers = {partition.partition for partition in partitions}
        self._lag.drop(numbers)
        self.commits.drop(numbers)
        for number in numbers:
            for state in (self._assignments, self._next, self._retry_at_s):
                state.pop(number, None)
        self._read_ahead = [message for message in self._read_ahead if message.partition() not in numbers]
        if numbers and not self._is_closing:
            log.info("%s: partitions %s %s", self._topic, ", ".join(map(str, sorted(numbers))), how)


def _firsts_of(messages: Iterable[Message]) -> Counter[int]:
    """Return how many merged messages there are, by the replica that was first."""
    replicas = (replica_of(message.headers()) for message in messages if message.error() is None)
    return Counter(replica for replica in replicas if replica is not None)


def _has_failed(messages: Iterable[Message]) -> bool:
    return any((error := one.error()) and error.code() != _END_OF_PARTITION for one in messages)


def slices_of(linger_s: float) -> list[float]:
    """Divide a time into equal parts, each at most as long as a single call may wait."""
    count = math.ceil(linger_s / _SLICE_S)
    return [linger_s / count] * count


def _consumer_config(settings: DbConnectorSettings) -> dict[str, Any]:
    own = settings.db_connector
    return settings.kafka.client_config(
        group_id=own.group,
        client_id=SOURCE,
        isolation_level="read_committed",
        enable_auto_commit=False,
        enable_auto_offset_store=False,
        auto_offset_reset="error",
        enable_partition_eof=True,
        check_crcs=True,
        queued_max_messages_kbytes=PREFETCH_KB,
        **member_config(own.session_timeout, own.instance or None),
    )
