"""Checks that Kafka is reachable, before an interactive command sends its first request.

Without this check, the request would fail after half a minute with an error about the Kafka protocol. Services do not
use the check: they keep waiting for as long as Kafka is unreachable.
"""

from __future__ import annotations

import logging
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from broker.kafka.client_log import answered
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.clients import KAFKA_LOG

_SILENT_S: Final = 0.5
"""How long to wait before logging that Kafka is not answering. A healthy broker answers within this time."""

_SLICE_S: Final = 3.0
"""Longest wait in a single call to the Kafka client, because Ctrl-C does not interrupt such a call."""

_log = logging.getLogger(__name__)


class KafkaAway(Exception):
    """Kafka does not answer. The message names the servers and the reason, and says what to do."""


def reach_kafka(admin: AdminClient, servers: str, within_s: float, clock: Clock) -> None:
    """Wait until Kafka at ``servers`` answers. Raises `KafkaAway` if it does not answer within ``within_s`` seconds."""
    deadline_s = clock.monotonic_s() + within_s
    wait_s, is_logged = min(_SILENT_S, within_s), False
    while True:
        try:
            admin.list_topics(timeout=wait_s)
        except KafkaException as error:
            admin.poll(0)  # forwards the library's own log lines, which name the cause
            wait_s = min(deadline_s - clock.monotonic_s(), _SLICE_S)
            if wait_s <= 0:
                message = (
                    f"Kafka at {servers} did not answer within {within_s:g} s ({error.args[0].str()}): "
                    "is it running, and is kafka.bootstrap_servers (or LSB_KAFKA__BOOTSTRAP_SERVERS) right?"
                )
                raise KafkaAway(message) from error
        else:
            answered(KAFKA_LOG)
            return
        if not is_logged:
            is_logged = True
            _log.warning("waiting for Kafka at %s for up to %g s", servers, within_s)
