"""Asks Kafka for the members of a consumer group."""

from __future__ import annotations

import struct
import time
from contextlib import closing
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from broker.kafka.topics import is_passing
from broker.settings import KafkaSettings

_SHORTEST_S: Final = 0.1

_CONSUMER: Final = "consumer"
"""The protocol type of groups that assign topic partitions."""

_SUFFIX_LENGTH: Final = len("-00000000-0000-0000-0000-000000000000")
"""A group's coordinator appends a UUID to a member's static name or client id, and uses this as the member's id."""


class ListedMember(NamedTuple):
    """A member of a consumer group."""

    name: str
    """Its static name (``group.instance.id``), or its client id if it is a dynamic member."""
    client_id: str
    assigned: list[TopicPartition]


def read_group(admin: AdminClient, kafka: KafkaSettings, group: str, timeout_s: float) -> list[ListedMember]:
    """Return the members of a group. A group that does not exist has none. Blocks for up to ``timeout_s`` seconds.

    Raises KafkaException if a broker does not answer, or if this client is not permitted to describe the group. If a
    broker is down, this lasts until ``admin`` has refreshed its metadata.

    `AdminClient.list_groups` is deprecated, and asks every broker. The request that replaces it asks only the group's
    coordinator, but in librdkafka 2.16 it aborts the process if the connection breaks while it is under way, as other
    requests to coordinators do (confluentinc/librdkafka#4605).
    """
    deadline_s = time.monotonic() + timeout_s
    found = _list_members(admin, group, timeout_s)
    if found is None:
        _ask_coordinator(kafka, group, deadline_s - time.monotonic())
        found = _list_members(admin, group, max(_SHORTEST_S, deadline_s - time.monotonic()))
    return found or []


def _list_members(admin: AdminClient, group: str, timeout_s: float) -> list[ListedMember] | None:
    """Return the members of a group, or None if Kafka does not list the group."""
    listed: list[Any] = admin.list_groups(group, timeout=timeout_s)  # its fields have no types
    if not listed:
        return None
    members = []
    for found in listed:
        if found.error is not None:
            raise KafkaException(found.error)
        for member in found.members:
            assigned = _decode_assignment(member.assignment) if found.protocol_type == _CONSUMER else []
            members.append(ListedMember(member.id[:-_SUFFIX_LENGTH], member.client_id, assigned))
    return members


def _ask_coordinator(kafka: KafkaSettings, group: str, timeout_s: float) -> None:
    """Raise KafkaException if Kafka may have omitted a group from its list although the group exists.

    It does so while the group's coordinator is loading it, and if this client is not permitted to describe it. A
    request for committed offsets waits for the coordinator, but not always for one that is only being created or is
    loading. Without this permission, it waits until the timeout.
    """
    deadline_s = time.monotonic() + timeout_s
    # Whatever it could log, `admin` logs as well.
    quiet = {"log_level": 0}
    with closing(Consumer(kafka.client_config(group_id=group, enable_auto_commit=False) | quiet)) as consumer:
        while True:
            try:
                consumer.committed([TopicPartition(group, 0)], max(_SHORTEST_S, deadline_s - time.monotonic()))
            except KafkaException as error:
                if is_passing(error) and time.monotonic() + _SHORTEST_S < deadline_s:
                    time.sleep(_SHORTEST_S)
                    continue
                fault = error.args[0]
                reason = f"its coordinator does not answer: is this user permitted to describe it? ({fault.str()})"
                raise KafkaException(KafkaError(fault.code(), reason)) from error
            return


def _decode_assignment(assignment: bytes) -> list[TopicPartition]:
    """Decode a ``ConsumerProtocolAssignment`` message up to its user data. It is empty while the group rebalances.

    https://github.com/apache/kafka/blob/4.0.0/clients/src/main/resources/common/message/ConsumerProtocolAssignment.json
    """
    if not assignment:
        return []
    assigned = []
    try:
        _version, topics = struct.unpack_from(">hi", assignment)
        at = struct.calcsize(">hi")
        for _ in range(topics):
            (length,) = struct.unpack_from(">h", assignment, at)
            topic, count = struct.unpack_from(f">{length}si", assignment, at + 2)
            at += 2 + length + 4
            partitions = struct.unpack_from(f">{count}i", assignment, at)
            at += 4 * count
            assigned += [TopicPartition(topic.decode(), partition) for partition in partitions]
    except (struct.error, ValueError) as error:
        fault = KafkaError(KafkaError._BAD_MSG, f"an assignment cannot be read: {error}")  # noqa: SLF001 - its only name
        raise KafkaException(fault) from error
    return assigned
