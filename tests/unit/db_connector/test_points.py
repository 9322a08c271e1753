"""Which line is written for a pair, and which pairs cannot be written as a line."""

from __future__ import annotations

import msgspec
import pytest

from broker.wire.records import AlignedRow, decode_joined, encode
from db_connector.sinks.points import LINE_BYTES_MAX, _cached_tag_text, point_line
from db_connector.sinks.sink import UnrepresentableError
from tests.unit.db_connector.test_contract import joined, parse_line


def test_a_pair_becomes_one_line_with_its_tags_in_order() -> None:
    line = point_line(joined(tie="0-1", twice_ns=3_000_001), "joined", "ms")
    assert line == b"joined,half=1,join=power,quantity=power,thing=R0815,tie=0-1 result=1.5 1500000"


def test_a_decoded_pair_has_the_same_line() -> None:
    pair = joined(result={"left": 1.0, "right": 2.5}, tie="1-0")
    assert point_line(decode_joined(encode(pair)), "m", "ms") == point_line(pair, "m", "ms")


def test_both_values_become_two_fields() -> None:
    line = point_line(joined(result={"left": 1.0, "right": 2.5}), "joined", "ms")
    assert line == b"joined,join=power,quantity=power,thing=R0815 left=1.0,right=2.5 1000000"


def test_a_row_becomes_one_point_with_a_field_for_each_value_that_it_has() -> None:
    row = AlignedRow("R0815", "spindle", 1, 2.5, "spindle:4:1", {"speed": 288.0, "heading": None, "mode": 0.0}, "1")
    line = point_line(decode_joined(encode(row)), "joined", "ms")
    assert line == b"joined,join=spindle,quantity=spindle,thing=R0815,tie=1 result=2.5,speed=288.0,mode=0.0 1000000"


def test_a_row_of_a_grid_has_the_name_of_its_align_as_a_tag_even_if_its_thing_has_colons() -> None:
    row = AlignedRow("a:b", "mill", -1, 1.0, "mill:4:a:b:-7", {"speed": 288.0, "torque": None})
    line = point_line(decode_joined(encode(row)), "joined", "ms")
    assert line == b"joined,join=mill,quantity=mill,thing=a:b result=1.0,speed=288.0 -1000000"


@pytest.mark.parametrize("name", ["result", "time", "", "a\nb", "a\\"])
def test_a_row_with_a_column_that_no_field_can_be_named_after_has_no_point(name: str) -> None:
    row = AlignedRow("R0815", "spindle", 1, 2.5, "spindle:4:1", {name: 1.0})
    with pytest.raises(UnrepresentableError, match="column"):
        point_line(decode_joined(encode(row)), "joined", "ms")


def test_pairs_of_different_joins_are_different_points_also_with_one_output() -> None:
    ours, theirs = (
        parse_line(point_line(joined(identity=f"{join}:0:1:2"), "joined", "ms").decode())[0]
        for join in ("power", "power of another application")
    )
    assert ours != theirs


def test_a_point_has_no_text_among_its_fields_so_that_all_of_them_can_be_aggregated() -> None:
    for result in (1.5, {"left": 1.0, "right": 2.5}):
        _point, fields = parse_line(point_line(joined(result=result), "joined", "ms").decode())
        assert {type(value) for value in fields.values()} == {float}


def test_a_whole_number_is_written_as_a_float() -> None:
    assert b" result=5.0 " in point_line(joined(result=5), "joined", "ms")


@pytest.mark.parametrize(
    ("text", "unit", "time"),
    [
        (b"1554096460422", "ms", b"1554096460422000000"),
        (b"1554096460422.5", "ms", b"1554096460422500000"),
        (b"-1", "s", b"-1000000000"),
        (b"7", "ns", b"7"),
        (b"-0.5", "us", b"-500"),
    ],
)
def test_a_time_is_exact_in_every_unit(text: bytes, unit: str, time: bytes) -> None:
    pair = msgspec.structs.replace(joined(), phenomenonTime=msgspec.Raw(text))
    line = point_line(pair, "joined", unit)
    assert line.endswith(b" " + time)
    assert b"half" not in line


def test_half_a_nanosecond_before_the_epoch_is_rounded_down() -> None:
    pair = msgspec.structs.replace(joined(), phenomenonTime=msgspec.Raw(b"-0.5"))
    line = point_line(pair, "joined", "ns")
    assert line.startswith(b"joined,half=1,")
    assert line.endswith(b" -1")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "is empty"),
        ("a\nb", "newline"),
        ("a\\", "ends with a backslash"),
        ("a\\\\", "ends with a backslash"),
        ("a\\ b", "an odd number of backslashes before a space"),
        ("a\\\\\\ b", "an odd number of backslashes before a space"),
        ("a#!~#b", "contains #!~#"),
        ("a#!~", "ends with #!~, "),
    ],
)
def test_a_name_that_no_tag_can_hold_is_refused_with_its_reason(name: str, reason: str) -> None:
    with pytest.raises(UnrepresentableError, match=reason):
        point_line(joined(thing=name), "joined", "ms")
    with pytest.raises(UnrepresentableError, match=f"quantity.*{reason}"):
        point_line(joined(quantity=name), "joined", "ms")
    with pytest.raises(UnrepresentableError, match=f"join.*{reason}"):
        point_line(joined(identity=f"{name}:0:1:2"), "joined", "ms")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'"2019-04-01T05:26:20Z"', "is not a number"),
        (b"null", "is not a number"),
        (b"0.0000001", "finer than half a nanosecond"),
        (b"9999999999999999", "outside the years"),
        (b"-9999999999999999", "outside the years"),
        (b"1e5", "is not a plain number"),
        (b"1E999999999", "is not a plain number"),
        (b"1" * 1000, "is not a plain number"),
    ],
)
def test_a_time_that_is_none_is_refused_with_its_reason(text: bytes, reason: str) -> None:
    pair = msgspec.structs.replace(joined(), phenomenonTime=msgspec.Raw(text))
    with pytest.raises(UnrepresentableError, match=reason):
        point_line(pair, "joined", "ms")


@pytest.mark.parametrize("result", [float("nan"), float("inf"), {"left": 1.0, "right": float("-inf")}])
def test_a_result_that_is_not_finite_is_refused(result: float | dict[str, float]) -> None:
    with pytest.raises(UnrepresentableError, match="is not a finite number"):
        point_line(joined(result=result), "joined", "ms")


@pytest.mark.parametrize("result", [{}, {"left": 1.0}, {"left": 1.0, "right": 1.0, "middle": 1.0}])
def test_a_result_with_other_members_is_refused(result: dict[str, float]) -> None:
    with pytest.raises(UnrepresentableError, match="left and right"):
        point_line(joined(result=result), "joined", "ms")


def test_a_line_beyond_the_limit_is_refused() -> None:
    with pytest.raises(UnrepresentableError, match="bytes of line protocol"):
        point_line(joined(identity="x" * LINE_BYTES_MAX + ":0:1:2"), "joined", "ms")


def test_names_that_are_too_long_for_a_point_are_not_kept() -> None:
    """All names share one cache, which must not fill with names that another program writes to the topic."""
    before = _cached_tag_text.cache_info().currsize
    for number in range(10):
        with pytest.raises(UnrepresentableError, match="bytes of line protocol"):
            point_line(joined(thing=f"{number}" * LINE_BYTES_MAX), "pairs", "ms")
    assert _cached_tag_text.cache_info().currsize <= before + 2
