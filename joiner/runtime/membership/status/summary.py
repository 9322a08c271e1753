"""The status of an application: what `joiner status` shows, as data.

A unit's values come from its checkpoint, so they describe the unit as of its last commit. The commit's age is included.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from joiner.runtime.kafka.checkpoint_log import AppendedCheckpoint
from joiner.runtime.membership.presence import Members, state_of
from joiner.runtime.membership.state import SiteState
from joiner.runtime.model import AlignSummary, JoinSummary
from joiner.runtime.repartition.status import RepartitionStatus
from joiner.runtime.task.function_failures import FAILED, FAILED_ROWS

_COUNTED: Final = ("pairs", "late", "duplicates", "unmatched")
_ALIGN_COUNTED: Final = ("rows", FAILED, "dropped", "late", "duplicates")


class JoinStatus(msgspec.Struct, frozen=True):
    """The status of a join in one unit: totals (None if not yet counted per join), held records, frontiers in ns.

    ``frontier_*``: the lowest and the highest frontier among the keys on that side, or None if no key has one.
    """

    pairs: int | None
    failed: int | None
    late: int | None
    duplicates: int | None
    unmatched: int | None
    held_left: int
    held_right: int
    frontier_left: tuple[int, int] | None
    frontier_right: tuple[int, int] | None

    @classmethod
    def of(cls, name: str, join: JoinSummary, counts: Mapping[str, int], *, is_only: bool) -> JoinStatus:
        """Return the status of a join in one unit. A unit's only join has the same totals as the unit."""
        prefix = "" if is_only else f"{name}:"
        pairs, late, duplicates, unmatched = (counts.get(f"{prefix}{what}") for what in _COUNTED)
        # The checkpoint has no count of failed pairs until a pair has failed.
        failed = None if pairs is None else counts.get(f"{prefix}{FAILED}", 0)
        return cls(
            pairs=None if pairs is None or failed is None else pairs - failed,
            failed=failed,
            late=late,
            duplicates=duplicates,
            unmatched=unmatched,
            held_left=join.held_left,
            held_right=join.held_right,
            frontier_left=join.frontier_left,
            frontier_right=join.frontier_right,
        )


class AlignStatus(msgspec.Struct, frozen=True):
    """The status of an align in one unit: its totals and, by stream, the held records and the frontiers in ns.

    ``failed``: rows for which the function failed. ``dropped``: rows left out. ``frontiers``: as in `JoinStatus`,
    without streams that have had no records.
    """

    rows: int
    failed: int
    dropped: int
    late: int
    duplicates: int
    held: dict[str, int]
    frontiers: dict[str, tuple[int, int]]

    @classmethod
    def of(cls, name: str, align: AlignSummary, counts: Mapping[str, int]) -> AlignStatus:
        """Return the status of an align in one unit."""
        rows, failed, dropped, late, duplicates = (counts.get(f"{name}:{what}", 0) for what in _ALIGN_COUNTED)
        return cls(rows - failed, failed, dropped, late, duplicates, align.held, align.frontiers)


