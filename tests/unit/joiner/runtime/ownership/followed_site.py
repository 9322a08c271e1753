"""A site whose followers keep states in memory, with a pool that runs what was submitted when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from joiner.runtime.kafka.readers import ClaimCancelled
from joiner.runtime.ownership import followers as module
from joiner.runtime.ownership.eligibility import Claimant, check_site
from joiner.runtime.ownership.followers import Followers
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings

CLAIMANT = Claimant("run", "one")


class Pool:
    """Begins and runs what was submitted when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def submit(self, work: Any, *given: Any) -> Future[Any]:
        done: Future[Any] = Future()
        self.waiting.append((done, work, given))
        return done

    def begin(self) -> None:
        """Begin the work, which can then no longer be cancelled."""
        for done, _, _ in self.waiting:
            if not done.running():
                done.set_running_or_notify_cancel()

    def run(self) -> None:
        self.begin()
        waiting, self.waiting = self.waiting, []
        for done, work, given in waiting:
            if done.cancelled():
                continue
            try:
                done.set_result(work(*given))
            except Exception as error:  # noqa: BLE001 - like a real pool
                done.set_exception(error)


class WaitingClock(ManualClock):
    """Lets something happen when something waits for futures."""

    while_waiting: Callable[[], None] | None = None

    def wait_until_done(self, futures: Collection[Future[Any]], until_s: float | None = None) -> None:
        if self.while_waiting is not None:
            self.while_waiting()
        super().wait_until_done(futures, until_s)


class Site:
    """A `Followers` whose units have states in memory: each step advances the state by one, unless it is over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, commit_interval: str = "20ms") -> None:
        self.pool, self.clock = Pool(), WaitingClock()
        self.closed: list[int] = []
        self.ended_early: list[int] = []
        self.prepared: list[int] = []
        self.fault: Exception | None = None
        self.basis = ({"data": 0}, {"data": "id"}, "fingerprint")
        self.run, self.owner_site = "run of the owner", "process"
        monkeypatch.setattr(module, "warm_up", self._warm_up)
        monkeypatch.setattr(module, "read_newest", lambda _readers, _unit: SimpleNamespace(checkpoint=self._checkpoint))
        monkeypatch.setattr(module, "build_state", self._build)
        services: Any = SimpleNamespace(followers=self.pool, clock=self.clock)
        application = {"name": "joiner", "commit_interval": commit_interval}
        self.followers = Followers(make_settings(application=application), CLAIMANT, services, self.prepared.append)

    def poll(self, *wanted: int, claimed_soon: frozenset[int] = frozenset()) -> None:
        self.followers.poll(frozenset(wanted), claimed_soon)
        self.pool.run()
        self.followers.poll(frozenset(wanted), claimed_soon)

    def _warm_up(self, _settings: Any, unit: int, *_given: Any, of_own_site: bool, is_over: Callable[[], bool]) -> Any:
        assert of_own_site
        if self.fault is not None:
            raise self.fault
        if not self.run:
            return None
        check_site(make_settings(), self._checkpoint(), CLAIMANT)

        def check() -> None:
            if is_over():
                self.ended_early.append(unit)
                raise ClaimCancelled

        check()
        readers = SimpleNamespace(basis=self.basis, check=check, close=lambda: self.closed.append(unit))
        return SimpleNamespace(unit=0, readers=readers, transactions=None)

    def _checkpoint(self) -> Any:
        owner = f"two@{self.owner_site}"
        return SimpleNamespace(
            unit=0, basis=self.basis, run=self.run, site=self.owner_site, on_the_way=None, owner=owner
        )

    def _build(self, _checkpoint: Any, _state: Any, readers: Any, state: int, **_more: Any) -> int:
        readers.check()
        if self.fault is not None:
            raise self.fault
        return state + 1
