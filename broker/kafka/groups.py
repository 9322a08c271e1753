"""Asks Kafka for the members of a consumer group."""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

_CONSUMER: Final = "consumer"
"""The protocol type of groups that assign topic partitions."""

_SUFFIX_LENGTH: Final = len("-00000000-0000-0000-0000-000000000000")
"""A group's coordinator appends a UUID to a member's static name or client id, and uses this as the member's id."""


class GroupMember(NamedTuple):
    """A member of a consumer group."""

    name: str
    """Its static name (``group.instance.id``), or its client id if it is a dynamic member."""
    client_id: str
    assigned: list[TopicPartition]


def read_group(admin: AdminClient, group: str, timeout_s: float) -> list[GroupMember]:
    """Return the members of a group. Blocks for up to ``timeout_s`` seconds.

    There are none if the group does not exist, and none are known if its coordinator is being replaced or this client
    is not permitted to describe the group. Raises KafkaException if a broker does not answer. If one is down, this
    lasts until the client has refreshed its metadata.

    `AdminClient.list_groups` is deprecated, and asks every broker. The request that replaces it asks only the group's
    coordinator, but in librdkafka 2.16 it aborts the process if the connection breaks while it is under way, as other
    requests to coordinators do (confluentinc/librdkafka#4605).
    """
    members = []
    listed: list[Any] = admin.list_groups(group, timeout=timeout_s)  # its fields have no types
    for found in listed:
        if found.error is not None:
            raise KafkaException(found.error)
        for member in found.members:
            assigned = _decode_assignment(member.assignment) if found.protocol_type == _CONSUMER else []
            members.append(GroupMember(member.id[:-_SUFFIX_LENGTH], member.client_id, assigned))
    return members


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
