"""However often the owner of a unit dies, a claim does not replay more and more of the input."""

from __future__ import annotations

from typing import Any, Final

import pytest

from joiner.runtime.ownership import restore
from tests.simulation.stage import on_stage
from tests.simulation.test_forgotten import SETTINGS, create_topics, feed
from tests.simulation.verdict import committed_checkpoint, judge, stable_ends
from tests.simulation.world import SimulatedProcess, World

LIVES: Final = 12
RECORDS: Final = 10
"""The number of records that each owner reads before it dies."""
LIFE_S: Final = 3
"""How long each owner lives at least."""


class Mortal:
    """Feeds a few records to each of several owners, and kills it once it has joined them."""

    def __init__(self, **application: Any) -> None:
        changed = SETTINGS.application.model_copy(update=application)
        self._settings = SETTINGS.model_copy(update={"application": changed})
        self.world = World(1)
        self.world.director = self
        self._kafka = self.world.kafka
        create_topics(self._kafka)
        self._process: SimulatedProcess | None = None
        self._fed = self._lives = 0
        self._since_s = 0.0
        self.difference = "not through"

    def step(self) -> None:
        """See `Director`."""
        if self._process is None:
            self._process, self._since_s = self.world.start(self._settings), self.world.clock_s
            self._lives += 1
        checkpoint = committed_checkpoint(self._kafka, self._settings, 0)
        is_through = checkpoint is not None and checkpoint.offsets == stable_ends(self._kafka, self._settings, 0)
        if not is_through:
            return
        if self._lives == LIVES:
            self.difference = judge(self._kafka, self._settings)[0]
            self.world.end()
        elif self._fed < self._lives * RECORDS:
            self._fed += 2
            feed(self._kafka, self._fed)
        elif self.world.clock_s - self._since_s > LIFE_S:
            self._process.is_dead = True

    def ended(self, _process: SimulatedProcess, _status: int | BaseException) -> None:
        """See `Director`."""
        self._process = None

    def complain(self, text: str) -> None:
        """See `Director`."""
        raise AssertionError(text)


@pytest.mark.parametrize(
    "application",
    [
        {"snapshot_records": 3 * RECORDS, "snapshot_interval": 10**15},
        {"snapshot_records": 10**6, "snapshot_interval": LIFE_S * 10**10 // 2},
    ],
    ids=["after a number of records", "after a time"],
)
def test_a_replay_is_bounded_however_often_the_owner_dies(
    application: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    replay, replayed = restore._replay, []  # noqa: SLF001 - counted here

    def counting(*arguments: Any) -> int:
        replayed.append(replay(*arguments))
        return replayed[-1]

    monkeypatch.setattr(restore, "_replay", counting)
    play = Mortal(**application)
    with on_stage(play.world):
        play.world.play()
    assert play.difference == ""
    assert len(replayed) >= LIVES - 1
    assert 0 < max(replayed) <= 4 * RECORDS
