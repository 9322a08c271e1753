"""Is the outcome of an order what has really become of it?"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from control.actions import perform as perform_module
from control.actions.orders import Drain, Order, Pin, Scale, Standbys
from control.actions.perform import Means, Outcome, perform
from control.facts.reading import Facts
from tests.manual_clock import ManualClock
from tests.unit.control.audited import facts_of, settings_of

WRITE = perform_module._write  # noqa: SLF001 - tests of orders replace it


class Watcher:
    """Shows other facts each time it is asked, and the last ones from then on."""

    def __init__(self, *facts: Facts) -> None:
        self.settings = settings_of()
        self._facts = list(facts)

    @property
    def facts(self) -> Facts:
        return self._facts.pop(0) if len(self._facts) > 1 else self._facts[0]


def outcome(order: Order, *facts: Facts) -> Outcome:
    clock = ManualClock()

    def wait(seconds: float) -> bool:
        clock.now_s += seconds
        return False

    stop: Any = SimpleNamespace(wait=wait, is_set=lambda: False)
    watcher: Any = Watcher(*facts)
    return perform(order, Means("otto", watcher, clock, stop, lambda _text: None))


@pytest.fixture(autouse=True)
def written(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was written, all of which Kafka acknowledges."""
    found: list[Any] = []

    def write(_kafka: Any, messages: list[Any]) -> tuple[list[str], str]:
        found.extend(messages)
        return ["control [0] at 0"], ""

    monkeypatch.setattr(perform_module, "_write", write)
    return found


@pytest.mark.parametrize(
    ("order", "given"),
    [
        (Drain(site="process", instance="one", epochs={}), facts_of(drained="one")),
        (Pin(site="process", unit=0, instance="two", epochs={}), facts_of(assignment={"pinned": {0: "two"}})),
        (Standbys(site="process", count=1, epochs={}), facts_of(assignment={"standbys_ordered": 1})),
        (Scale(site="process", instance="host", processes=3, epochs={}), facts_of(running=3)),
    ],
)
def test_an_order_that_another_one_replaces_does_not_remain_in_force(
    written: list[Any], order: Order, given: Facts
) -> None:
    before = facts_of()
    assert outcome(order, before, given, given, before) == Outcome(
        "failed", "the order is no longer in force: another order, or a restart of the instance, has replaced it"
    )
    assert len(written) == 1
    # What is not known for a while has not been replaced.
    unknown = Facts()
    waited = outcome(order, before, given, unknown, given)
    assert (waited.state, waited.text.endswith("; the order remains in force")) == ("failed", True), waited
    # Replaced before it was seen.
    never = outcome(order, before)
    assert (never.state, never.text.endswith("; it is no longer in force")) == ("failed", True), never


def test_a_service_that_is_stopped_writes_nothing(written: list[Any]) -> None:
    stop = threading.Event()
    stop.set()
    watcher: Any = Watcher(facts_of())
    means = Means("otto", watcher, ManualClock(), stop, lambda _text: None)
    state, _ = perform(Drain(site="process", instance="one", epochs={}), means)
    assert (state, written) == ("withdrawn", [])


def test_the_error_of_a_producer_that_fails_while_it_calls_back_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def flush(_limit_s: float) -> int:
        raise SystemError from KafkaException(KafkaError(KafkaError._FATAL, "failed"))  # noqa: SLF001 - the public name

    monkeypatch.setattr(perform_module, "make_producer", lambda *_given, **_more: SimpleNamespace(flush=flush))
    with pytest.raises(KafkaException, match="failed"):
        WRITE(settings_of().kafka, [])
