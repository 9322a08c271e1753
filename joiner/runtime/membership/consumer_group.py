"""The process's membership in its site's consumer group, whose assignment applies only alongside an older release.

Processes of release 0.1 know only the group's assignment. As long as one of them is a member, all members take their
units from the group (see `mixed`). The group also shows tools which instances are running.

The process subscribes to one input topic only so that the group assigns it partitions, one per unit. It pauses these
partitions and never reads them. Group membership does not fence other processes: the transactional id decides who owns
a unit. Membership is static, so a process that returns within the session timeout gets its units back at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ClassVar, Final

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from broker.kafka.group_member import give_partitions_back, member_config
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.clients import make_consumer
from joiner.runtime.settings import JoinerSettings

_FENCED_AGAIN_SESSIONS: Final = 3
"""If the group fences this process twice within this many session timeouts, another process must be using the same
instance name. Two such processes fence each other at every heartbeat, several times per session timeout. For a false
alarm, Kafka would have to be unreachable for a whole session timeout between the two."""

_HEARTBEATS: Final = 6
"""Number of heartbeats per session timeout. A member learns about newly assigned units at its next heartbeat. The
library's default heartbeat interval of 3 s would be half of the shortest allowed session timeout."""

CLIENT_ID: Final = "lsb-assigned-by-control-topic"
"""The client id of members that take their units from the control topic. Other members run an older release."""

_log = logging.getLogger(__name__)


class InstanceInUse(Exception):
    """Raised if another process of the application uses the same instance name, or seems to."""

    def __init__(self, instance: str) -> None:
        super().__init__(
            f"another process has started as instance {instance!r}: give each process of the application its own name "
            "with --instance or application.instance"
        )


class InstanceReplaced(InstanceInUse):
    """Raised if another process of the application has certainly started under the same instance name."""


class GroupMembership:
    """The process's membership in its consumer group. `units`: the units currently assigned to the process."""

    client_id: ClassVar[str] = CLIENT_ID

    def __init__(
        self, settings: JoinerSettings, site: str, give_back: Callable[[list[int], bool], None], clock: Clock
    ) -> None:
        """Join the group.

        ``give_back(units, lost)`` is called when units are revoked. ``lost`` is true if the group may already have
        assigned them to other processes.
        """
        self.units: set[int] = set()
        self._settings, self._clock = settings, clock
        self._group = settings.membership_group(site)
        self._give_back = give_back
        self._fenced_s: float | None = None
        self._is_assigned: bool
        self._has_asked: bool
        self._consumer = self._join()

    def poll(self) -> None:
        """Keep the membership alive and handle rebalances.

        Raises `InstanceInUse` if another process uses the same name, and KafkaException after any other fatal error.
        """
        message = self._consumer.poll(0)
        error = message.error() if message is not None else None
        if self._is_assigned and not self._has_asked:
            self._has_asked = True
            self._subscribe(self._consumer, f"{self._settings.application.name}.nothing")
        # The library wraps a fatal error in one with this code, for which `fatal()` is not set.
        if error is not None and error.code() == KafkaError._FATAL:  # noqa: SLF001 - the public name of the constant
            self._join_again(error)

    @property
    def is_assigned(self) -> bool:
        """Whether this member has received an assignment, which may be empty."""
        return self._is_assigned

    def close(self) -> None:
        """Leave the group."""
        give_partitions_back(self._consumer, self._clock.monotonic_s)
        self._consumer.close()

    def _join(self) -> Consumer:
        application = self._settings.application
        consumer = make_consumer(
            self._settings.kafka,
            self._group,
            client_id=self.client_id,
            heartbeat_interval_ms=application.session_timeout // 1_000_000 // _HEARTBEATS,
            **member_config(application.session_timeout, application.instance),
        )
        self._is_assigned = self._has_asked = False
        self._subscribe(consumer)
        return consumer

    def _subscribe(self, consumer: Consumer, *more: str) -> None:
        """Subscribe to the input topic, and to ``more``: a topic that does not exist, to trigger another rebalance.

        Moving a unit between members takes two rebalances. If all members die after the first one and return under the
        same names, each member is assigned the units it had at that point, and a unit that was being moved is assigned
        to no member.
        """
        consumer.subscribe(
            [self._settings.input_topics[0], *more],
            on_assign=self._on_assign,
            on_revoke=lambda consumer, partitions: self._on_revoke(consumer, partitions, lost=False),
            on_lost=lambda consumer, partitions: self._on_revoke(consumer, partitions, lost=True),
        )

    def _join_again(self, error: KafkaError) -> None:
        """Rejoin after this member has been fenced, either by another process with the same name or by itself.

        A member fences itself if its session expires while Kafka is unreachable: the library rejoins under the same
        name, but then still sends a heartbeat as the old member.
        """
        application = self._settings.application
        if "instance" not in error.str():
            raise KafkaException(error)
        now_s, before_s = self._clock.monotonic_s(), self._fenced_s
        window_s = _FENCED_AGAIN_SESSIONS * application.session_timeout / 1e9
        if before_s is not None and now_s - before_s < window_s:
            raise InstanceInUse(application.instance)
        self._fenced_s = now_s
        _log.warning("the group reports another member with the instance name %r; rejoining", application.instance)
        self.close()
        if lost := sorted(self.units):  # after a fatal error, the library does not say so
            self.units.clear()
            self._give_back(lost, True)  # noqa: FBT003 - a callback's signature
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
