"""Lays out an application's topology: from left to right if there is room, otherwise from top to bottom."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from control.page.drawing.boxes import Groups
from control.page.drawing.falling import lay_out_down
from control.page.drawing.wide import lay_out_across

if TYPE_CHECKING:
    from control.facts.topology import Topology
    from control.page.drawing.shapes import Drawing

WIDTH: Final = (240, 4_000)
"""The minimum and maximum width of a drawing, in pixels."""


class Room(NamedTuple):
    """The room that a browser has for a drawing: the width in pixels, and whether to use dark colours."""

    width: int
    is_dark: bool


def room_of(given: Any) -> Room | None:
    """Return the room that a browser reports, within `WIDTH`, or None for nonsense: a browser may send anything."""
    width = given.get("width") if isinstance(given, dict) else None
    if not isinstance(width, int | float) or not 0 < width < inf:
        return None
    return Room(round(min(max(width, WIDTH[0]), WIDTH[1])), given.get("dark") is True)


def lay_out(topology: Topology, width: int) -> Drawing:
    """Return the drawing of a topology for this width in pixels."""
    groups = Groups(topology)
    return lay_out_across(groups, width) or lay_out_down(groups, width)
