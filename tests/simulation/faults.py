"""Faults in client calls: the process dies or freezes, the request or its response is lost, or the call fails."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn, Protocol

from confluent_kafka import KafkaError, KafkaException

from joiner.runtime.kafka.clients import timed_out
from tests.simulation.actors import Dead
from tests.simulation.memory_clients import MemoryProducer
from tests.simulation.memory_kafka import kafka_error
from tests.simulation.temper import CALM

WRITES: Final = frozenset({"init", "begin", "produce", "flush", "send_offsets", "commit"})
"""The steps of claims and commits. Most faults are injected there."""
_LOSABLE: Final = frozenset({"init", "send_offsets", "commit"})
_FAILING: Final = frozenset({*_LOSABLE, "flush", "describe", "watermarks", "committed", "consume"})

_ANSWER_S: Final = 30.1
"""Longer than the joiner waits for a response."""
_FREEZES_S: Final = ((0.1, 3.0), (4.0, 14.0), (11.0, 30.0), (61.0, 90.0))
"""Shorter than every timeout; about the session timeout; longer than that; longer than the transaction timeout."""


class Victim(Protocol):
    """The calling process."""

    is_dead: bool
    frozen_until_s: float | None

    @property
    def producers(self) -> Sequence[MemoryProducer]:
        """The producers that the process has created."""
        ...


class Scene(Protocol):
    """The part of the world that faults use."""

    draw: random.Random
    clock_s: float
    counts: Counter[str]

    def note(self, text: str, *arguments: Any) -> None:
        """Add a line to the timeline."""
        ...

    def yield_turn(self) -> None:
        """Let other threads run. Return when it is the caller's turn again."""
        ...


class Faults:
    """Decides for each call whether to inject a fault, and which one."""

    def __init__(self, world: Scene) -> None:
        self.temper = CALM
        self.count = 0
        """The number of faults so far."""
        self._world, self._draw = world, world.draw
        # Requests in flight.
        self._late: list[Callable[[], object]] = []

    def befall(self, process: Victim, call: str, effect: Callable[[], object]) -> None:
        """Inject a fault or none. Raises `Dead` or the caller's error. ``effect`` applies the call at the broker."""
        temper = self.temper
        share = 1.0 if call in WRITES else temper.other
        chance = self._draw.random()
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
            self._world.note("%s fails", call)
            raise _failure(call)

    def let_late_request_arrive(self) -> None:
        """With some probability, deliver one of the in-flight requests."""
        if self._late and self._draw.random() < 0.2:
            self._arrive(self._late.pop(self._draw.randrange(len(self._late))))

    def _kill(self, process: Victim, call: str, effect: Callable[[], object]) -> NoReturn:
        """Kill the process before the request, after it, or with the request in flight."""
        moment = self._draw.choice(("before", "during", "after"))
        if moment == "after":
            self._arrive(effect)
        self._count(f"killed at {call}")
        self._world.note("killed %s %s", moment, call)
        process.is_dead = True
        requests: list[Callable[[], object]] = [
            request for producer in process.producers for request in producer.break_off()
        ]
        if moment == "during":
            requests.append(effect)
        for request in requests:
            fate = self._draw.randrange(3)
            if fate == 0:
                self._arrive(request)
            elif fate == 1:
                self._late.append(request)
        raise Dead

    def _freeze(self, process: Victim, call: str) -> None:
        seconds = self._draw.uniform(*self._draw.choice(_FREEZES_S))
        self._count(f"frozen at {call}")
        self._world.note("frozen for %.1f s at %s", seconds, call)
        process.frozen_until_s = self._world.clock_s + seconds
        self._world.yield_turn()
        if process.is_dead:
            raise Dead

    def _lose(self, call: str, effect: Callable[[], object]) -> NoReturn:
        """Lose or delay the request, or lose its response. The client gets a timeout."""
        moment = self._draw.choice(("request", "answer", "late"))
        self._count(f"lost {moment} of {call}")
        self._world.note("%s: the %s is lost", call, moment)
        if moment == "answer":
            effect()
        elif moment == "late" and call == "commit":
            self._late.append(effect)
        if self._draw.random() < 0.5:
            self._world.clock_s += _ANSWER_S
        raise kafka_error(KafkaError._TIMED_OUT, f"{call} timed out", retriable=True)  # noqa: SLF001 - public name

    def _count(self, fault: str) -> None:
        self._world.counts[fault] += 1
        self.count += 1

    def _arrive(self, request: Callable[[], object]) -> None:
        with suppress(KafkaException):  # there is no client left to report it to
            request()


def _failure(call: str) -> KafkaException:
    if call == "flush":
        reason = "a record could not be delivered"
        return kafka_error(KafkaError._TIMED_OUT, reason, txn_requires_abort=True)  # noqa: SLF001 - public name
    return timed_out(f"{call}: the broker is away")
