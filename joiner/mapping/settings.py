"""Defines ``[[stream]]``: how the records of a stream are read from messages that other programs produce."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from broker.settings import Section, TopicName
from broker.wire.records import NAME_LENGTH_MAX
from joiner.mapping.conditions import parse_condition, parse_literal
from joiner.mapping.paths import parse_path

KAFKA_TIMESTAMP = "kafka.timestamp"
"""As ``time``: the time at which Kafka appended the message."""

KAFKA_KEY = "kafka.key"
"""As ``key``: the key of the Kafka message."""


def _path(text: str) -> str:
    parse_path(text)
    return text


def _path_or_literal(text: str) -> str:
    if text == KAFKA_KEY:
        return text
    literal = parse_literal(text)
    if literal is None:
        parse_path(text)
    elif not 1 <= len(literal) <= NAME_LENGTH_MAX:
        message = f"a key has 1 to {NAME_LENGTH_MAX} characters, not {len(literal)}"
        raise ValueError(message)
    return text


def _path_or_timestamp(text: str) -> str:
    if text != KAFKA_TIMESTAMP:
        parse_path(text)
    return text


def _condition(text: str) -> str:
    parse_condition(text)
    return text


PathText = Annotated[str, AfterValidator(_path)]


class StreamSettings(Section):
    """A ``[[stream]]``: a topic whose messages are JSON of any layout, and where its records' fields are in them.

    ``key``, ``time``, ``value`` and ``id`` are paths (see `joiner.mapping.paths`). ``key`` can also be a string in
    quotes or ``kafka.key``, and ``time`` can be ``kafka.timestamp``. Without ``id``, a record is identified by its
    offset. Messages for which ``where`` is false are not part of the stream.
    """

    name: Annotated[str, Field(min_length=1, max_length=256)]
    topic: TopicName
    key: Annotated[str, AfterValidator(_path_or_literal)]
    time: Annotated[str, AfterValidator(_path_or_timestamp)]
    time_unit: Literal["s", "ms", "us", "ns"] | None = None
    value: PathText
    id: PathText | None = None
    where: Annotated[str, AfterValidator(_condition)] | None = None

    @model_validator(mode="after")
    def _time_of_kafka_is_that_of_arrival(self) -> Self:
        if self.time == KAFKA_TIMESTAMP and self.id is not None:
            # A redelivered record has the same key, time and id, but its time of arrival is another.
            message = (
                f"{KAFKA_TIMESTAMP} cannot be combined with an id, because no redelivered record would be recognised"
            )
            raise ValueError(message)
        if self.time == KAFKA_TIMESTAMP and self.time_unit is not None:
            message = f"time_unit is for times in messages, not for {KAFKA_TIMESTAMP}"
            raise ValueError(message)
        return self

    def semantics(self, time_unit: str) -> dict[str, Any]:
        """Return what affects which records the stream has. ``time_unit``: the application's, the default."""
        return {**self.model_dump(exclude={"name"}), "time_unit": self.time_unit or time_unit}
