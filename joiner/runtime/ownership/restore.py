"""Building a unit's state at C, behind its claim: the newest snapshot, at C0 <= C, and a silent replay up to C."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final

from joiner.runtime.kafka.checkpoint_log import read_state
from joiner.runtime.kafka.clients import (
    timed_out,
)
from joiner.runtime.kafka.gaps import GapVerifier
from joiner.runtime.kafka.ranges import read_range
from joiner.runtime.kafka.readers import Readers, reading
from joiner.runtime.kafka.snapshot_log import SnapshotPlace
from joiner.runtime.kafka.transaction import Fenced, UnitTransactions, offsets_as_text
from joiner.runtime.model import Checkpoint, StateLog, UnitStopped
from joiner.runtime.ownership.dangling import ReplayedEffects
from joiner.runtime.ownership.eligibility import (
    check_log_range,
    log_ranges,
)
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.decode import Messages
from joiner.runtime.task.effects import Effects
from joiner.runtime.task.unit import Unit

_REPLAY_BATCH: Final = 50_000
"""Messages that a replay takes at a time. A step of the engine costs what its keys hold, besides what is new: it is
better done in few; and every message is an object until it is taken."""

_log = logging.getLogger(__name__)


@dataclass
class Recovered:
    """A unit that is ours, with its state at C; ``snapshot_offsets`` is the vector C0 of its newest snapshot."""

    unit: Unit
    checkpoint: Checkpoint
    place: SnapshotPlace
    snapshot_offsets: dict[str, int]


def recover(
    settings: JoinerSettings,
    unit: int,
    transactions: UnitTransactions,
    checkpoint: Checkpoint,
    warm: Unit | None = None,
    kept: Readers | None = None,
) -> Recovered:
    """Steps 7-8; ``warm``: the unit at an earlier vector, where somebody has built it already; ``kept``: those that
    the claim was made with.

    Raises `UnitStopped` where the state cannot be built, `Fenced` where another has the unit by now.
    """
    with unless_fenced(transactions), reading(settings, kept) as readers:
        # The claim has read it behind its init, and only we have written since.
        state = readers.state
        if state is None:
            state = read_state(settings.kafka, settings.application.name, settings.state_topic, unit)
        # What was built before a reset is another application's state, though it may lie between the same vectors.
        usable = warm if readers.begun_at == checkpoint.start else None
        built = build_state(settings, checkpoint, state, usable, readers)
    return Recovered(built, checkpoint, SnapshotPlace.after(state), newest_offsets(checkpoint, state))


def build_state(
    settings: JoinerSettings,
    checkpoint: Checkpoint,
    state: StateLog,
    warm: Unit | None = None,
    kept: Readers | None = None,
) -> Unit:
    """The unit at the vector of ``checkpoint``; ``state``: what the state topic holds of it.

    From ``warm`` where that is not behind the newest snapshot, which may be all that is left of the input: retention.
    Raises `UnitStopped` where neither reaches.
    """
    unit = checkpoint.unit
    restored = _nearest(settings, checkpoint, state, warm)
    began_at = dict(restored.offsets)
    with reading(settings, kept) as readers:
        check_log_range(settings, unit, restored.offsets, readers)
        started = time.monotonic()
        replayed = _replay(settings, restored, checkpoint.offsets, None, readers)
    _log.info(
        "unit %s: recovered at %s (%s records replayed from %s in %.1f s, %s held)",
        unit,
        offsets_as_text(checkpoint.offsets),
        replayed,
        offsets_as_text(began_at),
        time.monotonic() - started,
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
    """The vector of the newest snapshot; without any, that at which the unit began."""
    manifests = state.manifests()
    return dict(manifests[0].offsets if manifests else checkpoint.start)


def replay_effects(settings: JoinerSettings, until: Checkpoint) -> ReplayedEffects:
    """What the unit has brought forth before ``until``, as far back as an earlier state of it can be built."""
    unit = until.unit
    state = read_state(settings.kafka, settings.application.name, settings.state_topic, unit)
    # Where the older one is gone, it was being replaced, and nothing before the newer one is in doubt.
    kept = state.manifests()
    earlier = state if len(kept) == 1 and kept[0].serial else state.without_newest_snapshot()
    restored = _from_snapshot(settings, unit, earlier, until)
    if any(low > restored.offsets[topic] for topic, (low, _) in log_ranges(settings, unit).items()):
        earlier = state
        restored = _from_snapshot(settings, unit, earlier, until)
        check_log_range(settings, unit, restored.offsets)
    check_log_range(settings, unit, until.offsets)
    effects = Effects()
    _replay(settings, restored, until.offsets, effects)
    manifests = earlier.manifests()
    return ReplayedEffects(effects, (manifests[0] if manifests else until).result_ends)


@contextmanager
def unless_fenced(transactions: UnitTransactions) -> Iterator[None]:
    """A fault that is found counts only while nobody has taken the unit. Raises `Fenced` where somebody has.

    A process that hung in the middle sees the state of one moment and the log of another: whoever has taken the
    unit since has written a newer snapshot, and retention has removed what lies behind that.
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
            f"unit {unit}: its snapshot was taken under other settings than its progress: "
            "start anew with `joiner reset`"
        )
    if any(at > checkpoint.offsets.get(topic, -1) for topic, at in manifest.offsets.items()):
        raise UnitStopped(
            f"unit {unit}: its snapshot is at {offsets_as_text(manifest.offsets)} and its progress only at "
            f"{offsets_as_text(checkpoint.offsets)}: the state topic has lost records it had acknowledged"
        )
    return Unit.restore(settings, unit, state.snapshot(manifest))


def _replay(
    settings: JoinerSettings,
    unit: Unit,
    until: dict[str, int],
    effects: Effects | None = None,
    kept: Readers | None = None,
) -> int:
    """Feed the unit up to the vector ``until``; returns how many records that were.

    Silently, but where ``effects`` is given: what is brought forth is added there. Whether there is room is not judged:
    the unit held all that before, when one topic could wait for the other.
    """
    if unit.offsets == until:
        return 0
    replayed = 0
    with reading(settings, kept) as readers, closing(GapVerifier(settings)) as second:
        for batches, end in read_range(readers.log, unit.number, unit.offsets, until, _REPLAY_BATCH):
            readers.check()
            _check_gaps(second, unit, batches)
            brought = unit.apply(batches, end, silent=effects is None, is_part=True)
            if effects is not None:
                effects.add(brought)
            replayed += sum(map(len, batches.values()))
    return replayed


def _check_gaps(second: GapVerifier, unit: Unit, batches: dict[str, Messages]) -> None:
    try:
        second.check(unit.number, unit.offsets, batches)
    except Fenced:
        # Nobody was fenced: a replay needs what retention has just removed, and the next claim says so.
        raise timed_out(f"unit {unit.number}: input was removed while it was replayed") from None
