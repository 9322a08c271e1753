"""Closes members of consumer groups that have been assigned partitions, but have not polled since.

``python -m tests.integration.closing_members <bootstrap servers> <topic>``
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Final

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from broker.kafka.group_member import give_partitions_back, member_config
from broker.kafka.groups import read_group
from broker.settings import KafkaSettings
from tests.integration.services import wait_until

MEMBERS: Final = 20
"""If partitions were not given back first, about one in six would hang."""

_SESSION_NS: Final = 6_000_000_000
_ANSWER_S: Final = 10.0


def main(servers: str, topic: str) -> None:
    kafka = KafkaSettings(bootstrap_servers=servers)
    members: dict[str, Consumer] = {}
    for number in range(MEMBERS):
        group = f"{topic}-{number}"
        members[group] = Consumer(kafka.client_config(group_id=group, **member_config(_SESSION_NS, "one")))
        members[group].subscribe(
            # The error about the missing topic is queued before the assignment.
            [topic, f"{topic}.missing"],
            on_assign=lambda consumer, places: consumer.incremental_assign(places),
            on_revoke=lambda consumer, places: consumer.incremental_unassign(places),
        )
    admin = AdminClient(kafka.client_config())
    for group, consumer in members.items():
        wait_until(partial(_is_assigned, admin, kafka, group), f"{group} has a member with partitions")
        give_partitions_back(consumer)
        consumer.close()


def _is_assigned(admin: AdminClient, kafka: KafkaSettings, group: str) -> bool:
    return any(member.assigned for member in read_group(admin, kafka, group, _ANSWER_S))


if __name__ == "__main__":
    main(*sys.argv[1:])
