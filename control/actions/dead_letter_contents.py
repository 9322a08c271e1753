"""Reads a dead letter with its contents, on demand."""

from __future__ import annotations

import threading
from contextlib import closing
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec
from anyio import to_thread
from confluent_kafka import KafkaException

from broker.settings import SettingsError
from broker.wire.records import reject
from control.actions.candidates import candidate_of
from control.facts.dead_letter_reading import LetterGone, read_message
from control.facts.dead_letters import DeadLetter, describe, whole_value
from control.problem import Problem
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.batches.registry import SchemaUnavailable
from joiner.runtime.kafka.clients import describe as cause_of
from joiner.runtime.kafka.clients import make_reader

if TYPE_CHECKING:
    from joiner.runtime.clock import Clock
    from joiner.runtime.settings import JoinerSettings

_DEADLINE_S: Final = 5.0
_READERS_MAX: Final = 4
_VALUE_MAX: Final = 100_000
"""Longer values are cut. Everything the services write is shorter."""

_readers: Final = threading.BoundedSemaphore(_READERS_MAX)


class TooManyReaders(Exception):
    """Too many others are reading dead letters."""


class DeadLetterContents(msgspec.Struct, frozen=True):
    """A dead letter with its contents.

    ``value``: the rejected input or, if the message is not a dead letter, the message itself, as text in ``encoding``:
    ``utf-8`` or ``base64``. ``is_whole``: whether ``value`` is complete. ``unchanged``: why the record cannot be put
    back as it is, and what to do, or an empty string.
    """

    letter: DeadLetter
    value: str
    encoding: str
    is_whole: bool
    unchanged: str


def read_contents(settings: JoinerSettings, clock: Clock, partition: int, offset: int) -> DeadLetterContents:
    """Return the dead letter at this partition and offset of its topic.

    Blocks for up to five seconds and, if a schema is needed, for as long as its registry may take to answer.

    Raises `LetterGone`, `TooManyReaders`, and KafkaException if Kafka does not answer in time.
    """
    if not _readers.acquire(blocking=False):
        raise TooManyReaders("too many others are reading dead letters: try again")
    try:
        place, until_s = (settings.topics.rejected, partition, offset), clock.monotonic_s() + _DEADLINE_S
        with closing(make_reader(settings.kafka, settings.application.name)) as consumer:
            message = read_message(consumer, clock, place, until_s)
    finally:
        _readers.release()
    at_ms, value = int(message.timestamp()[1]), message.value()
    letter, content = describe(settings, partition, offset, at_ms, value)
    try:
        candidate = candidate_of(settings, message, None, round(1000 * clock.wall_s()))
    except SchemaUnavailable as reason:
        candidate = str(reason)
    shown = content or reject(value, "", source="", topic="")
    is_whole = whole_value(shown) is not None and len(shown.value) <= _VALUE_MAX
    unchanged = candidate if isinstance(candidate, str) else ""
    return DeadLetterContents(letter, shown.value[:_VALUE_MAX], shown.encoding, is_whole, unchanged)


async def contents_of(settings: JoinerSettings, partition: int, offset: int) -> DeadLetterContents:
    """Return a dead letter with its contents. Reads it in another thread. Raises `Problem`."""
    try:
        return await to_thread.run_sync(
            read_contents, settings, SystemClock(), partition, offset, abandon_on_cancel=True
        )
    except LetterGone as gone:
        raise Problem(HTTPStatus.NOT_FOUND, f"there is no such dead letter: {gone}") from gone
    except TooManyReaders as error:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error), Retry_After="1") from error
    except (KafkaException, SettingsError) as error:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"it cannot be read: {cause_of(error)}") from error
