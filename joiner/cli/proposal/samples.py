"""The messages from which settings are proposed, and what else is known of their source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from joiner.mapping.framing import Schemas

Simple = str | int | float | bool
"""The value of a setting, without lists and tables."""


class Sample(NamedTuple):
    """A message. A line of a file has no ``key``, and its ``append_ms`` and ``offset`` are meaningless.

    ``append_ms``: when Kafka appended the message, in ms since the epoch.
    """

    partition: int
    offset: int
    append_ms: int
    key: bytes | None
    value: bytes | None


class Registry(NamedTuple):
    """A schema registry. ``schemas`` raises `UnusableSource` if the registry does not answer."""

    url: str
    schemas: Schemas


class Source(NamedTuple):
    """Some messages of a topic, in the order of each partition.

    ``partitions``: the number of the topic's partitions, or 0 if the messages come from a file. ``registry``: where
    the schemas of the messages are, or None if no registry is known. ``time_unit``: that of the pipeline's own records,
    or None if it is not known.
    """

    topic: str
    partitions: int
    samples: Sequence[Sample]
    registry: Registry | None = None
    time_unit: str | None = None

    @property
    def is_file(self) -> bool:
        """Whether the messages come from a file, so that neither their keys nor their partitions are known."""
        return not self.partitions


class Table(NamedTuple):
    """A table of the proposed settings that does not depend on the messages.

    ``header``: such as ``[kafka]``. ``comments``: lines above it.
    """

    header: str
    values: Mapping[str, Simple]
    comments: Sequence[str] = ()


class UnusableSource(Exception):
    """Raised if settings cannot be proposed. The message says for which topic or file, why, and what to do."""


class Question(Exception):
    """Raised if only a person can decide. The message is the question, and says how to answer it."""
