"""Kafka client settings for all services that are members of a consumer group."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from confluent_kafka import Consumer, KafkaException

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

_GIVING_BACK_S: Final = 1.0
"""Time limit for giving partitions back, besides the time of the callbacks. It requires no response from Kafka."""

_PENDING_S: Final = 0.02
"""How long to wait for further events."""


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


def give_partitions_back(consumer: Consumer, now_s: Callable[[], float] = time.monotonic) -> None:
    """Unsubscribe, and poll until the consumer has no partitions, so that it can be closed. Discards messages.

    If a consumer is closed during a rebalance, its callback can wait forever for a response from a thread that has
    already ended (confluentinc/librdkafka#4884). It keeps the interpreter's lock while it waits, which stops the whole
    process. Polling is necessary even without partitions: an assignment may have arrived since the last poll, and may
    be queued behind an error or a message, each of which ends a poll.
    """
    with suppress(KafkaException):  # the consumer has failed permanently
        consumer.unsubscribe()
    until_s = now_s() + _GIVING_BACK_S
    while (consumer.poll(_PENDING_S) is not None or consumer.assignment()) and now_s() < until_s:
        pass
