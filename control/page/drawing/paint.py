"""Turns a drawing into options for Apache ECharts, in light or dark colours.

The ``graphic`` component draws everything on a canvas, so texts are never HTML. Invisible points over the boxes show
the hints.
"""

from __future__ import annotations

from math import log10
from typing import Any, Final, NamedTuple

from control.facts.graph.parts import OK, TROUBLE, UNKNOWN, WARNING
from control.page.drawing.shapes import LINE, PAD, Box, Drawing, Label, Line

_FONT: Final = "12px system-ui, sans-serif"
_BOLD: Final = f"bold {_FONT}"
_ARROW: Final = 5.0
_RADIUS: Final = 6


class Colours(NamedTuple):
    """The colours of a drawing. ``levels``: for texts and borders, by level. ``flow``: for flows with a rate."""

    page: str
    group: str
    box: str
    unit: str
    text: str
    muted: str
    border: str
    flow: str
    levels: dict[str, str]


LIGHT: Final = Colours(
    page="#ffffff",
    group="#f3f4f6",
    box="#ffffff",
    unit="#e0e7ff",
    text="#111827",
    muted="#4b5563",
    border="#9ca3af",
    flow="#2563eb",
    levels={OK: "#166534", UNKNOWN: "#4b5563", WARNING: "#92400e", TROUBLE: "#b91c1c"},
)
DARK: Final = Colours(
    page="#121212",
    group="#1b1f27",
    box="#262b36",
    unit="#3b4a7a",
    text="#f3f4f6",
    muted="#b6bcc8",
    border="#6b7280",
    flow="#60a5fa",
    levels={OK: "#4ade80", UNKNOWN: "#b6bcc8", WARNING: "#fbbf24", TROUBLE: "#f87171"},
)

Element = dict[str, Any]


def elements_of(drawing: Drawing, colours: Colours) -> list[Element]:
    """Return the elements of the drawing, bottom layer first. Each has its own id."""
    layers = (
        [one for box in drawing.boxes if box.kind == "group" for one in _box(box, colours)],
        [one for line in drawing.lines for one in _line(line, colours)],
        [one for box in drawing.boxes if box.kind != "group" for one in _box(box, colours)],
        [_label(label, colours) for label in drawing.labels],
    )
    return [element | {"z": layer, "silent": True} for layer, found in enumerate(layers) for element in found]


def frame_of(drawing: Drawing) -> Element:
    """Return the options other than the elements: axes in pixels, and the points that show the hints."""
    points = [
        {
            "value": [*box.middle],
            "symbolSize": [box.width, box.height],
            "name": box.key,
            "tooltip": {"formatter": plain(box.hint)},
        }
        for box in drawing.boxes
        if box.hint
    ]
    return {
        "xAxis": {"max": drawing.width},
        "yAxis": {"max": drawing.height},
        "series": [{"data": points}],
    }


EMPTY: Final[Element] = {
    "animation": False,
    "grid": {"left": 0, "right": 0, "top": 0, "bottom": 0},
    "xAxis": {"type": "value", "show": False, "min": 0, "max": 1},
    "yAxis": {"type": "value", "show": False, "min": 0, "max": 1, "inverse": True},
    "tooltip": {"trigger": "item", "renderMode": "richText", "confine": True},
    "series": [
        {
            "type": "scatter",
            "symbol": "rect",
            "itemStyle": {"color": "transparent"},
            "emphasis": {"scale": False, "itemStyle": {"color": "#88888833"}},
            "data": [],
            # Above the drawing and below the tooltip, which is at 60.
            "z": 10,
        }
    ],
}
"""A chart without a drawing. Tooltips are drawn on the canvas too."""


def plain(text: str) -> str:
    """Return a text that contains no ECharts placeholders or styles."""
    return text.replace("{", "(").replace("}", ")")


