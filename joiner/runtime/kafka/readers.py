"""The consumers with which a unit is read for a claim: connected once, used for one question after another.

Each connection costs some ten milliseconds, which is most of the time of a claim. What they answer is always asked
anew: nothing that was read is believed a second time, but the part of the state topic that lies before its end then
(see `checkpoint_log.read_on`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from confluent_kafka import Consumer

from joiner.runtime.kafka.clients import log_range, make_consumer, make_reader
from joiner.runtime.settings import JoinerSettings

if TYPE_CHECKING:
    from joiner.runtime.model import StateLog


class ClaimCancelled(Exception):
    """Nobody wants the unit to be taken any more."""


class Readers:
    """Consumers for one unit, and what was read of its state. For one thread at a time."""

    def __init__(self, settings: JoinerSettings) -> None:
        self._settings = settings
        self.is_over: Callable[[], bool] = lambda: False
        """Whether what they are used for is called off."""
        self.state: StateLog | None = None
        """All that the state topic held of the unit when it was last read, where somebody has read all of it."""
        self.begun_at: dict[str, int] | None = None
        """The vector at which the application had begun with the unit then: another one after a reset."""

    @cached_property
    def stable(self) -> Consumer:
        """Sees what is decided; it is only asked for ends."""
        return make_consumer(self._settings.kafka, self._settings.application.name)

    @cached_property
    def everything(self) -> Consumer:
        """Reads what is open or rolled back, too."""
        more = {"isolation_level": "read_uncommitted"}
        return make_reader(self._settings.kafka, self._settings.application.name, **more)

    @cached_property
    def log(self) -> Consumer:
        """Reads a log to its end."""
        return make_reader(self._settings.kafka, self._settings.application.name)

    def connect(self, unit: int) -> None:
        """Reach Kafka with all of them. Raises KafkaException."""
        for consumer in (self.stable, self.everything, self.log):
            for topic in (*self._settings.input_topics, self._settings.state_topic):
                log_range(consumer, topic, unit)

    def check(self) -> None:
        """Asked at each step of what may last. Raises `ClaimCancelled`."""
        if self.is_over():
            raise ClaimCancelled

    def close(self) -> None:
        """Close those that were made."""
        for name in ("stable", "everything", "log"):
            if name in self.__dict__:
                self.__dict__.pop(name).close()


@contextmanager
def reading(settings: JoinerSettings, kept: Readers | None) -> Iterator[Readers]:
    """Those that somebody has kept, or new ones for as long as this lasts."""
    if kept is not None:
        yield kept
        return
    with closing(Readers(settings)) as made:
        yield made
