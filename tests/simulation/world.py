"""A world of processes. A seed decides which thread runs, which process dies and which request is lost.

Every simulated process has a thread for its loop, and others for the work in its pool. Exactly one thread runs at a
time, and the turn passes to another only inside a client call, so a seed always gives the same history. A `Director`
decides what else happens in a history, and when it ends.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from confluent_kafka import KafkaException

from joiner.runtime.membership.consumer_group import InstanceInUse
from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.runners.process import JoinerProcess
from joiner.runtime.settings import PROCESS, JoinerSettings
from tests.simulation.actors import Actor, Dead
from tests.simulation.clock import BEGIN_S, SimulatedClock
from tests.simulation.faults import WRITES, Faults
from tests.simulation.memory_clients import MemoryProducer
from tests.simulation.memory_kafka import MemoryKafka

Result = TypeVar("Result")

_EMPTY_STEP_S: Final = 0.5
_LOOK_EVERY_S: Final = 0.3
"""The interval at which the broker checks for expired sessions and transactions."""


class Director(Protocol):
    """Decides what happens in a history besides the work of its processes."""

    def step(self) -> None:
        """Act. Called before every client call."""
        ...

    def ended(self, process: SimulatedProcess, status: int | BaseException) -> None:
        """Handle a process that has ended by itself or died."""
        ...

    def complain(self, text: str) -> None:
        """Handle an error that a process has logged."""
        ...


class Program(Protocol):
    """What a process runs."""

    def run(self) -> int:
        """Run until stopped. Return the exit status."""
        ...

    def stop(self) -> None:
        """Ask it to stop."""
        ...


class SimulatedProcess:
    """One run of a program."""

    def __init__(self, world: World, name: str, run: str, program: Program) -> None:
        self.name, self.run, self.program = name, run, program
        self.is_dead = self.is_ended = False
        self.frozen_until_s: float | None = None
        self.producers: list[MemoryProducer] = []
        self.pool: list[Actor] = []
        self._world = world
        self.loop = Actor(self, self._live)

    @property
    def joiner(self) -> JoinerProcess:
        """The program, if it is a joiner."""
        assert isinstance(self.program, JoinerProcess)
        return self.program

    def _live(self) -> None:
        status: int | BaseException
        try:
            if self.is_dead:
                raise Dead
            status = self.program.run()
        except BaseException as error:  # noqa: BLE001 - passed to the world
            status = error
        self.is_ended = True
        self._end_pool()
        self._world.ended(self, status)

    def _end_pool(self) -> None:
        """End the work in the pool."""
        self.is_dead = True
        for actor in list(self.pool):
            actor.go()
            actor.join()


class ProcessLink:
    """The `Link` of a process: see `memory_clients`."""

    def __init__(self, world: World, process: SimulatedProcess) -> None:
        self.name = process.run
        self.kafka = world.kafka
        self.draw: random.Random | None = world.draw
        self._world, self._process = world, process

    def act(self, call: str, effect: Callable[[], Result]) -> Result:
        """See `Link`."""
        return self._world.act(self._process, call, effect)

    def pass_time(self, seconds: float) -> None:
        """See `Link`."""
        self._world.pass_time(self._process, seconds)

    def beats(self) -> bool:
        """See `Link`."""
        process = self._process
        return not process.is_dead and not process.is_ended and process.frozen_until_s is None

    def attach(self, producer: MemoryProducer) -> None:
        """See `Link`."""
        self._process.producers.append(producer)


class World:
    """A world: its clock, its broker, its processes and its timeline."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.clock_s = BEGIN_S
        self.clock = SimulatedClock(self)
        self.kafka = MemoryKafka(self.clock.wall_s, markers_lag=True)
        self.director: Director | None = None
        self.timeline: list[tuple[Any, ...]] = []
        self.counts: Counter[str] = Counter()
        self.faults = Faults(self)
        self.steps = 0
        self.haste = 1
        """The factor by which waits are lengthened, so that phases in which nothing happens take fewer steps."""
        self.processes: list[SimulatedProcess] = []
        self._links: dict[SimulatedProcess, ProcessLink] = {}
        self._all: list[SimulatedProcess] = []
        self._actor: Actor | None = None
        self.slow_claims_s: tuple[float, float] | None = None
        """The shortest and the longest time that Kafka takes to initialise a transactional id."""
        self.snapshot_bytes_max = 10**9
        self.older: set[str] = set()
        """A larger snapshot is written in separate transactions."""
        self._is_over = False
        self._look_s = 0.0
        self._failed: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()

    @property
    def link(self) -> ProcessLink:
        """The link of the running process."""
        assert self._actor is not None
        return self._links[self._actor.process]

    def note(self, text: str, *arguments: Any) -> None:
        """Add a line to the timeline."""
        name = self._actor.process.run if self._actor is not None else "-"
        self.timeline.append((self.steps, round(self.clock_s - BEGIN_S, 3), name, text, *arguments))

    def complain(self, text: str) -> None:
        """Handle an error that a process has logged."""
        if self.director is not None:
            self.director.complain(text)

    def start(
        self,
        settings: JoinerSettings,
        claimant: Claimant | None = None,
        *,
        standby: bool = False,
    ) -> SimulatedProcess:
        """Start a joiner."""
        name = settings.application.instance
        claimant = claimant or Claimant(self.run_name(name), name, PROCESS)
        joiner = JoinerProcess(settings, claimant, self.clock, standby=standby)
        return self.start_program(name, claimant.run, joiner)

    def run_name(self, name: str) -> str:
        """Return a name for the next run of an instance."""
        return f"{name}-{len(self._all)}"

    def start_program(self, name: str, run: str, program: Program) -> SimulatedProcess:
        """Start a process that runs a program."""
        process = SimulatedProcess(self, name, run, program)
        self._links[process] = ProcessLink(self, process)
        self.processes.append(process)
        self._all.append(process)
        self.note("%s starts", process.run)
        self.counts["starts"] += 1
        return process

    def play(self) -> None:
        """Run until the director ends the history, and all threads have ended."""
        self._hand_on()
        self._done.acquire()
        if self._failed is not None:
            raise self._failed
        for process in self._all:
            process.loop.join()

    def end(self) -> None:
        """End the history: every process dies at its next call."""
        self._is_over = True
        for process in self.processes:
            process.is_dead = True

    def kill_running(self, when: str) -> None:
        """Kill the running process: it dies at its next call. ``when``: for the counts."""
        assert self._actor is not None
        self._actor.process.is_dead = True
        self.counts[f"killed at {when}"] += 1
        self.note("killed at %s", when)

    def wake_all(self) -> None:
        """Wake the frozen processes."""
        for process in self.processes:
            if process.frozen_until_s is not None:
                process.frozen_until_s = self.clock_s

    # Called by processes

    def act(self, process: SimulatedProcess, call: str, effect: Callable[[], Result]) -> Result:
        """Make a client call. A fault may be injected into it."""
        self._tick(process)
        self.faults.befall(process, call, effect)
        if call in WRITES:
            self.note(call)
        if call != "init" or self.slow_claims_s is None:
            return effect()
        # Either the request is slow, so that an earlier owner may still commit, or the response is.
        slow_s = self.draw.uniform(*self.slow_claims_s)
        before_s = self.draw.choice((0.0, slow_s))
        self._wait(process, before_s)
        result = effect()
        self._wait(process, slow_s - before_s)
        return result

    def beside(self, work: Callable[[], None]) -> Callable[[Callable[[], bool]], None]:
        """Run work in a new thread of the running process. Return a function that waits for a condition."""
        assert self._actor is not None
        process = self._actor.process

        def live() -> None:
            with suppress(Dead):
                if not process.is_dead:
                    work()
            process.pool.remove(actor)
            if not process.is_ended:
                self._hand_on()

        actor = Actor(process, live)
        process.pool.append(actor)
        return partial(self._stay_until, process)

    def _wait(self, process: SimulatedProcess, seconds: float) -> None:
        """Wait while other threads run, including those of the same process."""
        until_s = self.clock_s + seconds
        self._stay_until(process, lambda: self.clock_s >= until_s)

    def _stay_until(self, process: SimulatedProcess, is_ready: Callable[[], bool]) -> None:
        actor = self._actor
        assert actor is not None
        actor.ready = is_ready
        while not is_ready() and not process.is_dead:
            self.yield_turn()
        actor.ready = lambda: True
        if process.is_dead:
            raise Dead

    def pass_time(self, process: SimulatedProcess, seconds: float) -> None:
        """Make the process wait, possibly longer than requested."""
        if process.is_dead:
            raise Dead
        self.clock_s += seconds * self.draw.choice((1, 1, 2, 8)) * self.haste
        self._tick(process, switch=0.4)

    def ended(self, process: SimulatedProcess, status: int | BaseException) -> None:
        """Report that a process's loop has ended, and pass the turn to another thread."""
        try:
            self.processes.remove(process)
            if self.director is not None and not self._is_over:
                self.director.ended(process, status)
            self._hand_on()
        except BaseException as error:  # noqa: BLE001 - raised again in `play`
            self._failed = error
            self._done.release()

    # Time and turns

    def _tick(self, process: SimulatedProcess, switch: float | None = None) -> None:
        if process.is_dead:
            raise Dead
        self.steps += 1
        self.clock_s += 0.002
        self._let_nature_act()
        if (len(self.processes) > 1 or process.pool) and self.draw.random() < (
            self.faults.temper.switch if switch is None else switch
        ):
            self.yield_turn()
        if process.is_dead:
            raise Dead

    def _let_nature_act(self) -> None:
        draw, kafka = self.draw, self.kafka
        assert self.director is not None
        if self.clock_s >= self._look_s:
            self._look_s = self.clock_s + _LOOK_EVERY_S
            kafka.expire_transactions()
            for group in kafka.groups.values():
                group.expire()
        self.faults.let_late_request_arrive()
        if kafka.decided and draw.random() < 0.4:
            kafka.write_marker(draw.choice(kafka.decided))
        self.director.step()

    def yield_turn(self) -> None:
        """Pass the turn to another thread, and wait for the next turn of this one."""
        actor = self._actor
        assert actor is not None
        self._hand_on()
        actor.stay()
        self._actor = actor

    def _hand_on(self) -> None:
        ready = self._ready()
        while not ready and not self._is_over:
            # No thread can continue, so time passes step by step until a process wakes or starts.
            self.clock_s += _EMPTY_STEP_S
            self._actor = None
            self._let_nature_act()
            ready = self._ready()
        if self._is_over:
            if not self.processes:
                self._done.release()
                return
            ready = [self.processes[0].loop]
        chosen = self.draw.choice(ready)
        self._actor = chosen
        chosen.go()

    def _ready(self) -> list[Actor]:
        for process in self.processes:
            if process.frozen_until_s is not None and process.frozen_until_s <= self.clock_s:
                process.frozen_until_s = None
                self.note("%s wakes", process.run)
        awake = [process for process in self.processes if process.frozen_until_s is None]
        return [
            actor
            for process in awake
            for actor in ([process.loop] if process.is_dead else [process.loop, *process.pool])
            if process.is_dead or actor.ready()
        ]


def ended_well(status: int | BaseException) -> bool:
    """Return whether a process ended in a way that is allowed: on request, by a kill, or with an error for its user."""
    return isinstance(status, int | Dead | KafkaException | InstanceInUse)


@dataclass
class Slot:
    """An instance, with the process that runs it now or the time at which the next one is started."""

    settings: JoinerSettings
    start_s: float
    process: SimulatedProcess | None = None
