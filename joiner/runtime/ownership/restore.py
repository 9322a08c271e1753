"""Restores a claimed unit's state at C, from the newest snapshot, at C0 <= C, and a silent replay up to C."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final

from joiner.runtime.clock import Clock
from joiner.runtime.kafka.batches.gaps import GapVerifier
from joiner.runtime.kafka.batches.ranges import read_range
from joiner.runtime.kafka.checkpoint_log import read_state
from joiner.runtime.kafka.clients import timed_out
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.kafka.snapshot_log import SnapshotPlace
from joiner.runtime.kafka.transaction import OwnershipInDoubt, UnitTransactions, offsets_as_text
from joiner.runtime.model import Checkpoint, StateLog, UnitStopped
from joiner.runtime.ownership.dangling import ReplayedEffects
from joiner.runtime.ownership.eligibility import check_log_range, log_ranges
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.decode import Messages
from joiner.runtime.task.effects import Effects
from joiner.runtime.task.unit import Unit

_REPLAY_BATCH: Final = 50_000
"""Messages per step of a replay. The cost of a step grows with the number of records that its keys hold, so a few large
steps are better; but all messages of a step are in memory at once."""

_log = logging.getLogger(__name__)


@dataclass
class Recovered:
    """A claimed unit with its state at C. ``snapshot_offsets``: the vector C0 of its newest snapshot."""

    unit: Unit
    checkpoint: Checkpoint
    place: SnapshotPlace
    snapshot_offsets: dict[str, int]


def recover(
    transactions: UnitTransactions, checkpoint: Checkpoint, readers: Readers, warm: Unit | None = None
) -> Recovered:
    """Restore a claimed unit.

    ``readers``: those of the claim. ``warm``: the unit at an earlier vector, if it was warmed up. Raises `UnitStopped`
    if the state cannot be built, and `Fenced` if another runner has claimed the unit.
    """
    with unless_fenced(transactions):
        # The claim has read it after initialisation, and only this runner has written to it since.
        state = readers.state if readers.state is not None else read_state(readers, checkpoint.unit)
        # A state built before a reset must not be used, even if its offsets are in range.
        usable = warm if readers.begun_at == checkpoint.start else None
        built = build_state(checkpoint, state, readers, usable)
    return Recovered(built, checkpoint, SnapshotPlace.after(state), newest_offsets(checkpoint, state))


def build_state(checkpoint: Checkpoint, state: StateLog, readers: Readers, warm: Unit | None = None) -> Unit:
    """Build the unit at the offsets of ``checkpoint``. ``state``: its log in the state topic.

    Starts from ``warm`` unless the newest snapshot is ahead of it: retention may have removed the input before the
    snapshot. Raises `UnitStopped` if the state cannot be built.
    """
    unit, clock = checkpoint.unit, readers.clock
    restored = _nearest(readers.settings, checkpoint, state, warm)
    began_at = dict(restored.offsets)
    check_log_range(readers, unit, restored.offsets)
    started_s = clock.monotonic_s()
    replayed = _replay(readers, restored, checkpoint.offsets)
    _log.info(
        "unit %s: recovered at %s (%s records replayed from %s in %.1f s, %s held)",
        unit,
        offsets_as_text(checkpoint.offsets),
        replayed,
        offsets_as_text(began_at),
        clock.monotonic_s() - started_s,
        restored.held(),
    )
    return restored


def _nearest(settings: JoinerSettings, checkpoint: Checkpoint, state: StateLog, warm: Unit | None) -> Unit:
    if warm is not None:
        newest = newest_offsets(checkpoint, state)
        if all(newest[topic] <= at <= checkpoint.offsets[topic] for topic, at in warm.offsets.items()):
            return warm
    return _from_snapshot(settings, checkpoint.unit, state, checkpoint)


def newest_offsets(checkpoint: Checkpoint, state: StateLog) -> dict[str, int]:
    """Return the offsets of the newest snapshot or, without one, those at which the unit was started."""
    manifests = state.manifests()
    return dict(manifests[0].offsets if manifests else checkpoint.start)


def replay_effects(settings: JoinerSettings, until: Checkpoint, clock: Clock) -> ReplayedEffects:
    """Return the effects of the unit up to ``until``, replayed from the earliest state that can be built."""
    with closing(Readers(settings, clock)) as readers:
        return _replay_effects(readers, until)


def _replay_effects(readers: Readers, until: Checkpoint) -> ReplayedEffects:
    settings, unit = readers.settings, until.unit
    state = read_state(readers, unit)
    # If the older snapshot is gone, it was being replaced, so everything before the newer one had ended.
    kept = state.manifests()
    earlier = state if len(kept) == 1 and kept[0].serial else state.without_newest_snapshot()
    restored = _from_snapshot(settings, unit, earlier, until)
    if any(low > restored.offsets[topic] for topic, (low, _) in log_ranges(readers, unit).items()):
        earlier = state
        restored = _from_snapshot(settings, unit, earlier, until)
        check_log_range(readers, unit, restored.offsets)
    check_log_range(readers, unit, until.offsets)
    effects = Effects()
    _replay(readers, restored, until.offsets, effects)
    manifests = earlier.manifests()
    return ReplayedEffects(effects, (manifests[0] if manifests else until).result_ends)


@contextmanager
def unless_fenced(transactions: UnitTransactions) -> Iterator[None]:
    """Propagate `UnitStopped` only if the unit is still ours. Otherwise raise `Fenced`.

    A process that hung for a while may read the state topic and the input logs at different times: a new owner may have
    written a newer snapshot, and retention may have removed the input before it.
    """
    try:
        yield
    except UnitStopped:
        transactions.check_owner()
        raise


def _from_snapshot(settings: JoinerSettings, unit: int, state: StateLog, checkpoint: Checkpoint) -> Unit:
    manifests = state.manifests()
    if not manifests:
        return Unit(settings, unit, checkpoint.start)
    manifest = manifests[0]
    if manifest.fingerprint != checkpoint.fingerprint:
        raise UnitStopped(
            f"unit {unit}: its snapshot was taken under other settings than its checkpoint: "
            "start over with `joiner reset`"
        )
    if any(at > checkpoint.offsets.get(topic, -1) for topic, at in manifest.offsets.items()):
        raise UnitStopped(
            f"unit {unit}: its snapshot is at {offsets_as_text(manifest.offsets)}, but its checkpoint only at "
            f"{offsets_as_text(checkpoint.offsets)}: the state topic has lost acknowledged records"
        )
    return Unit.restore(settings, unit, state.snapshot(manifest))


def _replay(readers: Readers, unit: Unit, until: dict[str, int], effects: Effects | None = None) -> int:
    """Replay the unit's input up to ``until``. Return the number of records.

    The replay is silent unless ``effects`` is given, to which it then adds its effects. Buffer limits are not checked:
    a replay cannot pause one topic for another, so it may hold more records than the unit did.
    """
    if unit.offsets == until:
        return 0
    replayed = 0
    settings = readers.settings
    native, most = settings.application.native, settings.messages_max(_REPLAY_BATCH)
    given = readers.input, readers.clock, unit.number, unit.offsets, until
    with closing(GapVerifier(readers.settings, readers.clock)) as second:
        for batches, end in read_range(*given, most, native=native):
            readers.check()
            _check_gaps(second, unit, batches)
            produced = unit.apply(batches, end, silent=effects is None, is_part=True)
            if effects is not None:
                effects.add(produced)
            replayed += produced.records
    return replayed


def _check_gaps(second: GapVerifier, unit: Unit, batches: dict[str, Messages]) -> None:
    try:
        second.check(unit.number, unit.offsets, batches)
    except OwnershipInDoubt:
        # The claim has verified the owner, so retention removed input during the replay. The next claim reports it.
        raise timed_out(f"unit {unit.number}: input was removed while it was replayed") from None
