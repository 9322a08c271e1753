"""Draws the picture in the README: two streams, their neighbour pairs, and an interval join of the same data.

``python docs/plots/neighbours.py`` writes ``neighbours.svg`` next to this file. The left half shows the pairs that
`joiner.LocalStreamBuffer` returns. The page may be light or dark, so all colours have enough contrast on both white and
black.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import numpy as np

from joiner import LocalStreamBuffer

FILE: Final = Path(__file__).with_suffix(".svg")
WITHIN_S: Final = 1.5
"""The interval join pairs records that are at most this far apart."""
LENGTH_S: Final = 16.0
PAUSE_S: Final = (4.6, 9.0)
"""Torque is not sampled during this interval, and about three times as often after it."""

WIDTH: Final = 480
HEIGHT: Final = 272
GAP: Final = 40
TOP_Y: Final = 84
BOTTOM_Y: Final = 192

FONT: Final = 'font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif"'
TEXT: Final = "#7d8590"
SPEED: Final = "#2f81f7"
TORQUE: Final = "#db6d28"
FOUND: Final = "#3fa34d"
OTHER: Final = "#8f969e"
MISSING: Final = "#e5484d"


@dataclass(frozen=True)
class Stream:
    """The event times of a stream in seconds, and the height and period of the curve on which they are drawn."""

    times_s: list[float]
    middle_y: float
    period_s: float

    def y(self, time_s: float) -> float:
        """Return the y coordinate of the curve at ``time_s``."""
        return self.middle_y - 15 * math.sin(2 * math.pi * time_s / self.period_s)


def streams() -> tuple[Stream, Stream]:
    """Return speed, sampled about once a second, and torque, which pauses and is then sampled more often."""
    random = Random(4)
    speed = _times_s(random, 0.4, lambda _: 1.05)
    torque = _times_s(random, 0.7, lambda time_s: 1.2 if time_s < PAUSE_S[1] else 0.35)
    sampled = [time_s for time_s in torque if not PAUSE_S[0] < time_s < PAUSE_S[1]]
    return Stream(speed, TOP_Y, 7.0), Stream(sampled, BOTTOM_Y, 5.0)


def _times_s(random: Random, begin_s: float, period_s: Callable[[float], float]) -> list[float]:
    times_s = [begin_s]
    while (time_s := times_s[-1] + period_s(times_s[-1]) * random.uniform(0.75, 1.25)) < LENGTH_S:
        times_s.append(time_s)
    return times_s


def neighbours(left: Stream, right: Stream) -> set[tuple[int, int]]:
    """Return the pairs of the neighbour join, as indices of the left and the right record."""
    buffer = LocalStreamBuffer()

    def columns(stream: Stream) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        times_ns = (np.array(stream.times_s) * 1e9).astype(np.int64)
        return np.zeros(len(times_ns), np.int64), times_ns, np.arange(len(times_ns))

    steps = [buffer.push(left=columns(left), right=columns(right)), buffer.close()]
    return {pair for step in steps for pair in zip(step.left_seq.tolist(), step.right_seq.tolist(), strict=True)}


def within(left: Stream, right: Stream) -> set[tuple[int, int]]:
    """Return the pairs of the interval join, as indices of the left and the right record."""
    return {
        (i, j)
        for i, one in enumerate(left.times_s)
        for j, other in enumerate(right.times_s)
        if abs(one - other) <= WITHIN_S
    }


def drawn() -> str:
    """Return the picture as an SVG document."""
    left, right = streams()
    pairs, window = neighbours(left, right), within(left, right)
    found = pairs & window
    panels = [
        (
            "Neighbour join, no window",
            [(f"{len(pairs)} pairs: every neighbour, also across the pause", FOUND)],
            [(pairs, FOUND, "")],
        ),
        (
            f"Interval join, ±{WITHIN_S:g} s",
            [
                (f"{len(window)} pairs:", TEXT),
                (f"{len(found)} neighbours,", FOUND),
                (f"{len(window - pairs)} others;", OTHER),
                (f"{len(pairs - window)} neighbours missing", MISSING),
            ],
            [(window - pairs, OTHER, ""), (found, FOUND, ""), (pairs - window, MISSING, ' stroke-dasharray="3 3"')],
        ),
    ]
    whole = 2 * WIDTH + GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {HEIGHT}" {FONT}>',
        "<title>The same two streams, joined by neighbours and joined by an interval</title>",
    ]
    for number, (title, caption, groups) in enumerate(panels):
        lines.append(f'<g transform="translate({number * (WIDTH + GAP)} 0)">')
        lines.append(f'<text x="0" y="20" font-size="17" font-weight="600" fill="{TEXT}">{title}</text>')
        for some, colour, style in groups:
            lines += [_line(left, right, pair, colour, style) for pair in sorted(some)]
        for stream, colour, name in ((left, SPEED, "speed"), (right, TORQUE, "torque")):
            lines += _samples(stream, colour, name)
        words = " ".join(f'<tspan fill="{colour}">{text}</tspan>' for text, colour in caption)
        lines.append(f'<text x="0" y="{HEIGHT - 8}" font-size="13.5">{words}</text>')
        lines.append("</g>")
    return "\n".join([*lines, "</svg>", ""])


def _x(time_s: float) -> float:
    return time_s / LENGTH_S * WIDTH


def _line(left: Stream, right: Stream, pair: tuple[int, int], colour: str, style: str) -> str:
    one, other = left.times_s[pair[0]], right.times_s[pair[1]]
    return (
        f'<line x1="{_x(one):.1f}" y1="{left.y(one):.1f}" x2="{_x(other):.1f}" y2="{right.y(other):.1f}" '
        f'stroke="{colour}" stroke-width="1.4"{style}/>'
    )


def _samples(stream: Stream, colour: str, name: str) -> list[str]:
    label_y = stream.middle_y - 34 if stream.middle_y == TOP_Y else stream.middle_y + 42
    places = [(_x(time), stream.y(time)) for time in stream.times_s]
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in places]
    return [f'<text x="0" y="{label_y}" font-size="13.5" fill="{colour}">{name}</text>', *dots]


if __name__ == "__main__":
    FILE.write_text(drawn(), encoding="utf-8")
