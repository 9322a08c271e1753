"""Kafka client settings for all services that are members of a consumer group."""

from __future__ import annotations

from typing import Final

_POLL_INTERVAL_MS: Final = 60_000
"""How long a rebalance waits for a member that does not respond, even if that member's process has ended. Kafka's
default is five minutes. A shorter time is safe because every service polls more often than this."""

METADATA_REFRESH_MS: Final = 5_000
"""How often a group member refreshes the metadata of its topics. Each refresh costs one small request.

A member without up-to-date metadata requests it before it joins the group, and waits for the response. librdkafka loses
the request if it is in flight on a bootstrap connection when the client replaces that connection with one to the broker
itself. The member then waits for the next periodic refresh, by default for up to five minutes. Until then the group has
no members and nothing is processed. This was seen with librdkafka 2.16 after Kafka had been killed on a busy machine
(``_DESTROY_BROKER`` in join state ``wait-metadata``)."""


def member_config(session_timeout_ns: int, instance: str | None) -> dict[str, str | float | bool]:
    """Return the settings of a group member, to pass to `KafkaSettings.client_config`.

    ``instance``: the member's static name (``group.instance.id``), or None for a dynamic member.
    """
    session_timeout_ms = session_timeout_ns // 1_000_000
    config: dict[str, str | float | bool] = {
        "session_timeout_ms": session_timeout_ms,
        "max_poll_interval_ms": max(_POLL_INTERVAL_MS, session_timeout_ms),
        "partition_assignment_strategy": "cooperative-sticky",
        "topic_metadata_refresh_interval_ms": METADATA_REFRESH_MS,
    }
    return config if instance is None else config | {"group_instance_id": instance}
