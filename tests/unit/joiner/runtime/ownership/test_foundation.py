"""Does a unit of a replica begin with what replica 0 has saved, and wait or stop if that is not possible?"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from broker.kafka.topics import TopicFacts
from joiner.runtime.kafka.readers import ClaimCancelled, Readers
from joiner.runtime.model import (
    FORMAT_VERSION,
    RESET_RUN,
    Checkpoint,
    StateLog,
    UnitStopped,
    checkpoint_key,
    chunk_key,
    encode,
    manifest_key,
)
from joiner.runtime.ownership import foundation
from joiner.runtime.ownership.eligibility import Claimant, FoundationAwaited
from joiner.runtime.ownership.foundation import check_origin, found_unit, read_foundation
from joiner.runtime.ownership.retry_policy import cause_of
from joiner.runtime.settings import JoinerSettings, replica_settings
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import DATA, POWER, make_settings
from tests.unit.joiner.runtime.test_model import make_checkpoint, make_manifest

ORIGIN = make_settings(application={"replicas": 2})
SETTINGS = replica_settings(ORIGIN, 1)
TOPICS = {DATA: TopicFacts("id", 1)}
CLAIMANT = Claimant("run", "one", "green")
STATE = b"abcdef"


def state(checkpoint: Checkpoint | None = None, *, saved: bool = True, **changes: Any) -> StateLog:
    """Return replica 0's log: a checkpoint and, if ``saved``, a snapshot. ``changes``: of its manifest."""
    checkpoint = checkpoint or make_checkpoint(offsets={DATA: 20})
    values = {checkpoint_key(0): encode(checkpoint)}
    if saved:
        manifest = make_manifest(4, 0, STATE, offsets={DATA: 12}, fingerprint=ORIGIN.fingerprint())
        values |= {chunk_key(0, 0, 0): STATE[:3], chunk_key(0, 0, 1): STATE[3:]}
        values[manifest_key(0, 0)] = encode(msgspec.structs.replace(manifest, **changes))
    return StateLog(0, values)


@pytest.fixture
def give(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets what successive reads of replica 0's log find. The last one is repeated."""

    def give(*logs: StateLog) -> None:
        left = list(logs)

        def read(readers: Any, _unit: int) -> StateLog:
            assert readers.settings.state_topic == ORIGIN.state_topic
            return left.pop(0) if len(left) > 1 else left[0]

        monkeypatch.setattr(foundation, "topic_facts", lambda _admin, names: dict.fromkeys(names))
        monkeypatch.setattr(foundation, "read_state", read)
        monkeypatch.setattr(foundation, "log_ranges", lambda *_given: {DATA: (0, 100)})
        monkeypatch.setattr(foundation, "read_checkpoint", lambda *given: read(*given).checkpoint())

    return give


def admin(error: Exception | None = None) -> Any:
    """Return a client that says where replica 0's log ends, unless it raises the error."""

    def list_offsets(places: dict[TopicPartition, Any], request_timeout: float) -> dict[TopicPartition, Future[None]]:
        assert request_timeout <= 5, "the unit must not wait for long"
        (place,) = places
        assert (place.topic, place.partition) == (ORIGIN.state_topic, 0)
        answer = Future[None]()
        answer.set_result(None) if error is None else answer.set_exception(error)
        return {place: answer}

    return SimpleNamespace(list_offsets=list_offsets)


def check(found: Checkpoint | None, settings: JoinerSettings = SETTINGS, error: Exception | None = None) -> None:
    check_origin(settings, 0, found, admin(error), ManualClock())


def read() -> foundation.Foundation:
    return read_foundation(SETTINGS, 0, TOPICS, CLAIMANT, ManualClock())


def test_a_unit_is_founded_on_the_newest_snapshot_and_not_on_what_followed_it(give: Callable[..., None]) -> None:
    give(state())
    checkpoint, snapshot = read()
    assert snapshot == STATE
    assert checkpoint.offsets == checkpoint.founded == {DATA: 12}
    assert checkpoint.start == {DATA: 3}
    assert (checkpoint.run, checkpoint.application) == (RESET_RUN, "lsb.r1")
    assert checkpoint.fingerprint == SETTINGS.fingerprint()


def test_without_a_snapshot_it_begins_where_replica_0_began(give: Callable[..., None]) -> None:
    give(state(saved=False))
    checkpoint, snapshot = read()
    assert snapshot is None
    assert (checkpoint.offsets, checkpoint.start, checkpoint.founded) == ({DATA: 3}, {DATA: 3}, {})


def test_a_unit_that_replica_0_has_not_begun_waits(give: Callable[..., None]) -> None:
    give(StateLog(0))
    for attempt in (read, lambda: check(None)):
        with pytest.raises(FoundationAwaited, match=r"waits for replica 0 to begin it.*lsb\.state") as waits:
            attempt()
        assert cause_of(waits.value).is_transient


def test_a_unit_waits_for_a_replica_0_that_has_never_been_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foundation, "topic_facts", lambda *_given: {})
    with pytest.raises(FoundationAwaited):
        check(None)


