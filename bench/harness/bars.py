"""Draws bar charts with a label beside each bar, so that they can be read without a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from matplotlib import pyplot as plt

from bench.harness.plot import save

_OURS: Final = "#0072B2"
_OTHERS: Final = "#B0B0B0"
_MISSED: Final = "#D55E00"
_ROW_INCHES: Final = 0.32
_LARGE: Final = 100


class Bar(NamedTuple):
    """A bar: a contender's name, the values of its runs, the label beside the bar, and whether it is the joiner."""

    name: str
    values: Sequence[float]
    words: str
    is_ours: bool


class Share(NamedTuple):
    """A bar: a contender's name, the share of neighbours it found (None: unknown), and the label beside the bar."""

    name: str
    found: float | None
    words: str
    is_ours: bool


def plot_bars(path: Path, bars: Sequence[Bar], x_label: str) -> None:
    """Write a PNG to ``path`` with one bar per contender: the median of its runs. The longest bar comes first."""
    figure, axis = plt.subplots(figsize=(8.6, 0.9 + _ROW_INCHES * len(bars)), layout="constrained")
    ordered = sorted(bars, key=lambda bar: -statistics.median(bar.values))
    largest = max(max(bar.values) for bar in ordered)
    for place, bar in enumerate(ordered):
        median = statistics.median(bar.values)
        axis.barh(place, median, color=_OURS if bar.is_ours else _OTHERS, height=0.7)
        axis.plot([min(bar.values), max(bar.values)], [place, place], color="black", linewidth=1)
        shown = f"{median:,.0f}" if median >= _LARGE else f"{median:.3g}"
        axis.annotate(
            f"{shown}  ({bar.words})", (max(bar.values), place), (6, 0), textcoords="offset points", va="center"
        )
    axis.set_yticks(range(len(ordered)), [bar.name for bar in ordered])
    axis.invert_yaxis()
    # Leave room for the labels.
    axis.set_xlim(0, 1.75 * largest)
    axis.xaxis.set_major_formatter("{x:,g}")
    axis.set_xlabel(x_label)
    save(figure, path)


def plot_shares(path: Path, shares: Sequence[Share], x_label: str) -> None:
    """Write a PNG to ``path`` with a bar per contender and width. The missed share has a different colour."""
    figure, axis = plt.subplots(figsize=(8.6, 0.9 + _ROW_INCHES * len(shares)), layout="constrained")
    for place, share in enumerate(shares):
        found = 100 * (share.found or 0.0)
        missed = 0.0 if share.found is None else 100 - found
        axis.barh(place, found, color=_OURS if share.is_ours else _OTHERS, height=0.7)
        axis.barh(place, missed, left=found, color=_MISSED, height=0.7, hatch="///", edgecolor="white")
        # If nothing was missed, no share is shown.
        misses = f"misses {missed:.1f} %; " if missed else ""
        axis.annotate(f"{misses}{share.words}", (101, place), va="center")
    axis.set_yticks(range(len(shares)), [share.name for share in shares])
    axis.invert_yaxis()
    axis.set_xlim(0, 250)
    axis.set_xticks(range(0, 101, 20))
    axis.set_xlabel(x_label)
    save(figure, path)
