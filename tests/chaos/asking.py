"""Asks for the members of a consumer group until it is killed, and writes a line for each answer.

``python -m tests.chaos.asking <bootstrap servers> <group>``
"""

from __future__ import annotations

import sys

from confluent_kafka import KafkaException

from broker.kafka.groups import read_group
from broker.settings import KafkaSettings
from joiner.runtime.kafka.clients import make_admin


def main(servers: str, group: str) -> None:
    kafka = KafkaSettings(bootstrap_servers=servers)
    admin = make_admin(kafka)
    while True:
        try:
            members = read_group(admin, kafka, group, 1.0)
            read_group(admin, kafka, f"not-{group}", 1.0)
        except KafkaException:
            continue
        sys.stdout.write(f"{len(members)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
