"""Which results of a replay are written again if some of their messages are there already?"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from broker.wire.arrow.results import decode_results
from broker.wire.start_records import encode_start
from joiner.runtime.kafka.pending_markers import BEGINNING, identities_in, identity_of
from joiner.runtime.model import FirstRecord, StateLog, checkpoint_key, encode
from joiner.runtime.ownership import dangling
from joiner.runtime.ownership.dangling import _identities, _keep_missing_results
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
