"""Clients of `MemoryKafka` with the methods, results and errors of the confluent_kafka clients.

They have only the methods that the joiner uses. Every call goes through a `Link`, which may pass time, lose the call or
its response, or kill the calling process. As in the library, producing is asynchronous: records reach a log at a flush
or a commit, and some of them earlier.
"""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition

from tests.simulation.memory_groups import GroupMetadata, Place
from tests.simulation.memory_kafka import MemoryKafka, kafka_error
from tests.simulation.memory_log import ABORTED, COMMITTED, Headers, Transaction

Result = TypeVar("Result")

# The public names of the library's constants begin with an underscore.
_FATAL = KafkaError._FATAL  # noqa: SLF001
_FENCED = KafkaError._FENCED  # noqa: SLF001
_STATE = KafkaError._STATE  # noqa: SLF001
_ASKS_AGAIN_S = 0.5


class Link(Protocol):
    """The link between a client and the broker. ``draw``: None if nothing is random. ``name``: the process name."""

    name: str
    kafka: MemoryKafka
    draw: random.Random | None

    def act(self, call: str, effect: Callable[[], Result]) -> Result:
        """Apply ``effect`` at the broker, now, later or not at all. Raises the error that the caller gets, if any."""
        ...

    def pass_time(self, seconds: float) -> None:
        """Let time pass while the caller waits."""
        ...

    def beats(self) -> bool:
        """Return whether the process can send heartbeats now."""
        ...

    def attach(self, producer: MemoryProducer) -> None:
        """Register a producer that the process has created."""
        ...


class MemoryMessage(NamedTuple):
    """Stands in for `confluent_kafka.Message`: a record, or an event with an error."""

    place: tuple[str | None, int]
    at: int
    time_ms: int = 0
    content: tuple[bytes | None, bytes | None] = (None, None)
    fault: KafkaError | None = None
    carried: Headers | None = None

    def topic(self) -> str | None:
        """Return the topic."""
        return self.place[0]

    def partition(self) -> int:
        """Return the partition."""
        return self.place[1]

    def offset(self) -> int:
        """Return the offset; for an end-of-partition event, the offset of the next record."""
        return self.at

    def timestamp(self) -> tuple[int, int]:
        """Return the timestamp type (2: log append time) and the time in ms."""
        return 2, self.time_ms

    def key(self) -> bytes | None:
        """Return the key."""
        return self.content[0]

    def value(self) -> bytes | None:
        """Return the value."""
        return self.content[1]

    def headers(self) -> Headers | None:
        """Return the headers, or None if there are none."""
        return self.carried

    def error(self) -> KafkaError | None:
        """Return the error, or None for a record."""
        return self.fault


_OnDelivery = Callable[[KafkaError | None, Any], None]


class _Waiting(NamedTuple):
    """A produced record that has not reached a log yet."""

    key: bytes | None
    value: bytes | None
    on_delivery: _OnDelivery | None = None
    time_ms: int | None = None
    headers: Headers | None = None


