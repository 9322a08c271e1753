"""Are the texts, rows and chart of the page about a join those of what was read?"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

from control.facts.lookup.keys import Awaited, Key, Keys, StreamOfKey, UnitRead
from control.facts.lookup.pairs import Pair
from control.facts.lookup.records import Frontiers, Searched, ShownRecord, StreamRecords, ThingRecords
from control.facts.lookup.unit_state import AsOf
from control.page.lookup import join_content

S = 1_000_000_000
AS_OF = AsOf("checkpoint", {"machine.data": 7}, 1_500)
WHOLE = Searched(0, 9, is_cut=False)
HOSTILE = "<img src=x onerror=alert(1)>"


def key(*waits_for: Awaited, thing: str = "R1") -> Key:
    streams = {"left": StreamOfKey("speed", 7, 3 * S), "right": StreamOfKey("torque", 0, None)}
    return Key(2, "power", "join", thing, 7, streams, list(waits_for))


def shown(*values: float, first: int = 0, is_consumed: bool = True) -> list[ShownRecord]:
    return [ShownRecord(str(first + at), at * S, value, 0, is_consumed) for at, value in enumerate(values)]


def found_of(**changes: Any) -> ThingRecords:
    left = StreamRecords("speed", "machine.data", shown(10.0, 30.0), WHOLE)
    right = StreamRecords("torque", "machine.data", shown(2.0, first=5), WHOLE)
    pairs = [Pair("0", "5", 20.0), Pair("1", "99", 1.0)]
    whole = ThingRecords("power", "R1", 2, AS_OF, left, right, pairs, WHOLE)
    return msgspec.structs.replace(whole, **changes)


def test_a_key_has_a_row_with_what_it_waits_for() -> None:
    keys = Keys([key(Awaited("right", "vaTorque_C11", None))], 1, [])
    assert join_content.key_rows(keys) == [
        {
            "key": "2 R1",
            "thing": "R1",
            "unit": 2,
            "held": 7,
            "by stream": "speed 7, torque 0",
            "frontiers (UTC)": "speed 1970-01-01 00:00:03.000",
            "waits for": "waits for vaTorque_C11 (silent since the start)",
        }
    ]


@pytest.mark.parametrize(
    ("waits_for", "text"),
    [
        ([], ""),
        ([Awaited("right", "torque", 0)], "waits for torque"),
        ([Awaited("right", "torque", 12 * S)], "waits for torque (12 s behind)"),
        ([Awaited("right", "torque", S // 8)], "waits for torque (0.125 s behind)"),
        ([Awaited("right", "torque", 3_600 * 5 * S)], "waits for torque (5 h behind)"),
        (
            [Awaited("left", "speed", None), Awaited("right", "torque", 0)],
            "waits for speed (silent since the start) and torque",
        ),
    ],
)
def test_a_stream_is_told_with_how_far_it_is_behind(waits_for: list[Awaited], text: str) -> None:
    assert join_content.waits_for(key(*waits_for)) == text


def test_each_unit_is_told_as_of_when_it_is() -> None:
    later, snapshot = AsOf("checkpoint", {}, 2_750), AsOf("snapshot", {}, 3_000, "too many follow")
    units = [
        UnitRead(0, AS_OF),
        UnitRead(1, later),
        UnitRead(2, snapshot),
        UnitRead(3, None),
        UnitRead(4, None, "too large"),
    ]
    assert join_content.as_of_lines(Keys([key()], 1_234, units)) == [
        "The first 1 of 1,234 keys.",
        "As of the last checkpoints of 2 of 5 units (1970-01-01 00:00:01.500 to 1970-01-01 00:00:02.750 UTC).",
        "Unit 2 as of its snapshot of 1970-01-01 00:00:03.000 UTC: too many follow",
        "Unit 3 has never run.",
        "Unit 4 is not shown: too large",
    ]
    assert join_content.as_of_lines(Keys([], 0, [UnitRead(0, AS_OF)])) == [
        "As of the last checkpoints of 1 of 1 units (1970-01-01 00:00:01.500 UTC)."
    ]


def test_a_summary_says_what_is_in_the_chart_and_what_is_missing() -> None:
    assert join_content.summary(found_of()) == (
        "R1 in power: the last 2 records of speed and 1 of torque, with 1 pairs between them."
    )
    cut = Searched(5, 9, is_cut=True)
    left = StreamRecords("speed", "machine.data", shown(1.0, 2.0, 3.0, is_consumed=False), cut)
    assert join_content.summary(found_of(left=left, pairs=[Pair("0", "5", 1.0)], results=cut)) == (
        "R1 in power: the last 3 records of speed and 1 of torque, with 1 pairs between them. "
        "2 of speed are in no pair yet. Older records of speed were not searched. "
        "Older results were not searched, so pairs may be missing. 3 records are not consumed yet."
    )


def test_the_last_pairs_have_rows_the_newest_first() -> None:
    left = StreamRecords("speed", "t", shown(*map(float, range(30))), WHOLE)
    right = StreamRecords("torque", "t", shown(0.5, first=50), WHOLE)
    pairs = [Pair(str(at), "50", {"left": 1.0, "right": 1 / 3}) for at in range(30)]
    rows = join_content.pair_rows(found_of(left=left, right=right, pairs=pairs))
    assert len(rows) == 10
    assert rows[0] == {
        "key": "29 50",
        "left (UTC)": "1970-01-01 00:00:29.000",
        "left value": "29",
        "right (UTC)": "1970-01-01 00:00:00.000",
        "right value": "0.5",
        "result": "left 1, right 0.333333",
    }
    assert [row["key"] for row in rows] == [f"{at} 50" for at in range(29, 19, -1)]


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, "1970-01-01 00:00:00.000"),
        (1_554_096_460_415_000_000, "2019-04-01 05:27:40.415"),
        (1_554_096_460_415_123_400, "2019-04-01 05:27:40.4151234"),
        (-1, "1969-12-31 23:59:59.999999999"),
        (-9_214_560_000_000_000_000, "1678-01-01 00:00:00.000"),
        (9_214_646_399_999_999_999, "2261-12-31 23:59:59.999999999"),
    ],
)
def test_a_moment_is_exact(time_ns: int, text: str) -> None:
    assert join_content.moment(time_ns) == text


def series_of(options: dict[str, Any]) -> tuple[Any, ...]:
    lines, *points = options["series"]
    return lines, *points


def test_a_pair_is_a_line_between_its_two_points() -> None:
    lines, left, left_alone, right, right_alone = series_of(join_content.plot(found_of()))
    (line,) = lines["data"]
    points = [[one[:2] for one in series["data"]] for series in (left, left_alone, right, right_alone)]
    # The left stream is above, from 10 to 30; the right one has one value, in the middle of its part.
    assert points == [[[0.0, 0.6], [1_000.0, 1.0]], [], [[0.0, 0.2]], []]
    assert line["coords"] == [points[0][0], points[2][0]]
    assert [axis["axisLabel"][":formatter"] for axis in join_content.plot(found_of())["yAxis"]] == [
        'value => ["", "", "", "10", "20", "30"][Math.round(value / 0.2)]',
        'value => ["", "2", "", "", "", ""][Math.round(value / 0.2)]',
    ]


def test_a_record_without_a_pair_is_hollow() -> None:
    _, left, left_alone, right, right_alone = series_of(join_content.plot(found_of(pairs=[])))
    assert [len(series["data"]) for series in (left, left_alone, right, right_alone)] == [0, 2, 0, 1]
    assert left_alone["itemStyle"]["color"] == "transparent"
    assert "itemStyle" not in left


def test_frontiers_are_lines_where_they_are_known() -> None:
    _, left, _, right, _ = series_of(join_content.plot(found_of(frontiers=Frontiers(8 * S, None, AS_OF))))
    assert [one["xAxis"] for one in left["markLine"]["data"]] == [8_000.0]
    assert right["markLine"]["data"] == []
    assert join_content.plot(found_of(frontiers=Frontiers(8 * S, None, AS_OF)))["xAxis"]["max"] > 8_000.0
    for series in series_of(join_content.plot(found_of()))[1:]:
        assert not series.get("markLine", {}).get("data")


@pytest.mark.parametrize("values", [(-1.7e308, 1.7e308, 0.0), (1e-300, 0.0), (1.0, 1.0), (3.0,), ()])
def test_any_values_fit_into_the_chart(values: tuple[float, ...]) -> None:
    left = StreamRecords("speed", "t", shown(*values), WHOLE)
    options = join_content.plot(found_of(left=left, pairs=[]))
    heights = [one[1] for one in options["series"][2]["data"]]
    assert len(heights) == len(values)
    assert all(0.6 - 1e-9 <= height <= 1.0 + 1e-9 for height in heights)
    if len({*values}) > 1:
        assert (min(heights), max(heights)) == (0.6, 1.0)
    json.dumps(options, allow_nan=False)


def test_the_chart_has_no_text_from_kafka_and_shows_its_texts_without_html() -> None:
    records = found_of()
    options = join_content.plot(
        ThingRecords("power", HOSTILE, 2, AS_OF, records.left, records.right, records.pairs, WHOLE)
    )
    assert HOSTILE not in json.dumps(options)
    assert options["tooltip"]["renderMode"] == "richText"


def test_without_records_the_chart_is_empty_but_has_the_same_series() -> None:
    empty, full = join_content.plot(None), join_content.plot(found_of())
    assert [one["type"] for one in empty["series"]] == [one["type"] for one in full["series"]]
    assert all(not one["data"] for one in empty["series"])
    assert math.isclose(full["xAxis"]["min"], -25.0)
