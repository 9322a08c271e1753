"""Defines ``[[stream]]``: how the records of a stream are read from messages that other programs produce.

Also defines ``[registry]``, where the schemas of such messages are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from broker.settings import (
    CertificateFile,
    Duration,
    SecretFile,
    Section,
    TopicName,
    duration_between,
    read_secret,
)
from broker.times import parse_duration
from broker.wire.records import NAME_LENGTH_MAX
from joiner.mapping.conditions import parse_condition, parse_literal
from joiner.mapping.paths import parse_path

KAFKA_TIMESTAMP = "kafka.timestamp"
"""As ``time``: the time at which Kafka appended the message."""

_TOPIC_LENGTH_MAX = 249
"""Kafka's limit."""

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
    """A ``[[stream]]``: a topic whose messages have any layout, and where its records' fields are in them.

    ``format``: of the messages. All but plain JSON begin with the id of a schema (see `joiner.mapping.framing`).

    ``key``, ``time``, ``value`` and ``id`` are paths (see `joiner.mapping.paths`). ``key`` can also be a string in
    quotes or ``kafka.key``, and ``time`` can be ``kafka.timestamp``. Without ``id``, a record is identified by its
    offset. Messages for which ``where`` is false are not part of the stream. ``repartition``: whether the joiner first
    copies the topic to one that is partitioned by ``key`` (see `joiner.runtime.repartition`).
    """

    name: Annotated[str, Field(min_length=1, max_length=256)]
    topic: TopicName
    format: Literal["json", "avro", "json_schema", "protobuf"] = "json"
    key: Annotated[str, AfterValidator(_path_or_literal)]
    time: Annotated[str, AfterValidator(_path_or_timestamp)]
    time_unit: Literal["s", "ms", "us", "ns"] | None = None
    value: PathText
    id: PathText | None = None
    where: Annotated[str, AfterValidator(_condition)] | None = None
    repartition: bool = False

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
        # The defaults are left out, because the states of earlier releases have neither.
        defaults = {
            name for name, default in (("format", "json"), ("repartition", False)) if getattr(self, name) == default
        }
        without = {"name"} | defaults
        return {**self.model_dump(exclude=without), "time_unit": self.time_unit or time_unit}

    @property
    def needs_registry(self) -> bool:
        """Whether its messages can be decoded only with schemas from a registry."""
        return self.format in {"avro", "protobuf"}


def _http_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        # As the resolver does it: it fails, for example, if a label is empty or longer than 63 characters.
        (parts.hostname or "").encode("idna")
    except ValueError:
        usable = False
    if not usable or re.search(r"[^!-~]|[?#]", text):
        message = (
            "must be an http:// or https:// URL with a host and, optionally, a port and a path; in a path, write é as "
            "%C3%A9, for example"
        )
        raise ValueError(message)
    if "@" in parts.netloc:
        message = "must not contain a user name or password: set registry.user and registry.password_file"
        raise ValueError(message)
    return text.rstrip("/")


class RegistrySettings(Section):
    """``[registry]``: the schema registry, for streams whose messages begin with the id of a schema.

    ``timeout``: of a request. ``unknown_schema``: whether a unit waits at a message whose schema the registry does not
    know, or rejects it.
    """

    url: Annotated[str, AfterValidator(_http_url)] | None = None
    user: Annotated[str, Field(pattern="^[^:]+$")] | None = None
    password: SecretStr | None = None
    password_file: SecretFile = None
    ca_file: CertificateFile = None
    timeout: Annotated[Duration, duration_between("100ms", "30s")] = parse_duration("3s")
    unknown_schema: Literal["stop", "reject"] = "stop"

    @model_validator(mode="after")
    def _check_user(self) -> Self:
        if self.user is None and (self.password is not None or self.password_file is not None):
            message = "a password is set without a user: set user as well"
            raise ValueError(message)
        return self

    def secret(self) -> str | None:
        """Return the password, or None if none is set. A password file takes precedence over ``password``."""
        if self.password_file is not None:
            return read_secret(self.password_file)
        return self.password.get_secret_value() if self.password else None


def mistakes_of_streams(
    streams: Sequence[StreamSettings],
    registry: RegistrySettings,
    partitions: int,
    topic_of: Callable[[StreamSettings], str],
) -> list[str]:
    """Return what is wrong with all streams taken together.

    ``partitions``: the number of partitions of each input topic. ``topic_of``: returns the input topic of a stream.
    """
    return _mistakes_of_formats(streams, registry) + _mistakes_of_partitions(streams, partitions, topic_of)


def _mistakes_of_formats(streams: Sequence[StreamSettings], registry: RegistrySettings) -> list[str]:
    formats: dict[str, set[str]] = {}
    for stream in streams:
        formats.setdefault(stream.topic, set()).add(stream.format)
    mistakes = [
        f"the streams of the topic {topic!r} have different formats ({', '.join(sorted(found))}): a topic has one"
        for topic, found in sorted(formats.items())
        if len(found) > 1
    ]
    if registry.url is None:
        needing = sorted({stream.format for stream in streams if stream.needs_registry})
        mistakes += [f"a [[stream]] has the format {one!r}, which needs registry.url" for one in needing]
    return mistakes


def _mistakes_of_partitions(
    streams: Sequence[StreamSettings], partitions: int, topic_of: Callable[[StreamSettings], str]
) -> list[str]:
    mistakes = [
        f"the [[stream]] {stream.name!r} has the same key in all messages, but its topic has {partitions} partitions: "
        "use a path, or set repartition = true"
        for stream in streams
        if parse_literal(stream.key) is not None and partitions > 1 and not stream.repartition
    ]
    keys: dict[str, set[str]] = {}
    for stream in streams:
        if stream.repartition:
            keys.setdefault(topic_of(stream), set()).add(stream.key)
    mistakes += [
        f"the streams that are read from {topic!r} have repartition = true, but different keys "
        f"({', '.join(sorted(found))}), and a copy has only one: give them the same key, or read the topic for each "
        "key in an application of its own"
        for topic, found in keys.items()
        if len(found) > 1
    ]
    mistakes += [
        f"the topic {topic!r} cannot be created, because its name has more than {_TOPIC_LENGTH_MAX} characters: choose "
        "a shorter application.name"
        for topic in keys
        if len(topic) > _TOPIC_LENGTH_MAX
    ]
    return mistakes
