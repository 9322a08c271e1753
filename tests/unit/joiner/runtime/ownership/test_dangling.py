"""Which results of a replay are written again if some of their messages are there already?"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from confluent_kafka import KafkaError, KafkaException

from broker.wire.arrow.results import decode_results
from broker.wire.records import Late, Record, Unmatched, reject
from broker.wire.start_records import encode_start
from joiner.runtime.kafka.pending_markers import BEGINNING, identities_in, identity_of
from joiner.runtime.kafka.transaction import Fenced
from joiner.runtime.model import Checkpoint, FirstRecord, StateLog, checkpoint_key, dangling_key, encode
from joiner.runtime.ownership import dangling
from joiner.runtime.ownership.dangling import _identities, _keep_missing_results
from joiner.runtime.task.batch import Batch
from joiner.runtime.task.effects import Effects
from joiner.runtime.task.unit import Unit
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.arrow_inputs import as_arrow, seeded_rows, settings_of
from tests.unit.joiner.runtime.joiner_inputs import DATA, POWER, make_settings
from tests.unit.joiner.runtime.test_model import make_checkpoint


def effects_of(results: str) -> Effects:
    """Return the effects of a unit in several batches."""
    messages, _ = as_arrow(seeded_rows(4, 200), random.Random(1), 20)
    unit, effects = Unit(settings_of("arrow", POWER, results=results), 0, {DATA: 0}), Effects()
    for begin in range(0, len(messages), 9):
        part = messages.part(begin, min(begin + 9, len(messages)))
        effects.add(unit.apply({DATA: part}, {DATA: part.last + 1}))
    return effects


def all_identities(effects: Effects) -> list[str]:
    return [identity for value in effects.joined.values.each() for identity in _identities(value)]


def wrongly_ended(monkeypatch: pytest.MonkeyPatch, visible: list[bytes], named: FirstRecord | None) -> bool:
    """Return whether a claim finds that Kafka has ended a transaction wrongly. ``visible``: the results there are."""
    settings = make_settings(application={"replicas": 2})
    monkeypatch.setattr(dangling, "log_range", lambda *_given: (0, 100))
    monkeypatch.setattr(
        dangling, "read_to_end", lambda *_given: (SimpleNamespace(value=lambda value=one: value) for one in visible)
    )
    monkeypatch.setattr(dangling, "read_tried", lambda *_given: [])
    checkpoint = make_checkpoint(written={} if named is None else {settings.topics.out: named})
    log = StateLog(0, {checkpoint_key(0): encode(checkpoint)}, checkpoint_at=9)
    readers: Any = SimpleNamespace(settings=settings, clock=ManualClock(), log=None, everything=None)
    return dangling.find_wrongly_ended(log, {settings.topics.out: 90}, readers) is not None


def test_a_claim_finds_that_the_record_of_a_beginning_was_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been the only message of its transaction."""
    first, later = FirstRecord(BEGINNING, 20), encode_start({DATA: 7})
    assert wrongly_ended(monkeypatch, [later], first)
    assert not wrongly_ended(monkeypatch, [encode_start({}), later], first)
    assert not wrongly_ended(monkeypatch, [later], None)


OUT, LATE, REJECTED, UNMATCHED = (
    getattr(make_settings().topics, name) for name in ("out", "late", "rejected", "unmatched")
)
FORMER = make_checkpoint()
"""The newest checkpoint before the claim."""
OPENED = make_checkpoint(run="last", offsets={DATA: 15}, written={OUT: FirstRecord(" 2", 20)})
"""That of the last transaction, which is open in some partition when the claim begins."""
BEGUN = make_checkpoint(written={OUT: FirstRecord(BEGINNING, 10)})
DUE = {12: "1", 15: "123"}
"""The ids of the results that are due, by the offset."""


def results(ids: str) -> list[bytes]:
    return [b'{"id":"%d"}' % int(one) for one in ids]


