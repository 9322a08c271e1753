"""Which process serves a unit after another one has wrongly claimed it?"""

from __future__ import annotations

import random

import msgspec
import pytest

from joiner.runtime.membership.site import SiteMembership
from joiner.runtime.model import checkpoint_key, encode
from joiner.runtime.settings import JoinerSettings
from tests.simulation.feed import APPLICATION, make_settings
from tests.simulation.memory_log import COMMITTED
from tests.simulation.stage import membership_in, on_stage, running
from tests.simulation.verdict import committed_checkpoint
from tests.simulation.world import SimulatedProcess, World

STEPS_MAX = 3000


def two_units() -> JoinerSettings:
    draws = map(make_settings, map(random.Random, range(100)))
    return next(settings for settings in draws if settings.topics.partitions == 2)


class Intruder:
    """Claims unit 0 while its owner serves both units, as a process that has lost it would. Then writes input.

    ``reported``: whether the owner has reported by then that it serves both.
    """

    def __init__(self, *, reported: bool = False) -> None:
        self.reported = reported
        self.settings = two_units()
        self.world = World(1)
        self.world.director = self
        for name in (*self.settings.input_topics, *("machine.out", "machine.late", "machine.rejected", "sim.state")):
            self.world.kafka.create_topic(name, 2)
        self.world.kafka.create_topic(self.settings.control_topic, 1)
        self.process: SimulatedProcess | None = None
        self.complaints: list[str] = []
        self.is_taken_again = False
        self.claims = 0

    def step(self) -> None:
        """See `Director`."""
        if self.process is None:
            self.process = self.world.start(self.settings)
        checkpoint = committed_checkpoint(self.world.kafka, self.settings, 0)
        serves_both = running(self.process.joiner) == {0, 1}
        is_time = serves_both and (not self.reported or self._are_both_reported())
        if not self.complaints and checkpoint is not None and is_time and checkpoint.run == self.process.run:
            self._claim(msgspec.structs.replace(checkpoint, run="late", instance="late"))
        self.is_taken_again = bool(self.complaints) and serves_both
        if self.is_taken_again or self.world.steps > STEPS_MAX:
            self.world.end()

    def _are_both_reported(self) -> bool:
        membership = membership_in(self.process.joiner) if self.process is not None else None
        return isinstance(membership, SiteMembership) and all(membership.state.server(unit) for unit in (0, 1))

    def _claim(self, checkpoint: object) -> None:
        self.claims += 1
        kafka, name = self.world.kafka, f"{APPLICATION}-0"
        _, epoch = kafka.init(name, 60.0)
        within = kafka.transaction(name, epoch)
        kafka.append("sim.state", 0, checkpoint_key(0).encode(), encode(checkpoint), within)  # type: ignore[arg-type] # always a Checkpoint
        kafka.end(name, epoch, COMMITTED)
        for topic in self.settings.input_topics:
            kafka.append(topic, 0, None, b"more input")

    def ended(self, process: SimulatedProcess, status: int | BaseException) -> None:
        """See `Director`."""
        raise AssertionError(f"{process.run} ended with {status!r}")

    def complain(self, text: str) -> None:
        """See `Director`."""
        self.complaints.append(text)


class Stopper(Intruder):
    """Stops the owner as soon as it has lost the unit."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses: list[int | BaseException] = []

    def complain(self, text: str) -> None:
        """See `Director`."""
        super().complain(text)
        assert self.process is not None
        self.process.joiner.stop()

    def ended(self, _process: SimulatedProcess, status: int | BaseException) -> None:
        """See `Director`."""
        self.statuses.append(status)
        self.world.end()


def test_a_process_that_is_asked_to_end_ends_well_though_another_has_one_of_its_units() -> None:
    play = Stopper()
    with on_stage(play.world):
        play.world.play()
    assert play.complaints == ["unit 0: now owned by process late (run late); given up"]
    assert play.statuses == [0]


@pytest.mark.parametrize("reported", [False, True])
def test_a_unit_that_a_late_claimant_took_and_left_is_taken_again(*, reported: bool) -> None:
    play = Intruder(reported=reported)
    with on_stage(play.world):
        play.world.play()
    assert play.complaints == ["unit 0: now owned by process late (run late); given up"]
    assert play.is_taken_again
    assert play.claims == 1, "the owner has claimed it again without looking who has it"
