"""Gauges for the units of a runner: the owner, lag and snapshot of each unit, and the records that its operators hold.

They are computed when they are read, from the checkpoint of each unit's last commit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from broker.metrics import Readings
    from joiner.runtime.model import Checkpoint
    from joiner.runtime.ownership.eligibility import Claimant
    from joiner.runtime.settings import JoinerSettings

_BOUNDS: Final = (("min", "hindmost"), ("max", "foremost"))
"""The values of the label `bound`: the lowest and the highest frontier among a side's keys. The label `thing` keeps the
former names of these values until the next release."""


class UnitStatus(NamedTuple):
    """The figures of a running unit, from which its gauges are computed."""

    checkpoint: Checkpoint
    """The last committed checkpoint."""
    held_bytes: Mapping[str, Mapping[str, int]]
    """Approximate number of bytes held, by operator and stream."""
    paused: Collection[str]
    lag: int
    """Number of input offsets beyond the last commit, summed over all topics."""
    snapshot_age_s: float


class _Figures(NamedTuple):
    """An operator of a unit. By stream: the records held, their approximate bytes, and the frontiers in ns.

    ``frontiers``: the lowest and the highest frontier of any key; streams without a frontier are left out.
    """

    unit: str
    name: str
    held: Mapping[str, int]
    held_bytes: Mapping[str, int]
    frontiers: Mapping[str, tuple[int, int]]


class UnitGauges:
    """The gauges of a runner's units. Thread-safe."""

    def __init__(
        self,
        settings: JoinerSettings,
        claimant: Claimant,
        statuses: Callable[[], Mapping[int, UnitStatus]],
        snapshot_bytes: Mapping[int, int],
    ) -> None:
        """``statuses`` returns the status of each running unit. ``snapshot_bytes``: the size of each last snapshot."""
        self._settings, self._claimant = settings, claimant
        self._unit_statuses, self._snapshot_bytes = statuses, snapshot_bytes

    def expose(self, readings: Readings) -> None:
        """Add the gauges to the exposed metrics."""
        gauge, unit = readings.gauge, ("unit",)
        gauge(
            "lsb_joiner_unit_owner",
            "1 for each unit served here.",
            self._owners,
            ("unit", "owner", "site", "placement"),
        )
        gauge("lsb_joiner_lag_records", "Input offsets beyond the last commit.", self._by_unit("lag"), unit)
        gauge(
            "lsb_joiner_snapshot_age_seconds",
            "Seconds since the last snapshot here, or since the claim; 0 if the state has not changed since.",
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
            "1 while a topic is paused, because it is ahead or a large snapshot is being written; otherwise 0.",
            self._paused,
            ("unit", "topic"),
        )
        self._expose_operators(readings)

    def _expose_operators(self, readings: Readings) -> None:
        """Add the gauges of the units' joins and aligns. The labels of an align name it and its stream."""
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

    def _operators(self) -> Iterator[_Figures]:
        """Yield the joins and aligns of the units."""
        for unit, status in self._unit_statuses().items():
            for name, join in list(status.checkpoint.joins.items()):
                held = {"left": join.held_left, "right": join.held_right}
                spans = {"left": join.frontier_left, "right": join.frontier_right}
                frontiers = {side: span for side, span in spans.items() if span is not None}
                yield _Figures(str(unit), name, held, status.held_bytes.get(name, {}), frontiers)
            for name, align in list(status.checkpoint.aligns.items()):
                yield _Figures(str(unit), name, align.held, status.held_bytes.get(name, {}), align.frontiers)

    def _held_records(self) -> dict[tuple[str, ...], float]:
        return {(of.unit, of.name, stream): held for of in self._operators() for stream, held in of.held.items()}

    def _held_bytes(self) -> dict[tuple[str, ...], float]:
        return {
            (of.unit, of.name, stream): of.held_bytes.get(stream, 0) for of in self._operators() for stream in of.held
        }

    def _used(self) -> dict[tuple[str, ...], float]:
        limits = self._settings.application
        return {
            (of.unit, of.name): max(
                sum(of.held.values()) / limits.buffer_records_max,
                sum(of.held_bytes.values()) / limits.buffer_bytes_max,
            )
            for of in self._operators()
        }

    def _frontiers(self) -> Iterator[tuple[tuple[str, ...], tuple[int, int], int]]:
        """Yield the labels, the span and the newest event time for each stream with a frontier.

        The span is the pair of the stream's lowest and highest frontiers. The newest event time is taken over all
        streams of the operator. All times are in ns.
        """
        lateness_ns = {operator.name: operator.lateness_by_stream for operator in self._settings.operators}
        for of in self._operators():
            late_ns = lateness_ns.get(of.name, {})
            newest_ns = max((span[1] + late_ns.get(stream, 0) for stream, span in of.frontiers.items()), default=0)
            yield from (((of.unit, of.name, stream), span, newest_ns) for stream, span in of.frontiers.items())

    def _frontier_lags(self) -> dict[tuple[str, ...], float]:
        return {
            (*place, *bound): (newest_ns - at_ns) / 1e9
            for place, span, newest_ns in self._frontiers()
            for bound, at_ns in zip(_BOUNDS, span, strict=True)
        }