def test_replica_0_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foundation, "Readers", lambda *_given: pytest.fail("it reads another replica's log"))
    check(None, ORIGIN)
    check(None, make_settings())


@pytest.mark.parametrize("change", [{"start": {DATA: 4}}, {"topics": {DATA: "another"}}])
def test_a_unit_is_not_continued_once_replica_0_was_reset(give: Callable[..., None], change: dict[str, Any]) -> None:
    give(state(make_checkpoint(**change)))
    with pytest.raises(UnitStopped, match="run `joiner reset --replica 1`") as stopped:
        check(make_checkpoint())
    assert not cause_of(stopped.value).is_transient


def test_a_unit_is_not_continued_if_replica_0_was_reset_with_other_settings_and_begins_at_the_same_vector(
    give: Callable[..., None],
) -> None:
    other = make_settings(POWER | {"tolerance": "7ms"}, application={"replicas": 2})
    give(state(make_checkpoint(fingerprint=other.fingerprint(), semantics=other.semantics())))
    with pytest.raises(UnitStopped, match=r"joins\.power\.tolerance_ns: 7000000 there.*`joiner reset --replica 1`"):
        check(make_checkpoint())


def test_a_unit_is_continued_whether_replica_0_has_a_checkpoint_or_has_lost_it(give: Callable[..., None]) -> None:
    for log in (state(make_checkpoint(offsets={DATA: 99}, run="other")), StateLog(0)):
        give(log)
        check(make_checkpoint())


AWAY = KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
NEWER = encode(make_checkpoint(format=FORMAT_VERSION + 1))


@pytest.mark.parametrize("value", [b"no checkpoint", NEWER])
def test_a_unit_does_not_need_a_readable_checkpoint_of_replica_0_to_be_continued(
    give: Callable[..., None], caplog: pytest.LogCaptureFixture, value: bytes
) -> None:
    give(StateLog(0, {checkpoint_key(0): value}))
    check(make_checkpoint())
    assert "its owner does not know whether replica 0 was reset" in caplog.text
    with pytest.raises(UnitStopped, match="unit 0: "):
        check(None)


