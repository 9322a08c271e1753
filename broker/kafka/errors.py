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


def is_denied(error: KafkaError) -> bool:
    """Return whether Kafka denies access to a topic or a group. The error does not name it."""
    return error.code() in {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED}


@contextmanager
def unwrap_fatal_errors() -> Iterator[None]:
    """Raise the KafkaException of a fatal error that a delivery callback has made a SystemError.

    If a producer fails while it delivers messages, for example because it is fenced, confluent-kafka sets the error
    before it calls the callback, which Python does not allow.
    """
    try:
        yield
    except SystemError as error:
        cause = error.__cause__
        if not isinstance(cause, KafkaException):
            raise
        # The context of what is raised here is the SystemError. If that also referred to its cause, this cycle would
        # keep the producer alive until the next garbage collection, and so would a variable of this frame.
        error.__cause__ = error.__context__ = None
        try:
            raise cause from None
        finally:
            del cause
