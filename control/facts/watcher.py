"""Reads the topics of an application continuously, in a thread, and keeps what is known of it.

It is no member of any consumer group and writes nothing. While Kafka is unreachable, it keeps what it knew, tells the
cause, and tries again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Final

import msgspec
from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from broker.kafka.topics import topic_facts
from control.facts.follow import Followed
from control.facts.timeline import Event
from joiner.runtime.control import TAIL
from joiner.runtime.kafka.clients import EOF_CODE, TIMEOUT_S, describe, is_passing, make_admin, make_consumer
from joiner.runtime.kafka.member_log import OFFSET_TAIL_BASE
from joiner.runtime.membership.presence import Members, read_members
from joiner.runtime.membership.status.reading import compose_status, sites_of
from joiner.runtime.membership.status.summary import Status
from joiner.runtime.model import UnitStopped

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from joiner.runtime.clock import Clock
    from joiner.runtime.settings import JoinerSettings

PUBLISH_S: Final = 0.5
"""How often the facts are renewed."""

_MEMBERS_S: Final = 2.0
"""How often the consumer groups are asked for their members."""

_STATE_TAIL: Final = 64
"""How many records of each state partition to read first. The newest checkpoint is usually among them."""

_RETRY_S: Final = 1.0
_READ_MAX: Final = 1_000
_READ_S: Final = 0.05

_LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call] # it has no types

_log = logging.getLogger(__name__)


class Facts(msgspec.Struct, frozen=True):
    """What is known of an application.

    ``number``: grows with each renewal. ``status``: None if the application has never run. ``rates``: the records a
    second that each unit consumes. ``read_ms``: when Kafka last answered, in ms since the epoch, or None if it never
    has. ``trouble``: why the facts cannot be renewed, or an empty string. ``events``: the oldest first.
    """

    number: int = 0
    status: Status | None = None
    rates: list[float] = []
    read_ms: int | None = None
    trouble: str = "Kafka has not answered yet"
    events: tuple[Event, ...] = ()


class Watcher:
    """Keeps the `Facts` of an application. Thread-safe."""

    def __init__(self, settings: JoinerSettings, clock: Clock) -> None:
        self.settings = settings
        self._clock = clock
        self._stop = threading.Event()
        self._facts = Facts()
        self._renewed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"watch {settings.application.name}", daemon=True)

    @property
    def facts(self) -> Facts:
        """What is known now. Does not wait."""
        return self._facts

    def wait(self, number: int, timeout_s: float) -> Facts:
        """Return the facts as soon as they are newer than ``number``, but after ``timeout_s`` at the latest."""
        with self._renewed:
            self._renewed.wait_for(lambda: self._facts.number > number or self._stop.is_set(), timeout_s)
            return self._facts

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def close(self, wait_s: float) -> None:
        """Stop reading, and wait for the thread for up to ``wait_s`` seconds."""
        self._stop.set()
        with self._renewed:
            self._renewed.notify_all()
        self._thread.join(wait_s)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with closing(_Reading(self.settings, self._clock)) as reading:
                    while not self._stop.is_set():
                        reading.read_until(self._clock.monotonic_s() + PUBLISH_S, self._stop)
                        self._publish(reading.facts())
            except (KafkaException, UnitStopped) as error:
                _log.warning("%s: %s", self.settings.application.name, describe(error))
                self._publish(msgspec.structs.replace(self._facts, trouble=describe(error)))
            except Exception:  # noqa: BLE001 - without this thread, the service would show old facts for good
                _log.exception("%s: an error in this program; reading anew", self.settings.application.name)
                self._publish(msgspec.structs.replace(self._facts, trouble="an error in this program; see its log"))
            self._stop.wait(_RETRY_S)

    def _publish(self, facts: Facts) -> None:
        with self._renewed:
            self._facts = msgspec.structs.replace(facts, number=self._facts.number + 1)
            self._renewed.notify_all()


class _Reading:
    """Reads from the ends of the topics on. Not thread-safe. All methods raise KafkaException."""

    def __init__(self, settings: JoinerSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._admin = make_admin(settings.kafka)
        self._consumer: Consumer | None = None
        self._followed = Followed(settings.topics.partitions)
        self._unfound = set[int]()
        """The units whose checkpoint may be before the records that are read first."""
        self._members: Members = {}
        self._members_s = -_MEMBERS_S

    def read_until(self, until_s: float, stop: threading.Event) -> None:
        """Read what is appended until then. Raises `UnitStopped` if a checkpoint is unreadable."""
        if self._consumer is None and not self._open():
            stop.wait(PUBLISH_S)
            return
        while self._clock.monotonic_s() < until_s and not stop.is_set():
            self._read()

    def facts(self) -> Facts:
        """Return what is known now, with the present lag."""
        now_s = self._clock.wall_s()
        now_ms = round(1000 * now_s)
        if self._consumer is None:
            return Facts(read_ms=now_ms, trouble="")
        followed, settings = self._followed, self._settings
        if self._clock.monotonic_s() - self._members_s >= _MEMBERS_S:
            self._members_s = self._clock.monotonic_s()
            sites = sites_of(settings, followed.checkpoints)
            self._members = read_members(self._admin, settings, sites, followed.sites)
        status = compose_status(
            settings,
            followed.checkpoints,
            self._lags(),
            self._members,
            followed.sites,
            followed.notices(now_ms),
            now_s,
        )
        events = tuple(followed.timeline.events)
        return Facts(status=status, rates=followed.rates(now_ms), read_ms=now_ms, trouble="", events=events)

    def close(self) -> None:
        """Stop reading."""
        if self._consumer is not None:
            self._consumer.close()

    def _open(self) -> bool:
        """Start reading, if the application has run. Return whether it has."""
        settings = self._settings
        found = topic_facts(self._admin, [settings.state_topic, settings.control_topic])
        if settings.state_topic not in found:
            return False
        self._consumer = make_consumer(
            settings.kafka,
            settings.application.name,
            # librdkafka subtracts from the end of a log without regard to its first offset.
            auto_offset_reset="earliest",
            enable_partition_eof=True,
            fetch_wait_max_ms=500,
            fetch_queue_backoff_ms=2,
        )
        units = range(settings.topics.partitions)
        self._unfound = set(units)
        places = [TopicPartition(settings.state_topic, unit, OFFSET_TAIL_BASE - _STATE_TAIL) for unit in units]
        if settings.control_topic in found:
            places.append(TopicPartition(settings.control_topic, 0, OFFSET_TAIL_BASE - TAIL))
        self._consumer.assign(places)
        return True

    def _read(self) -> None:
        assert self._consumer is not None  # noqa: S101 - for the type checker
        for message in self._consumer.consume(_READ_MAX, _READ_S):
            topic, place = message.topic(), message.partition() or 0
            error = message.error()
            if error is None:
                at_ms, offset = int(message.timestamp()[1]), message.offset() or 0
                if topic == self._settings.control_topic:
                    self._followed.apply_control(message.value(), offset, at_ms)
                else:
                    self._followed.apply_state(place, message.key(), message.value(), at_ms)
            elif error.code() == EOF_CODE:
                if topic == self._settings.state_topic:
                    self._at_end(place)
            elif not is_passing(error, message.partition()):
                raise KafkaException(error)

    def _at_end(self, unit: int) -> None:
        """Read a unit's partition from its beginning if its last records contain no checkpoint."""
        if unit in self._unfound:
            self._unfound.remove(unit)
            if self._followed.checkpoints[unit] is None and self._consumer is not None:
                self._consumer.seek(TopicPartition(self._settings.state_topic, unit, 0))

    def _lags(self) -> list[int]:
        """Return the number of records that each unit has not consumed yet, up to the last stable offsets."""
        checkpoints = self._followed.checkpoints
        wanted = {(topic, unit) for unit, one in enumerate(checkpoints) if one for topic in one.checkpoint.offsets}
        ends = _stable_ends(self._admin, wanted)
        # A checkpoint may be newer than the ends.
        return [
            0
            if one is None
            else sum(max(0, ends[topic, unit] - offset) for topic, offset in one.checkpoint.offsets.items())
            for unit, one in enumerate(checkpoints)
        ]


def _stable_ends(admin: AdminClient, places: set[tuple[str, int]]) -> Mapping[tuple[str, int], int]:
    """Return the last stable offset of each partition, with one request. Raises KafkaException."""
    if not places:
        return {}
    wanted = {TopicPartition(topic, partition): _LATEST for topic, partition in places}
    found = admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=TIMEOUT_S)
    return {(place.topic, place.partition): future.result().offset for place, future in found.items()}
