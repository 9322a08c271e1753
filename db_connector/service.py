"""Kafka's side of the connector: results are consumed, and committed once the database has acknowledged them.

The steps of a batch, in this order; a kill between any two of them only makes the records come again, and the
points of a replay overwrite themselves:

1. one `consume` of committed results, at most ``batch_records`` or what came within ``linger``;
2. its lines, and the reasons of the records that have none;
3. written by the writer's thread, until every point is acknowledged or refused;
4. dead letters, delivered;
5. offsets, committed.

Meanwhile the next batch is consumed; at most `IN_FLIGHT_MAX` wait for the database. When they do, the
partitions are paused and Kafka is still polled, so that the group keeps its member.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from broker.kafka.client_log import answered, client_logger
from broker.metrics import TelemetryServer
from broker.wire.records import decode_joined
from db_connector.dead_letters import SOURCE, DeadLetterWriter
from db_connector.lag import Lag
from db_connector.metrics import WriteTimes, register_metrics
from db_connector.points import UnrepresentableError, point_line
from db_connector.progress import Journal, Progress, Seldom
from db_connector.target import origin_of, target_of

if TYPE_CHECKING:
    from confluent_kafka import Message

    from db_connector.settings import DbConnectorSettings
    from db_connector.writer import Outcome, WriterThread

IN_FLIGHT_MAX: Final = 2
"""Batches handed to the writer: one that is written, and the next one, ready."""

PREFETCH_KB: Final = 32 * 1024
"""Kilobytes that librdkafka may hold ahead of us; with the batches in flight, what bounds memory."""

STOP_S: Final = 3.0
"""Seconds after a signal in which an acknowledgement is still waited for; an end takes 5 s at most."""

_END_OF_PARTITION: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 - the client's own codes are named so
_KAFKA_LOG: Final = client_logger("db_connector.librdkafka")
_FATAL: Final = KafkaError._FATAL  # noqa: SLF001 - as above
_OFFSET_NOT_THERE: Final = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001 - as above

_CLOSE_S: Final = 1.0
_REBALANCE_MS: Final = 60_000
_FENCED_AGAIN_SESSIONS: Final = 3
"""Fenced twice within so many session timeouts: then there is another process of the name."""
_PATIENCE_S: Final = 0.5
_ASK_KAFKA_S: Final = 2.0
"""For an answer of Kafka's, before it is asked again: no signal ends such a wait, and a stop has five seconds."""

log = logging.getLogger(__name__)


class KafkaFailureError(Exception):
    """Something that Kafka will not do; ``str`` says what and what to do about it."""


@dataclass
class Span:
    """The records of one partition in a batch; ``last`` is -1 where only the partition's end was met."""

    epoch: int
    first: int = -1
    last: int = -1
    next_offset: int = -1


@dataclass
class Results:
    """One consumed batch."""

    lines: list[bytes] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    """The record of each line."""
    ids: list[str] = field(default_factory=list)
    """The pair id of each line."""
    unsayable: list[tuple[Message, str, str | None]] = field(default_factory=list)
    """Records without a line: the reason, and the pair id where it could be read."""
    spans: dict[int, Span] = field(default_factory=dict)


