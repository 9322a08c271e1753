"""Reads an application's topics, and asks Kafka for its lag and its members."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec
from confluent_kafka import Consumer, IsolationLevel, KafkaException, Message, TopicPartition

from broker.kafka.topics import topic_facts
from control.facts.flow.endpoints import Sink
from control.facts.flow.meters import Flow
from control.facts.flow.reading import FlowReading
from control.facts.follow import Followed
from control.facts.timeline import Timeline
from joiner.runtime.control import TAIL
from joiner.runtime.kafka.checkpoint_log import TAIL as STATE_TAIL
from joiner.runtime.kafka.clients import EOF_CODE, LATEST, describe, is_passing, make_admin, make_consumer, timed_out
from joiner.runtime.membership.presence import Members, read_members
from joiner.runtime.membership.status.reading import compose_status, sites_of
from joiner.runtime.membership.status.summary import Status

if TYPE_CHECKING:
    from joiner.runtime.clock import Clock
    from joiner.runtime.model import Checkpoint
    from joiner.runtime.settings import JoinerSettings

_ASK_S: Final = 2.0
"""How often to ask Kafka for the members of the consumer groups, and whether a missing control topic exists by now."""

_TIMEOUT_S: Final = 5.0
"""The timeout of a request. After it, the facts are known to be out of date."""

_RATE_S: Final = 5.0
_READ_MAX: Final = 1_000
_READ_S: Final = 0.05


_Place = tuple[str, int]
"""A topic and a partition."""


class Supervisor(msgspec.Struct, frozen=True):
    """A process that supervises worker processes on its host: how many are running, and how many should be."""

    site: str
    instance: str
    host: str
    running: int
    wanted: int


class Facts(msgspec.Struct, frozen=True):
    """What is known about an application.

    ``number``: increases with each renewal. ``status``: None if the application has never run. ``rates``: the records
    per second that each unit consumes. ``lag``: the records not consumed yet, or None if that is unknown for any
    unit. ``read_ms``: when the facts were last renewed, in ms since the epoch, or None if they never were.
    ``missing``: what could not be read then, and why. ``trouble``: why the facts cannot be renewed, or an empty string.
    ``supervisors``: those that have reported lately. ``flow``: what flows through the topics. ``replicas``: the facts
    about the other replicas of the application, by number.
    """

    number: int = 0
    status: Status | None = None
    rates: list[float] = []
    lag: int | None = None
    read_ms: int | None = None
    missing: list[str] = []
    trouble: str = "Kafka has not answered yet"
    supervisors: list[Supervisor] = []
    flow: Flow = Flow()
    replicas: dict[int, Facts] = {}


class Reading:
    """Reads the topics, starting with their last records. Not thread-safe. All methods raise KafkaException.

    After an error, a new object is needed.
    """

    def __init__(self, settings: JoinerSettings, clock: Clock, timeline: Timeline, sink: Sink | None = None) -> None:
        """Events are added to ``timeline``. ``sink``: the database connector, if one is configured."""
        self._settings, self._clock = settings, clock
        self._admin = make_admin(settings.kafka)
        self._consumer: Consumer | None = None
        # A unit that commits at longer intervals must not seem idle between commits.
        rate_s = max(_RATE_S, 3 * settings.application.commit_interval / 1e9)
        self._followed = Followed(settings.topics.partitions, timeline, rate_s)
        self._flow = FlowReading(self._admin, settings, sink, clock)
        self._positions: dict[_Place, int] = {}
        self._unread: dict[_Place, int] = {}
        """The partitions not yet read up to the end they had at the start, with that end."""
        self._searched = set[int]()
        """The units whose partition was read from its beginning."""
        self._passing = ""
        """The consumer's last error, until everything has been read to its end again."""
        self._members: Members = {}
        self._refused: list[str] = []
        """Why the members of some groups are unknown."""
        self._ask_s = self._read_s = clock.monotonic_s()
        """When to ask Kafka next, and when something was last read."""
        self._behind: dict[_Place, tuple[int, float]] = {}
        """The partitions not read to their ends: each one's position, and since when it has not advanced."""
        self._restarted = set[_Place]()
        """The partitions that a message of the current batch caused to be read again from their beginning."""

    def read_until(self, until_s: float, stop: threading.Event) -> None:
        """Read what is appended until ``until_s``, or until ``stop`` is set."""
        if self._consumer is None:
            self._open()
        if self._consumer is None:
            stop.wait(max(0.0, until_s - self._clock.monotonic_s()))
            return
        while self._clock.monotonic_s() < until_s and not stop.is_set():
            self._restarted.clear()
            for message in self._consumer.consume(_READ_MAX, _READ_S):
                self._apply(self._consumer, message)
        self._followed.is_live = self._followed.is_live or not self._unread

    def facts(self) -> Facts | None:
        """Return what is known now, with the current lag, or None while still reading what was there at the start."""
        now_s = self._clock.wall_s()
        now_ms = round(1000 * now_s)
        if self._consumer is None:
            return Facts(lag=0, read_ms=now_ms, trouble="", flow=self._flow.renewed())
        if not self._followed.is_live:
            if self._clock.monotonic_s() - self._read_s > 2 * _TIMEOUT_S:
                places = ", ".join(f"{topic} [{one}]" for topic, one in sorted(self._unread))
                raise timed_out(f"{places} cannot be read{self._cause()}")
            return None
        followed, settings = self._followed, self._settings
        sites = followed.sites(now_ms)
        if self._clock.monotonic_s() >= self._ask_s:
            self._ask_s = self._clock.monotonic_s() + _ASK_S
            self._add_control_topic()
            known = sites_of(settings, followed.checkpoints, sites)
            self._refused = []
            self._members = read_members(self._admin, settings, known, sites, _TIMEOUT_S, self._refused.append)
        ends, missing = self._stable_ends()
        missing += self._late(ends) + self._refused
        missing += [followed.unreadable[unit] for unit in sorted(followed.unreadable)]
        lags = self._lags(ends)
        of_units = [_total(by_topic.values()) for by_topic in lags]
        followed.sample(self._clock.monotonic_s())
        status = compose_status(
            settings,
            followed.checkpoints,
            of_units,
            self._members,
            sites,
            followed.notices(now_ms),
            now_s,
        )
        flow = self._flow.renewed()
        return Facts(
            status=status,
            rates=followed.rates(),
            lag=_total(of_units),
            read_ms=round(1000 * self._clock.wall_s()),
            missing=missing,
            trouble="",
            supervisors=[
                Supervisor(site, one.instance, one.host, one.running, one.wanted)
                for site, state in sorted(sites.items())
                for one in state.workers.values()
            ],
            flow=msgspec.structs.replace(flow, units=followed.flows(lags), moves=followed.moves(now_ms)),
        )

    def close(self) -> None:
        """Stop reading."""
        if self._consumer is not None:
            self._consumer.close()

    def _open(self) -> None:
        """Start reading, if the application has run."""
        settings = self._settings
        if settings.state_topic not in topic_facts(self._admin, [settings.state_topic], _TIMEOUT_S):
            return
        self._consumer = make_consumer(
            settings.kafka,
            settings.application.name,
            enable_partition_eof=True,
            fetch_wait_max_ms=500,
            fetch_queue_backoff_ms=2,
        )
        self._add((settings.state_topic, unit) for unit in range(settings.topics.partitions))
        self._add_control_topic()

    def _add_control_topic(self) -> None:
        """Read the control topic too, once it exists. Earlier releases have none."""
        place = self._settings.control_topic, 0
        if place not in self._positions and topic_facts(self._admin, [place[0]], _TIMEOUT_S):
            self._add([place])

    def _add(self, places: Iterable[_Place]) -> None:
        """Read more partitions, starting with their last records."""
        assert self._consumer is not None  # noqa: S101 - for the type checker
        starts = []
        for topic, partition in places:
            last = TAIL if topic == self._settings.control_topic else STATE_TAIL
            low, end = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_TIMEOUT_S)
            start = max(low, end - last)
            starts.append(TopicPartition(topic, partition, start))
            self._positions[topic, partition] = start
            if start < end:
                self._unread[topic, partition] = end
        self._consumer.incremental_assign(starts)

    def _apply(self, consumer: Consumer, message: Message) -> None:
        topic, partition, offset = message.topic() or "", message.partition() or 0, message.offset() or 0
        error = message.error()
        if (topic, partition) in self._restarted:
            return  # it was fetched before the restart, and will be read again
        if error is None:
            at_ms = int(message.timestamp()[1])
            if topic == self._settings.control_topic:
                self._followed.apply_control(message.value(), offset, at_ms)
            else:
                self._followed.apply_state(partition, offset, message.key(), message.value(), at_ms)
            self._reached(consumer, (topic, partition), offset + 1)
        elif error.code() == EOF_CODE:
            self._reached(consumer, (topic, partition), offset)
        elif is_passing(error, message.partition()):
            self._passing = error.str()
        else:
            raise KafkaException(error)

    def _reached(self, consumer: Consumer, place: _Place, offset: int) -> None:
        """Note how far a partition was read. Reread it from its beginning if its last records contain no checkpoint."""
        self._read_s = self._clock.monotonic_s()
        self._positions[place] = offset
        if offset < self._unread.get(place, 0):
            return
        topic, unit = place
        followed = self._followed
        if (
            topic == self._settings.state_topic
            and followed.checkpoints[unit] is None
            and unit not in self._searched | followed.unreadable.keys()
            and offset > 0
        ):
            self._searched.add(unit)
            self._unread[place] = offset
            low, _ = consumer.get_watermark_offsets(TopicPartition(topic, unit), timeout=_TIMEOUT_S)
            if low < offset:
                # Unlike a seek, this does not wait for the broker.
                self._restarted.add(place)
                consumer.incremental_unassign([TopicPartition(topic, unit)])
                consumer.incremental_assign([TopicPartition(topic, unit, low)])
        else:
            self._unread.pop(place, None)

    def _stable_ends(self) -> tuple[dict[_Place, int], list[str]]:
        """Return the last stable offsets of the relevant partitions, and why some are unknown."""
        checkpoints = self._followed.checkpoints
        inputs = {(topic, unit) for unit, one in enumerate(checkpoints) if one for topic in one.checkpoint.offsets}
        wanted = {TopicPartition(*place): LATEST for place in inputs | self._positions.keys()}
        found = self._admin.list_offsets(
            wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_TIMEOUT_S
        )
        ends: dict[_Place, int] = {}
        failed: dict[_Place, KafkaException] = {}
        for asked, future in found.items():
            try:
                ends[asked.topic, asked.partition] = future.result().offset
            except KafkaException as error:
                failed[asked.topic, asked.partition] = error
        if failed and not ends:
            raise next(iter(failed.values()))
        return ends, [f"{topic} [{one}]: {describe(error)}" for (topic, one), error in failed.items()]

    def _late(self, ends: dict[_Place, int]) -> list[str]:
        """Report the partitions whose reading has made no progress for too long."""
        now_s = self._clock.monotonic_s()
        behind = {}
        for place, at in self._positions.items():
            # The last position may be just before a transaction marker, which is not a message.
            if at < ends.get(place, 0):
                before_at, since_s = self._behind.get(place, (at, now_s))
                behind[place] = (at, since_s if at == before_at else now_s)
        self._behind = behind
        if not behind:
            self._passing = ""
        late = [f"{topic} [{one}]" for (topic, one), (_, since_s) in behind.items() if now_s - since_s > _TIMEOUT_S]
        return [f"{', '.join(sorted(late))} cannot be read{self._cause()}"] if late else []

    def _cause(self) -> str:
        return f": {self._passing}" if self._passing else ""

    def _lags(self, ends: dict[_Place, int]) -> list[dict[str, int | None]]:
        """Return how many records each unit has not consumed yet, by input topic.

        A number is None if the end is unknown or the last checkpoint unreadable.
        """
        unknown: dict[str, int | None] = dict.fromkeys(self._settings.input_topics)
        return [
            unknown if unit in self._followed.unreadable else {} if one is None else _lags(one.checkpoint, ends)
            for unit, one in enumerate(self._followed.checkpoints)
        ]


def _lags(checkpoint: Checkpoint, ends: dict[_Place, int]) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for topic, offset in checkpoint.offsets.items():
        end = ends.get((topic, checkpoint.unit))
        # The checkpoint may be newer than the ends.
        found[topic] = None if end is None else max(0, end - offset)
    return found


def _total(counts: Iterable[int | None]) -> int | None:
    """Return the sum, or None if one of the counts is unknown."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total