class MemoryAdmin:
    """Stands in for `confluent_kafka.admin.AdminClient`."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def poll(self, _timeout: float) -> None:
        """Do nothing: there are no log lines of the library to deliver."""

    def describe_topics(self, topics: Any, **_options: Any) -> dict[str, Future[Any]]:
        """Return the ids and partitions of topics."""
        try:
            return self._link.act("describe", lambda: {name: self._describe(name) for name in topics.topic_names})
        except KafkaException as error:
            return {name: _failed(error) for name in topics.topic_names}

    def list_groups(self, group: str, timeout: float) -> list[Any]:  # noqa: ARG002 - part of the library's signature
        """Return the group with its members, or nothing if it has none."""

        def look() -> list[Any]:
            members = [
                SimpleNamespace(
                    id=f"{member.instance}-{uuid.UUID(int=at)}",
                    client_id=member.client,
                    assignment=encode_assignment(member.has),
                )
                for at, member in enumerate(self._link.kafka.group(group).members)
            ]
            return [SimpleNamespace(error=None, protocol_type="consumer", members=members)] if members else []

        return self._link.act("describe", look)

    def _describe(self, name: str) -> Future[Any]:
        future: Future[Any] = Future()
        kafka = self._link.kafka
        topic = kafka.topics.get(name)
        if topic is None or kafka.now_s() < kafka.unknown_until_s:
            future.set_exception(kafka_error(KafkaError.UNKNOWN_TOPIC_OR_PART, f"{name} is not known"))
        else:
            future.set_result(_Description(topic.topic_id, topic.logs))
        return future

    def list_offsets(
        self, places: Any, isolation_level: Any = IsolationLevel.READ_COMMITTED, **_options: Any
    ) -> dict[Any, Future[Any]]:
        """Return the ends of partitions up to which such a consumer may read. The joiner requests no other offsets."""
        kafka, is_committed = self._link.kafka, isolation_level == IsolationLevel.READ_COMMITTED

        def look() -> dict[Any, Future[Any]]:
            found = {}
            for place in places:
                found[place] = future = Future[Any]()
                try:
                    log = kafka.log(place.topic, place.partition)
                except KafkaException as error:
                    future.set_exception(error)
                else:
                    future.set_result(SimpleNamespace(offset=log.stable_end if is_committed else log.end))
            return found

        try:
            return self._link.act("watermarks", look)
        except KafkaException as error:
            return {place: _failed(error) for place in places}

    def create_topics(self, topics: Sequence[Any], **_options: Any) -> dict[str, Future[None]]:
        """Create topics."""
        return {topic.topic: self._done(partial(self._create, topic)) for topic in topics}

    def delete_topics(self, names: Sequence[str], **_options: Any) -> dict[str, Future[None]]:
        """Delete topics."""
        return {name: self._done(partial(self._link.kafka.delete_topic, name)) for name in names}

    def delete_records(self, places: Sequence[TopicPartition], **_options: Any) -> dict[TopicPartition, Future[None]]:
        """Delete the records below an offset."""
        kafka = self._link.kafka
        return {
            place: self._done(partial(kafka.log(place.topic, place.partition).remove_before, place.offset))
            for place in places
        }

    def describe_configs(self, resources: Sequence[Any], **_options: Any) -> dict[Any, Future[Any]]:
        """Return the configurations of topics, for those of their settings that are looked at."""

        def look() -> dict[Any, Future[Any]]:
            found = {}
            for resource in resources:
                found[resource] = future = Future[Any]()
                if resource.name in self._link.kafka.topics:
                    config = self._link.kafka.config(resource.name)
                    future.set_result({name: SimpleNamespace(value=value) for name, value in config.items()})
                else:
                    future.set_exception(kafka_error(KafkaError.UNKNOWN_TOPIC_OR_PART, f"{resource.name} is not known"))
            return found

        return self._link.act("describe", look)

    def _create(self, topic: Any) -> None:
        if topic.topic not in self._link.kafka.topics:
            self._link.kafka.create_topic(topic.topic, topic.num_partitions, topic.config)

    def _done(self, effect: Callable[[], None]) -> Future[None]:
        future: Future[None] = Future()
        self._link.act("admin", effect)
        future.set_result(None)
        return future


def encode_assignment(places: Iterable[Place]) -> bytes:
    """Return a ``ConsumerProtocolAssignment`` message of version 0 without user data."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(places):
        by_topic.setdefault(topic, []).append(partition)
    encoded = struct.pack(">hi", 0, len(by_topic))
    for topic, partitions in by_topic.items():
        name, count = topic.encode(), len(partitions)
        encoded += struct.pack(f">h{len(name)}si{count}i", len(name), name, count, *partitions)
    return encoded + struct.pack(">i", -1)


def _failed(error: KafkaException) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


class _Description(NamedTuple):
    topic_id: str
    partitions: list[Any]