@pytest.mark.parametrize(
    ("now", "tried", "visible", "continues"),
    [
        pytest.param(FORMER, [OPENED], "1", True, id="our last transaction was aborted"),
        pytest.param(OPENED, [], "123", True, id="our last transaction was committed"),
        pytest.param(FORMER, [OPENED], "123", False, id="committed only there"),
        pytest.param(FORMER, [], "13", False, id="committed only there, and compaction has removed its checkpoint"),
        pytest.param(FORMER, [OPENED], "", False, id="what was committed before is missing"),
        pytest.param(OPENED, [], "1", False, id="aborted only there"),
        pytest.param(OPENED, [], "12", False, id="removed in part, and aborted only there"),
        pytest.param(BEGUN, [OPENED], "1", False, id="the record of a beginning was rolled back"),
        pytest.param(None, [OPENED], "1", True, id="nothing was committed"),
    ],
)
def test_a_claim_continues_if_what_is_visible_is_what_is_due_at_the_newest_checkpoint(
    monkeypatch: pytest.MonkeyPatch, now: Checkpoint | None, tried: list[Checkpoint], visible: str, *, continues: bool
) -> None:
    """Kafka may have ended what was open when the claim began, while the claim was fencing the partitions.

    ``now``: the newest checkpoint that is visible then. ``tried``: later ones. ``visible``: ids of results.
    """
    log = StateLog(0, {} if now is None else {checkpoint_key(0): encode(now)}, checkpoint_at=9)
    monkeypatch.setattr(dangling, "read_newest", lambda *_given: log)
    monkeypatch.setattr(dangling, "read_tried", lambda *_given: tried)
    monkeypatch.setattr(dangling, "log_range", lambda *_given: (0, 100))
    monkeypatch.setattr(
        dangling,
        "read_to_end",
        lambda *_given: (SimpleNamespace(value=lambda one=one: one) for one in results(visible)),
    )
    settings = make_settings(application={"replicas": 2})
    readers: Any = SimpleNamespace(settings=settings, clock=ManualClock(), log=None, everything=None)
    missing = len(DUE[15]) - len(visible)
    seen: dict[str, set[str]] = {OUT: {f" {one}" for one in visible}, LATE: set(), REJECTED: set(), UNMATCHED: set()}
    resolved = dangling.Resolved(Effects(), missing, {OUT: 90}, seen)

    def replay(until: Checkpoint) -> dangling.ReplayedEffects:
        parts = [Batch.of(None, results(DUE[until.offsets[DATA]]))]
        return dangling.ReplayedEffects(Effects(joined_parts=parts), {})

    one = dangling.DanglingTransaction(0, {OUT: 20}, OPENED)
    last = dangling.last_in_order(one, FORMER, resolved, readers, replay)
    assert last == ((now or FORMER) if continues else None)


def effects_in(kind: str, count: int) -> Effects:
    """Return effects with so many messages of one kind."""
    record = Record("x", "power", 1, 1.0, "1")
    about = [(f"j:0:left:{at}", "spindle", "j", "left", DATA, 0, at, record) for at in range(count)]
    match kind:
        case "full" | "arrow":
            effects = effects_of(kind)
            effects.joined_parts = [effects.joined.take(np.arange(count))]
            return effects
        case "late":
            return Effects(late=[Late(*one) for one in about])
        case "unmatched":
            return Effects(unmatched=[Unmatched(*one) for one in about])
        case _:
            given: Any = {"source": "spindle", "topic": DATA, "partition": 0}
            return Effects(rejected=[reject(b"", "wrong", **given, offset=at) for at in range(count)])


@pytest.mark.parametrize("kind", ["full", "arrow", "late", "unmatched", "rejected"])
@pytest.mark.parametrize("visible", [0, 1, 2])
def test_a_claim_compares_all_output_of_any_kind(monkeypatch: pytest.MonkeyPatch, kind: str, visible: int) -> None:
    """One message is due at the newest checkpoint, and two are at the furthest. ``visible``: how many are visible."""
    settings = make_settings(application={"replicas": 2})
    topics, readers = settings.topics, SimpleNamespace(settings=settings, clock=ManualClock(), close=lambda: None)
    shown = [value for batch in effects_in(kind, visible).messages(topics).values() for value in batch.values.each()]
    monkeypatch.setattr(dangling, "Readers", lambda *_given: readers)
    readers.log = readers.everything = None
    monkeypatch.setattr(dangling, "read_newest", lambda *_given: StateLog(0, {checkpoint_key(0): encode(FORMER)}))
    monkeypatch.setattr(dangling, "find_wrongly_ended", lambda *_given: None)
    monkeypatch.setattr(dangling, "log_range", lambda *_given: (0, 100))
    monkeypatch.setattr(dangling, "_note", lambda *_given: None)
    fences = dict.fromkeys((OUT, LATE, REJECTED, UNMATCHED), 90)
    monkeypatch.setattr(dangling, "fence_partitions", lambda *_given: fences)
    monkeypatch.setattr(
        dangling, "read_to_end", lambda *_given: (SimpleNamespace(value=lambda one=one: one) for one in shown)
    )
    one = dangling.DanglingTransaction(0, {OUT: 20}, OPENED)
    due = {FORMER.offsets[DATA]: 1, OPENED.offsets[DATA]: 2}

    def replay(until: Checkpoint) -> dangling.ReplayedEffects:
        return dangling.ReplayedEffects(effects_in(kind, due[until.offsets[DATA]]), {})

    transactions: Any = SimpleNamespace(check_owner=lambda: None)
    resolved = dangling.resolve(settings, one, transactions, FORMER, ManualClock(), lambda: replay(OPENED))
    assert (resolved.missing == 0) == (visible == 2)
    given: Any = readers
    assert dangling.last_in_order(one, FORMER, resolved, given, replay) == (FORMER if visible == 1 else None)


