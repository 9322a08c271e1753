"""Whether Kafka answers: asked first by commands that a user waits for.

The other requests give up after half a minute with a reason that names a part of the protocol. Not for services,
which wait for as long as Kafka is away.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from broker.kafka.client_log import answered
from joiner.runtime.kafka.clients import KAFKA_LOG

_SILENT_S: Final = 0.5
"""A Kafka that is well has answered by then, and nothing need be said."""

_SLICE_S: Final = 3.0
"""Longest wait of one call, during which Ctrl-C is not looked at."""

_log = logging.getLogger(__name__)


class KafkaAway(Exception):
    """Kafka does not answer; ``str`` says where, why, and what to do."""


def reach_kafka(admin: AdminClient, servers: str, within_s: float) -> None:
    """Return as soon as Kafka at ``servers`` answers. Raises `KafkaAway` when ``within_s`` have passed."""
    deadline_s = time.monotonic() + within_s
    wait_s, told = min(_SILENT_S, within_s), False
    while True:
        try:
            admin.list_topics(timeout=wait_s)
        except KafkaException as error:
            admin.poll(0)  # hands the library's own lines to the log: they name the cause
            wait_s = min(deadline_s - time.monotonic(), _SLICE_S)
            if wait_s <= 0:
                message = (
                    f"Kafka at {servers} does not answer within {within_s:g} s ({error.args[0].str()}): "
                    "is it running, and is kafka.bootstrap_servers (or LSB_KAFKA__BOOTSTRAP_SERVERS) right?"
                )
                raise KafkaAway(message) from error
        else:
            answered(KAFKA_LOG)
            return
        if not told:
            told = True
            _log.warning("waiting for Kafka at %s, at most %g s", servers, within_s)
