"""The contents of the page *Join*: texts, rows and the options of its chart. Does not use NiceGUI.

Names of things appear only in table cells and labels, never in the chart.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from control.facts.lookup.keys import Awaited, Key, Keys, UnitRead
from control.facts.lookup.pairs import Pair
from control.facts.lookup.records import ShownRecord, StreamRecords, ThingRecords
from joiner.runtime.membership.status.tables import age

KEY_COLUMNS: Final = ("thing", "unit", "held", "by stream", "frontiers (UTC)", "waits for")
PAIR_COLUMNS: Final = ("left (UTC)", "left value", "right (UTC)", "right value", "result")

_PAIRS_SHOWN: Final = 10
_SECONDS_MIN: Final = 2

_GREY: Final = "#767b84"
"""Legible on white and on black, like the other colours."""
_LEFT_COLOR: Final = "#3b82f6"
_RIGHT_COLOR: Final = "#ea580c"

_BANDS: Final = ((0.6, 1.0), (0.0, 0.4))
"""The vertical ranges of the left and the right stream in the chart, whose height is 1."""

_TICK: Final = 0.2
_MARGIN: Final = 40
_MARGIN_NS_MIN: Final = 1_000_000
"""The margin on each side of the chart: the ``_MARGIN``-th part of its width, and at least a millisecond."""

Row = dict[str, Any]


def key_rows(keys: Keys) -> list[Row]:
    """Return a row for each key."""
    return [
        {"key": f"{key.unit} {key.thing}"}
        | dict(
            zip(
                KEY_COLUMNS,
                (
                    key.thing,
                    key.unit,
                    key.held,
                    ", ".join(f"{one.name} {one.held}" for one in key.streams.values()),
                    ", ".join(
                        f"{one.name} {moment(one.frontier_ns)}"
                        for one in key.streams.values()
                        if one.frontier_ns is not None
                    ),
                    waits_for(key),
                ),
                strict=True,
            )
        )
        for key in keys.keys
    ]


def waits_for(key: Key) -> str:
    """Return which streams a key's records wait for, such as ``waits for torque (12 s behind)``."""
    return f"waits for {' and '.join(map(_awaited, key.waits_for))}" if key.waits_for else ""


def _awaited(one: Awaited) -> str:
    if one.behind_ns is None:
        return f"{one.name} (silent since the start)"
    if not one.behind_ns:
        return one.name
    seconds = one.behind_ns / 1e9
    return f"{one.name} ({age(seconds) if seconds >= _SECONDS_MIN else f'{seconds:.3f} s'} behind)"


def as_of_lines(keys: Keys) -> list[str]:
    """Return sentences that say how current the keys are, and which units are not shown."""
    current = [one.as_of for one in keys.units if one.as_of is not None and one.as_of.source == "checkpoint"]
    lines = []
    if len(keys.keys) < keys.found:
        lines.append(f"The first {len(keys.keys):,} of {keys.found:,} keys.")
    if current:
        first, last = (moment(1_000_000 * at(one.at_ms for one in current)) for at in (min, max))
        when = first if first == last else f"{first} to {last}"
        lines.append(f"As of the last checkpoints of {len(current)} of {len(keys.units)} units ({when} UTC).")
    return lines + [line for one in keys.units if (line := _unit_line(one))]


def _unit_line(read: UnitRead) -> str:
    if read.trouble:
        return f"Unit {read.unit} is not shown: {read.trouble}"
    if read.as_of is None:
        return f"Unit {read.unit} has never run."
    if read.as_of.source == "snapshot":
        return f"Unit {read.unit} as of its snapshot of {moment(1_000_000 * read.as_of.at_ms)} UTC: {read.as_of.why}"
    return ""