class Service:
    """The connector between one consumer and one writer. ``stop`` ends `run` from outside."""

    def __init__(
        self,
        settings: DbConnectorSettings,
        writer: WriterThread[Results],
        dead_letters: DeadLetterWriter,
        stop: threading.Event,
        journal: Journal | None = None,
        telemetry: TelemetryServer | None = None,
    ) -> None:
        self._settings, self._own = settings, settings.db_connector
        self._topic = settings.topics.out
        self._target = target_of(settings)
        self._writer, self._dead_letters, self._stop, self._journal = writer, dead_letters, stop, journal
        self._consumer = self._make_consumer()
        self._fenced_s = float("-inf")
        self._epochs: dict[int, int] = {}
        self._epoch = 0
        self._has_given_up = False
        self._acknowledged: dict[int, int] = {}
        self._sent: dict[int, int] = {}
        self._next: dict[int, int] = {}
        """Up to where each partition was read."""
        self._again: dict[int, float] = {}
        """Partitions with an error behind that, and when they are read again; until then nothing of them is taken.

        The library may go on at an offset that is nowhere, so what it says of them meanwhile is not believed either.
        """
        self._commits_open = 0
        self._early: list[Message] = []
        self._paused = False
        self._trouble = Seldom(10.0)
        self.progress = Progress()
        self._telemetry = telemetry or TelemetryServer(settings.metrics)
        self._write_times = WriteTimes(self._telemetry)
        self._lag, self._lags_seen = Lag(self._topic), dict[int, int]()
        register_metrics(self._telemetry, self.progress, writer, lambda: self._lags_seen)

    def run(self) -> None:
        """Consume until ``stop`` is set. Raises `KafkaFailureError` and `DeliveryError` for what needs an operator."""
        self._subscribe()
        try:
            while not self._stop.is_set():
                self._telemetry.heartbeat()
                self._step()
                if self._telemetry.is_look_due():
                    self._lags_seen = self._lags()
                self.progress.say_now_and_then(lambda: sum(self._lags().values()))
            self._finish(time.monotonic() + STOP_S)
        finally:
            self._close()
            self.progress.say_at_the_end()

    def _make_consumer(self) -> Consumer:
        config = {**_consumer_config(self._settings), "on_commit": self._committed}
        return Consumer(config, logger=_KAFKA_LOG)

    def _subscribe(self) -> None:
        lost = partial(self._lost, how="were lost to the group, which did not hear from here")
        self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._lost, on_lost=lost)

    def _join_again(self, error: KafkaError) -> None:
        """After the group has fenced this member: by another of its name, or by itself.

        The library fences itself where it comes back after a session that ran out: it joins anew under the name, and a
        commit of the member it was is still on its way.
        """
        now_s, before_s = time.monotonic(), self._fenced_s
        if now_s - before_s < _FENCED_AGAIN_SESSIONS * self._own.session_timeout / 1e9:
            raise KafkaFailureError(
                f"another process of group {self._own.group} runs as instance {self._own.instance!r} ({error.str()}):"
                " give each one a name of its own, db_connector.instance"
            )
        self._fenced_s = now_s
        log.warning("the group knows another member as instance %r; joining anew", self._own.instance)
        self._close()
        # What is on its way to the database is written, and not acknowledged: it is read again.
        self._lag.drop(tuple(self._epochs))
        for state in (self._epochs, self._acknowledged, self._sent, self._next, self._again, self._early):
            state.clear()
        self._commits_open, self._paused = 0, False
        self._consumer = self._make_consumer()
        self._subscribe()

    def _step(self) -> None:
        while (outcome := self._writer.outcome(0)) is not None:
            self._settle(outcome)
        if self._writer.in_flight >= IN_FLIGHT_MAX:
            if (outcome := self._writer.outcome(_PATIENCE_S)) is not None:
                self._settle(outcome)
            else:
                self._keep_alive()
            return
        self._commit()
        if self._paused:
            self._consumer.resume(self._consumer.assignment())
            self._paused = False
        self._go_back()
        early, self._early = self._early, []
        results = self._read(early + self._consumer.consume(self._own.batch_records, self._own.linger / 1e9))
        self.progress.results += len(results.lines) + len(results.unsayable)
        if results.spans:
            self._writer.submit(results)

    def _read(self, messages: list[Message]) -> Results:
        results = Results()
        for message in messages:
            error = message.error()
            partition, offset = message.partition(), message.offset()
            if error is not None and error.code() != _END_OF_PARTITION:
                if error.code() == _FATAL and "instance" in error.str():
                    self._join_again(error)
                    return Results()
                self._judge(error, partition)
                continue
            epoch = self._epochs.get(-1 if partition is None else partition)
            if partition is None or offset is None or epoch is None or partition in self._again:
                continue
            span = results.spans.setdefault(partition, Span(epoch))
            if error is not None:
                # The end of a partition lies behind the last record where a transaction's marker follows it.
                span.next_offset = self._next[partition] = offset
                continue
            span.first = offset if span.first < 0 else span.first
            span.last, span.next_offset = offset, offset + 1
            self._next[partition] = offset + 1
            self._convert(message, results)
        return results

    def _convert(self, message: Message, results: Results) -> None:
        value, identity = message.value(), None
        try:
            if value is None:
                raise UnrepresentableError("the value is null")
            pair = decode_joined(value)
            identity = pair.id
            line = point_line(pair, self._own.measurement, self._settings.events.time_unit)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, UnrepresentableError) as error:
            results.unsayable.append((message, str(error), identity))
        else:
            results.lines.append(line)
            results.messages.append(message)
            results.ids.append(identity)

    def _judge(self, error: KafkaError, partition: int | None) -> None:
        if error.code() == _OFFSET_NOT_THERE and partition not in self._again:
            raise KafkaFailureError(
                f"{self._topic} partition {partition}: the committed offset of group {self._own.group} is not"
                f" in the log ({error.str()}): results were deleted before they were written or the topic was"
                " made anew. To go on from what there is, stop all of the group, forget its offsets and start"
                f" again: kafka-consumer-groups --delete-offsets --group {self._own.group} --topic {self._topic}"
            )
        # An event of the consumer tells so by its code; `fatal()` is not set on it.
        if error.fatal() or error.code() == _FATAL:
            raise KafkaFailureError(f"the Kafka client cannot go on: {error.str()}")
        if partition in self._epochs:
            # What follows may lie behind records that the client has left out (a damaged batch, for one).
            self._again.setdefault(partition, time.monotonic() + _PATIENCE_S)
            if self._trouble.due():
                at = self._next[partition]
                log.warning(
                    "%s partition %s cannot be read at %s, trying again: %s",
                    self._topic, partition, f"offset {at}" if at >= 0 else "its beginning", error.str(),
                )  # fmt: skip
        elif self._trouble.due():
            log.warning("Kafka: %s", error.str())

    def _go_back(self) -> None:
        """Read what an error stood for again, where one was met a while ago."""
        now_s = time.monotonic()
        for number in [number for number, due_s in self._again.items() if due_s <= now_s]:
            # Not `seek`, which a partition refuses that has stopped for an offset behind the error.
            place = TopicPartition(self._topic, number, self._next[number])
            self._consumer.incremental_unassign([place])
            self._consumer.incremental_assign([place])
            # Read ahead before, so behind the error.
            self._early = [message for message in self._early if message.partition() != number]
            del self._again[number]

    def _settle(self, outcome: Outcome[Results], deadline: float | None = None) -> None:
        """Steps 4 and 5 for a written batch; nothing for one that was given up, nor for lost partitions.

        Nor for any after one that was given up: a later offset would say that it is done, too.
        """
        self._has_given_up = self._has_given_up or not outcome.written
        if self._has_given_up:
            return
        batch = outcome.batch
        if batch.lines:
            self._write_times.observe(outcome.took_s)
        if self._journal is not None and batch.lines:
            self._journal.write(
                outcome.acknowledged_ns, [(p, s.first, s.last) for p, s in batch.spans.items() if s.last >= 0]
            )
        dead_letters = 0
        for message, reason, identity in [
            *batch.unsayable,
            *((batch.messages[r.index], r.reason, batch.ids[r.index]) for r in outcome.refusals),
        ]:
            if self._holds(message.partition(), batch):
                self._dead_letters.send(message, reason, identity)
                dead_letters += 1
        while dead_letters and not self._dead_letters.delivered(_PATIENCE_S):
            given_up = self._stop.is_set() if deadline is None else time.monotonic() >= deadline
            if given_up:
                self._has_given_up = True
                return
            self._keep_alive()
        for partition, span in batch.spans.items():
            if self._holds(partition, batch):
                self._acknowledged[partition] = span.next_offset
        self.progress.count(len(batch.lines) - len(outcome.refusals), dead_letters)
        self._commit()

    def _holds(self, partition: int | None, batch: Results) -> bool:
        """Whether the partition has been ours without a break since the batch was consumed."""
        return partition is not None and self._epochs.get(partition) == batch.spans[partition].epoch

    def _commit(self) -> None:
        """Ask Kafka to keep what is acknowledged and not committed; what fails is asked for again."""
        due = {p: offset for p, offset in self._acknowledged.items() if offset != self._sent.get(p)}
        if not due:
            return
        self._sent.update(due)
        self._commits_open += 1
        try:
            self._consumer.commit(
                offsets=[TopicPartition(self._topic, p, offset, self._target) for p, offset in due.items()],
                asynchronous=True,
            )
        except KafkaException as error:
            self._committed(error.args[0], [TopicPartition(self._topic, p) for p in due])

    def _committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        self._commits_open -= 1
        if error is None:
            answered(_KAFKA_LOG)
        for partition in partitions:
            if error is not None or partition.error is not None:
                self._sent.pop(partition.partition, None)
        if error is not None and self._trouble.due():
            log.warning("offsets not committed yet, tried again: %s", error.str())

    def _keep_alive(self) -> None:
        """Serve the group without taking records; what comes nevertheless is kept for the next batch."""
        self._telemetry.heartbeat()
        if not self._paused:
            self._consumer.pause(self._consumer.assignment())
            self._paused = True
        self._early += self._consumer.consume(1, 0.1)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Start each partition at the offset that we committed, and only one that has none at its beginning.

        ``auto.offset.reset`` would do the latter also for an offset that has left the log: results would be
        lost without a word.
        """
        known: list[TopicPartition] | None = None
        while known is None:
            self._telemetry.heartbeat()
            try:
                known = consumer.committed(partitions, timeout=_ASK_KAFKA_S)
            except KafkaException as error:
                if self._stop.wait(_PATIENCE_S):
                    return
                if self._trouble.due():
                    log.warning("the committed offsets cannot be read yet: %s", error.args[0].str())
        for partition in known:
            self._epoch += 1
            self._epochs[partition.partition] = self._epoch
        self._telemetry.why_unready = self._why_unready
        begins = [TopicPartition(self._topic, p.partition, self._begin(p)) for p in known]
        consumer.incremental_assign(begins)
        self._next.update({begin.partition: begin.offset for begin in begins})
        self._lag.begin(begins)
        if self._paused:
            consumer.pause(begins)
        starts = ", ".join(f"{p.partition} from {p.offset if p.offset >= 0 else 'the beginning'}" for p in begins)
        log.info("%s: partitions %s", self._topic, starts or "none")

    def _begin(self, committed: TopicPartition) -> int:
        """Where to begin. An offset that does not say that it was committed for this target tells nothing of it.

        To begin anew is always right, because points that are written again overwrite themselves.
        """
        if committed.offset >= 0 and committed.metadata == self._target:
            return int(committed.offset)
        if committed.offset >= 0:
            log.warning(
                "%s partition %s: the offset %s of group %s %s, so it is not believed: all results are written from the"
                " beginning of the log, which changes no point that is there already",
                self._topic,
                committed.partition,
                committed.offset,
                self._own.group,
                origin_of(committed.metadata),
            )
        return OFFSET_BEGINNING

    def _lost(self, _: Consumer, partitions: list[TopicPartition], how: str = "go to another member") -> None:
        """Drop what is not acknowledged of these partitions: their next owner reads it again."""
        numbers = {partition.partition for partition in partitions}
        self._lag.drop(numbers)
        for number in numbers:
            for state in (self._epochs, self._acknowledged, self._sent, self._next, self._again):
                state.pop(number, None)
        self._early = [message for message in self._early if message.partition() not in numbers]
        if numbers and not self._stop.is_set():
            log.info("%s: partitions %s %s", self._topic, ", ".join(map(str, sorted(numbers))), how)

    def _lags(self) -> dict[int, int]:
        return self._lag.of(self._consumer, self._acknowledged, paused=self._paused)

    def _why_unready(self) -> str:
        return "the database takes no points" if self._writer.writer.is_away else ""

    def _finish(self, deadline: float) -> None:
        while self._writer.in_flight and (left_s := deadline - time.monotonic()) > 0:
            if (outcome := self._writer.outcome(min(left_s, 0.1))) is not None:
                self._settle(outcome, deadline)
        self._commit()
        while self._commits_open and time.monotonic() < deadline:
            self._early += self._consumer.consume(1, 0.05)
        if self._writer.in_flight:
            log.info("ended with %d batches given up; they are read again", self._writer.in_flight)

    def _close(self) -> None:
        # In a thread because leaving the group waits for a coordinator, which may be away.
        closing = threading.Thread(target=self._consumer.close, name="consumer-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)


def _consumer_config(settings: DbConnectorSettings) -> dict[str, Any]:
    own = settings.db_connector
    config = settings.kafka.client_config(
        group_id=own.group,
        session_timeout_ms=own.session_timeout // 1_000_000,
        # The group waits so long for a member that does not answer a rebalance, one that has gone among them; by
        # default five minutes. The loop is never away from the group for long: the database is waited for beside it.
        max_poll_interval_ms=max(_REBALANCE_MS, own.session_timeout // 1_000_000),
        client_id=SOURCE,
        isolation_level="read_committed",
        enable_auto_commit=False,
        enable_auto_offset_store=False,
        auto_offset_reset="error",
        enable_partition_eof=True,
        check_crcs=True,
        partition_assignment_strategy="cooperative-sticky",
        queued_max_messages_kbytes=PREFETCH_KB,
    )
    return {**config, "group.instance.id": own.instance} if own.instance else config