def _box(box: Box, colours: Colours) -> list[Element]:
    is_bad = box.level in {WARNING, TROUBLE}
    fill = {"group": colours.group, "unit": colours.unit, "standbys": "transparent"}.get(box.kind, colours.box)
    border = colours.levels[box.level] if is_bad else colours.border
    dash = {"standbys": [5, 4], "unit": None}.get(box.kind, [2, 3] if box.level == UNKNOWN else None)
    found: list[Element] = [
        {
            "id": f"box {box.key}",
            "type": "rect",
            "shape": {
                "x": box.x,
                "y": box.y,
                "width": box.width,
                "height": box.height,
                "r": 4 if box.kind == "unit" else _RADIUS,
            },
            "style": {
                "fill": colours.levels[box.level] if is_bad and box.kind == "unit" else fill,
                "stroke": "transparent" if box.kind == "unit" else border,
                "lineWidth": 2 if is_bad else 1,
                "lineDash": dash,
            },
        }
    ]
    for number, (text, tone) in enumerate(box.texts):
        if box.kind == "unit":
            x, y, align = *box.middle, "center"
        else:
            x, y, align = box.x + PAD + 2, box.y + PAD + LINE * (number + 0.5), "left"
        colour = {"title": colours.text, "plain": colours.text, "muted": colours.muted}.get(tone) or colours.levels[
            tone
        ]
        if box.kind == "unit":
            colour = colours.page if is_bad else colours.text
        found.append(
            {
                "id": f"text {box.key} {number}",
                "type": "text",
                "x": x,
                "y": y,
                "style": {
                    "text": plain(text),
                    "font": _BOLD if tone in {"title", WARNING, TROUBLE} else _FONT,
                    "fill": colour,
                    "align": align,
                    "verticalAlign": "middle",
                    "width": box.width - 2 * PAD - 4 if box.kind != "unit" else box.width,
                    "overflow": "truncate",
                    "ellipsis": "…",
                },
            }
        )
    return found


def _line(line: Line, colours: Colours) -> list[Element]:
    if line.level in {WARNING, TROUBLE}:
        colour = colours.levels[line.level]
    else:
        colour = colours.flow if line.rate else colours.border
    (x, y) = line.points[-1]
    dx, dy = {"right": (1, 0), "left": (-1, 0), "down": (0, 1), "up": (0, -1)}[line.towards]
    # The line ends where its arrow begins.
    points = [*line.points[:-1], (x - dx * _ARROW, y - dy * _ARROW)]
    # Flows with more records are wider.
    width = 1.0 if not line.rate else min(4.0, 1.0 + log10(1.0 + line.rate) / 1.5)
    style = {"stroke": colour, "lineWidth": width, "fill": None, "lineDash": [2, 3] if line.level == UNKNOWN else None}
    if line.is_curve:
        (x1, y1), (cpx1, cpy1), (cpx2, cpy2), (x2, y2) = points
        shape: Element = {
            "x1": x1, "y1": y1, "x2": x2, "y2": y2, "cpx1": cpx1, "cpy1": cpy1, "cpx2": cpx2, "cpy2": cpy2,
        }  # fmt: skip
        kind = "bezierCurve"
    else:
        shape, kind = {"points": [[*point] for point in points]}, "polyline"
    size = _ARROW + width
    corners = [
        [x, y],
        [x - dx * size - dy * size * 0.6, y - dy * size - dx * size * 0.6],
        [x - dx * size + dy * size * 0.6, y - dy * size + dx * size * 0.6],
    ]
    return [
        {"id": f"line {line.key}", "type": kind, "shape": shape, "style": style},
        {"id": f"arrow {line.key}", "type": "polygon", "shape": {"points": corners}, "style": {"fill": colour}},
    ]


def _label(label: Label, colours: Colours) -> Element:
    is_bad = label.level in {WARNING, TROUBLE}
    return {
        "id": f"label {label.key}",
        "type": "text",
        "x": label.x,
        "y": label.y,
        "style": {
            "text": plain(label.text),
            "font": _BOLD if is_bad else _FONT,
            "fill": colours.levels[label.level] if is_bad else colours.text,
            "align": "center" if label.is_centred else "left",
            "verticalAlign": "middle",
            "lineHeight": LINE,
            "backgroundColor": colours.page if label.is_centred else "transparent",
            "padding": [1, 3],
        },
    }
