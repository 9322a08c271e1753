"""The plots of the benchmarks: one small panel for each curve, the median as a line, minimum to maximum as a band."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl

mpl.use("svg")
# Without them every run would write other ids and a date into the same picture.
mpl.rcParams["svg.hashsalt"] = "bench"
mpl.rcParams["font.size"] = 9

from matplotlib import pyplot as plt  # noqa: E402 - the settings above come first

Line = Sequence[tuple[float, Sequence[float]]]
"""The places on the x axis, and the values of all runs at each."""

_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
"""Of Okabe and Ito: the colour-blind can tell them apart. The markers differ, too."""
_MARKERS: Final = ("o", "s", "^", "D")
_COLUMNS: Final = 3
_PANEL_INCHES: Final = (3.4, 2.6)


def plot_panels(path: Path, panels: Mapping[str, Mapping[str, Line]], y_label: str) -> None:
    """Write ``path`` with ``.svg``: a panel for each x label, with the lines of its contenders, on logarithmic axes."""
    rows = -(-len(panels) // _COLUMNS)
    size = (_PANEL_INCHES[0] * min(_COLUMNS, len(panels)), _PANEL_INCHES[1] * rows)
    figure, axes = plt.subplots(
        rows, min(_COLUMNS, len(panels)), figsize=size, squeeze=False, sharey=True, layout="constrained"
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (x_label, lines) in zip(axes.flat, panels.items(), strict=False):
        for (name, line), colour, marker in zip(lines.items(), _COLOURS, _MARKERS, strict=False):
            places = [place for place, _ in line]
            medians = [statistics.median(values) for _, values in line]
            axis.plot(places, medians, color=colour, marker=marker, markersize=4, label=name)
            axis.fill_between(
                places,
                [min(values) for _, values in line],
                [max(values) for _, values in line],
                color=colour,
                alpha=0.2,
                linewidth=0,
            )
        places = sorted({place for line in lines.values() for place, _ in line})
        if places[0] > 0:
            axis.set_xscale("log")
        else:
            axis.set_xscale("symlog", linthresh=places[1])
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set_xlabel(x_label)
        axis.grid(visible=True, which="major", alpha=0.3)
    for axis in axes[:, 0]:
        axis.set_ylabel(y_label)
    axes.flat[0].legend(frameon=False)
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    plt.close(figure)