class MemoryProducer:
    """Stands in for `confluent_kafka.Producer`, transactional or not."""

    def __init__(self, link: Link, config: dict[str, Any]) -> None:
        self._link, self._kafka = link, link.kafka
        self._id: str = config.get("transactional.id", "")
        self._timeout_s = config.get("transaction.timeout.ms", 60_000) / 1000
        self._epoch = -1
        self._is_open = False
        self._fatal: KafkaError | None = None
        self._buffer: dict[Place, list[_Waiting]] = {}
        self._to_deliver: list[tuple[_OnDelivery, MemoryMessage]] = []
        link.attach(self)

    def __bool__(self) -> bool:
        """Return True, as the library's producers do even if they have no records."""
        return True

    def __len__(self) -> int:
        """Return the number of records that are not written yet, or whose ``on_delivery`` has not been called."""
        return sum(map(len, self._buffer.values())) + len(self._to_deliver)

    def list_topics(self, _topic: str, _timeout: float = 0) -> None:
        """Contact the broker."""
        self._tell("metadata", lambda: None)

    def init_transactions(self, timeout: float = 0) -> None:
        """Initialise the transactional id.

        If a transaction is open, the broker may refuse that once. The library asks again after half a second, or when
        it is called again.
        """
        identity = self._kafka.identities.get(self._id)
        is_open = identity is not None and identity.transaction is not None

        def init() -> int:
            return self._kafka.init(self._id, self._timeout_s)[1]

        epoch = self._tell("init", init)
        if is_open and self._kafka.is_slow_to_end:
            self._link.pass_time(min(timeout, _ASKS_AGAIN_S))
            if timeout < _ASKS_AGAIN_S:
                raise kafka_error(KafkaError.CONCURRENT_TRANSACTIONS, "a transaction is being ended", retriable=True)
        self._epoch = epoch

    def begin_transaction(self) -> None:
        """Begin a transaction. The broker learns of it only with the first record."""
        self._tell("begin", lambda: None)
        if self._is_open or self._epoch < 0:
            raise kafka_error(_STATE, "not ready for a transaction")
        self._is_open = True

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = 0,
        on_delivery: _OnDelivery | None = None,
        timestamp: int | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Buffer a record. The next flush calls ``on_delivery``."""
        self._tell("produce", lambda: None)
        if self._id and not self._is_open:
            raise kafka_error(_STATE, "no transaction is open")
        waiting = _Waiting(key, value, on_delivery, timestamp, headers)
        self._buffer.setdefault((topic, partition), []).append(waiting)
        self._let_some_go()

    def produce_batch(self, topic: str, messages: list[dict[str, Any]], partition: int = 0) -> int:
        """Buffer records."""
        self._tell("produce", lambda: None)
        waiting = [_Waiting(given["key"], given["value"], given.get("callback")) for given in messages]
        self._buffer.setdefault((topic, partition), []).extend(waiting)
        self._let_some_go()
        return len(messages)

    def poll(self, _timeout: float = 0) -> int:
        """Send the buffered records if the producer is not transactional. There are no events to deliver."""
        if not self._id:
            with suppress(KafkaException):  # the next call reports it
                for place in list(self._buffer):
                    self._flush(place)
        return 0

    def flush(self, _timeout: float = 0) -> int:
        """Write the buffered records and call their ``on_delivery``."""
        for place in list(self._buffer):
            self._tell("flush", partial(self._flush, place))
        while self._to_deliver:
            on_delivery, message = self._to_deliver.pop(0)
            on_delivery(None, message)
        return 0

    def send_offsets_to_transaction(
        self, offsets: list[TopicPartition], metadata: GroupMetadata, _timeout: float = 0
    ) -> None:
        """Add consumer offsets to the transaction."""
        sent = {(at.topic, at.partition): (at.offset, at.metadata or "") for at in offsets}
        self._tell("send_offsets", partial(self._kafka.add_offsets, self._id, self._epoch, metadata, sent))

    def commit_transaction(self, _timeout: float = 0) -> None:
        """Flush, then commit. May be called again if the response was lost."""
        self.flush()
        self._end("commit", COMMITTED)

    def abort_transaction(self, _timeout: float = 0) -> None:
        """Abort the open transaction."""
        self._buffer.clear()
        self._end("abort", ABORTED)

    def break_off(self) -> list[Callable[[], None]]:
        """Return the requests of a dead process that may still reach the broker: a part of each partition's buffer."""
        draw, within = self._link.draw, self._current()
        if draw is None or not self._buffer:
            return []
        return [
            partial(self._write, place, draw.randint(0, len(waiting)), within)
            for place, waiting in self._buffer.items()
        ]

    def _end(self, call: str, state: str) -> None:
        if self._fatal is None and not self._is_open:
            raise kafka_error(_STATE, "no transaction is open")
        within = self._current()

        def end() -> None:
            # A delayed request can end only its own transaction.
            if self._kafka.check_epoch(self._id, self._epoch).transaction is within:
                self._kafka.end(self._id, self._epoch, state)

        before = self._kafka.times_forgotten
        self._tell(call, end)
        if self._kafka.times_forgotten != before and self._kafka.restart_s:
            # The broker forgets markers because it was killed, so it responds only after its restart.
            self._link.pass_time(self._kafka.restart_s)
        self._is_open = False

    def _current(self) -> Transaction | None:
        identity = self._kafka.identities.get(self._id)
        return identity.transaction if identity is not None and identity.epoch == self._epoch else None

    def _let_some_go(self) -> None:
        draw = self._link.draw
        if draw is None or draw.random() > 0.3:
            return
        place = draw.choice(list(self._buffer))
        with suppress(KafkaException):  # the next call reports it
            self._write(place, draw.randint(1, len(self._buffer[place])), self._current())

    def _flush(self, place: Place) -> None:
        self._write(place, None, self._current())

    def _write(self, place: Place, count: int | None, within: Transaction | None) -> None:
        waiting = self._buffer.get(place, [])
        going = waiting[: len(waiting) if count is None else count]
        if not going:
            return
        if self._id:
            try:
                identity = self._kafka.check_epoch(self._id, self._epoch)
            except KafkaException as error:
                self._fatal = error.args[0]
                raise
            if identity.transaction is not within:
                return
            within = self._kafka.transaction(self._id, self._epoch)
        for key, value, on_delivery, time_ms, headers in going:
            at = self._kafka.append(*place, key, value, within, headers, time_ms)
            if on_delivery is not None:
                self._to_deliver.append((on_delivery, MemoryMessage(place, at, content=(key, value), carried=headers)))
        del waiting[: len(going)]
        if not waiting:
            self._buffer.pop(place, None)

    def _tell(self, call: str, effect: Callable[[], Result]) -> Result:
        """Make a call. Once a producer has been fenced, every call raises a fatal error, as in the library."""

        def unless_fatal() -> Result:
            if self._fatal is not None:
                raise kafka_error(_FATAL, f"Fatal error: {self._fatal.str()}", fatal=True)
            try:
                return effect()
            except KafkaException as error:
                if error.args[0].code() == _FENCED:
                    self._fatal = error.args[0]
                raise

        return self._link.act(call, unless_fatal)
