"""Times are exact. A time that cannot be represented exactly is refused with a reason."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from broker.times import (
    TIME_MAX_NS,
    TIME_MIN_NS,
    UNIT_NS,
    iso_text,
    mean_text,
    parse_duration,
    parse_time,
    point_time,
    with_offset,
)


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (1554096460415, "ms", 1554096460415000000),
        (-1, "s", -1_000_000_000),
        (7, "ns", 7),
        (b"1.5", "ms", 1_500_000),
        (b"1e3", "us", 1_000_000),
        (b"-0.0", "ms", 0),
        (b"0e99", "ms", 0),
        (b"0e-99", "ms", 0),
        (b"1554096460415.000001", "ms", 1554096460415000001),
        ("2019-04-01T05:27:40.415Z", "ms", 1554096460415000000),
        ("2019-04-01T07:27:40.415+02:00", "s", 1554096460415000000),
        ("2019-04-01 05:27:40,415-00:00", "s", 1554096460415000000),
        ("1969-12-31T23:59:59.999999999Z", "ms", -1),
        ("2019-04-01T05:27Z", "ms", 1554096420000000000),
        (TIME_MIN_NS, "ns", TIME_MIN_NS),
        (TIME_MAX_NS, "ns", TIME_MAX_NS),
    ],
)
def test_a_time_is_read_exactly(value: int | str | bytes, unit: str, expected: int) -> None:
    assert parse_time(value, unit) == expected


@pytest.mark.parametrize(
    ("value", "unit", "reason"),
    [
        (TIME_MIN_NS - 1, "ns", "1678-2261"),
        (TIME_MAX_NS + 1, "ns", "1678-2261"),
        (253402300799000, "ms", "1678-2261"),
        (10**400, "s", "1678-2261"),
        (b"1e99999999", "ms", "1678-2261"),
        (b"9" * 5000, "ms", "has 5000 characters, more than 40"),
        (b"[" + b"1," * 30 + b"1]", "ms", "has 63 characters, more than 40"),
        (b"1e-99999999", "ms", "finer than a nanosecond"),
        (b"0.0000001", "ms", "finer than a nanosecond"),
        (b"null", "ms", "neither a number nor"),
        (b"NaN", "ms", "neither a number nor"),
        ("0001-01-01T00:00:00Z", "ms", "1678-2261"),
        ("9999-12-31T23:59:59Z", "ms", "1678-2261"),
        ("2019-04-01T05:27:40", "ms", "no offset"),
        ("2019-02-30T05:27:40Z", "ms", "does not exist"),
        ("2019-04-01", "ms", "not an ISO-8601"),
        ("\u0662\u0660\u0661\u0669-04-01T05:27:40Z", "ms", "not an ISO-8601"),
        ("1.5", "ms", "not an ISO-8601"),
        ("2019-04-01T05:27:40.0000000001Z", "ms", "finer than a nanosecond"),
        ("2019-04-01T05:27:40." + "0" * 60_000 + "Z", "ms", "has 60021 characters, more than 40"),
    ],
)
def test_what_is_no_time_is_refused_with_the_reason(value: int | str | bytes, unit: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_time(value, unit)


@pytest.mark.parametrize("unit", list(UNIT_NS))
def test_a_mean_is_exact_as_text_and_comes_back(unit: str) -> None:
    draw = random.Random(1)
    for _ in range(2000):
        left, right = (draw.choice([draw.randrange(-999, 999), draw.randrange(TIME_MIN_NS, TIME_MAX_NS)]) for _ in "lr")
        text = mean_text(left, right, unit)
        assert Fraction(text) * UNIT_NS[unit] == Fraction(left + right, 2)
        assert point_time(text, unit) == ((left + right) // 2, (left + right) % 2 == 1)


@pytest.mark.parametrize(
    ("left", "right", "unit", "text"),
    [
        (1_000_000, 2_000_000, "ms", "1.5"),
        (1, 2, "ns", "1.5"),
        (0, 1, "ms", "0.0000005"),
        (-1, 0, "ns", "-0.5"),
        (3_000_000, 1_000_000, "ms", "2"),
    ],
)
def test_a_mean_looks_as_people_write_it(left: int, right: int, unit: str, text: str) -> None:
    assert mean_text(left, right, unit) == text


@pytest.mark.parametrize(
    ("text", "expected"), [("250ms", 250 * 10**6), ("1.5 min", 90 * 10**9), ("1d", 86_400 * 10**9), (0, 0), ("0s", 0)]
)
def test_a_duration_has_a_unit(text: object, expected: int) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", [5, 1.5, "5", "-1s", "1 week", "", None, True, False, [], {}, "0.1ns", "999999d"])
def test_what_is_no_duration_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_554_096_460_415_000_000, "2019-04-01T05:27:40.415Z"),
        (-1, "1969-12-31T23:59:59.999999999Z"),
        (TIME_MIN_NS, "1678-01-01T00:00:00Z"),
        (TIME_MAX_NS, "2261-12-31T23:59:59.999999999Z"),
    ],
)
def test_a_time_as_text_is_read_back_as_it_was(time_ns: int, text: str) -> None:
    assert iso_text(time_ns) == text
    assert parse_time(text, "ms") == time_ns


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2019-04-01T05:26", "2019-04-01T05:26-05:00"),
        ("2019-04-01 05:26:20.468", "2019-04-01 05:26:20.468-05:00"),
        ("2019-04-01T05:26:20Z", "2019-04-01T05:26:20Z"),
        ("2019-04-01T05:26:20+0200", "2019-04-01T05:26:20+0200"),
        ("2019-04-01", "2019-04-01"),
        ("noon", "noon"),
    ],
)
def test_an_offset_is_appended_only_to_a_time_that_has_none(text: str, expected: str) -> None:
    assert with_offset(text, "-05:00") == expected
