"""A consumer of `MemoryKafka`. It either has assigned partitions or is a member of a group."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from joiner.runtime.kafka.member_log import OFFSET_TAIL_BASE
from tests.simulation.memory_clients import Link, MemoryMessage
from tests.simulation.memory_groups import GroupMetadata, Member, Place
from tests.simulation.memory_kafka import kafka_error
from tests.simulation.memory_log import Log

# The public names of the library's constants begin with an underscore.
_EOF = KafkaError._PARTITION_EOF  # noqa: SLF001
_OUT_OF_RANGE = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001
_FATAL = KafkaError._FATAL  # noqa: SLF001
_BAD_MESSAGE = KafkaError._BAD_MSG  # noqa: SLF001
_TIMED_OUT = KafkaError._TIMED_OUT  # noqa: SLF001

_DAMAGED = 2
"""The number of records that an error replaces."""

_FENCED_TEXT = "Fatal error: Broker: Static consumer fenced by other consumer with same group.instance.id"
_BEAT_S = 3.0
"""The library's heartbeat.interval.ms: a member may learn of a decision of the group with this delay."""


@dataclass
class _Position:
    at: int
    end_told: int = -1


class MemoryConsumer:
    """Stands in for `confluent_kafka.Consumer`."""

    def __init__(self, link: Link, config: dict[str, Any]) -> None:
        self._link, self._kafka = link, link.kafka
        self._group: str = config["group.id"]
        self._is_committed = config.get("isolation.level", "read_committed") == "read_committed"
        self._tells_end = bool(config.get("enable.partition.eof", False))
        self._reset = config.get("auto.offset.reset", "latest")
        self._instance: str = config.get("group.instance.id", "")
        self._client: str = config.get("client.id", "rdkafka")
        self._session_s = config.get("session.timeout.ms", 45_000) / 1000
        self._positions: dict[Place, _Position] = {}
        self._paused: set[Place] = set()
        """As in the library, these stay paused while they are not assigned."""
        self._member: Member | None = None
        self._callbacks: dict[str, Callable[..., Any]] = {}
        self._topics: list[str] = []
        self._told: set[Place] = set()
        self._next_beat_s = 0.0
        self._pending: list[MemoryMessage] = []

    # Reading

    def assign(self, places: Iterable[TopicPartition]) -> None:
        """Read only these partitions."""
        self.unassign()
        self.incremental_assign(places)

    def incremental_assign(self, places: Iterable[TopicPartition]) -> None:
        """Read these partitions as well."""
        for place in places:
            self._positions[place.topic, place.partition] = _Position(self._start(place))

    def incremental_unassign(self, places: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions."""
        for place in places:
            self._positions.pop((place.topic, place.partition), None)

    def unassign(self) -> None:
        """Stop reading all partitions."""
        self._positions.clear()
        self._pending.clear()

    def assignment(self) -> list[TopicPartition]:
        """Return the assigned partitions."""
        return [TopicPartition(*place) for place in self._positions]

    def pause(self, places: Iterable[TopicPartition]) -> None:
        """Pause these partitions, which stay assigned. Others are ignored."""
        self._paused |= {(place.topic, place.partition) for place in places} & self._positions.keys()

    def resume(self, places: Iterable[TopicPartition]) -> None:
        """Resume these partitions."""
        self._paused -= {(place.topic, place.partition) for place in places}

    def consume(self, num_messages: int = 1, timeout: float = 0) -> list[MemoryMessage]:
        """Return available records from one or more partitions. Calls the callbacks of a group member."""
        self._serve_group()
        try:
            fetched = self._link.act("consume", lambda: self._fetch(num_messages))
            found, self._pending = self._pending + fetched, []
        except KafkaException as error:
            # A client that cannot reach any broker reports this as an event.
            found = [MemoryMessage((None, -1), -1, fault=error.args[0])]
        if not found:
            self._link.pass_time(timeout)
        return found

    def poll(self, timeout: float = 0) -> MemoryMessage | None:
        """Return the next message or event. Calls the callbacks of a group member."""
        self._link.act("poll", lambda: None)
        self._serve_group()
        if not self._pending:
            self._pending += self._fetch(1)
        if not self._pending and timeout > 0:
            self._link.pass_time(timeout)
            self._serve_group()
            self._pending += self._fetch(1)
        return self._pending.pop(0) if self._pending else None

    def get_watermark_offsets(self, place: TopicPartition, *, cached: bool = False, **_options: Any) -> tuple[int, int]:
        """Return the first offset, and the end up to which this consumer may read. ``cached``: without a request."""

        def look() -> tuple[int, int]:
            log = self._kafka.log(place.topic, place.partition)
            return log.low, self._end(log)

        if not cached:
            return self._link.act("watermarks", look)
        with suppress(KafkaException):
            return look()
        return OFFSET_INVALID, OFFSET_INVALID

    def offsets_for_times(self, places: list[TopicPartition], _timeout: float = 0) -> list[TopicPartition]:
        """Return the ends up to which this consumer may read. The joiner requests no other times."""
        if any(at.offset != OFFSET_END for at in places):
            raise NotImplementedError

        def look() -> list[TopicPartition]:
            return [
                TopicPartition(at.topic, at.partition, self._end(self._kafka.log(at.topic, at.partition)))
                for at in places
            ]

        return self._link.act("watermarks", look)

    def committed(self, places: list[TopicPartition], timeout: float = 0) -> list[TopicPartition]:
        """Return the group's committed offsets, with their notes."""
        wanted = [(at.topic, at.partition) for at in places]
        if self._is_committed and self._kafka.are_unstable(self._group, wanted):
            # The library asks again until the timeout.
            self._link.pass_time(timeout)
            if self._kafka.are_unstable(self._group, wanted):
                raise kafka_error(_TIMED_OUT, "Failed to get committed offsets", retriable=True)
        return self._link.act("committed", lambda: self._kafka.offsets_with_notes(self._group, wanted))

    def consumer_group_metadata(self) -> GroupMetadata:
        """Return the group metadata for committing offsets."""
        return GroupMetadata(self._group, self._member)

    def close(self) -> None:
        """Close the consumer. A static member keeps its place in the group until its session expires."""
        self._link.act("close", lambda: None)
        self.unsubscribe()
        self._positions.clear()

    # Membership

    def unsubscribe(self) -> None:
        """Revoke all partitions and leave the group. The library does so at the next poll."""
        if self._member is not None:
            self._call("on_revoke", self._told)
            self._told = set()
            self._kafka.group(self._group).leave(self._member)
            self._member = None

    def subscribe(self, topics: list[str], **callbacks: Callable[..., Any]) -> None:
        """Join the group, or change the topics of the current member."""
        self._topics, self._callbacks = topics, callbacks
        if self._member is None:
            self._join()
        else:
            self._member.topics = topics

    def _join(self) -> None:
        group = self._kafka.group(self._group)
        self._member = self._link.act(
            "join", lambda: group.join(self._instance, self._topics, self._session_s, self._link.beats, self._client)
        )

    def _serve_group(self) -> None:
        member, now_s = self._member, self._kafka.now_s()
        if member is None or now_s < self._next_beat_s:
            return
        draw = self._link.draw
        if draw is not None and now_s > self._next_beat_s + _BEAT_S and draw.random() < 0.5:
            # If the client has been silent for long, the first response may be delayed.
            self._next_beat_s = now_s + draw.uniform(0, _BEAT_S)
            return
        self._next_beat_s = now_s + (draw.uniform(0, _BEAT_S) if draw is not None else 0)
        if member.is_fenced:
            self._fall_out()
            self._pending.append(MemoryMessage((None, -1), -1, fault=KafkaError(_FATAL, _FENCED_TEXT)))
            self._member = None
        elif member.is_forgotten:
            self._fall_out()
            self._join()
            if self._instance and draw is not None and draw.random() < 0.3 and self._member is not None:
                # As in the library: a last heartbeat under the old member id fences the member itself.
                self._member.is_fenced = True
        else:
            self._follow(member)

    def _follow(self, member: Member) -> None:
        """Apply the group's assignment as in a cooperative rebalance: revoke first, then assign."""
        group = self._kafka.group(self._group)
        too_many = member.has - member.due
        if too_many:
            self._call("on_revoke", too_many & self._told)
            self._told -= too_many
            group.given_back(member, too_many)
        more = ((member.has & member.due) | group.free_for(member)) - self._told
        if more:
            member.has |= more
            group.given.update((self._link.name, number) for _, number in more)
            self._told |= more
            self._call("on_assign", more)

    def _fall_out(self) -> None:
        self._call("on_lost", self._told)
        self._told = set()

    def _call(self, name: str, places: set[Place]) -> None:
        callback = self._callbacks.get(name)
        if places and callback is not None:
            callback(self, [TopicPartition(topic, number) for topic, number in sorted(places)])

    # The logs

    def _end(self, log: Log) -> int:
        return log.stable_end if self._is_committed else log.end

    def _start(self, place: TopicPartition) -> int:
        log = self._kafka.log(place.topic, place.partition)
        at = place.offset
        if at == OFFSET_INVALID:
            at = self._kafka.group_offsets(self._group).get((place.topic, place.partition), OFFSET_INVALID)
        if at <= OFFSET_TAIL_BASE:
            # Like librdkafka, without regard to the first offset that is left.
            return max(0, self._end(log) + at - OFFSET_TAIL_BASE)
        if at in {OFFSET_BEGINNING, OFFSET_END}:
            return log.low if at == OFFSET_BEGINNING else self._end(log)
        return int(at)

    def _fetch(self, count: int) -> list[MemoryMessage]:
        """Read some of the partitions and leave the others to later calls, as if they were on different brokers."""
        draw = self._link.draw
        places = [place for place in self._positions if place not in self._paused]
        if draw is not None and len(places) > 1:
            draw.shuffle(places)
            places = places[: draw.randint(1, len(places))]
        found: list[MemoryMessage] = []
        for place in places:
            room = count - len(found)
            if room <= 0:
                break
            found += self._read(place, room if draw is None else draw.randint(1, max(1, min(room, 12))))
        return found

    def _read(self, place: Place, count: int) -> list[MemoryMessage]:
        position, log = self._positions[place], self._kafka.log(*place)
        if not log.low <= position.at <= log.end:
            if self._reset == "earliest":
                position.at = log.low
            else:
                del self._positions[place]
                text = f"fetch failed due to requested offset {position.at} not available on the broker"
                return [MemoryMessage(place, position.at, fault=KafkaError(_OUT_OF_RANGE, text))]
        entries, position.at = log.read(position.at, count, committed=self._is_committed)
        found = [MemoryMessage(place, at.offset, at.time_ms, (at.key, at.value), carried=at.headers) for at in entries]
        if self._kafka.damaged and len(found) > _DAMAGED:
            self._kafka.damaged -= 1
            _leave_out(place, found, self._link.draw)
        if self._tells_end and position.at >= self._end(log) and position.end_told != position.at:
            position.end_told = position.at
            found.append(MemoryMessage(place, position.at, fault=KafkaError(_EOF, "end of the partition")))
        return found


def _leave_out(place: Place, found: list[MemoryMessage], draw: random.Random | None) -> None:
    """Replace some records with an error. The records after them are still returned, as by the library."""
    begin = draw.randrange(len(found) - _DAMAGED) if draw is not None else 0
    error = KafkaError(_BAD_MESSAGE, f"MessageSet at offset {found[begin].offset()} failed CRC32C check")
    found[begin : begin + _DAMAGED] = [MemoryMessage(place, found[begin].offset(), fault=error)]
