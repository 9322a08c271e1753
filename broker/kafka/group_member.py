"""Kafka client settings for all services that are members of a consumer group."""

from __future__ import annotations

from typing import Final

_POLL_INTERVAL_MS: Final = 60_000
"""How long a rebalance waits for a member that does not respond, even if its process has ended. The default is five
minutes. Every service polls more often than this."""

METADATA_REFRESH_MS: Final = 5_000
"""How often a member refreshes the metadata of its topics, at the cost of one small request.

A member that joins without up-to-date metadata requests it and waits. librdkafka loses that request if it is in flight
on a bootstrap connection that the client replaces with one to the broker itself. The member then waits for the next
periodic request, by default for five minutes; until then the group has no members and nothing is processed (seen with
librdkafka 2.16 after a kill of Kafka on a busy machine: ``_DESTROY_BROKER`` in join state ``wait-metadata``)."""


def member_config(session_timeout_ns: int, instance: str | None) -> dict[str, str | float | bool]:
    """Return a member's settings for `KafkaSettings.client_config`. ``instance`` is the name of a static member."""
    session_timeout_ms = session_timeout_ns // 1_000_000
    config: dict[str, str | float | bool] = {
        "session_timeout_ms": session_timeout_ms,
        "max_poll_interval_ms": max(_POLL_INTERVAL_MS, session_timeout_ms),
        "partition_assignment_strategy": "cooperative-sticky",
        "topic_metadata_refresh_interval_ms": METADATA_REFRESH_MS,
    }
    return config if instance is None else config | {"group_instance_id": instance}
