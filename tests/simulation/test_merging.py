"""Does a merged topic contain each result once, although the process that merges dies at any call to the broker?"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
import pytest

from joiner.cli.merging import progress as progress_of
from joiner.cli.merging.progress import Progress
from joiner.cli.merging.session import Session
from joiner.library.merging.partition import MergeError
from joiner.library.merging.protocol import ReplicaUnion
from tests.simulation.merging_world import MergingWorld

_SEEDS = 60
_SEEDS_MAX = 300
"""Enough to find each planted defect."""
_IDLE_TURNS = 25
"""After so many turns without anything new, all has been read."""


def play(seed: int, caplog: pytest.LogCaptureFixture) -> str | None:
    """Play a history. Return what is wrong with the merged topic, or None."""
    caplog.clear()
    with pytest.MonkeyPatch.context() as patch:
        world = MergingWorld(seed, patch)
        for _ in range(world.draw.randint(20, 120)):
            world.replicas.step()
            if world.draw.random() < 0.5:
                world.send()
            if world.draw.random() < 0.3:
                world.link.calls_left = world.draw.randint(1, 60)
            world.link.loses_answers = world.draw.choice((0.0, 0.0, 0.3))
            world.turn()
        world.replicas.finish()
        world.send()
        world.link.calls_left, world.link.loses_answers = None, 0.0
        idle = 0
        while idle < _IDLE_TURNS:
            idle = 0 if world.turn() else idle + 1
        # If the only complete replica was reset, more or less may be there.
        return None if "was reset while no other replica" in caplog.text else world.difference()


@pytest.mark.parametrize("seed", range(_SEEDS))
def test_each_result_is_merged_once_whenever_the_process_dies(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert play(seed, caplog) is None


def ids_are_not_recalled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplicaUnion, "recall", lambda *_arguments: None)


def positions_are_ahead(patch: pytest.MonkeyPatch) -> None:
    original = Session._progress  # noqa: SLF001 - what is committed is nowhere else

    def ahead(session: Session, output: tuple[str, int]) -> Progress:
        progress = original(session, output)
        return msgspec.structs.replace(progress, positions={topic: at + 1 for topic, at in progress.positions.items()})

    patch.setattr(Session, "_progress", ahead)


def who_was_first_is_not_known(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(progress_of, "_header", lambda _message: 0)


@pytest.mark.parametrize("defect", [ids_are_not_recalled, positions_are_ahead, who_was_first_is_not_known])
def test_a_planted_defect_is_found(
    defect: Callable[[pytest.MonkeyPatch], None], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING):
        defect(patch)
        assert any(is_found(seed, caplog) for seed in range(_SEEDS_MAX))


def is_found(seed: int, caplog: pytest.LogCaptureFixture) -> bool:
    try:
        return play(seed, caplog) is not None
    except MergeError:
        return True
