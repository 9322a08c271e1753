"""Draws the benchmark plots: a panel per curve, with the median as a line and the range as a band."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import matplotlib as mpl

# PNG only: an SVG of the same plot has thousands of lines of coordinates, all of which change with every run.
mpl.use("agg")
mpl.rcParams["font.size"] = 9

from matplotlib import pyplot as plt  # noqa: E402 - the settings above come first
from matplotlib.ticker import NullFormatter  # noqa: E402 - as above

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Line = Sequence[tuple[float, Sequence[float]]]
"""A line of a plot: for each position on the x axis, the values of all runs there."""

_Lines = TypeVar("_Lines")

_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C8C")
"""The Okabe-Ito palette, whose colours colour-blind readers can tell apart. The lines also differ in their markers."""
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p")
_STYLES: Final = ("-", "--")
"""Line styles. The second style is used if there are more lines than colours."""
_COLUMNS: Final = 3
_FEW_LABELS: Final = 30
_PANEL_INCHES: Final = (3.4, 2.6)


def plot_panels(path: Path, panels: Mapping[str, Mapping[str, Line]], y_label: str) -> None:
    """Write a PNG to ``path`` with a panel for each x label and a line for each contender, on logarithmic axes."""

    def draw(axis: Axes, lines: Mapping[str, Line]) -> None:
        _draw(axis, lines)
        places = sorted({place for line in lines.values() for place, _ in line})
        if places[0] > 0:
            axis.set_xscale("log")
        else:
            axis.set_xscale("symlog", linthresh=places[1])

    _plot(path, panels, y_label, draw)


def plot_over_time(path: Path, panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], y_label: str) -> None:
    """Write a PNG to ``path`` with a panel for each x label, whose lines have a value for each time in seconds."""

    def draw(axis: Axes, lines: Mapping[str, Sequence[tuple[float, float]]]) -> None:
        for colour, (name, line) in zip(_COLOURS, lines.items(), strict=False):
            axis.plot(*zip(*line, strict=True), color=colour, label=name, linewidth=1.0)
        axis.axvline(0, color="#8C8C8C", linewidth=0.8)

    _plot(path, panels, y_label, draw)


def _plot(path: Path, panels: Mapping[str, _Lines], y_label: str, draw: Callable[[Axes, _Lines], None]) -> None:
    """Write a PNG with a panel for each x label and a shared logarithmic y axis. ``draw`` draws the lines."""
    rows = -(-len(panels) // _COLUMNS)
    size = (_PANEL_INCHES[0] * min(_COLUMNS, len(panels)), _PANEL_INCHES[1] * rows)
    figure, axes = plt.subplots(
        rows, min(_COLUMNS, len(panels)), figsize=size, squeeze=False, sharey=True, layout="constrained"
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (x_label, lines) in zip(axes.flat, panels.items(), strict=False):
        draw(axis, lines)
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set_xlabel(x_label)
        axis.grid(visible=True, which="major", alpha=0.3)
    for axis in axes[:, 0]:
        axis.set_ylabel(y_label)
    axes.flat[0].legend(frameon=False)
    save(figure, path)


@dataclass(frozen=True)
class Panel:
    """One of several plots side by side, each with its own axes; the x axis is logarithmic.

    ``ends`` maps the name of a line to the x position where it ends, such as the rate that saturates a contender. A
    cross marks this position.
    """

    x_label: str
    y_label: str
    lines: Mapping[str, Line]
    y_scale: str = "linear"
    ends: Mapping[str, float] = field(default_factory=dict)


def plot_lines(path: Path, panels: Sequence[Panel], looks: Sequence[str] = ()) -> None:
    """Write a PNG to ``path``, with at most two panels per row and a shared legend below.

    ``looks`` lists the contenders that occur in several plots, so that each has the same colour and marker in all.
    """
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.6 * columns, 3.1 * rows), squeeze=False, layout="constrained")
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    names = list(dict.fromkeys([*looks, *(name for panel in panels for name in panel.lines)]))
    for axis, panel in zip(axes.flat, panels, strict=False):
        _draw(axis, panel.lines, names)
        for name, place in panel.ends.items():
            colour = _COLOURS[names.index(name) % len(_COLOURS)]
            axis.plot([place], [statistics.median(panel.lines[name][-1][1])], color=colour, marker="x", markersize=8)
        axis.set_xscale("log")
        axis.set_yscale(panel.y_scale)
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.yaxis.set_major_formatter("{x:,g}")
        if panel.y_scale == "linear":
            axis.set_ylim(-4, 104)
        else:
            # Label values between powers of ten only if there would otherwise be too few labels.
            low, high = axis.get_ylim()
            axis.yaxis.set_minor_formatter("{x:,g}" if high / low < _FEW_LABELS else NullFormatter())
        axis.set_xlabel(panel.x_label)
        axis.set_ylabel(panel.y_label)
        axis.grid(visible=True, which="major", alpha=0.3)
    handles = {
        label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns + 1, frameon=False)
    save(figure, path)


def _draw(axis: Axes, lines: Mapping[str, Line], names: Sequence[str] = ()) -> None:
    """Draw a panel's lines. ``names`` lists the contenders in all panels, so that each looks the same everywhere."""
    names = names or list(lines)
    for name, line in lines.items():
        number = names.index(name)
        colour, marker = (of[number % len(of)] for of in (_COLOURS, _MARKERS))
        places = [place for place, _ in line]
        medians = [statistics.median(values) for _, values in line]
        axis.plot(
            places,
            medians,
            color=colour,
            marker=marker,
            markersize=4,
            label=name,
            linestyle=_STYLES[number // len(_COLOURS)],
        )
        axis.fill_between(
            places,
            [min(values) for _, values in line],
            [max(values) for _, values in line],
            color=colour,
            alpha=0.15,
            linewidth=0,
        )


def save(figure: Figure, path: Path) -> None:
    """Write a figure to a PNG and close it."""
    # The name and version of matplotlib are left out, so that the same figures always produce the same file.
    figure.savefig(path.with_suffix(".png"), dpi=160, metadata={"Software": None})
    plt.close(figure)