@pytest.mark.parametrize(
    ("noted_at", "counts"),
    [
        pytest.param(9, False, id="the unit was claimed again before the note arrived"),
        pytest.param(10, True, id="its author was the last claimant"),
        pytest.param(-1, True, id="an older release has written it"),
    ],
)
def test_the_note_of_a_claimant_that_was_fenced_before_it_arrived_does_not_count(
    monkeypatch: pytest.MonkeyPatch, noted_at: int, *, counts: bool
) -> None:
    """The claim in between, at 9, has found nothing, or has resolved everything, and written the results again."""
    note = msgspec.structs.replace(OPENED, noted_at=noted_at)
    log = StateLog(0, {checkpoint_key(0): encode(FORMER), dangling_key(0): encode(note)}, checkpoint_at=9)
    settings = make_settings(application={"replicas": 2})
    readers: Any = SimpleNamespace(settings=settings, clock=ManualClock(), log=None, everything=None)
    monkeypatch.setattr(dangling, "read_tried", lambda *_given: [note])
    monkeypatch.setattr(dangling, "log_range", lambda *_given: (0, 100))
    monkeypatch.setattr(dangling, "_ends", lambda *_given: {OUT: (90, 90)})
    monkeypatch.setattr(dangling, "read_to_end", lambda *_given: iter([SimpleNamespace(value=lambda: results("2")[0])]))
    found = dangling.find_dangling(log, readers)
    assert (found is not None) == counts
    assert (dangling.find_wrongly_ended(log, {OUT: 90}, readers) is not None) == counts
    if found is not None:
        assert found.reached is not None
        assert found.reached.offsets == OPENED.offsets


def test_a_note_says_where_the_log_ended_before_its_author_has_found_that_it_is_the_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings, steps, ends = make_settings(application={"replicas": 2}), list[str](), iter([30, 99])

    class Transactions:
        def check_owner(self) -> None:
            steps.append("check")

        def roll_back(self, *_given: Any) -> dict[str, int]:
            steps.append("fence")
            raise Fenced

    def end(*_given: Any) -> tuple[int, int]:
        steps.append("end")
        return 0, next(ends)

    def noted(_settings: Any, key: str, unit: int, reached: Checkpoint) -> None:
        steps.append("note")
        assert (key, unit, reached.offsets, reached.noted_at) == (dangling_key(0), 0, OPENED.offsets, 30)

    monkeypatch.setattr(dangling, "log_range", end)
    monkeypatch.setattr(dangling, "_note", noted)
    monkeypatch.setattr(
        dangling,
        "Readers",
        lambda *_given: SimpleNamespace(settings=settings, everything=None, clock=None, close=lambda: None),
    )
    open_ = dangling.DanglingTransaction(0, {OUT: 20}, OPENED)
    transactions: Any = Transactions()
    with pytest.raises(Fenced):
        dangling.resolve(settings, open_, transactions, FORMER, ManualClock(), lambda: pytest.fail("it is fenced"))
    assert steps == ["end", "check", "note", "fence"]


@pytest.mark.parametrize("results", ["full", "arrow"])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_each_result_that_is_not_there_is_kept_once(results: str, share: float) -> None:
    effects, draw = effects_of(results), random.Random(2)
    identities = all_identities(effects)
    assert len(set(identities)) == len(identities) == effects.pairs > 20
    absent = {identity for identity in identities if draw.random() < share}
    _keep_missing_results(effects, lambda wanted: wanted & absent)
    assert all_identities(effects) == [identity for identity in identities if identity in absent]
    assert effects.pairs == len(absent)


def test_results_are_known_by_the_same_ids_in_either_form() -> None:
    assert sorted(all_identities(effects_of("arrow"))) == sorted(all_identities(effects_of("full")))


def test_a_message_of_results_is_known_by_its_first_one() -> None:
    value = effects_of("arrow").joined.values[0]
    assert identity_of(value) == f" {decode_results(value).ids()[0]}" == identities_in(value)[0]
    assert identity_of(b"neither JSON nor Arrow") == ""


def test_the_error_of_a_producer_that_fails_while_it_calls_back_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other error counts as a defect, after which the unit is not claimed again."""

    def flush(_limit_s: float) -> int:
        raise SystemError from KafkaException(KafkaError(KafkaError._FATAL, "failed"))  # noqa: SLF001 - the public name

    producer = SimpleNamespace(produce=lambda *_given, **_more: None, flush=flush)
    monkeypatch.setattr(dangling, "make_producer", lambda _kafka: producer)
    with pytest.raises(KafkaException, match="failed"):
        dangling._note(make_settings(), dangling_key(0), 0, OPENED)  # noqa: SLF001 - it is used where Kafka is
