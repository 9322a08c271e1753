"""Restores the state of a claimed unit from its newest snapshot and a replay of the input that follows.

The snapshot is at offsets C0, and the checkpoint at offsets C, with C0 <= C. The replay runs from C0 up to C, without
output.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final

from joiner.runtime.clock import Clock
from joiner.runtime.kafka.batches.gaps import GapVerifier
from joiner.runtime.kafka.batches.ranges import read_range
from joiner.runtime.kafka.batches.reader import ReaderOptions
from joiner.runtime.kafka.batches.registry import schemas_of
from joiner.runtime.kafka.checkpoint_log import read_state
from joiner.runtime.kafka.clients import timed_out
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.kafka.snapshot_log import SnapshotPlace
from joiner.runtime.kafka.transaction import OwnershipInDoubt, UnitTransactions, offsets_as_text
from joiner.runtime.model import Checkpoint, StateLog, UnitStopped
from joiner.runtime.ownership.dangling import ReplayedEffects
from joiner.runtime.ownership.eligibility import check_log_range, log_ranges
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.decoding.messages import Messages
from joiner.runtime.task.effects import Effects
from joiner.runtime.task.unit import Unit

_REPLAY_BATCH: Final = 50_000
"""Number of messages per step of a replay. A step takes longer the more records are held for its keys, so a few large
steps are faster than many small ones; but all messages of a step are in memory at once."""

_log = logging.getLogger(__name__)


@dataclass
class Recovered:
    """A claimed unit, restored to its checkpoint. ``snapshot_offsets``: the offsets of its newest snapshot."""

    unit: Unit
    checkpoint: Checkpoint
    place: SnapshotPlace
    snapshot_offsets: dict[str, int]

    @property
    def records_since_snapshot(self) -> int:
        """About how many records a replay from the newest snapshot would read. A message can contain many."""
        last = self.checkpoint
        consumed = sum(at - last.start[topic] for topic, at in last.offsets.items())
        behind = sum(at - self.snapshot_offsets[topic] for topic, at in last.offsets.items())
        return behind * last.counts.get("records", 0) // max(1, consumed)


def recover(
    transactions: UnitTransactions, checkpoint: Checkpoint, readers: Readers, warm: Unit | None = None
) -> Recovered:
    """Restore the state of a claimed unit.

    ``readers``: the readers that the claim used. ``warm``: the unit as built before the claim, possibly at earlier
    offsets than the checkpoint's; None if it was not built in advance. If the state cannot be built, raises
    `Fenced` if another runner has claimed the unit, and `UnitStopped` otherwise. Raises `ClaimCancelled` if the claim
    is cancelled, and KafkaException if Kafka does not answer.
    """
    with unless_fenced(transactions):
        # The claim read the log after initialising the transactional id, so only this runner has written to it since.
        state = readers.state if readers.state is not None else read_state(readers, checkpoint.unit)
        # A state built before a reset must not be used, even if its offsets are in range.
        usable = warm if readers.basis == checkpoint.basis else None
        built = build_state(checkpoint, state, readers, usable)
    return Recovered(built, checkpoint, SnapshotPlace.after(state), newest_offsets(checkpoint, state))


def build_state(
    checkpoint: Checkpoint, state: StateLog, readers: Readers, warm: Unit | None = None, *, level: int = logging.INFO
) -> Unit:
    """Build a unit's state at the offsets of ``checkpoint``. ``state``: the unit's log in the state topic.

    The replay starts from ``warm``, unless ``warm`` is ahead of the checkpoint, or retention has removed the input that
    follows it. Otherwise, it starts from the newest snapshot. Raises `UnitStopped` if the state cannot be built.
    """
    unit, clock = checkpoint.unit, readers.clock
    restored = _nearest(readers, checkpoint, state, warm)
    began_at = dict(restored.offsets)
    check_log_range(readers, unit, restored.offsets)
    started_s = clock.monotonic_s()
    replayed = _replay(readers, restored, checkpoint.offsets)
    _log.log(
        level,
        "unit %s: recovered at %s (%s records replayed from %s in %.1f s, %s held)",
        unit,
        offsets_as_text(checkpoint.offsets),
        replayed,
        offsets_as_text(began_at),
        clock.monotonic_s() - started_s,
        restored.held(),
    )
    return restored


def _nearest(readers: Readers, checkpoint: Checkpoint, state: StateLog, warm: Unit | None) -> Unit:
    if warm is not None and all(at <= checkpoint.offsets[topic] for topic, at in warm.offsets.items()):
        newest = newest_offsets(checkpoint, state)
        behind = sum(max(0, newest[topic] - at) for topic, at in warm.offsets.items())
        if not behind:
            return warm
        # Input before the newest snapshot may have been removed, and loading the snapshot may be faster.
        lows = {topic: low for topic, (low, _) in log_ranges(readers, checkpoint.unit).items()}
        is_there = all(lows[topic] <= at for topic, at in warm.offsets.items())
        if is_there and behind <= readers.settings.application.snapshot_records:
            return warm
    return _from_snapshot(readers.settings, checkpoint.unit, state, checkpoint)


def newest_offsets(checkpoint: Checkpoint, state: StateLog) -> dict[str, int]:
    """Return the offsets of the newest snapshot, or the unit's start offsets if there is no snapshot."""
    manifests = state.manifests()
    return dict(manifests[0].offsets if manifests else checkpoint.start)


