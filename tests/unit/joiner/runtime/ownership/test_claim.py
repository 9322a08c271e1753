"""Which state a claimant rebuilds for a unit, and which output it writes again. Tested without Kafka clients."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from joiner.runtime.kafka.readers import Readers
from joiner.runtime.model import StateLog, UnitStopped
from joiner.runtime.ownership import dangling, restore
from joiner.runtime.task.effects import Effects
from joiner.runtime.task.unit import Unit
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import BASE_MS, DATA, batch, make_settings, record
from tests.unit.joiner.runtime.test_model import make_checkpoint

APART = {"name": "apart", "left": {"topic": "one"}, "right": {"topic": "two"}, "output": "a"}


def test_a_replay_that_settles_is_not_refused_for_room_that_pausing_had_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay may read one topic before the other, although the unit had paused the topic that was ahead."""
    settings = make_settings(APART, application={"buffer_records_max": 5})
    lefts = batch([record(n, "speed", BASE_MS + n) for n in range(20)])
    rights = batch([record(n, "torque", BASE_MS + n) for n in range(20)])
    ends = {"one": 20, "two": 20}

    def read_range(*_given: Any, **_options: Any) -> Iterator[Any]:
        yield {"one": lefts}, {"one": 20, "two": 0}
        yield {"two": rights}, ends

    with pytest.raises(UnitStopped, match="holds 20 records"):
        Unit(settings, 0, {"one": 0, "two": 0}).apply({"one": lefts}, {"one": 20, "two": 0})
    monkeypatch.setattr(restore, "read_range", read_range)
    monkeypatch.setattr(Readers, "input", None)
    unit, effects = Unit(settings, 0, {"one": 0, "two": 0}), Effects()
    restore._replay(Readers(settings, ManualClock()), unit, ends, effects)  # noqa: SLF001 - called when output is written again
    assert unit.offsets == ends
    assert len(effects.joined) == 20, "each pairs with the record of equal time"


def test_a_replay_that_an_error_of_kafka_interrupts_goes_on_where_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_settings(APART)
    lefts = batch([record(n, "speed", BASE_MS + n) for n in range(20)])
    rights = batch([record(n, "torque", BASE_MS + n) for n in range(20)])
    ends = {"one": 20, "two": 20}
    outages = [KafkaException(KafkaError(1)), KafkaException(KafkaError(1))]

    def read_range(_input: Any, _clock: Any, _unit: int, begin: Any, *_given: Any, **_options: Any) -> Iterator[Any]:
        first = begin["one"]
        for at in range(first, 20, 5):
            if at > first and outages:
                raise outages.pop()
            yield {"one": lefts.part(at, at + 5)}, {"one": at + 5, "two": 0}
        yield {"two": rights}, ends

    def replay(unit: Unit) -> Unit:
        restore._replay(Readers(settings, ManualClock()), unit, ends)  # noqa: SLF001 - called by standbys
        return unit

    monkeypatch.setattr(restore, "read_range", read_range)
    monkeypatch.setattr(Readers, "input", None)
    interrupted = Unit(settings, 0, {"one": 0, "two": 0})
    for reached in (5, 10):
        with pytest.raises(KafkaException):
            replay(interrupted)
        assert interrupted.offsets == {"one": reached, "two": 0}
    at_once = replay(Unit(settings, 0, {"one": 0, "two": 0}))
    assert replay(interrupted).snapshot() == at_once.snapshot()


@pytest.mark.parametrize(("start", "begins_at"), [(3, 9), (8, 8)])
def test_a_state_that_was_prepared_before_a_reset_is_not_continued(
    monkeypatch: pytest.MonkeyPatch, start: int, begins_at: int
) -> None:
    """Its vector may nevertheless lie between the new start and the newest vector."""
    settings, built = make_settings(), []
    monkeypatch.setattr(restore, "check_log_range", lambda *_given: None)
    monkeypatch.setattr(restore, "_replay", lambda _readers, unit, *_rest: built.append(unit))
    readers = Readers(settings, ManualClock())
    readers.state, readers.basis = StateLog(0), make_checkpoint(start={DATA: 3}).basis
    warm = Unit(settings, 0, {DATA: 9})
    checkpoint = make_checkpoint(start={DATA: start}, offsets={DATA: 12})
    restore.recover(None, checkpoint, readers, warm)  # type: ignore[arg-type] # nothing is committed
    assert (built[0] is warm, built[0].offsets) == (start == 3, {DATA: begins_at})


def test_what_nobody_ends_is_told_with_the_command_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka may have expired its ``transactional.id``, in which case no claim can end the transaction."""
    settings = make_settings()
    names = [settings.state_topic, *settings.output_topics.values()]
    line = dict.fromkeys(names, 20)
    monkeypatch.setattr(dangling, "log_ends", lambda *_: dict.fromkeys(names, 21) | {"machine.out": 17})
    transactions: Any = SimpleNamespace(roll_back=lambda *_given: line)
    readers: Any = SimpleNamespace(stable=None, settings=settings, clock=ManualClock())
    with pytest.raises(KafkaException) as told:
        dangling.fence_partitions(readers, 3, transactions, make_checkpoint())
    text = told.value.args[0].str()
    assert "open for 30 s in machine.out [3] from offset 17" in text
    command = "kafka-transactions.sh --bootstrap-server 127.0.0.1:9092"
    assert f"{command} find-hanging --topic machine.out --partition 3" in text
    assert f"{command} abort --topic machine.out --partition 3 --start-offset 17" in text
