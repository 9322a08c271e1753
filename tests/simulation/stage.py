"""What the joiner's modules see of the world while a history is played: its clients, its clock, no threads.

The modules are the product's own; only names that they take from outside are replaced, and given back at the end.
"""

from __future__ import annotations

import logging
import math
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

from broker.kafka.topics import TopicFacts
from joiner.runtime.kafka import checkpoint_log, clients, snapshot_log, transaction
from joiner.runtime.ownership import concurrent_claims, services
from joiner.runtime.runners import process, process_tasks, runner
from joiner.runtime.runners.lifecycle import UnitState
from joiner.runtime.runners.runner import Runner
from joiner.runtime.runners.spark import units
from tests.simulation.memory_clients import Link, MemoryAdmin, MemoryProducer
from tests.simulation.memory_consumer import MemoryConsumer
from tests.simulation.memory_kafka import MemoryKafka

Result = TypeVar("Result")

_RUNNER = "joiner.runtime."
_CHATTER = "joiner.runtime.telemetry.throughput"

CHUNK_BYTES = 600
"""Snapshots here are small, and shall have several chunks nevertheless."""
_BESIDE = 0.1
_TAKE_BESIDE = 0.7
_LATER = 0.6
"""Of what is handed to a pool: which part is done beside its process, at once (above), or when somebody asks."""
TAIL = 12
"""So short that the newest checkpoint is not always within it."""


def running(joiner: Runner[Any]) -> set[int]:
    """The units that it runs."""
    return {unit for unit, state in joiner.states.items() if state is UnitState.RUNNING}


class World(Protocol):
    """Who runs now, and what time it is."""

    clock_s: float
    draw: random.Random
    snapshot_bytes_max: int

    def beside(self, work: Callable[[], None]) -> Callable[[Callable[[], bool]], None]:
        """Do work in a thread of the process that runs; returns how that one waits until something holds."""
        ...

    @property
    def link(self) -> Link:
        """That of the process which runs."""
        ...

    def note(self, text: str, *arguments: Any) -> None:
        """Keep a line of the timeline."""
        ...

    def complain(self, text: str) -> None:
        """A process has told its user of an error."""
        ...


class _Clock:
    """In the place of the module `time`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        """The world's time."""
        return self._world.clock_s

    def perf_counter(self) -> float:
        """The same."""
        return self._world.clock_s

    def sleep(self, seconds: float) -> None:
        """Let the time pass."""
        self._world.link.pass_time(seconds)


class _Event:
    """In the place of `threading.Event`: waiting is time that passes."""

    def __init__(self, world: World) -> None:
        self._world, self._is_set = world, False

    def set(self) -> None:
        """Set it."""
        self._is_set = True

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def wait(self, timeout: float) -> bool:
        """Let the time pass."""
        self._world.link.pass_time(timeout)
        return self._is_set


class _Later(Future[Any]):
    """Work that is done when somebody asks for it a second time, or waits for it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work: Callable[[], Any] | None = work
        self._asked = 0

    def run(self) -> None:
        """Do it, unless it is done."""
        work, self._work = self._work, None
        if work is None:
            return
        try:
            self.set_result(work())
        except Exception as error:  # noqa: BLE001 - as a pool does, whatever it is
            self.set_exception(error)

    def done(self) -> bool:
        """See `Future.done`."""
        self._asked += 1
        if self._asked > 1:
            self.run()
        return super().done()

    def result(self, timeout: float | None = None) -> Any:
        """See `Future.result`."""
        self.run()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See `Future.exception`."""
        self.run()
        return super().exception(timeout)


class _Beside(Future[Any]):
    """Work that is done in a thread of its own, by turns with all others."""

    def __init__(self, world: World, work: Callable[[], Any]) -> None:
        super().__init__()

        def live() -> None:
            try:
                found = work()
            except Exception as error:  # noqa: BLE001 - as a pool does, whatever it is
                self.set_exception(error)
            else:
                self.set_result(found)

        self._stay_until = world.beside(live)

    def result(self, timeout: float | None = None) -> Any:
        """See `Future.result`."""
        if not self.done():
            self._stay_until(self.done)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See `Future.exception`."""
        if not self.done():
            self._stay_until(self.done)
        return super().exception(timeout)

    def wait(self, until: Callable[[], bool]) -> None:
        """Until it is done, or something else holds."""
        self._stay_until(lambda: self.done() or until())


class _Pool:
    """In the place of a thread pool: work is done at once, when somebody asks for it, or beside whoever handed it in.

    The death of the process passes through.
    """

    def __init__(self, world: World, *_arguments: Any) -> None:
        self._world = world

    def submit(self, work: Callable[..., Result], *arguments: Any, **named: Any) -> Future[Result]:
        """Do it: now, later, or beside."""
        todo = partial(work, *arguments, **named)
        chance = self._world.draw.random()
        if chance < _BESIDE or (chance < _TAKE_BESIDE and work.__name__ == "_claim"):
            return _Beside(self._world, todo)
        future = _Later(todo)
        if chance > _LATER:
            future.run()
        return future

    def shutdown(self, *, wait: bool) -> None:
        """Nothing is left to do."""


def _wait(world: World, futures: Iterable[_Later | _Beside], timeout: float = math.inf) -> None:
    """In the place of `concurrent.futures.wait`."""
    until_s = world.clock_s + timeout
    for future in futures:
        if isinstance(future, _Beside):
            future.wait(lambda: world.clock_s >= until_s)
        else:
            future.run()


class _Threading:
    """In the place of the module `threading`."""

    def __init__(self, world: World) -> None:
        self.Event = lambda: _Event(world)


class _Lines(logging.Handler):
    """Writes what the joiner logs into the timeline."""

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


def _modules_with(name: str) -> list[Any]:
    """The modules of the runner that know something by this name."""
    return [
        module for path, module in sorted(sys.modules.items()) if path.startswith(_RUNNER) and hasattr(module, name)
    ]


def _facts(kafka: MemoryKafka) -> dict[str, TopicFacts]:
    return {name: TopicFacts(topic.topic_id, len(topic.logs)) for name, topic in kafka.topics.items()}


@contextmanager
def on_stage(world: World) -> Iterator[None]:
    """Let the joiner's modules live in ``world``."""
    clock = _Clock(world)
    replaced: list[tuple[Any, str, Any]] = [
        *((module, "time", clock) for module in _modules_with("time")),
        (clients, "Consumer", lambda config, **_: MemoryConsumer(world.link, config)),
        (clients, "Producer", lambda config, **_: MemoryProducer(world.link, config)),
        (clients, "AdminClient", lambda _config, **_: MemoryAdmin(world.link)),
        (services, "ThreadPoolExecutor", partial(_Pool, world)),
        (units, "ThreadPoolExecutor", partial(_Pool, world)),
        (units, "wait", partial(_wait, world)),
        (process_tasks, "wait", partial(_wait, world)),
        (concurrent_claims, "wait", partial(_wait, world)),
        (runner, "threading", _Threading(world)),
        # One interpreter plays thousands of processes.
        (process, "tune_gc", lambda: None),
        (runner, "wait_for_topics", lambda *_: _facts(world.link.kafka)),
        (snapshot_log, "CHUNK_BYTES_MAX", CHUNK_BYTES),
        (transaction, "SNAPSHOT_BYTES_MAX", world.snapshot_bytes_max),
        # In the process's own thread, which is the one that may move.
        (transaction, "within", lambda _seconds, call, *arguments: call(*arguments)),
        (checkpoint_log, "_TAIL", TAIL),
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
