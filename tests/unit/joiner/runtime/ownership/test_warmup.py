"""Does a standby build a unit's state only if an instance of its own site serves the unit? Tested without Kafka."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.kafka.topics import TopicFacts
from joiner.runtime.kafka import readers as readers_module
from joiner.runtime.kafka.readers import ClaimCancelled, Readers
from joiner.runtime.model import RESET_RUN, Checkpoint, StateLog, UnitStopped, checkpoint_key, encode
from joiner.runtime.ownership import warmup
from joiner.runtime.ownership.eligibility import Claimant, OwnedElsewhere
from joiner.runtime.ownership.warmup import Warm, warm_up
from joiner.runtime.settings import replica_settings
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import DATA, make_settings
from tests.unit.joiner.runtime.test_model import make_checkpoint

SERVICES: Any = SimpleNamespace(clock=ManualClock(), admin=None)


class Kafka:
    """Answers with a checkpoint. Notes what is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.checkpoint: Checkpoint | None = None
        self.looks = 0
        self.connected: list[int] = []
        monkeypatch.setattr(warmup, "read_checkpoint", self._read_checkpoint)
        monkeypatch.setattr(Readers, "connect", lambda _, unit: self._connect(unit))

    def warm_up(self, claimant: Claimant) -> Warm | None:
        return warm_up(make_settings(), 0, SERVICES, claimant, of_own_site=True)

    def _read_checkpoint(self, _readers: Any, _unit: int) -> Checkpoint | None:
        self.looks += 1
        return self.checkpoint

    def _connect(self, unit: int) -> None:
        self.connected.append(unit)
        raise UnitStopped("what follows is not tested here")


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    return Kafka(monkeypatch)


def test_a_unit_that_was_never_claimed_is_found_with_one_request(kafka: Kafka) -> None:
    assert kafka.warm_up(Claimant("run", "two")) is None
    assert (kafka.looks, kafka.connected) == (1, [])


@pytest.mark.parametrize("force", [False, True])
def test_a_unit_of_another_site_is_not_built(kafka: Kafka, *, force: bool) -> None:
    kafka.checkpoint = make_checkpoint(site="spark")
    with pytest.raises(OwnedElsewhere, match=r"unit 0 of .* is owned by"):
        kafka.warm_up(Claimant("run", "two", force=force))
    assert (kafka.looks, kafka.connected) == (1, [])


@pytest.mark.parametrize("changes", [{}, {"run": "moving:a move:spark"}, {"run": RESET_RUN, "site": "spark"}])
def test_a_unit_that_is_of_this_site_is_on_its_way_here_or_was_reset_is_built(
    kafka: Kafka, changes: dict[str, Any]
) -> None:
    kafka.checkpoint = make_checkpoint(**changes)
    with pytest.raises(UnitStopped, match="not tested here"):
        kafka.warm_up(Claimant("run", "two"))
    assert kafka.connected == [0, 0]


def test_a_build_that_is_no_longer_wanted_sends_no_further_request(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        def close(self) -> None:
            closed.append(self)

    def make(*_given: Any, **_more: Any) -> Client:
        return Client()

    def request(*_given: Any) -> tuple[int, int]:
        requests.append(_given)
        return 0, 0

    closed: list[Client] = []
    requests: list[Any] = []

    for name in ("make_consumer", "make_reader", "make_batch_consumer"):
        monkeypatch.setattr(readers_module, name, make)
    monkeypatch.setattr(readers_module, "log_range", request)
    with pytest.raises(ClaimCancelled):
        warm_up(make_settings(), 0, SERVICES, Claimant("run", "two"), is_over=lambda: len(requests) == 3)
    assert (len(requests), len(closed)) == (3, 4)


def test_a_unit_of_a_replica_is_compared_with_replica_0_before_it_is_kept_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its claim does not do that, because it must be fast."""
    settings = replica_settings(make_settings(application={"replicas": 2}), 1)
    checkpoint = make_checkpoint(fingerprint=settings.fingerprint())
    monkeypatch.setattr(Readers, "connect", lambda _readers, _unit: None)
    monkeypatch.setattr(warmup, "read_checkpoint", lambda *_given: checkpoint)
    monkeypatch.setattr(warmup, "read_state", lambda *_given: StateLog(0, {checkpoint_key(0): encode(checkpoint)}))
    monkeypatch.setattr(warmup, "topic_facts", lambda *_given: {DATA: TopicFacts("id", 1)})

    def check_origin(_settings: Any, _unit: int, found: Checkpoint, *_rest: Any) -> None:
        assert found == checkpoint
        raise UnitStopped("replica 0 was reset")

    monkeypatch.setattr(warmup, "check_origin", check_origin)
    with pytest.raises(UnitStopped, match="replica 0 was reset"):
        warm_up(settings, 0, SERVICES, Claimant("run", "two"), of_own_site=True)