def replay_effects(settings: JoinerSettings, until: Checkpoint, clock: Clock) -> ReplayedEffects:
    """Build a unit's earliest available state, replay from there to ``until``, and return the effects."""
    with closing(Readers(settings, clock)) as readers:
        return _replay_effects(readers, until)


def _replay_effects(readers: Readers, until: Checkpoint) -> ReplayedEffects:
    settings, unit = readers.settings, until.unit
    state = read_state(readers, unit)
    # If the older snapshot is gone, it was being replaced, so all transactions before the newer snapshot had ended.
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
    """Propagate `UnitStopped` only if this runner still owns the unit.

    Otherwise raise `Fenced`, or `Aborted` if the owner cannot be determined.

    A process that hangs may read the state topic long before it reads the input logs. In between, a new owner may have
    written a newer snapshot, and retention may have removed the input that precedes it.
    """
    try:
        yield
    except UnitStopped:
        transactions.check_owner()
        raise


def _from_snapshot(settings: JoinerSettings, unit: int, state: StateLog, checkpoint: Checkpoint) -> Unit:
    manifests = state.manifests()
    if not manifests:
        return Unit(settings, unit, checkpoint.start, schemas=schemas_of(settings))
    manifest, reset = manifests[0], settings.application.command("reset")
    if manifest.fingerprint != checkpoint.fingerprint:
        raise UnitStopped(
            f"unit {unit}: its snapshot and its checkpoint were written under different settings: "
            f"start over with {reset}"
        )
    if any(at > checkpoint.offsets.get(topic, -1) for topic, at in manifest.offsets.items()):
        raise UnitStopped(
            f"unit {unit}: its snapshot (at {offsets_as_text(manifest.offsets)}) is ahead of its checkpoint (at "
            f"{offsets_as_text(checkpoint.offsets)}): the state topic has lost acknowledged records; restore the "
            f"topic, or start over with {reset}"
        )
    return Unit.restore(settings, unit, state.snapshot(manifest, reset), schemas_of(settings))


def _replay(readers: Readers, unit: Unit, until: dict[str, int], effects: Effects | None = None) -> int:
    """Replay the unit's input up to the offsets ``until``. Return the number of records replayed.

    Effects are added to ``effects`` if given, and discarded otherwise. Buffer limits are not checked, because a
    replay cannot pause one topic to wait for another. It may therefore hold more records than the unit did when it
    first read them.

    If reading fails or is cancelled, the unit stays at the offsets it has reached, and can be replayed further.
    """
    if unit.offsets == until:
        return 0
    replayed = 0
    settings = readers.settings
    options = ReaderOptions(settings.application.native, settings.keyed_topics)
    most = settings.messages_max(_REPLAY_BATCH)
    given = readers.input, readers.clock, unit.number, unit.offsets, until
    with closing(read_range(*given, most, options=options, check=readers.check)) as parts:
        for batches, end in parts:
            readers.check()
            _check_gaps(readers.gaps, unit, batches)
            produced = unit.apply(batches, end, silent=effects is None, is_part=True)
            if effects is not None:
                effects.add(produced)
            replayed += produced.records
    return replayed


def _check_gaps(gaps: GapVerifier, unit: Unit, batches: dict[str, Messages]) -> None:
    try:
        gaps.check(unit.number, unit.offsets, batches)
    except OwnershipInDoubt:
        # The claim has verified the owner, so the gap means that retention removed input during the replay. The next
        # claim will report the lost input.
        raise timed_out(f"unit {unit.number}: retention removed input during the replay") from None
