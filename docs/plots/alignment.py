"""Draws the picture in docs/alignment.md: the values that each rule takes from a stream at the same twelve times.

``python -m docs.plots.alignment`` writes ``alignment.svg`` next to this file. `joiner.AlignBuffer` computes the rows.
The colours and the font are the same as in the picture in the README.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final

import numpy as np

from docs.plots.neighbours import FONT, GAP, MISSING, SPEED, TEXT, TORQUE, WIDTH
from joiner import AlignBuffer, ColumnRule
from joiner.alignment.rules import RULES

FILE: Final = Path(__file__).with_suffix(".svg")
POINTS: Final = 12
LENGTH_S: Final = 12.0
PAUSE_S: Final = (4.8, 8.0)
"""Speed is not sampled during this interval."""
TOLERANCE_S: Final = 2.0

HEIGHT: Final = 190
MIDDLE_Y: Final = 100
SWING: Final = 46

NO_VALUE: Final = "✕"

CAPTIONS: Final = {
    "previous": "the last value at or before the row",
    "next": "the first value at or after the row",
    "nearest": "the nearer of the two",
    "linear": f"between the two, if they are at most {TOLERANCE_S:g} s apart",
}


def samples() -> tuple[list[float], list[float]]:
    """Return the times in seconds at which speed is sampled, and the sampled values."""
    random, times_s = Random(3), [0.2]
    while (time_s := times_s[-1] + 1.3 * random.uniform(0.7, 1.3)) < LENGTH_S:
        times_s.append(time_s)
    times_s = [time_s for time_s in times_s if not PAUSE_S[0] < time_s < PAUSE_S[1]]
    return times_s, [math.sin(time_s * 0.9) for time_s in times_s]


def points_s() -> list[float]:
    """Return the times of the driver's records in seconds."""
    return [0.6 + number * (LENGTH_S - 1.0) / (POINTS - 1) for number in range(POINTS)]


def rows(rule: str) -> list[tuple[float, float | None]]:
    """Return the time of each row in seconds, and the value that ``rule`` gives it, or None if that is missing."""
    tolerance_ns = int(TOLERANCE_S * 1e9) if rule == "linear" else None
    buffer = AlignBuffer({"speed": ColumnRule(rule=rule, tolerance_ns=tolerance_ns)})
    times_s, values = samples()

    def records(times: list[float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        times_ns = (np.array(times) * 1e9).astype(np.int64)
        return np.zeros(len(times_ns), np.int64), times_ns, np.arange(len(times_ns))

    found = buffer.close(driver=records(points_s()), columns={"speed": (records(times_s), np.array(values))})
    values_at = zip(found.values["speed"].tolist(), found.is_missing["speed"].tolist(), strict=True)
    return [(at, None if is_missing else value) for at, (value, is_missing) in zip(points_s(), values_at, strict=True)]


def drawn() -> str:
    """Return the picture as an SVG document."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH + GAP} {2 * HEIGHT + GAP}" {FONT}>',
        "<title>The values of one stream at the same twelve points, by each rule</title>",
    ]
    for number, rule in enumerate(RULES):
        lines.append(f'<g transform="translate({number % 2 * (WIDTH + GAP)} {number // 2 * (HEIGHT + GAP)})">')
        lines += _panel(rule)
        lines.append("</g>")
    return "\n".join([*lines, "</svg>", ""])


def _panel(rule: str) -> list[str]:
    times_s, values = samples()
    places = [(_x(time_s), _y(value)) for time_s, value in zip(times_s, values, strict=True)]
    caption = f'<tspan dx="10" font-size="13.5" font-weight="400">{CAPTIONS[rule]}</tspan>'
    lines = [
        f'<text x="0" y="20" font-size="17" font-weight="600" fill="{TEXT}">{rule}{caption}</text>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{SPEED}"/>' for x, y in places),
    ]
    if rule == "linear":
        lines += [
            f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{SPEED}" stroke-dasharray="2 4"/>'
            for (begin_s, end_s), ((x0, y0), (x1, y1)) in zip(pairwise(times_s), pairwise(places), strict=True)
            if end_s - begin_s <= TOLERANCE_S
        ]
    for time_s, value in rows(rule):
        x = _x(time_s)
        if value is None:
            lines.append(f'<text x="{x - 4:.1f}" y="{MIDDLE_Y + 5}" font-size="15" fill="{MISSING}">{NO_VALUE}</text>')
        else:
            lines.append(f'<rect x="{x - 4:.1f}" y="{_y(value) - 4:.1f}" width="8" height="8" fill="{TORQUE}"/>')
        lines.append(f'<line x1="{x:.1f}" y1="{HEIGHT - 22}" x2="{x:.1f}" y2="{HEIGHT - 14}" stroke="{TORQUE}"/>')
    words = (
        f'<tspan fill="{SPEED}">● speed</tspan> <tspan fill="{TORQUE}" dx="8">■ value in the row</tspan> '
        f'<tspan fill="{MISSING}" dx="8">{NO_VALUE} missing</tspan>'
    )
    return [*lines, f'<text x="0" y="{HEIGHT}" font-size="12">{words}</text>']


def _x(time_s: float) -> float:
    return time_s / LENGTH_S * WIDTH


def _y(value: float) -> float:
    return MIDDLE_Y - SWING * value


if __name__ == "__main__":
    FILE.write_text(drawn(), encoding="utf-8")
