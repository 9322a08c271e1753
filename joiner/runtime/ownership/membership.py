"""The units that the consumer group assigns to this process.

The member subscribes to one input topic only to have partitions assigned, which it pauses and never reads. Membership
does not fence anyone: the transactional id decides ownership. Membership is static, so a process that returns within
the session timeout gets its units back at once.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Final

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from broker.kafka.group_member import member_config
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.clients import make_consumer
from joiner.runtime.settings import JoinerSettings

_FENCED_AGAIN_SESSIONS: Final = 3
"""If the group fences a member twice within this many session timeouts, another process is using its name. Two
processes with the same name fence each other at every heartbeat, several times per session; a false alarm takes a whole
session without Kafka."""

_HEARTBEATS: Final = 6
"""Heartbeats per session timeout. A member learns of new units at its next heartbeat. The library's default interval
of 3 s would be half of the shortest timeout."""

_GIVING_BACK_S: Final = 1.0
"""Time allowed for releasing the units at shutdown, which needs no answer from Kafka."""

_log = logging.getLogger(__name__)


class InstanceInUse(Exception):
    """Another process of the application uses the same instance name."""


class Membership:
    """The group membership of this process. `units` are those currently assigned to it."""

    def __init__(
        self, settings: JoinerSettings, site: str, give_back: Callable[[list[int], bool], None], clock: Clock
    ) -> None:
        """``give_back(units, lost)`` is called when units are revoked. ``lost``: others may already have them."""
        self.units: set[int] = set()
        self._settings, self._clock = settings, clock
        self._group = settings.membership_group(site)
        self._give_back = give_back
        self._fenced_s: float | None = None
        self._is_assigned: bool
        self._has_asked: bool
        self._consumer = self._join()

    def poll(self) -> None:
        """Keep the membership alive and process rebalances. Raises `InstanceInUse`."""
        message = self._consumer.poll(0)
        error = message.error() if message is not None else None
        if self._is_assigned and not self._has_asked:
            self._has_asked = True
            self._subscribe(self._consumer, f"{self._settings.application.name}.nothing")
        # The library's wrapper of a fatal error; `fatal()` is not set on it.
        if error is not None and error.code() == KafkaError._FATAL:  # noqa: SLF001 - the public name of the constant
            self._join_again(error)

    @property
    def is_assigned(self) -> bool:
        """Whether this member has received an assignment, which may be empty."""
        return self._is_assigned

    def close(self) -> None:
        """Leave the group.

        Units are released first: during a rebalance, closing the consumer may wait forever for an answer from a thread
        that has ended (confluentinc/librdkafka#4884).
        """
        with contextlib.suppress(KafkaException):  # the consumer has failed permanently and has no units left
            self._consumer.unsubscribe()
        until_s = self._clock.monotonic_s() + _GIVING_BACK_S
        while self.units and self._clock.monotonic_s() < until_s:
            self._consumer.poll(0.02)
        self._consumer.close()

    def _join(self) -> Consumer:
        application = self._settings.application
        consumer = make_consumer(
            self._settings.kafka,
            self._group,
            heartbeat_interval_ms=application.session_timeout // 1_000_000 // _HEARTBEATS,
            **member_config(application.session_timeout, application.instance),
        )
        self._is_assigned = self._has_asked = False
        self._subscribe(consumer)
        return consumer

    def _subscribe(self, consumer: Consumer, *more: str) -> None:
        """Subscribe. ``more``: a topic that does not exist, to trigger another rebalance of the group.

        A unit moves between members in two rebalances. If all members die between the two and return under the same
        names, each is assigned the units it had after the first rebalance, and a unit that was moving is assigned to
        none.
        """
        consumer.subscribe(
            [self._settings.input_topics[0], *more],
            on_assign=self._on_assign,
            on_revoke=lambda consumer, partitions: self._on_revoke(consumer, partitions, lost=False),
            on_lost=lambda consumer, partitions: self._on_revoke(consumer, partitions, lost=True),
        )

    def _join_again(self, error: KafkaError) -> None:
        """Rejoin after the group has fenced this member, because of another process with its name or because of itself.

        The library fences itself if its session expired while Kafka was unreachable: it joins again under its name, and
        then still sends a heartbeat as the old member.
        """
        application = self._settings.application
        if "instance" not in error.str():
            raise KafkaException(error)
        now_s, before_s = self._clock.monotonic_s(), self._fenced_s
        window_s = _FENCED_AGAIN_SESSIONS * application.session_timeout / 1e9
        if before_s is not None and now_s - before_s < window_s:
            raise InstanceInUse(
                f"another process runs as instance {application.instance!r}: give each process of the application a "
                "name of its own with --instance or application.instance"
            )
        self._fenced_s = now_s
        _log.warning("the group knows another member as instance %r; joining again", application.instance)
        self._consumer.close()
        self._consumer = self._join()

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._is_assigned = True
        for partition in partitions:
            partition.offset = OFFSET_END  # irrelevant, as it stays paused
        consumer.incremental_assign(partitions)
        consumer.pause(partitions)
        self.units |= {partition.partition for partition in partitions}

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition], *, lost: bool) -> None:
        units = sorted(partition.partition for partition in partitions)
        self.units -= set(units)
        self._give_back(units, lost)
        consumer.incremental_unassign(partitions)
