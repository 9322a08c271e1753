"""Asks Kafka how much is appended to an application's topics, and how far the database connector has got.

Requests are sent every `ASK_S` and answered in the background, so that a topic or a group that Kafka cannot find
delays nothing else. No new requests are sent while some are unanswered.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from math import inf
from typing import TYPE_CHECKING, Any, Final

import msgspec
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition

from broker.kafka.groups import read_group
from broker.kafka.replicas import merged_topic, merging_group, replica_name
from control.facts.flow.endpoints import Sink, target_of
from control.facts.flow.meters import (
    NOT_THERE,
    CopyFlow,
    Flow,
    GroupMember,
    MergerFlow,
    Meter,
    SinkFlow,
    SinkMeter,
    TopicFlow,
)
from joiner.runtime.kafka.clients import EARLIEST, LATEST, describe, in_background, make_consumer, timed_out
from joiner.runtime.repartition.status import RepartitionStatus, read_repartition

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from joiner.runtime.clock import Clock
    from joiner.runtime.settings import JoinerSettings

ASK_S: Final = 2.0
"""How often to ask Kafka."""

COPIES_S: Final = 10.0
"""How often to ask Kafka how far repartitioning is behind, which takes a request for each copied partition."""

_UNKNOWN_TOPIC: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - its only name
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - its only name
    KafkaError._NOENT,  # noqa: SLF001 - its only name
}
_RATE_S: Final = 10.0
_TIMEOUT_S: Final = 5.0
_OVERDUE_S: Final = 15.0
"""A response is no longer awaited after this time, although the client should have reported a timeout by then."""


class FlowReading:
    """Keeps Kafka's latest answers. Not thread-safe. Nothing here waits for Kafka."""

    def __init__(self, admin: AdminClient, settings: JoinerSettings, sink: Sink | None, clock: Clock) -> None:
        """``sink``: the database connector, if one is configured."""
        self._admin, self._settings, self._clock = admin, settings, clock
        is_merged = sink is not None and sink.is_merged
        self._topics = topics_of(settings, is_merged=is_merged)
        self._merger = _MergerReading(admin, settings) if has_merger(settings, is_merged=is_merged) else None
        self._meters = {topic: Meter(_RATE_S) for topic in self._topics}
        self._group = None if sink is None else _GroupReading(admin, settings, sink)
        self._copies: Future[list[RepartitionStatus]] | None = None
        self._copies_ask_s = clock.monotonic_s()
        self._copy_flow: CopyFlow | None = None
        self._ends: dict[TopicPartition, Future[Any]] = {}
        self._asked_s = self._ask_s = clock.monotonic_s()
        self._flow = Flow()

    def renewed(self) -> Flow:
        """Return the topics, the sink and what could not be read, from Kafka's latest answers. Ask again if due."""
        now_s = self._clock.monotonic_s()
        if self._ends and (self._is_answered() or now_s > self._asked_s + _OVERDUE_S):
            self._flow = self._answered()
            self._ends = {}
        if not self._ends and now_s >= self._ask_s:
            self._asked_s, self._ask_s = now_s, now_s + ASK_S
            self._ask()
        if self._settings.repartitioned and not self._settings.application.replica:
            self._renew_copies(now_s)
        merger = None if self._merger is None else self._merger.renewed(now_s)
        return msgspec.structs.replace(self._flow, copies=self._copy_flow, merger=merger)

    def _renew_copies(self, now_s: float) -> None:
        if self._copies is not None and self._copies.done():
            try:
                self._copy_flow = CopyFlow({one.topic: one for one in self._copies.result()})
            except KafkaException as error:
                self._copy_flow = CopyFlow(fault=describe(error))
            self._copies = None
        if self._copies is None and now_s >= self._copies_ask_s:
            self._copies_ask_s = now_s + COPIES_S
            self._copies = in_background("repartitioning", lambda: read_repartition(self._admin, self._settings))

    def _ask(self) -> None:
        partitions = range(self._settings.topics.partitions)
        wanted = {TopicPartition(topic, one): LATEST for topic in self._topics for one in partitions}
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
                ends[asked.topic][asked.partition] = _result(future).offset
            except KafkaException as error:
                is_unknown = error.args[0].code() in _UNKNOWN_TOPIC
                missing.setdefault(asked.topic, NOT_THERE if is_unknown else describe(error))
        flows = {}
        for topic in self._topics:
            if topic not in missing:
                meter, end = self._meters[topic], sum(ends[topic].values())
                meter.note(self._asked_s, end)
                flows[topic] = TopicFlow(end, meter.rate(), meter.quiet_s())
        sink = None if self._group is None else self._group.answered(ends[self._group.topic], self._asked_s)
        return Flow(topics=flows, sink=sink, missing=missing)


