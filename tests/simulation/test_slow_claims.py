"""If claims are slow, as on a loaded machine or over a slow network, two runners do not keep fencing each other."""

from __future__ import annotations

import pytest

from joiner.runtime.control import Request, encode
from joiner.runtime.migration.protocol import REPEAT_S
from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.settings import JoinerSettings
from tests.simulation.stage import on_stage, running
from tests.simulation.test_forgotten import SETTINGS, feed
from tests.simulation.test_ownership import two_units
from tests.simulation.verdict import committed_checkpoint
from tests.simulation.world import SimulatedProcess, World

STEPS_MAX = 60_000
CLAIMS_MAX = 5
"""The target's claim, and the claims that either side makes before its loop has read the other's announcement: here a
turn of a loop may take seconds. If runners did not announce slow claims, there would be up to twelve.
"""


class Move:
    """Moves unit 0 from one site to another, while every claim takes ``claim_s``.

    ``stays_s``: how long the history continues after the unit is served again.
    """

    def __init__(self, seed: int, claim_s: float, settings: JoinerSettings, stays_s: float = 0.0) -> None:
        self.settings = settings
        self.world = World(seed)
        self.world.director = self
        self._claim_s, self._stays_s, self._served_s = claim_s, stays_s, 0.0
        for name in (*settings.input_topics, "machine.out", "machine.late", "machine.rejected", "sim.state"):
            self.world.kafka.create_topic(name, settings.topics.partitions)
        self.world.kafka.create_topic(self.settings.control_topic, 1)
        self._source: SimulatedProcess | None = None
        self._target: SimulatedProcess | None = None
        self._next_s = 0.0
        self._released_s: float | None = None
        self.served_by = ""
        self.claims = 0
        """The number of times that the unit's transactional id was initialised after its release."""
        self.world.kafka.on_init = self._count
        self.complaints: list[str] = []

    def step(self) -> None:
        """See `Director`."""
        if self._source is None:
            self._source = self._start("blue")
        units = range(self.settings.topics.partitions)
        if self._target is None and all(self._served_by("blue", unit) for unit in units):
            self._target = self._start("green")
            self.world.slow_claims_s = (self._claim_s, self._claim_s)
        if self._target is not None:
            self._order()
        checkpoint = committed_checkpoint(self.world.kafka, self.settings, 0)
        if self._released_s is None and checkpoint is not None and checkpoint.on_the_way is not None:
            self._released_s = self.world.clock_s
        if self._released_s is not None:
            self.served_by = next((name for name in ("blue", "green") if self._served_by(name, 0)), "")
        if not self.served_by:
            self._served_s = self.world.clock_s
        if (self.world.clock_s >= self._served_s + self._stays_s and self.served_by) or self.world.steps > STEPS_MAX:
            self.world.end()

    def _count(self, transactional_id: str, _epoch: int) -> None:
        self.claims += transactional_id.endswith("-0") and self._released_s is not None

    def _start(self, site: str) -> SimulatedProcess:
        name = f"of-{site}"
        application = self.settings.application.model_copy(update={"instance": name, "site": site})
        settings = self.settings.model_copy(update={"application": application})
        claimant = Claimant(f"run-{site}", name, site)
        return self.world.start(settings, claimant, standby=site == "green")

    def _served_by(self, site: str, unit: int) -> bool:
        process = self._source if site == "blue" else self._target
        return process is not None and unit in running(process.joiner)

    def _order(self) -> None:
        """Order the move, and repeat the order until the unit is released, as `joiner move` does."""
        if self.world.clock_s >= self._next_s and self._released_s is None:
            self._next_s = self.world.clock_s + REPEAT_S
            record = encode(Request(move="m", units=[0], to="green"))
            self.world.kafka.append(self.settings.control_topic, 0, None, record)

    def ended(self, process: SimulatedProcess, status: int | BaseException) -> None:
        """See `Director`."""
        raise AssertionError(f"{process.run} ended with {status!r}")

    def complain(self, text: str) -> None:
        """See `Director`."""
        self.complaints.append(text)


@pytest.mark.parametrize("claim_s", [0.1, 6.0, 15.0])
@pytest.mark.parametrize("seed", range(1, 9))
def test_two_sides_of_a_move_do_not_duel_however_long_a_claim_takes(seed: int, claim_s: float) -> None:
    play = Move(seed, claim_s, two_units())
    with on_stage(play.world):
        play.world.play()
    assert play.complaints == []
    assert play.served_by, "no runner serves the unit"
    assert play.claims <= CLAIMS_MAX


@pytest.mark.parametrize("seed", range(1, 17))
def test_a_unit_with_a_snapshot_in_transactions_of_its_own_is_released_behind_it(seed: int) -> None:
    play = Move(seed, 0.0, SETTINGS, stays_s=30.0)
    play.world.snapshot_bytes_max = 1
    for batch in range(40):
        feed(play.world.kafka, batch)
    with on_stage(play.world):
        play.world.play()
    # A claim during the release would fence the source, which would log that the unit is given up.
    assert play.complaints == []
    assert play.served_by
