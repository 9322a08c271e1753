"""Reads the status of the replicas of an application from their checkpoints."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from broker.kafka.topics import topic_facts
from joiner.runtime.kafka.checkpoint_log import read_appended
from joiner.runtime.kafka.clients import describe, log_range
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.membership.status.summary import ReplicaStatus
from joiner.runtime.model import UnitStopped
from joiner.runtime.settings import replica_settings

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from confluent_kafka.admin import AdminClient

    from joiner.runtime.clock import Clock
    from joiner.runtime.model import Checkpoint
    from joiner.runtime.settings import JoinerSettings


def read_replicas(admin: AdminClient, settings: JoinerSettings, clock: Clock) -> list[ReplicaStatus]:
    """Return the status of each replica, or nothing if the application has no others.

    A replica whose state cannot be read does not hide the others. Raises KafkaException if the topics cannot be listed.
    """
    count = settings.application.replicas
    if count == 1:
        return []
    replicas = [replica_settings(settings, number) for number in range(count)]
    exists = topic_facts(admin, [replica.state_topic for replica in replicas])
    return [_status_of(replica, clock, has_begun=replica.state_topic in exists) for replica in replicas]


def lag_of(consumer: Consumer, checkpoint: Checkpoint) -> int:
    """Return the number of offsets in a unit's input logs that are not consumed yet."""
    ends = {topic: log_range(consumer, topic, checkpoint.unit)[1] for topic in checkpoint.offsets}
    return sum(ends[topic] - at for topic, at in checkpoint.offsets.items())


def _status_of(settings: JoinerSettings, clock: Clock, *, has_begun: bool) -> ReplicaStatus:
    """Return the status of a replica. ``has_begun``: whether it has a state topic, so that it can be read."""
    number, name = settings.application.replica, settings.application.name
    if not has_begun:
        return ReplicaStatus(number, name, 0, 0, None)
    try:
        return _read(settings, clock)
    except (KafkaException, UnitStopped) as error:
        return ReplicaStatus(number, name, 0, 0, None, describe(error))


def _read(settings: JoinerSettings, clock: Clock) -> ReplicaStatus:
    number, name = settings.application.replica, settings.application.name
    with closing(Readers(settings, clock)) as readers:
        read = (read_appended(readers, unit) for unit in range(settings.topics.partitions))
        found = [one for one in read if one is not None]
        lag = sum(lag_of(readers.log, one.checkpoint) for one in found)
    newest_ms = max((one.appended_ms for one in found), default=None)
    age_s = None if newest_ms is None else round(max(0.0, clock.wall_s() - newest_ms / 1e3), 3)
    return ReplicaStatus(number, name, len(found), lag, age_s)
