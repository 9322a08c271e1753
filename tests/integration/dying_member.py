"""A member of a consumer group that dies when a partition is revoked.

``python -m tests.integration.dying_member <bootstrap servers> <group> <topic> <instance>``
"""

from __future__ import annotations

import os
import sys
from typing import Any

from broker.settings import KafkaSettings
from joiner.runtime.kafka.clients import make_consumer

_SESSION_MS = 60_000


def main(servers: str, group: str, topic: str, instance: str) -> None:
    consumer: Any = make_consumer(
        KafkaSettings(bootstrap_servers=servers),
        group,
        group_instance_id=instance,
        session_timeout_ms=_SESSION_MS,
        partition_assignment_strategy="cooperative-sticky",
    )
    consumer.subscribe(
        [topic],
        on_assign=lambda consumer, places: consumer.incremental_assign(places),
        on_revoke=lambda *_: os._exit(0),
    )
    while True:
        consumer.poll(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