def test_a_unit_does_not_wait_for_a_leader_of_replica_0s_partition_to_be_continued(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(foundation, "topic_facts", lambda *_given: pytest.fail("it sends another request"))
    monkeypatch.setattr(foundation, "Readers", lambda *_given: pytest.fail("a reader waits for half a minute"))
    check(make_checkpoint(), error=AWAY)
    assert "its owner does not know whether replica 0 was reset" in caplog.text


@pytest.mark.parametrize(
    ("log", "what"),
    [
        (state(make_checkpoint(fingerprint="another", semantics={})), "different values for settings"),
        (state(make_checkpoint(topics={DATA: "another"})), "was deleted and recreated"),
        (state(make_checkpoint(partitions=2)), "started with 2 partitions"),
        (state(fingerprint="another"), "written under different settings"),
        (state(sha256="another"), "does not match its checksum"),
    ],
)
def test_a_state_that_cannot_be_used_is_refused(give: Callable[..., None], log: StateLog, what: str) -> None:
    give(log)
    with pytest.raises(UnitStopped, match=what):
        read()


def test_a_snapshot_that_was_replaced_while_it_was_read_is_read_again(give: Callable[..., None]) -> None:
    damaged = StateLog(0, {key: value for key, value in state().values.items() if key != chunk_key(0, 0, 1)})
    give(damaged, state())
    assert read().snapshot == STATE
    give(damaged, damaged, state())
    with pytest.raises(FoundationAwaited, match=r"waits for another snapshot of replica 0: .*lacks 0/0/1") as waits:
        read()
    assert cause_of(waits.value).is_transient, "the next one may be complete"


@pytest.mark.parametrize(("low", "end", "saved"), [(13, 100, True), (0, 11, True), (4, 100, False)])
def test_a_unit_that_could_not_go_on_is_not_founded_but_waits_for_the_next_snapshot(
    give: Callable[..., None], fenced: Transactions, monkeypatch: pytest.MonkeyPatch, low: int, end: int, *, saved: bool
) -> None:
    """Once the foundation is written, the unit would fail until it is reset."""
    give(state(saved=saved))
    monkeypatch.setattr(foundation, "log_ranges", lambda *_given: {DATA: (low, end)})
    with pytest.raises(FoundationAwaited, match=f"the log is from {low} to {end}") as waits:
        found(fenced)
    assert cause_of(waits.value).is_transient
    assert not fenced.steps
    monkeypatch.setattr(foundation, "log_ranges", lambda *_given: {DATA: (12 if saved else 3, 12)})
    assert found(fenced).checkpoint() is not None


def test_which_site_serves_replica_0_does_not_matter(give: Callable[..., None]) -> None:
    give(state(make_checkpoint(site="elsewhere")))
    assert read().checkpoint.site == "green"


class Transactions:
    """Records what is written. ``log``: where it is written to."""

    def __init__(self, log: dict[str, bytes]) -> None:
        self.log, self.steps = log, list[str]()
        self.begun: Checkpoint | None = None

    def begin_anew(
        self, _state: StateLog, checkpoint: Checkpoint, snapshot: bytes | None, *, with_offsets: bool
    ) -> None:
        assert not with_offsets
        self.steps.append(f"write {snapshot!r}")
        self.begun = checkpoint
        self.log[checkpoint_key(0)] = encode(checkpoint)


@pytest.fixture
def fenced(monkeypatch: pytest.MonkeyPatch) -> Transactions:
    own = Transactions({})

    def fence(*_given: Any) -> dict[str, int]:
        own.steps.append("fence")
        return {"machine.out.r1": 30}

    monkeypatch.setattr(foundation, "fence_partitions", fence)
    monkeypatch.setattr(foundation, "read_newest", lambda *_given: StateLog(0, dict(own.log)))
    return own


def found(own: Transactions, *, is_over: bool = False) -> StateLog:
    readers, given = Readers(SETTINGS, ManualClock()), cast("Any", own)
    readers.is_over = lambda: is_over
    return found_unit(readers, StateLog(0), given, TOPICS, CLAIMANT)


def test_what_kafka_has_left_open_is_ended_before_the_foundation_is_written(
    give: Callable[..., None], fenced: Transactions
) -> None:
    give(state())
    log = found(fenced)
    assert fenced.steps == ["fence", f"write {STATE!r}"]
    assert fenced.begun is not None
    assert fenced.begun.result_ends == {"machine.out.r1": 30}
    assert log.checkpoint() == fenced.begun


def test_a_unit_is_not_founded_any_more_if_its_claim_was_cancelled(
    give: Callable[..., None], fenced: Transactions
) -> None:
    give(state())
    with pytest.raises(ClaimCancelled):
        found(fenced, is_over=True)
    assert not fenced.steps


def test_a_foundation_that_has_become_visible_is_not_written_again(
    give: Callable[..., None], fenced: Transactions
) -> None:
    give(state())
    earlier = make_checkpoint(run=RESET_RUN, offsets={DATA: 8}, founded={DATA: 8})
    fenced.log[checkpoint_key(0)] = encode(earlier)
    assert found(fenced).checkpoint() == earlier
    assert fenced.steps == ["fence"]


def test_a_foundation_that_cannot_be_read_is_not_taken_for_a_new_application(
    give: Callable[..., None], fenced: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(state())
    monkeypatch.setattr(foundation, "read_newest", lambda *_given: StateLog(0))
    with pytest.raises(KafkaException, match="cannot be read yet"):
        found(fenced)
