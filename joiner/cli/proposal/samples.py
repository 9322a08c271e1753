"""The messages from which settings are proposed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Sample(NamedTuple):
    """A message. A line of a file has no ``key``, and its ``append_ms`` and ``offset`` are meaningless.

    ``append_ms``: when Kafka appended the message, in ms since the epoch.
    """

    partition: int
    offset: int
    append_ms: int
    key: bytes | None
    value: bytes | None


class Source(NamedTuple):
    """Some messages of a topic, in the order of each partition.

    ``partitions``: the number of the topic's partitions, or 0 if the messages come from a file.
    """

    topic: str
    partitions: int
    samples: Sequence[Sample]

    @property
    def is_file(self) -> bool:
        """Whether the messages come from a file, so that neither their keys nor their partitions are known."""
        return not self.partitions


class UnusableSource(Exception):
    """Raised if settings cannot be proposed. The message says for which topic or file, why, and what to do."""


class Question(Exception):
    """Raised if only a person can decide. The message is the question, and says how to answer it."""
