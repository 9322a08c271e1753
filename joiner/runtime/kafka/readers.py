"""The consumers that read a unit's logs during a claim. They connect once and serve several requests.

Connecting takes about ten milliseconds, which is most of the time a claim takes. Nothing they read is cached except the
part of the state topic already read (see `checkpoint_log.read_on`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer

from joiner.runtime.clock import Clock
from joiner.runtime.kafka.batches.gaps import GapVerifier
from joiner.runtime.kafka.clients import log_range, make_batch_consumer, make_consumer, make_reader
from joiner.runtime.settings import JoinerSettings

if TYPE_CHECKING:
    from joiner.runtime.model import Basis, StateLog

_FETCH_WAIT_MS: Final = 1
"""How long brokers wait for more data at the end of a log. A claim reads four logs to their end, one after another."""


class ClaimCancelled(Exception):
    """The unit's claim, or its warm state, is no longer wanted."""


class Readers:
    """The consumers for one unit, and the unit's state log once it has been read. Not thread-safe."""

    def __init__(self, settings: JoinerSettings, clock: Clock) -> None:
        self.settings, self.clock = settings, clock
        self.is_over: Callable[[], bool] = lambda: False
        """Returns whether the claim was cancelled, or the state is no longer wanted."""
        self.state: StateLog | None = None
        """The unit's log in the state topic, or None if it has not been read completely."""
        self.basis: Basis | None = None
        """The basis of the checkpoint in `state` when that was first read."""

    @cached_property
    def stable(self) -> Consumer:
        """Reads committed data. Used only to find the stable ends of logs."""
        return make_consumer(self.settings.kafka, self.settings.application.name)

    @cached_property
    def everything(self) -> Consumer:
        """Reads all records, including uncommitted and aborted ones."""
        return self._make_reader(isolation_level="read_uncommitted")

    @cached_property
    def log(self) -> Consumer:
        """Reads committed data to the end of a log."""
        return self._make_reader()

    @cached_property
    def input(self) -> Consumer:
        """Reads ranges of the input. Only for `read_range`, which may redirect messages away from the consumer."""
        return make_batch_consumer(self.settings.kafka, self.settings.application.name)

    @cached_property
    def gaps(self) -> GapVerifier:
        """Verifies gaps in the input. Its consumer connects at the first gap."""
        return GapVerifier(self.settings, self.clock)

    def _make_reader(self, **more: str) -> Consumer:
        settings = self.settings
        return make_reader(settings.kafka, settings.application.name, fetch_wait_max_ms=_FETCH_WAIT_MS, **more)

    def connect(self, unit: int) -> None:
        """Connect all consumers. Raises KafkaException if a request fails, and `ClaimCancelled` as `check` does."""
        settings = self.settings
        topics = (*settings.input_topics, settings.state_topic, *settings.output_topics.values())
        for consumer in (self.stable, self.everything, self.log, self.input):
            for topic in topics:
                self.check()
                log_range(consumer, topic, unit)

    def check(self) -> None:
        """Raise `ClaimCancelled` if `is_over`. Long operations must call this between their steps."""
        if self.is_over():
            raise ClaimCancelled

    def close(self) -> None:
        """Close all consumers."""
        for name in ("stable", "everything", "log", "input", "gaps"):
            if name in self.__dict__:
                self.__dict__.pop(name).close()
