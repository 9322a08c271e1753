"""Patches the joiner's modules (their clients, their pools and a few limits) for the duration of a simulated history.

The modules themselves are the production code, and use the world's clock. Only names that they import are replaced, and
constants that would keep a short history from reaching rare cases. The originals are restored at the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Protocol

from confluent_kafka import KafkaException

from broker.kafka import groups
from broker.kafka.topics import TopicFacts
from joiner.runtime.kafka import checkpoint_log, clients, snapshot_log, transaction, unit_producer
from joiner.runtime.membership import older_release, site
from joiner.runtime.membership.site import SiteMembership
from joiner.runtime.ownership import services
from joiner.runtime.runners import process, process_tasks
from joiner.runtime.runners.input import InputConsumer
from joiner.runtime.runners.lifecycle import UnitState
from joiner.runtime.runners.process import JoinerProcess
from tests.simulation.memory_clients import Link, MemoryAdmin, MemoryProducer
from tests.simulation.memory_consumer import MemoryConsumer
from tests.simulation.memory_kafka import MemoryKafka
from tests.simulation.older_release import OlderMembership, membership_of
from tests.simulation.pool import SimulatedPool, Turns

_CHATTER: Final = "joiner.runtime.telemetry.throughput"

CHUNK_BYTES: Final = 600
"""So small that even the snapshots of a history have several chunks."""
TAIL: Final = 12
"""So short that it does not always include the newest checkpoint."""
WAIT_S: Final = 0.2
"""How long a turn of a process waits: the commit interval of most histories."""


def running(joiner: JoinerProcess) -> set[int]:
    """Return the units that the runner is running."""
    return {unit for unit, state in joiner.states.items() if state is UnitState.RUNNING}


class World(Turns, Protocol):
    """The part of the world that the patches use."""

    snapshot_bytes_max: int
    older: set[str]
    """The instances that run the older release."""

    @property
    def link(self) -> Link:
        """The link of the running process."""
        ...

    def note(self, text: str, *arguments: Any) -> None:
        """Add a line to the timeline."""
        ...

    def complain(self, text: str) -> None:
        """Handle an error that a process has logged."""
        ...


class _Lines(logging.Handler):
    """Writes the joiner's log lines into the timeline."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.emit`."""
        if record.name == _CHATTER:
            return
        if record.levelno >= logging.ERROR:
            self._world.complain(record.getMessage())
        self._world.note(str(record.msg), *(record.args if isinstance(record.args, tuple) else (record.args,)))


def facts_of(kafka: MemoryKafka) -> dict[str, TopicFacts]:
    """Return the facts of all topics."""
    return {name: TopicFacts(topic.topic_id, len(topic.logs)) for name, topic in kafka.topics.items()}


def _at_once(_name: str, call: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        future.set_result(call())
    except KafkaException as error:
        future.set_exception(error)
    return future


@contextmanager
def on_stage(world: World) -> Iterator[None]:
    """Patch the joiner's modules to run in ``world``."""
    replaced: list[tuple[Any, str, Any]] = [
        (clients, "Consumer", lambda config, **_: MemoryConsumer(world.link, config)),
        (clients, "PromptConsumer", lambda config, **_: MemoryConsumer(world.link, config)),
        (clients, "Producer", lambda config, **_: MemoryProducer(world.link, config)),
        (groups, "Consumer", lambda config: MemoryConsumer(world.link, config)),
        (clients, "AdminClient", lambda _config, **_: MemoryAdmin(world.link)),
        (site, "start_thread", lambda _target: None),
        (process, "SiteMembership", partial(membership_of, world.older)),
        (services, "ThreadPoolExecutor", partial(SimulatedPool, world)),
        # A single interpreter runs thousands of simulated processes.
        (process, "tune_gc", lambda: None),
        (process, "wait_for_topics", lambda *_: facts_of(world.link.kafka)),
        (snapshot_log, "CHUNK_BYTES_MAX", CHUNK_BYTES),
        (transaction, "SNAPSHOT_BYTES_MAX", world.snapshot_bytes_max),
        # Called in the same thread, because no other thread may run now.
        (unit_producer, "within", lambda _seconds, call, *arguments: call(*arguments)),
        (older_release, "in_background", _at_once),
        (checkpoint_log, "TAIL", TAIL),
        (process_tasks, "_WAIT_S", WAIT_S),
        # It has no effect but to connect, and the clients of a history are always connected.
        (InputConsumer, "connect_early", lambda _input, _unit: None),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    logger, lines = logging.getLogger("joiner"), _Lines(world)
    level, spreads = logger.level, logger.propagate
    for owner, name, value in replaced:
        setattr(owner, name, value)
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
        logger.removeHandler(lines)
        logger.setLevel(level)
        logger.propagate = spreads


def membership_in(joiner: JoinerProcess) -> SiteMembership | OlderMembership | None:
    """Return the membership of a process, or None while it has none."""
    return loop._membership if (loop := joiner._loop) is not None else None  # noqa: SLF001 - there is no other way
