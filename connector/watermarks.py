"""Decides which silent quantities get a watermark. A watermark T promises that no record below T will follow.

This module is pure: the caller passes in the time and the arrivals. A quantity is silent if its thing is still sending
but no record of the quantity has arrived for ``idle_after_ns``, counting only the time spent reading. T is the largest
event time of the *thing* minus ``idle_after_ns``, so it is derived from the records. When a watermark is written does
not change its time. (The event time of a plain number, though, is the time of its arrival, which comes from a clock.)

A watermark is written only if T is above the last watermark and above every event time of the quantity itself. While
Kafka has yet to confirm a record, the caller must not write the watermarks that `SilenceWatch.due` returns. No other
process may write watermarks for the same quantities. The state is kept only in memory: after a restart, a quantity that
stays silent is unknown and gets no watermark until it sends again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SCOPES_MAX: Final = 100_000
"""Maximum number of quantities to watch; a quantity that two things share counts twice. Watching this many takes about
30 MB of memory. A limit is needed because senders choose the names."""


class DueWatermark(NamedTuple):
    """A watermark to write. It promises that no record of this thing's quantity below ``time_ns`` will follow."""

    thing: str
    quantity: str
    time_ns: int


class _Quantity:
    __slots__ = ("arrived_ns", "time_max_ns", "watermark_ns")

    def __init__(self, arrived_ns: int, time_ns: int) -> None:
        self.arrived_ns = arrived_ns
        self.time_max_ns = time_ns
        self.watermark_ns: int | None = None


class _Thing:
    __slots__ = ("arrived_ns", "quantities", "time_max_ns")

    def __init__(self, arrived_ns: int, time_ns: int) -> None:
        self.arrived_ns = arrived_ns
        self.time_max_ns = time_ns
        self.quantities: dict[str, _Quantity] = {}


class SilenceWatch:
    """Tracks when each thing and each quantity last sent a record.

    ``idle_after_ns`` must be positive. Watermarks are rounded down to multiples of ``unit_ns``. Records whose event
    time is more than ``max_future_skew_ns`` ahead of the wall clock are ignored; otherwise a single record from the
    year 2200 would make every later record late.
    """

    def __init__(
        self, *, idle_after_ns: int, max_future_skew_ns: int, unit_ns: int, scopes_max: int = SCOPES_MAX
    ) -> None:
        self._idle_after_ns = idle_after_ns
        self._unit_ns = unit_ns
        self._max_future_skew_ns = max_future_skew_ns
        self._room = scopes_max
        self._things: dict[str, _Thing] = {}

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of quantities is being watched. New things and quantities are then ignored."""
        return self._room <= 0

    def observe(self, thing: str, quantity: str, time_ns: int, *, now_ns: int, wall_ns: int) -> None:
        """Register the arrival of a quantity's record with the event time ``time_ns``.

        ``now_ns`` is from a clock that runs only while the service is reading, because only then does silence count.
        ``wall_ns`` is the time since the epoch.
        """
        if time_ns > wall_ns + self._max_future_skew_ns:
            return
        seen = self._things.get(thing)
        if seen is None:
            if self.is_full:
                return
            seen = self._things[thing] = _Thing(now_ns, time_ns)
        seen.arrived_ns = now_ns
        seen.time_max_ns = max(seen.time_max_ns, time_ns)
        of_quantity = seen.quantities.get(quantity)
        if of_quantity is None:
            if self.is_full:
                return
            self._room -= 1
            seen.quantities[quantity] = _Quantity(now_ns, time_ns)
            return
        of_quantity.arrived_ns = now_ns
        of_quantity.time_max_ns = max(of_quantity.time_max_ns, time_ns)

    def due(self, now_ns: int) -> list[DueWatermark]:
        """Return the watermarks to write now, ordered by when the thing, and then the quantity, was first seen."""
        found = []
        silent_since_ns = now_ns - self._idle_after_ns
        for thing, seen in self._things.items():
            if seen.arrived_ns <= silent_since_ns:
                continue  # the whole thing is silent, so nothing advances its event time
            time_ns = (seen.time_max_ns - self._idle_after_ns) // self._unit_ns * self._unit_ns
            found += [
                DueWatermark(thing, name, time_ns)
                for name, quantity in seen.quantities.items()
                if quantity.arrived_ns <= silent_since_ns
                and time_ns > quantity.time_max_ns
                and (quantity.watermark_ns is None or time_ns > quantity.watermark_ns)
            ]
        return found

    def written(self, watermark: DueWatermark) -> None:
        """Register that the watermark was sent, so that `due` returns only later watermarks for its quantity."""
        self._things[watermark.thing].quantities[watermark.quantity].watermark_ns = watermark.time_ns
