"""Tells errors of Kafka clients apart."""

from __future__ import annotations

from confluent_kafka import KafkaError


def is_fatal(error: KafkaError) -> bool:
    """Return whether a client has failed for good.

    Only `poll`, `flush` and error events name the fatal error itself; other calls wrap it in an error of their own.
    """
    return error.fatal() or error.code() == KafkaError._FATAL  # noqa: SLF001 - the public name of the constant
