"""What happens to a unit that is released while its last commit is in flight?"""

# ruff: noqa: SLF001 - the tests set up a state that exists only within a call

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from joiner.runtime.kafka.transaction import Aborted, Fenced
from joiner.runtime.model import UnitStopped
from joiner.runtime.runners.commit import Commit
from tests.unit.joiner.runtime.joiner_inputs import make_settings
from tests.unit.joiner.runtime.runner_parts import idle_loop, make_task, serve


@pytest.mark.parametrize(
    "failure",
    [Aborted("away"), Fenced(), UnitStopped("full"), MemoryError(), KafkaException(KafkaError(KafkaError._TIMED_OUT))],
    ids=lambda failure: type(failure).__name__,
)
def test_a_unit_that_is_given_back_is_not_taken_again_where_its_last_commit_fails(failure: Exception) -> None:
    loop: Any = idle_loop(make_settings())
    written: Future[Any] = Future()
    written.set_exception(failure)
    nothing: Any = None
    unit = SimpleNamespace(offsets={"machine.data": 5})
    serve(loop, 3, make_task(unit, commit=Commit(nothing, written)))
    loop.give_back([3], lost=False)
    assignment = loop.supervisor._assignment
    assert (loop.tasks.tasks, assignment._waiting, assignment.failed, assignment._lost) == ({}, {}, {}, {})
    assert loop.supervisor.states == {}


def test_a_topic_that_waits_is_read_again_by_whoever_takes_the_unit_next() -> None:
    calls: list[tuple[str, list[tuple[str, int]]]] = []

    def note(name: str) -> Callable[[list[TopicPartition]], None]:
        return lambda places: calls.append((name, [(place.topic, place.partition) for place in places]))

    consumer = SimpleNamespace(incremental_unassign=note("unassign"), resume=note("resume"))
    loop = idle_loop(make_settings(), consumer)
    unit = SimpleNamespace(offsets={"one": 5, "two": 6})
    serve(loop, 3, make_task(unit, paused={"two"}))
    loop.give_back([3], lost=True)
    assert calls == [("resume", [("two", 3)]), ("unassign", [("one", 3), ("two", 3)])]
