"""What does a tool learn about a site from the last records of the control topic?"""

from __future__ import annotations

from typing import Any

from joiner.runtime.control import (
    Assignment,
    Heartbeat,
    Logged,
    Summary,
    UnitAssignment,
    Workers,
    decode,
    decode_member,
    encode,
)
from joiner.runtime.membership.observer import fold


def logged(*records: Any) -> list[Logged]:
    return [Logged(record, offset, 0) for offset, record in enumerate(records, 50)]


def beat(name: str, site: str = "plain", **more: Any) -> Heartbeat:
    return Heartbeat(site=site, instance=name, run=f"run of {name}", **more)


A, B = UnitAssignment("a", ["b"]), UnitAssignment("b")


def test_an_assignment_or_a_summary_is_enough_wherever_reading_begins() -> None:
    sites = fold(
        logged(
            beat("a", serves=[0]),
            Summary(site="plain", read=40, epoch=7, units=[A], drained=["c"], reason="c is drained"),
            beat("x", "green"),
            Assignment(site="green", epoch=3, units=[UnitAssignment("x")], by="x", reason="y is gone"),
        )
    )
    plain, green = sites["plain"], sites["green"]
    assert (plain.epoch, plain.units, plain.drained, plain.reason) == (7, [A], {"c"}, "c is drained")
    assert (plain.server(0), list(plain.live)) == ("a", ["a"])
    assert (green.epoch, green.units, green.reason) == (3, [UnitAssignment("x")], "y is gone")


def test_a_summary_of_before_does_not_undo_a_newer_assignment() -> None:
    newer = Assignment(site="plain", epoch=8, units=[B], by="a", reason="a is leaving")
    sites = fold(logged(newer, Summary(site="plain", read=40, epoch=7, units=[A])))
    assert (sites["plain"].epoch, sites["plain"].units, sites["plain"].reason) == (8, [B], "a is leaving")


def test_supervisors_report_their_workers() -> None:
    report = Workers(site="plain", instance="w", host="h", running=2, wanted=3)
    assert fold(logged(report))["plain"].workers == {"w": report}


def test_records_about_members_are_none_about_moves_and_the_other_way_round() -> None:
    value = encode(beat("a", serves=[1], warm=[2]))
    assert decode(value) is None
    assert decode_member(value) == beat("a", serves=[1], warm=[2])
    for unreadable in (
        None,
        b"",
        b"{",
        b"[]",
        b'{"kind": "heartbeat"}',
        b'{"kind": "of a newer release", "format": 1}',
    ):
        assert decode_member(unreadable) is None
    assert decode_member(value.replace(b'"format":1', b'"format":99')) is None or b'"format"' not in value
