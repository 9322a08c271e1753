"""Gauges for the units of a runner: the owner, lag and snapshot of each unit, and the records that its joins hold.

They are computed from the checkpoint of each unit's last commit, at the time they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from broker.metrics import Readings
    from joiner.runtime.model import Checkpoint, JoinSummary
    from joiner.runtime.ownership.eligibility import Claimant
    from joiner.runtime.settings import JoinerSettings

_BOUNDS: Final = (("min", "hindmost"), ("max", "foremost"))
"""The values of the label `bound`: the lowest and the highest frontier among the keys of a side. The label `thing` has
the former names of these values, until the next release."""


class UnitStatus(NamedTuple):
    """The figures of a running unit, from which its gauges are computed."""

    checkpoint: Checkpoint
    """The last committed checkpoint."""
    held_bytes: Mapping[str, tuple[int, int]]
    """Approximate number of bytes held by the left and the right side of each join."""
    paused: Collection[str]
    lag: int
    """Number of input offsets beyond the last commit, summed over all topics."""
    snapshot_age_s: float


class UnitGauges:
    """The gauges of a runner's units. Thread-safe."""

    def __init__(
        self,
        settings: JoinerSettings,
        claimant: Claimant,
        statuses: Callable[[], Mapping[int, UnitStatus]],
        snapshot_bytes: Mapping[int, int],
    ) -> None:
        """``statuses`` returns the running units. ``snapshot_bytes``: the size of each unit's last snapshot."""
        self._settings, self._claimant = settings, claimant
        self._unit_statuses, self._snapshot_bytes = statuses, snapshot_bytes

    def expose(self, readings: Readings) -> None:
        """Add the gauges to the exposed metrics."""
        gauge, unit = readings.gauge, ("unit",)
        gauge(
            "lsb_joiner_unit_owner",
            "1 for each unit that is served here.",
            self._owners,
            ("unit", "owner", "site", "placement"),
        )
        gauge("lsb_joiner_lag_records", "Offsets of the input that are not committed.", self._by_unit("lag"), unit)
        gauge(
            "lsb_joiner_snapshot_age_seconds",
            "Seconds since the last snapshot, or 0 if the state has not changed since.",
            self._by_unit("snapshot_age_s"),
            unit,
        )
        gauge(
            "lsb_joiner_snapshot_bytes",
            "Size of the last snapshot that this runner wrote.",
            self._snapshots,
            unit,
        )
        gauge(
            "lsb_joiner_topic_paused",
            "1 while a topic is paused because it is ahead of the others, otherwise 0.",
            self._paused,
            ("unit", "topic"),
        )
        self._expose_joins(readings)

    def _expose_joins(self, readings: Readings) -> None:
        """Add the gauges of the units' joins."""
        gauge, side = readings.gauge, ("unit", "join", "side")
        gauge("lsb_joiner_buffer_used_ratio", "Used share of the buffer limit.", self._used, ("unit", "join"))
        gauge("lsb_joiner_held_records", "Records that may still get a neighbour.", self._held_records, side)
        gauge("lsb_joiner_held_bytes", "Approximate memory of the held records.", self._held_bytes, side)
        gauge(
            "lsb_joiner_frontier_timestamp_seconds",
            "Highest frontier of any key: records of that key with earlier event times are late.",
            lambda: {place: highest_ns / 1e9 for place, (_, highest_ns), _ in self._frontiers()},
            side,
        )
        gauge(
            "lsb_joiner_frontier_lag_seconds",
            "How far a frontier is behind the newest event time of its join and unit.",
            self._frontier_lags,
            (*side, "bound", "thing"),
        )

    def _by_unit(self, what: str) -> Callable[[], dict[tuple[str, ...], float]]:
        return lambda: {(str(unit),): getattr(status, what) for unit, status in self._unit_statuses().items()}

    def _snapshots(self) -> dict[tuple[str, ...], float]:
        return {
            (str(unit),): size for unit in self._unit_statuses() if (size := self._snapshot_bytes.get(unit)) is not None
        }

    def _owners(self) -> dict[tuple[str, ...], float]:
        # The label `placement` is the former name of `site`. It will be removed in the next release.
        runner = self._claimant.instance, self._claimant.site, self._claimant.site
        return {(str(unit), *runner): 1.0 for unit in self._unit_statuses()}

    def _paused(self) -> dict[tuple[str, ...], float]:
        topics = self._settings.input_topics
        return {
            (str(unit), topic): float(topic in status.paused)
            for unit, status in self._unit_statuses().items()
            for topic in topics
        }

    def _joins(self) -> Iterator[tuple[str, str, JoinSummary, tuple[int, int]]]:
        """Yield, for each join, its unit, its name, its summary, and the bytes that each side holds."""
        for unit, status in self._unit_statuses().items():
            for name, join in list(status.checkpoint.joins.items()):
                yield str(unit), name, join, status.held_bytes.get(name, (0, 0))

    def _held_records(self) -> dict[tuple[str, ...], float]:
        return {
            (unit, name, side): held
            for unit, name, join, _ in self._joins()
            for side, held in (("left", join.held_left), ("right", join.held_right))
        }

    def _held_bytes(self) -> dict[tuple[str, ...], float]:
        return {
            (unit, name, side): size
            for unit, name, _, sizes in self._joins()
            for side, size in zip(("left", "right"), sizes, strict=True)
        }

    def _used(self) -> dict[tuple[str, ...], float]:
        limits = self._settings.application
        return {
            (unit, name): max(
                (join.held_left + join.held_right) / limits.buffer_records_max, sum(sizes) / limits.buffer_bytes_max
            )
            for unit, name, join, sizes in self._joins()
        }

    def _frontiers(self) -> Iterator[tuple[tuple[str, ...], tuple[int, int], int]]:
        """Yield labels, span and newest event time for each side of a join that has a frontier.

        The span is the lowest and the highest frontier. The newest event time is that of the whole join. All are in ns.
        """
        lateness_ns = {join.name: join.lateness for join in self._settings.join}
        for unit, name, join, _ in self._joins():
            sides = {"left": join.frontier_left, "right": join.frontier_right}
            known: dict[str, Any] = {side: span for side, span in sides.items() if span is not None}
            late_ns = dict(zip(sides, lateness_ns.get(name, (0, 0)), strict=True))
            newest_ns = max((span[1] + late_ns[side] for side, span in known.items()), default=0)
            yield from (((unit, name, side), span, newest_ns) for side, span in known.items())

    def _frontier_lags(self) -> dict[tuple[str, ...], float]:
        return {
            (*place, *bound): (newest_ns - at_ns) / 1e9
            for place, span, newest_ns in self._frontiers()
            for bound, at_ns in zip(_BOUNDS, span, strict=True)
        }