class _GroupReading:
    """The database connector's consumer group: its members, and the offsets it has committed.

    The offsets are requested by a consumer that has the group's id but never joins the group. In librdkafka 2.16, the
    same request from an `AdminClient` ends the process if the group's coordinator has changed, or if it has none yet.
    """

    def __init__(self, admin: AdminClient, settings: JoinerSettings, sink: Sink) -> None:
        self._admin, self._kafka = admin, settings.kafka
        self.topic = sink.results_topic(settings.topics.out)
        """The topic that it reads."""
        self._places = [TopicPartition(self.topic, one) for one in range(settings.topics.partitions)]
        self._group = sink.group
        self._consumer = make_consumer(settings.kafka, sink.group)
        self._meter = SinkMeter(_RATE_S, range(settings.topics.partitions), target_of(sink))
        self._members: Future[list[GroupMember]] = _done([])
        self._committed: Future[Any] = _done([])
        self._starts: dict[TopicPartition, Future[Any]] = {}

    def ask(self) -> None:
        """Send the requests."""
        if self._members.done():
            self._members = in_background("group members", self._ask_members)
        if self._committed.done():
            self._committed = in_background("committed offsets", self._ask_committed)
        # The connector reads these partitions from their beginning.
        starts = {TopicPartition(self.topic, one): EARLIEST for one in self._meter.uncommitted}
        self._starts = self._admin.list_offsets(starts, request_timeout=_TIMEOUT_S) if starts else {}

    def _ask_members(self) -> list[GroupMember]:
        members = []
        for found in read_group(self._admin, self._kafka, self._group, _TIMEOUT_S):
            partitions = sorted(place.partition for place in found.assigned if place.topic == self.topic)
            members.append(GroupMember(found.name, partitions))
        return members

    def _ask_committed(self) -> list[TopicPartition]:
        self._consumer.poll(0)  # otherwise, its log messages would pile up
        return self._consumer.committed(self._places, timeout=_TIMEOUT_S)

    def is_answered(self) -> bool:
        """Return whether all requests have been answered or have timed out."""
        return all(future.done() for future in (self._members, self._committed, *self._starts.values()))

    def answered(self, ends: Mapping[int, int], asked_s: float) -> SinkFlow:
        """Return the flow from the answers. ``ends``: see `SinkMeter.note`. ``asked_s``: when requests were sent."""
        try:
            members = _result(self._members)
            places = _result(self._committed)
            committed = {place.partition: (place.offset, place.metadata or "") for place in places if place.offset >= 0}
            starts = {place.partition: _result(future).offset for place, future in self._starts.items()}
            if failed := [place.error for place in places if place.error is not None]:
                return SinkFlow(fault=failed[0].str())
        except KafkaException as error:
            return SinkFlow(fault=describe(error))
        return self._meter.note(asked_s, members, committed, starts, ends)


class _MergerReading:
    """The members of the consumer group of `joiner merge`. The one that merges is assigned the control topic."""

    def __init__(self, admin: AdminClient, settings: JoinerSettings) -> None:
        self._admin, self._kafka, self._group = admin, settings.kafka, merging_group(settings.application.name)
        self._members: Future[list[GroupMember]] | None = None
        self._ask_s = -inf
        self._flow: MergerFlow | None = None

    def renewed(self, now_s: float) -> MergerFlow | None:
        """Return Kafka's latest answer, or None if there is none. Ask again if due."""
        if self._members is not None and self._members.done():
            try:
                self._flow = MergerFlow(self._members.result())
            except KafkaException as error:
                self._flow = MergerFlow(fault=describe(error))
            self._members = None
        if self._members is None and now_s >= self._ask_s:
            self._ask_s = now_s + ASK_S
            self._members = in_background("group members", self._ask_members)
        return self._flow

    def _ask_members(self) -> list[GroupMember]:
        return [
            GroupMember(found.name, sorted(place.partition for place in found.assigned))
            for found in read_group(self._admin, self._kafka, self._group, _TIMEOUT_S)
        ]


def has_merger(settings: JoinerSettings, *, is_merged: bool) -> bool:
    """Return whether the results of an application are merged. ``is_merged``: whether a connector reads them.

    After the other replicas were given up, `joiner merge` may go on with replica 0.
    """
    return not settings.application.replica and (settings.application.replicas > 1 or is_merged)


def topics_of(settings: JoinerSettings, *, is_merged: bool) -> list[str]:
    """Return the topics whose flow is measured. ``is_merged``: see `has_merger`.

    Of the other replicas and of what is merged, these are only the results.
    """
    found = {*settings.input_topics, *settings.output_topics.values()}
    if has_merger(settings, is_merged=is_merged):
        out = settings.topics.out
        found |= {merged_topic(out), *(replica_name(out, number) for number in range(settings.application.replicas))}
    return sorted(found)


def _result(future: Future[Any]) -> Any:
    """Return the answer, or raise KafkaException if there is none."""
    if not future.done():
        raise timed_out("Kafka does not answer")
    return future.result()


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
