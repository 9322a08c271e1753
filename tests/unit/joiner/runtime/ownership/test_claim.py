"""Which state a claimant rebuilds for a unit, and which output it writes again. Tested without Kafka clients."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from broker.kafka.topics import TopicFacts
from joiner.runtime.kafka import clients
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.kafka.transaction import Fenced
from joiner.runtime.model import RESET_RUN, Checkpoint, StateLog, UnitStopped, checkpoint_key, dangling_key, encode
from joiner.runtime.ownership import claim as claiming
from joiner.runtime.ownership import dangling, restore
from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.settings import JoinerSettings, replica_settings
from joiner.runtime.task.batch import Batch
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
    monkeypatch.setattr(clients, "log_ends", lambda *_: dict.fromkeys(names, 21) | {"machine.out": 17})
    transactions: Any = SimpleNamespace(roll_back=lambda *_given: line)
    readers: Any = SimpleNamespace(stable=None, settings=settings, clock=ManualClock())
    with pytest.raises(KafkaException) as told:
        dangling.fence_partitions(readers, 3, transactions, make_checkpoint())
    text = told.value.args[0].str()
    assert "open for 30 s in machine.out [3] from offset 17" in text
    command = "kafka-transactions.sh --bootstrap-server 127.0.0.1:9092"
    assert f"{command} find-hanging --topic machine.out --partition 3" in text
    assert f"{command} abort --topic machine.out --partition 3 --start-offset 17" in text


BLAMELESS = dangling.DanglingTransaction(0, {"machine.out": 4}, None)
ENDED_WRONGLY = dangling.DanglingTransaction(0, {}, None)


def starts_of_claim(
    monkeypatch: pytest.MonkeyPatch,
    settings: JoinerSettings,
    open_: dangling.DanglingTransaction,
    later: dangling.DanglingTransaction | None = None,
    missing: int = 0,
    *,
    note: bool = False,
    due_before: int = 0,
) -> Any:
    """Return the start records of a claim that resolves transactions, and finds no output of the unit.

    ``later``: what turns out to have been ended wrongly after that. ``note``: whether an earlier claimant has left one.
    ``due_before``: how many results are due at the newest checkpoint, which is at 12.
    """
    checkpoint = make_checkpoint(fingerprint=settings.fingerprint())
    values = {checkpoint_key(0): encode(checkpoint)} | ({dangling_key(0): encode(checkpoint)} if note else {})
    committed: list[Any] = []

    def find_wrongly_ended(*_given: Any) -> dangling.DanglingTransaction | None:
        return later if open_.open_from else open_

    for module in (claiming, dangling):
        monkeypatch.setattr(module, "find_wrongly_ended", find_wrongly_ended)
        monkeypatch.setattr(module, "read_newest", lambda *_given: StateLog(0, values))
    monkeypatch.setattr(claiming, "topic_facts", lambda *_given: {DATA: TopicFacts("id", 1)})
    monkeypatch.setattr(claiming, "find_dangling", lambda *_given: open_ if open_.open_from else None)
    monkeypatch.setattr(claiming, "check_log_range", lambda *_given: None)
    monkeypatch.setattr(claiming, "fence_partitions", lambda *_given: {"machine.out.r1": 9})
    topics = settings.topics
    visible: dict[str, set[str]] = {
        name: set() for name in (topics.out, topics.late, topics.rejected, topics.unmatched)
    }
    monkeypatch.setattr(claiming, "resolve", lambda *_given: dangling.Resolved(Effects(), missing, {}, visible))
    due = Effects(joined_parts=[Batch.of(None, [b'{"id":"1"}'] * due_before)])
    monkeypatch.setattr(claiming, "replay_effects", lambda *_given, **_more: dangling.ReplayedEffects(due, {}))
    transactions: Any = SimpleNamespace(
        init=lambda: None, commit=lambda *_given, removed, starts: committed.append((removed, starts))
    )
    nothing: Any = None
    readers, claimant = Readers(settings, ManualClock()), Claimant("run", "one")
    claiming.claim(settings, 0, nothing, transactions, claimant, readers, checkpoint, is_warm=True)
    ((removed, starts),) = committed
    assert removed == [dangling_key(0)]
    return starts


@pytest.mark.parametrize(
    ("open_", "note", "missing", "later", "continues"),
    [
        (BLAMELESS, False, 0, None, True),
        (BLAMELESS, True, 0, None, True),
        (BLAMELESS, False, 1, None, False),
        (BLAMELESS, False, 0, ENDED_WRONGLY, False),
        (ENDED_WRONGLY, False, 0, None, False),
    ],
)
def test_a_claim_continues_after_another_programs_transaction_if_nothing_was_ended_wrongly(
    monkeypatch: pytest.MonkeyPatch,
    open_: dangling.DanglingTransaction,
    missing: int,
    later: dangling.DanglingTransaction | None,
    *,
    note: bool,
    continues: bool,
) -> None:
    """Otherwise, the restart of the only complete replica would let readers get again what they have forgotten."""
    settings = replica_settings(make_settings(application={"replicas": 2}), 1)
    starts = starts_of_claim(monkeypatch, settings, open_, later, missing, note=note)
    assert starts == ([{DATA: 12}] if continues else [{}])


@pytest.mark.parametrize("due_before", [0, 1])
@pytest.mark.parametrize("note", [False, True])
def test_a_claim_that_writes_the_output_of_an_aborted_transaction_continues_from_the_checkpoint_before(
    monkeypatch: pytest.MonkeyPatch, due_before: int, *, note: bool
) -> None:
    """Otherwise, its replica would not be complete for a moment, and what the claim writes would be dropped."""
    settings = replica_settings(make_settings(application={"replicas": 2}), 1)
    aborted = make_checkpoint(fingerprint=settings.fingerprint(), offsets={DATA: 15})
    open_ = dangling.DanglingTransaction(0, {"machine.out": 4}, aborted)
    starts = starts_of_claim(monkeypatch, settings, open_, missing=2, note=note, due_before=due_before)
    assert starts == ([{}] if due_before else [{DATA: 12}])


def test_without_replicas_nothing_is_looked_up_for_start_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "last_in_order", lambda *_given: pytest.fail("it reads the logs"))
    starts_of_claim(monkeypatch, make_settings(), BLAMELESS)


@pytest.mark.parametrize(
    ("early", "is_warm", "looks"),
    [(make_checkpoint(), True, 0), (make_checkpoint(), False, 1), (None, True, 1), (None, False, 1)],
)
def test_the_claim_of_a_warm_unit_does_not_look_at_replica_0(
    monkeypatch: pytest.MonkeyPatch, early: Checkpoint | None, looks: int, *, is_warm: bool
) -> None:
    """It must be fast, and what has died may be replica 0's host."""
    looked: list[Any] = []
    monkeypatch.setattr(claiming, "topic_facts", lambda *_given: {DATA: TopicFacts("id", 1)})
    monkeypatch.setattr(claiming, "check_origin", lambda *given: looked.append(given))
    settings = replica_settings(make_settings(application={"replicas": 2}), 1)
    if early is not None:
        early = make_checkpoint(fingerprint=settings.fingerprint())

    def init() -> None:
        raise Fenced

    nothing: Any = None
    readers, transactions = Readers(settings, ManualClock()), SimpleNamespace(init=init)
    with pytest.raises(Fenced):
        claiming.claim(
            settings,
            0,
            nothing,
            transactions,  # type: ignore[arg-type] # only this is called
            Claimant("run", "one"),
            readers,
            early,
            is_warm=is_warm,
        )
    assert len(looked) == looks


@pytest.mark.parametrize(
    ("found", "last", "vectors"),
    [
        (None, make_checkpoint(), [{}, {DATA: 12}]),
        (make_checkpoint(run=RESET_RUN), make_checkpoint(), [{}, {DATA: 12}]),
        (make_checkpoint(), make_checkpoint(), [{DATA: 12}]),
        (None, None, [{}]),
        (make_checkpoint(run=RESET_RUN), None, [{}]),
        (make_checkpoint(), None, [{}]),
    ],
)
def test_a_claim_says_where_it_begins_unless_that_is_not_known(
    found: Checkpoint | None, last: Checkpoint | None, vectors: list[dict[str, int]]
) -> None:
    assert claiming._starts(found, last) == vectors  # noqa: SLF001 - it decides what a claim writes