def summary(found: ThingRecords) -> str:
    """Return sentences that describe the chart, for users who cannot see it."""
    left, right = found.left, found.right
    both = len(_shown_pairs(found))
    first = (
        f"{found.thing} in {found.join}: the last {len(left.records)} records of {left.name} and {len(right.records)} "
        f"of {right.name}, with {both} pairs between them."
    )
    lines = [first]
    lefts, rights = {pair.left for pair in found.pairs}, {pair.right for pair in found.pairs}
    for stream, paired in ((left, lefts), (right, rights)):
        alone = sum(one.position not in paired for one in stream.records)
        if alone:
            lines.append(f"{alone} of {stream.name} are in no pair yet.")
        if stream.searched.is_cut:
            lines.append(f"Older records of {stream.name} were not searched.")
    if found.results.is_cut:
        lines.append("Older results were not searched, so pairs may be missing.")
    unread = sum(not one.is_consumed for stream in (left, right) for one in stream.records)
    if unread:
        lines.append(f"{unread} records are not consumed yet.")
    return " ".join(lines)


def pair_rows(found: ThingRecords) -> list[Row]:
    """Return a row for each of the last pairs with both records shown, newest first."""
    rows = []
    for pair, left, right in sorted(_shown_pairs(found), key=lambda one: -max(one[1].time_ns, one[2].time_ns)):
        cells = moment(left.time_ns), _number(left.value), moment(right.time_ns), _number(right.value), _result(pair)
        rows.append({"key": f"{pair.left} {pair.right}"} | dict(zip(PAIR_COLUMNS, cells, strict=True)))
    return rows[:_PAIRS_SHOWN]


def moment(time_ns: int) -> str:
    """Return a time in UTC, with as many decimals as it needs, but at least three."""
    seconds, rest = divmod(time_ns, 10**9)
    fraction = f"{rest:09d}".rstrip("0").ljust(3, "0")
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{fraction}"


def plot(found: ThingRecords | None) -> dict[str, Any]:
    """Return the ECharts options of the chart: the left stream above, the right one below, pairs as lines.

    ``found``: None for an empty chart. A record that is in no pair is hollow.
    """
    streams = (None, None) if found is None else (found.left, found.right)
    names = ["left", "right"] if found is None else [found.left.name, found.right.name]
    frontiers = (
        [None, None]
        if found is None or found.frontiers is None
        else [found.frontiers.left_ns, found.frontiers.right_ns]
    )
    axis = {"axisLabel": {"color": _GREY, "hideOverlap": True}, "splitLine": {"lineStyle": {"color": "#88888844"}}}
    series: list[dict[str, Any]] = [_pair_lines(found)]
    for side, (stream, name) in enumerate(zip(streams, names, strict=True)):
        series += _points(found, side, stream, name, frontiers[side])
    return {
        "animation": False,
        "useUTC": True,
        "grid": {"left": 8, "right": 8, "top": 32, "bottom": 8, "containLabel": True},
        "legend": {"top": 0, "textStyle": {"color": _GREY}, "data": names},
        # Text on the canvas, never HTML.
        "tooltip": {"trigger": "item", "renderMode": "richText", ":formatter": "one => one.data[2]"},
        "xAxis": {"type": "time", **_span(streams, frontiers), **axis},
        "yAxis": [_y_axis(side, stream) for side, stream in enumerate(streams)],
        "series": series,
        "aria": {"enabled": True, "label": {"description": "" if found is None else _described(found)}},
    }


