"""A world of processes in which one seed decides everything that happens: who runs, who dies, what is lost.

Every simulated process has a thread for its loop and some for the work in its pool, and exactly one of all runs at a
time: the baton is handed on only inside a client's call. So a seed gives one history, and the same seed gives it again.
What happens in a history, and when it ends, is told by a `Director`.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NoReturn, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException

from joiner.runtime.kafka.clients import timed_out
from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.ownership.membership import InstanceInUse
from joiner.runtime.runners.process import JoinerProcess
from joiner.runtime.settings import PROCESS, SPARK, JoinerSettings
from tests.simulation.actors import Actor, Dead
from tests.simulation.clock import BEGIN_S, SimulatedClock
from tests.simulation.memory_clients import MemoryProducer
from tests.simulation.memory_kafka import MemoryKafka, kafka_error
from tests.simulation.spark import SimulatedStage
from tests.simulation.temper import CALM

Result = TypeVar("Result")

WRITES: Final = frozenset({"init", "begin", "produce", "flush", "send_offsets", "commit"})
"""The steps of claims and commits: most of the trouble comes here."""
_LOSABLE: Final = frozenset({"init", "send_offsets", "commit"})
_FAILING: Final = frozenset({*_LOSABLE, "flush", "describe", "watermarks", "committed", "consume"})

_EMPTY_STEP_S: Final = 0.5
_ANSWER_S: Final = 30.1
"""The joiner waits so long for an answer."""
_LOOK_EVERY_S: Final = 0.3
"""How often the broker looks whose time has run out."""

_FREEZES_S: Final = ((0.1, 3.0), (4.0, 14.0), (11.0, 30.0), (61.0, 90.0))
"""Shorter than anything, about a session, longer than one, longer than a transaction may last."""


class Director(Protocol):
    """Decides what happens beside the processes."""

    def step(self) -> None:
        """Called before every call of a client."""
        ...

    def ended(self, process: SimulatedProcess, status: int | BaseException) -> None:
        """A process has ended by itself or died."""
        ...

    def complain(self, text: str) -> None:
        """A process has told its user of an error."""
        ...


class SimulatedProcess:
    """One run of the joiner."""

    def __init__(
        self, world: World, settings: JoinerSettings, claimant: Claimant, *, standby: bool, in_spark: bool
    ) -> None:
        self.name = settings.application.instance
        self.run = claimant.run
        self.is_dead = self.is_ended = False
        self.frozen_until_s: float | None = None
        self.joiner: JoinerProcess | SimulatedStage
        if in_spark:
            self.joiner = SimulatedStage(settings, claimant, world.clock)
        else:
            self.joiner = JoinerProcess(settings, claimant, world.clock, standby=standby)
        self.producers: list[MemoryProducer] = []
        self.pool: list[Actor] = []
        self._world = world
        self.loop = Actor(self, self._live)

    def _live(self) -> None:
        status: int | BaseException
        try:
            if self.is_dead:
                raise Dead
            status = self.joiner.run()
        except BaseException as error:  # noqa: BLE001 - how it ended is the world's to judge
            status = error
        self.is_ended = True
        self._end_pool()
        self._world.ended(self, status)

    def _end_pool(self) -> None:
        """Whatever its pool is at ends with it."""
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
    """The clock, the broker, the processes, and the timeline."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.clock_s = BEGIN_S
        self.clock = SimulatedClock(self)
        self.kafka = MemoryKafka(self.clock.wall_s, markers_lag=True)
        self.temper = CALM
        self.director: Director | None = None
        self.timeline: list[tuple[Any, ...]] = []
        self.counts: Counter[str] = Counter()
        self.steps = 0
        self.faults = 0
        self.haste = 1
        """How much longer than asked for a wait takes: where nothing is to happen, time may fly."""
        self.processes: list[SimulatedProcess] = []
        self._links: dict[SimulatedProcess, ProcessLink] = {}
        self._all: list[SimulatedProcess] = []
        self._late: list[Callable[[], object]] = []
        self._actor: Actor | None = None
        self.slow_claims_s: tuple[float, float] | None = None
        """How long it takes at least and at most, from initialising a transactional id until that is answered."""
        self.snapshot_bytes_max = 10**9
        """A larger snapshot has transactions of its own."""
        self._is_over = False
        self._look_s = 0.0
        self._failed: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()

    @property
    def link(self) -> ProcessLink:
        """That of the process which runs."""
        assert self._actor is not None
        return self._links[self._actor.process]

    def note(self, text: str, *arguments: Any) -> None:
        """Keep a line of the timeline."""
        name = self._actor.process.run if self._actor is not None else "-"
        self.timeline.append((self.steps, round(self.clock_s - BEGIN_S, 3), name, text, *arguments))

    def complain(self, text: str) -> None:
        """A process has told its user of an error."""
        if self.director is not None:
            self.director.complain(text)

    def start(
        self,
        settings: JoinerSettings,
        claimant: Claimant | None = None,
        *,
        standby: bool = False,
        in_spark: bool = False,
    ) -> SimulatedProcess:
        """Begin a process."""
        name = settings.application.instance
        claimant = claimant or Claimant(f"{name}-{len(self._all)}", name, SPARK if in_spark else PROCESS)
        process = SimulatedProcess(self, settings, claimant, standby=standby, in_spark=in_spark)
        self._links[process] = ProcessLink(self, process)
        self.processes.append(process)
        self._all.append(process)
        self.note("%s starts", process.run)
        self.counts["starts"] += 1
        return process

    def play(self) -> None:
        """Let it run until the director calls it over; then no thread is left."""
        self._hand_on()
        self._done.acquire()
        if self._failed is not None:
            raise self._failed
        for process in self._all:
            process.loop.join()

    def end(self) -> None:
        """It is over: every process dies at its next call."""
        self._is_over = True
        for process in self.processes:
            process.is_dead = True

    def wake_all(self) -> None:
        """Nobody stays frozen."""
        for process in self.processes:
            if process.frozen_until_s is not None:
                process.frozen_until_s = self.clock_s

    # Called by the processes

    def act(self, process: SimulatedProcess, call: str, effect: Callable[[], Result]) -> Result:
        """One call of a client, with what befalls it."""
        self._tick(process)
        temper, draw = self.temper, self.draw
        share = 1.0 if call in WRITES else temper.other
        chance = draw.random()
        if chance < temper.kill * share:
            self._kill(process, call, effect)
        chance -= temper.kill * share
        if 0 <= chance < temper.freeze * share:
            self._freeze(process, call)
        chance -= temper.freeze * share
        lose = temper.lose * (2 if call == "commit" else 1)
        if 0 <= chance < lose and call in _LOSABLE:
            self._lose(call, effect)
        chance -= lose
        if 0 <= chance < temper.fail and call in _FAILING:
            self._count(f"failed {call}")
            self.note("%s fails", call)
            raise _failure(call)
        if call in WRITES:
            self.note(call)
        result = effect()
        if call == "init" and self.slow_claims_s is not None:
            self._wait(process, draw.uniform(*self.slow_claims_s))
        return result

    def beside(self, work: Callable[[], None]) -> Callable[[Callable[[], bool]], None]:
        """Do work of the process that runs in a thread beside it; returns how one of its threads waits."""
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
        """Others go on meanwhile, also those of the same process."""
        until_s = self.clock_s + seconds
        self._stay_until(process, lambda: self.clock_s >= until_s)

    def _stay_until(self, process: SimulatedProcess, is_ready: Callable[[], bool]) -> None:
        actor = self._actor
        assert actor is not None
        actor.ready = is_ready
        while not is_ready() and not process.is_dead:
            self._yield(process)
        actor.ready = lambda: True
        if process.is_dead:
            raise Dead

    def pass_time(self, process: SimulatedProcess, seconds: float) -> None:
        """The process waits, a while longer than it asked for perhaps."""
        if process.is_dead:
            raise Dead
        self.clock_s += seconds * self.draw.choice((1, 1, 2, 8)) * self.haste
        self._tick(process, switch=0.4)

    def ended(self, process: SimulatedProcess, status: int | BaseException) -> None:
        """The thread of a process is at its end, and hands the baton on."""
        try:
            self.processes.remove(process)
            if self.director is not None and not self._is_over:
                self.director.ended(process, status)
            self._hand_on()
        except BaseException as error:  # noqa: BLE001 - raised again by the one who waits for the end
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
            self.temper.switch if switch is None else switch
        ):
            self._yield(process)
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
        if self._late and draw.random() < 0.2:
            self._arrive(self._late.pop(draw.randrange(len(self._late))))
        if kafka.decided and draw.random() < 0.4:
            kafka.write_marker(draw.choice(kafka.decided))
        self.director.step()

    def _yield(self, _process: SimulatedProcess) -> None:
        """Hand the baton on, and wait until it comes back."""
        actor = self._actor
        assert actor is not None
        self._hand_on()
        actor.stay()
        self._actor = actor

    def _hand_on(self) -> None:
        ready = self._ready()
        while not ready and not self._is_over:
            # Nobody can do anything: the time until somebody wakes or starts passes step by step.
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

    # What befalls a call

    def _kill(self, process: SimulatedProcess, call: str, effect: Callable[[], object]) -> NoReturn:
        """SIGKILL: before the request, after it, or with the request on its way."""
        moment = self.draw.choice(("before", "during", "after"))
        if moment == "after":
            self._arrive(effect)
        self._count(f"killed at {call}")
        self.note("killed %s %s", moment, call)
        process.is_dead = True
        requests: list[Callable[[], object]] = [
            request for producer in process.producers for request in producer.break_off()
        ]
        if moment == "during":
            requests.append(effect)
        for request in requests:
            fate = self.draw.randrange(3)
            if fate == 0:
                self._arrive(request)
            elif fate == 1:
                self._late.append(request)
        raise Dead

    def _freeze(self, process: SimulatedProcess, call: str) -> None:
        seconds = self.draw.uniform(*self.draw.choice(_FREEZES_S))
        self._count(f"frozen at {call}")
        self.note("frozen for %.1f s at %s", seconds, call)
        process.frozen_until_s = self.clock_s + seconds
        self._yield(process)
        if process.is_dead:
            raise Dead

    def _lose(self, call: str, effect: Callable[[], object]) -> NoReturn:
        """The request or its answer is lost, or it arrives later; the client is told that it took too long."""
        moment = self.draw.choice(("request", "answer", "late"))
        self._count(f"lost {moment} of {call}")
        self.note("%s: the %s is lost", call, moment)
        if moment == "answer":
            effect()
        elif moment == "late" and call == "commit":
            self._late.append(effect)
        if self.draw.random() < 0.5:
            self.clock_s += _ANSWER_S
        raise kafka_error(KafkaError._TIMED_OUT, f"{call} timed out", retriable=True)  # noqa: SLF001 - public name

    def _count(self, fault: str) -> None:
        self.counts[fault] += 1
        self.faults += 1

    def _arrive(self, request: Callable[[], object]) -> None:
        with suppress(KafkaException):  # nobody is there to be told
            request()


def _failure(call: str) -> KafkaException:
    if call == "flush":
        reason = "a record could not be delivered"
        return kafka_error(KafkaError._TIMED_OUT, reason, txn_requires_abort=True)  # noqa: SLF001 - public name
    return timed_out(f"{call}: the broker is away")


def ended_well(status: int | BaseException) -> bool:
    """Whether a process ended as one may: asked to, killed, or telling its user what is wrong."""
    return isinstance(status, int | Dead | KafkaException | InstanceInUse)
