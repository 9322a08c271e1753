"""The parts of a drawing: boxes with lines of text, flows between them, and their labels. All lengths are in pixels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

LINE: Final = 16
"""The height of a line of text."""

PAD: Final = 8
"""The space between the border of a box and its content."""


class Text(NamedTuple):
    """A line of text in a box. ``tone``: ``title``, ``plain``, ``muted`` or a level."""

    text: str
    tone: str = "plain"


class Box(NamedTuple):
    """A rectangle. ``key``: unique in the drawing. ``x``, ``y``: its upper left corner.

    ``kind``: ``box``, ``group``, ``standbys`` or ``unit``. ``hint``: lines shown on demand.
    """

    key: str
    kind: str
    level: str
    x: float
    y: float
    width: float
    height: float
    texts: tuple[Text, ...] = ()
    hint: str = ""

    @property
    def middle(self) -> tuple[float, float]:
        """Its centre."""
        return self.x + self.width / 2, self.y + self.height / 2

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """Its bottom edge."""
        return self.y + self.height


Point = tuple[float, float]


class Line(NamedTuple):
    """A flow that ends in an arrow.

    ``points``: the points of a polyline, or of a cubic Bezier curve if ``is_curve``. ``towards``: where the arrow
    points: ``right``, ``left``, ``down`` or ``up``. ``rate``: per second, or None.
    """

    key: str
    level: str
    points: tuple[Point, ...]
    towards: str
    is_curve: bool = False
    rate: float | None = None


class Label(NamedTuple):
    """Text beside or on a flow. ``x``, ``y``: its centre or, if not ``is_centred``, the middle of its left edge."""

    key: str
    text: str
    level: str
    x: float
    y: float
    is_centred: bool = True

    @property
    def height(self) -> int:
        """Its height."""
        return LINE * (self.text.count("\n") + 1)


@dataclass
class Drawing:
    """What is drawn, in this order: groups and lines, then boxes, then labels."""

    width: int
    height: int = 0
    boxes: list[Box] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
