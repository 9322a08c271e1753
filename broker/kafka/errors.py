"""Tells errors of Kafka clients apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException


def is_fatal(error: KafkaError) -> bool:
    """Return whether a client has failed for good.

    Only `poll`, `flush` and error events name the fatal error itself; other calls wrap it in an error of their own.
    """
    return error.fatal() or error.code() == KafkaError._FATAL  # noqa: SLF001 - the public name of the constant


@contextmanager
def unwrap_fatal_errors() -> Iterator[None]:
    """Raise the KafkaException of a fatal error that a delivery callback has made a SystemError.

    If a producer fails while it delivers messages, for example because it is fenced, confluent-kafka sets the error
    before it calls the callback, which Python does not allow.
    """
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None
        raise