class UnitSummary(msgspec.Struct, frozen=True):
    """The status of a unit as of its last commit.

    ``pairs``: the number of pairs for which the joining function succeeded. ``failed``: the number for which it failed.
    ``lag``: the number of input records not yet consumed, or None if it is not known.
    """

    unit: int
    owner: str
    site: str
    instance: str
    state: str
    committed_s_ago: float
    offsets: dict[str, int]
    lag: int | None
    records: int
    pairs: int
    failed: int
    late: int
    duplicates: int
    unmatched: int
    rejected: int
    joins: dict[str, JoinStatus]
    rows: int = 0
    aligns: dict[str, AlignStatus] = {}

    @classmethod
    def of(cls, found: AppendedCheckpoint, members: Members, lag: int | None, now_s: float) -> UnitSummary:
        """Return the status of a unit with this checkpoint. ``now_s``: seconds since the epoch."""
        checkpoint = found.checkpoint
        counts = checkpoint.counts
        return cls(
            unit=checkpoint.unit,
            owner=checkpoint.owner,
            site=checkpoint.site,
            instance=checkpoint.instance,
            state=state_of(checkpoint, members),
            # If Kafka's clock is ahead of this machine's, the difference may be negative.
            committed_s_ago=round(max(0.0, now_s - found.appended_ms / 1e3), 3),
            offsets=checkpoint.offsets,
            lag=lag,
            records=counts.get("records", 0),
            pairs=counts.get("pairs", 0) - counts.get(FAILED, 0),
            failed=counts.get(FAILED, 0),
            late=counts.get("late", 0),
            duplicates=counts.get("duplicates", 0),
            unmatched=counts.get("unmatched", 0),
            rejected=counts.get("rejected", 0),
            joins={
                name: JoinStatus.of(name, join, counts, is_only=len(checkpoint.joins) == 1)
                for name, join in checkpoint.joins.items()
            },
            rows=counts.get("rows", 0) - counts.get(FAILED_ROWS, 0),
            aligns={name: AlignStatus.of(name, align, counts) for name, align in checkpoint.aligns.items()},
        )


class AssignmentStatus(msgspec.Struct, frozen=True):
    """A site's last assignment: its number, its reason, and the owner and standbys of each unit.

    ``warm``: by unit, the standbys that hold its state as of its last checkpoint. ``drained``: the drained instances.
    ``pinned``: by unit, the instance that it is pinned to. ``standbys_ordered``: how many standbys each unit should
    have by order, or None if there is no such order and the settings apply.
    """

    epoch: int
    reason: str
    owners: list[str]
    standbys: list[list[str]]
    warm: list[list[str]]
    drained: list[str]
    pinned: dict[int, str] = {}
    standbys_ordered: int | None = None

    @classmethod
    def of(cls, state: SiteState) -> AssignmentStatus:
        """Return the assignment from a site's state."""
        return cls(
            state.epoch,
            state.reason,
            [unit.owner for unit in state.units],
            [list(unit.standbys) for unit in state.units],
            [
                [name for name in unit.standbys if name in state.live and number in state.live[name].warm]
                for number, unit in enumerate(state.units)
            ],
            sorted(state.orders.drained),
            dict(sorted(state.orders.pinned.items())),
            state.orders.standbys,
        )


class ReplicaStatus(msgspec.Struct, frozen=True):
    """The status of one replica of an application that has several.

    ``units``: the number of units that it has begun. ``lag``: the number of input records that these have not consumed
    yet. ``committed_s_ago``: the age of its newest commit, or None if there is none. ``error``: why its state cannot be
    read; the numbers are then unknown.
    """

    replica: int
    application: str
    units: int
    lag: int
    committed_s_ago: float | None
    error: str = ""


class MergingStatus(msgspec.Struct, frozen=True):
    """How one replica's outputs are merged into a topic.

    ``partitions``: how many partitions of the topic have been merged. ``complete``: in how many of these the replica
    can deliver all results without the others. ``ignored``: in how many it is behind, so that its results are dropped.
    """

    topic: str
    replica: int
    partitions: int
    complete: int
    ignored: int


class Status(msgspec.Struct, frozen=True):
    """The status of an application. ``units``: one summary per unit, None for a unit that has never run.

    ``at``: when the status was read, ISO 8601 in UTC. ``semantics``: the fingerprint of the settings. ``processes``:
    the units of each process, by site and instance. ``not_served``: for each unit that a runner cannot serve, a line of
    text with the reason. ``assignments``: by site. ``repartition``: one entry for each topic that is repartitioned.
    ``replicas``: one entry for each replica if there are several, including this one. ``merging``: one entry for each
    of them and each merged topic.
    """

    application: str
    at: str
    semantics: str
    processes: dict[str, dict[str, list[int]]]
    units: list[UnitSummary | None]
    not_served: list[str]
    assignments: dict[str, AssignmentStatus] = {}
    repartition: list[RepartitionStatus] = []
    replicas: list[ReplicaStatus] = []
    merging: list[MergingStatus] = []
