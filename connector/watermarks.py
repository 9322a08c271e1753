"""Which silent quantities get a watermark, and for which time: nothing of the quantity below T follows.

Pure: the caller passes what arrived, and the time. A quantity is silent if nothing of it arrived for ``idle_after_ns``
of wall time while its thing still sends. T is the largest event time of the *thing* minus ``idle_after_ns``: it comes
from data. The wall clock only decides when to check, never the time in the streams.

A watermark is written only if it says something new: T is above the last watermark and above every time of the quantity
itself. The caller must ensure that no record is unacknowledged when it asks, and that nobody else writes watermarks for
the same scope. The state is in memory only: after a restart, a quantity that stays silent is unknown, and gets no
watermark until it sends again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SCOPES_MAX: Final = 100_000
"""Pairs of thing and quantity that are watched, about 30 MB. Names come from outside, so they need a limit."""


class DueWatermark(NamedTuple):
    """Nothing below ``time_ns`` follows for this quantity of this thing."""

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
    """Tracks when each thing and quantity last arrived.

    ``idle_after_ns`` > 0; watermarks are whole multiples of ``unit_ns``, rounded down. An event time more than
    ``max_future_skew_ns`` beyond the wall clock moves no watermark: otherwise one record of the year 2200 would make
    every later one late.
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
        """Whether new things and quantities are not watched."""
        return self._room <= 0

    def observe(self, thing: str, quantity: str, time_ns: int, *, now_ns: int, wall_ns: int) -> None:
        """A record arrived.

        ``now_ns`` is a clock that stops while nothing can arrive (silence only counts while reading), ``wall_ns`` the
        time since the epoch.
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
        """The watermarks to write now, by thing and quantity in the order of first arrival."""
        found = []
        silent_since_ns = now_ns - self._idle_after_ns
        for thing, seen in self._things.items():
            if seen.arrived_ns <= silent_since_ns:
                continue  # the whole thing is silent: only its own clock knows its time
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
        """The watermark was sent: only a higher one may follow."""
        self._things[watermark.thing].quantities[watermark.quantity].watermark_ns = watermark.time_ns
