"""Asks Kafka how much is appended to the topics of an application, and how far the database connector is.

The requests are sent every `ASK_S` and answered in the background, so that a topic or a group that Kafka cannot find
delays nothing else. While some of them are unanswered, none is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from control.facts.flow.endpoints import Sink, target_of
from control.facts.flow.meters import NOT_THERE, Flow, GroupMember, Meter, SinkFlow, SinkMeter, TopicFlow
from joiner.runtime.kafka.clients import describe

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, MemberDescription

    from joiner.runtime.clock import Clock
    from joiner.runtime.settings import JoinerSettings

ASK_S: Final = 2.0
"""How often Kafka is asked."""

_UNKNOWN_TOPIC: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - its only name
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - its only name
}
_RATE_S: Final = 10.0
_TIMEOUT_S: Final = 5.0

_LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call] # it has no types
_EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call] # it has no types


class FlowReading:
    """Keeps what Kafka has answered last. Not thread-safe. Nothing here waits for Kafka."""

    def __init__(self, admin: AdminClient, settings: JoinerSettings, sink: Sink | None, clock: Clock) -> None:
        """``sink``: the database connector, if one is configured."""
        self._admin, self._settings, self._clock = admin, settings, clock
        self._topics = sorted({*settings.input_topics, *settings.output_topics.values()})
        self._meters = {topic: Meter(_RATE_S) for topic in self._topics}
        self._group = None if sink is None else _GroupReading(admin, settings, sink)
        self._ends: dict[TopicPartition, Future[Any]] = {}
        self._asked_s = self._ask_s = clock.monotonic_s()
        self._flow = Flow()

    def renewed(self) -> Flow:
        """Return the topics, the sink and what could not be read, as far as Kafka has answered. Ask again if due."""
        if self._ends and self._is_answered():
            self._flow = self._answered()
            self._ends = {}
        now_s = self._clock.monotonic_s()
        if not self._ends and now_s >= self._ask_s:
            self._asked_s, self._ask_s = now_s, now_s + ASK_S
            self._ask()
        return self._flow

    def _ask(self) -> None:
        partitions = range(self._settings.topics.partitions)
        wanted = {TopicPartition(topic, one): _LATEST for topic in self._topics for one in partitions}
        self._ends = self._admin.list_offsets(
            wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_TIMEOUT_S
        )
        if self._group is not None:
            self._group.ask()

    def _is_answered(self) -> bool:
        return all(future.done() for future in self._ends.values()) and (
            self._group is None or self._group.is_answered()
        )

    def _answered(self) -> Flow:
        ends: dict[str, dict[int, int]] = {topic: {} for topic in self._topics}
        missing: dict[str, str] = {}
        for asked, future in self._ends.items():
            try:
                ends[asked.topic][asked.partition] = future.result().offset
            except KafkaException as error:
                is_unknown = error.args[0].code() in _UNKNOWN_TOPIC
                missing.setdefault(asked.topic, NOT_THERE if is_unknown else describe(error))
        flows = {}
        for topic in self._topics:
            if topic not in missing:
                meter, end = self._meters[topic], sum(ends[topic].values())
                meter.note(self._asked_s, end)
                flows[topic] = TopicFlow(end, meter.rate(), meter.quiet_s())
        sink = None if self._group is None else self._group.answered(ends[self._settings.topics.out], self._asked_s)
        return Flow(topics=flows, sink=sink, missing=missing)


class _GroupReading:
    """The consumer group of the database connector: its members, and the offsets that it has committed."""

    def __init__(self, admin: AdminClient, settings: JoinerSettings, sink: Sink) -> None:
        self._admin = admin
        self._topic = settings.topics.out
        self._partitions = range(settings.topics.partitions)
        self._group = sink.group
        self._meter = SinkMeter(_RATE_S, self._partitions, target_of(sink))
        self._members: Future[Any] | None = None
        self._committed: Future[Any] | None = None
        self._starts: dict[TopicPartition, Future[Any]] = {}

    def ask(self) -> None:
        """Send the requests."""
        group = self._group
        self._members = self._admin.describe_consumer_groups([group], request_timeout=_TIMEOUT_S)[group]
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(self._topic, one) for one in self._partitions])
        self._committed = self._admin.list_consumer_group_offsets([wanted], request_timeout=_TIMEOUT_S)[group]
        # The connector reads them from their beginning.
        starts = {TopicPartition(self._topic, one): _EARLIEST for one in self._meter.uncommitted}
        self._starts = self._admin.list_offsets(starts, request_timeout=_TIMEOUT_S) if starts else {}

    def is_answered(self) -> bool:
        """Return whether all requests have been answered, or have timed out."""
        futures = [self._members, self._committed, *self._starts.values()]
        return all(future is None or future.done() for future in futures)

    def answered(self, ends: Mapping[int, int], asked_s: float) -> SinkFlow:
        """Return what the answers say. ``ends``: see `SinkMeter.note`. ``asked_s``: when the requests were sent."""
        try:
            members = [_member(one, self._topic) for one in _of_group(self._members, "members")]
            places = _of_group(self._committed, "topic_partitions")
            committed = {place.partition: (place.offset, place.metadata or "") for place in places if place.offset >= 0}
            starts = {place.partition: future.result().offset for place, future in self._starts.items()}
            if failed := [place.error for place in places if place.error is not None]:
                return SinkFlow(fault=failed[0].str())
        except KafkaException as error:
            return SinkFlow(fault=describe(error))
        return self._meter.note(asked_s, members, committed, starts, ends)


def _of_group(future: Future[Any] | None, what: str) -> Sequence[Any]:
    """Return a part of an answer about a group. A group that does not exist has none of them."""
    try:
        return () if future is None else getattr(future.result(), what)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return ()
        raise


def _member(found: MemberDescription, topic: str) -> GroupMember:
    partitions = (place.partition for place in found.assignment.topic_partitions if place.topic == topic)
    return GroupMember(found.group_instance_id or found.client_id, sorted(partitions))