def _span(streams: Sequence[StreamRecords | None], frontiers: Sequence[int | None]) -> dict[str, float]:
    """Return the chart's start and end times, with a margin."""
    times_ns = [one.time_ns for stream in streams if stream is not None for one in stream.records]
    times_ns += [ns for ns in frontiers if ns is not None]
    if not times_ns:
        return {}
    first, last = min(times_ns), max(times_ns)
    margin_ns = max(_MARGIN_NS_MIN, (last - first) // _MARGIN)
    return {"min": _ms(first - margin_ns), "max": _ms(last + margin_ns)}


def _described(found: ThingRecords) -> str:
    left, right = found.left, found.right
    return (
        f"Points over time: {len(left.records)} records of {left.name}, {len(right.records)} of {right.name}, and "
        f"lines for {len(_shown_pairs(found))} pairs between them. The table below lists the last pairs."
    )


def _shown_pairs(found: ThingRecords) -> list[tuple[Pair, ShownRecord, ShownRecord]]:
    """Return the pairs with both records shown."""
    lefts, rights = ({one.position: one for one in stream.records} for stream in (found.left, found.right))
    return [
        (pair, lefts[pair.left], rights[pair.right])
        for pair in found.pairs
        if pair.left in lefts and pair.right in rights
    ]


def _pair_lines(found: ThingRecords | None) -> dict[str, Any]:
    data = []
    if found is not None:
        heights = [_heights(side, stream) for side, stream in enumerate((found.left, found.right))]
        data = [
            {"coords": [[_ms(one.time_ns), heights[side][one.position]] for side, one in enumerate(both)]}
            for _, *both in _shown_pairs(found)
        ]
    style = {"color": _GREY, "width": 1, "opacity": 0.7}
    return {"type": "lines", "coordinateSystem": "cartesian2d", "silent": True, "lineStyle": style, "data": data}


def _points(
    found: ThingRecords | None, side: int, stream: StreamRecords | None, name: str, frontier_ns: int | None
) -> list[dict[str, Any]]:
    """Return two series: the records in a pair, and the others."""
    color, symbol = ((_LEFT_COLOR, "circle"), (_RIGHT_COLOR, "triangle"))[side]
    pairs = [] if found is None else found.pairs
    paired = {(pair.left, pair.right)[side] for pair in pairs}
    heights = {} if stream is None else _heights(side, stream)
    points: tuple[list[list[Any]], list[list[Any]]] = ([], [])
    for one in [] if stream is None else stream.records:
        text = f"{name} {_number(one.value)}\n{moment(one.time_ns)} UTC\noffset {one.position}"
        points[one.position not in paired].append([_ms(one.time_ns), heights[one.position], text])
    shared = {
        "type": "scatter",
        "name": name,
        "yAxisIndex": side,
        "symbol": symbol,
        "symbolSize": 9,
        "clip": False,
        "color": color,
    }
    label = {"formatter": f"frontier of {name}", "color": _GREY, "position": ("insideEndTop", "insideStartTop")[side]}
    marks = [] if frontier_ns is None else [{"xAxis": _ms(frontier_ns), "label": label}]
    frontier = {
        "silent": True,
        "symbol": "none",
        "lineStyle": {"color": color, "type": ("dashed", "dotted")[side]},
        "data": marks,
    }
    hollow = {"color": "transparent", "borderColor": color, "borderWidth": 2}
    return [
        shared | {"data": points[0], "markLine": frontier},
        shared | {"data": points[1], "itemStyle": hollow},
    ]


def _y_axis(side: int, stream: StreamRecords | None) -> dict[str, Any]:
    """Return an axis from 0 to 1, labelled with a stream's lowest, middle and highest values."""
    labels = [""] * round(1 / _TICK + 1)
    if stream is not None and stream.records:
        low, high = _range(stream)
        first = round(_BANDS[side][0] / _TICK)
        labels[first : first + 3] = (
            ["", _number(low), ""] if low == high else map(_number, (low, low / 2 + high / 2, high))
        )
    return {
        "type": "value",
        "position": ("left", "right")[side],
        "min": 0,
        "max": 1,
        "interval": _TICK,
        "splitLine": {"show": False},
        # The labels are numbers, so they are safe in a script.
        "axisLabel": {"color": _GREY, ":formatter": f"value => {json.dumps(labels)}[Math.round(value / {_TICK})]"},
    }


def _heights(side: int, stream: StreamRecords) -> dict[str, float]:
    """Return the height of each of a stream's records in the chart, by position."""
    if not stream.records:
        return {}
    (low, high), (bottom, top) = _range(stream), _BANDS[side]
    # The difference between two large numbers may not be finite.
    half = high / 2 - low / 2
    return {
        one.position: bottom + (top - bottom) * ((one.value / 2 - low / 2) / half if half else 0.5)
        for one in stream.records
    }


def _range(stream: StreamRecords) -> tuple[float, float]:
    values: Sequence[float] = [one.value for one in stream.records]
    return min(values), max(values)


def _ms(time_ns: int) -> float:
    return time_ns / 1e6


def _number(value: float) -> str:
    return f"{value:.6g}"


def _result(pair: Pair) -> str:
    if isinstance(pair.result, dict):
        return ", ".join(f"{side} {_number(value)}" for side, value in pair.result.items())
    return _number(pair.result)
