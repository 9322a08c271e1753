"""Does the page say the same as the facts, in words that fit?"""

from __future__ import annotations

from typing import Any

import msgspec

from control.facts.reading import Facts
from control.facts.timeline import Event
from control.facts.watcher import Sample
from control.page import content
from joiner.runtime.control import Assignment, Drain, Heartbeat, MemberRecord, UnitAssignment
from joiner.runtime.kafka.checkpoint_log import AppendedCheckpoint
from joiner.runtime.membership.state import SiteState
from joiner.runtime.membership.status.reading import compose_status
from tests.unit.control.served import Served
from tests.unit.joiner.runtime.joiner_inputs import make_settings
from tests.unit.joiner.runtime.test_model import make_checkpoint


def with_standbys() -> Facts:
    """Return the facts of an application with two units and three instances, of which one is drained."""
    state = SiteState("process")
    records: tuple[MemberRecord, ...] = (
        Heartbeat(site="process", instance="one", run="r1", serves=[0]),
        Heartbeat(site="process", instance="two", run="r2", serves=[1], warm=[0]),
        Drain(site="process", instance="three"),
        Assignment(
            site="process",
            epoch=4,
            units=[UnitAssignment("one", ["two"]), UnitAssignment("two", ["one"])],
            reason="two has joined",
        ),
    )
    for offset, record in enumerate(records):
        state.apply(record, offset)
    found = [AppendedCheckpoint(make_checkpoint(unit=unit), 997_000) for unit in range(2)]
    members = {"process": {"one": frozenset({0}), "two": frozenset({1})}}
    status = compose_status(make_settings(partitions=2), found, [5, 7], members, {"process": state}, [], 1_000.0)
    return Facts(status=status, rates=[10.4, 0.0], lag=12, read_ms=1, trouble="")


def test_a_unit_has_a_row_with_its_owner_its_standbys_and_how_far_it_is() -> None:
    first, second = content.unit_rows(with_standbys())
    assert (first["unit"], first["owner"], first["standbys"]) == (0, "process one", "two")
    assert (first["lag"], first["records/s"], first["last commit"], first["held"]) == (5, 10, "3 s ago", 3)
    assert (second["unit"], second["standbys"], second["records/s"]) == (1, "one", 0)
    assert set(first) == set(content.UNIT_COLUMNS)


def test_a_unit_that_has_never_run_has_a_row_as_well() -> None:
    facts = Served().watchers["lsb"].facts
    assert [row["owner"] for row in content.unit_rows(facts)] == ["process one", "nobody yet"]
    assert content.unit_rows(Facts()) == content.instance_rows(Facts()) == []


def test_an_instance_has_a_row_with_what_it_serves_and_follows() -> None:
    rows = {row["instance"]: row for row in content.instance_rows(with_standbys())}
    assert (rows["two"]["serves"], rows["two"]["standby of"], rows["two"]["warm"]) == ("1", "0", "0")
    assert (rows["one"]["serves"], rows["one"]["standby of"], rows["one"]["warm"]) == ("0", "1", "")
    assert [name for name, row in rows.items() if row["drained"]] == ["three"]
    assert len({row["key"] for row in rows.values()}) == 3


def test_the_last_events_are_shown_the_newest_first() -> None:
    events = [Event(number, 1_000 * number, "owner", f"event {number}", pause_ms=1_234) for number in range(1, 150)]
    rows = content.event_rows(events)
    assert [row["key"] for row in rows] == list(range(149, 49, -1))
    assert rows[0]["time (UTC)"] == "1970-01-01 00:02:29.000"
    assert (rows[0]["what"], rows[0]["pause"]) == ("event 149", "1.234 s")
    assert content.event_rows([msgspec.structs.replace(events[0], pause_ms=None)])[0]["pause"] == ""


def test_the_headline_and_the_troubles_say_what_matters() -> None:
    facts = with_standbys()
    assert content.headline(facts) == "1 of 2 units running, 10 records/s, lag 12, 10 results"
    assert content.troubles(facts, 15_000) == []
    assert content.troubles(facts, 20_002) == ["The data shown was read 20 s ago"]
    assert content.assignments(facts) == ["Assignment 4 of process: two has joined; drained: three"]
    assert content.headline(Facts(trouble="")) == "The application has never run."
    assert content.headline(Facts()) == ""
    assert content.troubles(Facts(), 0) == ["The data shown is not current: Kafka has not answered yet"]
    status: Any = facts.status
    halted = msgspec.structs.replace(facts, status=msgspec.structs.replace(status, not_served=["unit 0: not served"]))
    halted = msgspec.structs.replace(halted, missing=["x [0]: no leader"], lag=None)
    assert content.troubles(halted, 1) == ["x [0]: no leader", "unit 0: not served"]
    assert "lag not known" in content.headline(halted)


def test_the_charts_show_the_samples() -> None:
    assert content.series([Sample(1, 2.6, 3), Sample(4, 5.0, 6)]) == ([[1, 3], [4, 5]], [[1, 3], [4, 6]])
