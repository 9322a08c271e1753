"""The client settings of a member of a consumer group: the same for all services that share partitions."""

from __future__ import annotations

from typing import Final

_POLL_INTERVAL_MS: Final = 60_000
"""How long a rebalance waits for a member that does not answer, even for one that has ended; five minutes by default.
Longer than any service goes without polling its group."""

METADATA_REFRESH_MS: Final = 5_000
"""How often a member asks for the metadata of its topics, which takes one small request.

A member that joins without up-to-date metadata asks for it and waits. librdkafka loses that request if it is in flight
on a bootstrap connection when the connection is replaced by the broker behind it, and the member then waits for the
next periodic request: by default five minutes, in which the group has no members and nothing is served (seen with
librdkafka 2.16 after a kill of Kafka on a busy machine: ``_DESTROY_BROKER`` in join state ``wait-metadata``)."""


def member_config(session_timeout_ns: int, instance: str | None) -> dict[str, str | float | bool]:
    """The settings of a member, for `KafkaSettings.client_config`. ``instance``: the name of a static member."""
    session_timeout_ms = session_timeout_ns // 1_000_000
    config: dict[str, str | float | bool] = {
        "session_timeout_ms": session_timeout_ms,
        "max_poll_interval_ms": max(_POLL_INTERVAL_MS, session_timeout_ms),
        "partition_assignment_strategy": "cooperative-sticky",
        "topic_metadata_refresh_interval_ms": METADATA_REFRESH_MS,
    }
    return config if instance is None else config | {"group_instance_id": instance}
