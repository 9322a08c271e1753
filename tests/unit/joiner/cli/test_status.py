"""Does `joiner status` show the state of each owner and the age of its data, within 100 columns?"""

# ruff: noqa: SLF001 - the tests drive a process step by step

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException

from broker.kafka.groups import ListedMember
from broker.kafka.topics import TopicFacts
from joiner.cli import status
from joiner.runtime.control import Assignment, Drain, Heartbeat, MemberRecord, Pin, Standbys, UnitAssignment
from joiner.runtime.kafka.checkpoint_log import AppendedCheckpoint
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.membership import presence
from joiner.runtime.membership.presence import read_members, state_of
from joiner.runtime.membership.state import SiteState
from joiner.runtime.membership.status import merging, reading, replicas
from joiner.runtime.membership.status.reading import read_status
from joiner.runtime.membership.status.summary import AssignmentStatus, MergingStatus, ReplicaStatus, Status
from joiner.runtime.membership.status.tables import WIDTH, lines_of
from joiner.runtime.model import (
    RESET_RUN,
    AlignSummary,
    Checkpoint,
    JoinSummary,
    OnTheWay,
    UnitStopped,
    decode_checkpoint,
    encode,
)
from joiner.runtime.ownership.claim import _owned
from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.repartition.status import RepartitionStatus
from tests.manual_clock import ManualClock
from tests.simulation.memory_clients import encode_assignment
from tests.unit.joiner.runtime.joiner_inputs import DATA, GAP, POWER, make_settings
from tests.unit.joiner.runtime.task.test_function_failures import FAILS, Process
from tests.unit.joiner.runtime.test_model import make_checkpoint

NOW_S = 2_000_000_000.0
NS = 10**9


def admin(**members: list[int]) -> Any:
    """Return an admin client that reports the same members for any group. ``members``: units by instance name."""
    found = [
        SimpleNamespace(
            id=f"{name}-{UUID(int=7)}",
            client_id="rdkafka",
            assignment=encode_assignment([(DATA, unit) for unit in units]),
        )
        for name, units in members.items()
    ]
    return SimpleNamespace(
        list_groups=lambda _group, timeout: [SimpleNamespace(error=None, protocol_type="consumer", members=found)]  # noqa: ARG005 - the library's signature
    )


def shown(
    monkeypatch: pytest.MonkeyPatch,
    *records: Checkpoint,
    age_s: float = 3.0,
    joins: Any = (POWER,),
    notices: Any = None,
    **members: Any,
) -> Status:
    """Return the status of an application with these checkpoints. With ``notices``, it has a control topic."""
    topics: Any = {} if notices is None else {make_settings().control_topic: TopicFacts("id", 1)}
    monkeypatch.setattr(reading, "topic_facts", lambda _admin, _names: topics)
    monkeypatch.setattr(reading, "read_notices", lambda _settings, _clock: list(notices))
    monkeypatch.setattr(reading, "read_sites", lambda _settings, _clock: {})
    by_unit = {one.unit: AppendedCheckpoint(one, int((NOW_S - age_s) * 1000)) for one in records}
    monkeypatch.setattr(reading, "read_appended", lambda _readers, unit: by_unit.get(unit))
    monkeypatch.setattr(replicas, "log_range", lambda _consumer, _topic, _unit: (0, 20))
    settings = make_settings(*joins, partitions=len(records))
    readers: Any = SimpleNamespace(settings=settings, clock=ManualClock(NOW_S), log=None)
    return read_status(admin(**members), readers)


@pytest.mark.parametrize(
    ("changes", "members", "state"),
    [
        ({}, {"one": [0, 1]}, "running"),
        ({}, {}, "gone"),
        ({}, {"two": [1]}, "gone"),
        ({}, {"two": [0]}, "given to two"),
        ({}, {"one": [1], "two": [0]}, "given to two"),
        ({}, {"one": []}, "rebalancing"),
        ({"stopped": True}, {"one": [0]}, "stopped"),
        ({"run": RESET_RUN}, {"one": [0]}, "nobody"),
        ({"run": OnTheWay("m", "process").run(), "site": "green"}, {}, "nobody"),
    ],
)
def test_what_can_be_known_of_an_owner_is_said_and_nothing_else(
    changes: dict[str, Any], members: dict[str, list[int]], state: str
) -> None:
    settings = make_settings()
    there = read_members(admin(**members), settings, ["process"], {})
    assert state_of(make_checkpoint(**changes), there) == state


@pytest.mark.parametrize(("code", "state"), [(None, "gone"), (KafkaError.GROUP_AUTHORIZATION_FAILED, "not known")])
def test_where_kafka_tells_of_no_members_only_what_follows_from_it_is_said(
    code: int | None, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_group(*_: Any) -> list[ListedMember]:
        if code is not None:
            raise KafkaException(KafkaError(code))
        return []

    monkeypatch.setattr(presence, "read_group", read_group)
    assert state_of(make_checkpoint(), read_members(admin(), make_settings(), ["process"], {})) == state


def test_a_long_name_does_not_break_the_first_line_which_ends_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found = msgspec.structs.replace(shown(monkeypatch, make_checkpoint()), application="a" * 80)
    first, *others = lines_of(found)
    assert first.startswith(f"application {'a' * 80}, 1 units")
    assert first.endswith(found.at)
    assert [line.split()[0] for line in others if line.lstrip()[:1].isdigit()] == ["0"]


def test_the_age_of_what_is_shown_and_a_killed_owner_stand_in_the_row_of_the_unit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = shown(monkeypatch, make_checkpoint(), make_checkpoint(unit=1, instance="two"), age_s=400.0, two=[1])
    rows = [line for line in lines_of(found) if line.lstrip()[:1].isdigit()]
    assert rows[0].split() == ["0", "process", "one", "gone", "6", "min", "ago", "8", "0", "0", "12"]
    assert rows[1].split()[3] == "running"
    assert "processes at process: two (units 1)" in lines_of(found)


@pytest.mark.parametrize(
    ("age_s", "text"),
    [(-5.0, "0 s"), (0.4, "0 s"), (119.0, "119 s"), (121.0, "2 min"), (7_300.0, "2 h"), (200_000.0, "2 d")],
)
def test_an_age_is_short(monkeypatch: pytest.MonkeyPatch, age_s: float, text: str) -> None:
    assert f"{text} ago" in "\n".join(lines_of(shown(monkeypatch, make_checkpoint(), age_s=age_s)))


def test_a_record_of_an_older_release_is_shown_and_one_of_this_is_read_by_it() -> None:
    old = encode(make_checkpoint())
    assert b"stopped" not in old
    assert decode_checkpoint(old).stopped is False
    assert decode_checkpoint(encode(make_checkpoint(stopped=True))).stopped is True


def test_failed_pairs_are_no_results_and_each_join_has_its_own_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(FAILS, GAP)
    process.turn("speed", "torque", "command", "speed", "torque", "command")
    found = shown(monkeypatch, process.transactions.written[-1], joins=(FAILS, GAP))
    (unit,) = found.units
    assert unit is not None
    power, gap = unit.joins["power"], unit.joins["gap"]
    assert (power.pairs, power.failed) == (0, 3)
    assert gap.pairs
    assert (gap.failed, unit.failed, unit.pairs) == (0, 3, gap.pairs)
    assert any(line.split()[:4] == ["power", "0", "0", "3"] for line in lines_of(found))


def test_what_an_older_release_has_not_counted_by_join_is_no_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    join = JoinSummary(1, 2, 3)
    counts = {"pairs": 5, "late": 1, "duplicates": 0, "unmatched": 0}
    two = shown(monkeypatch, make_checkpoint(joins={"power": join, "gap": join}, counts=counts))
    assert "not counted per join yet" in lines_of(two)[-1]
    one = shown(monkeypatch, make_checkpoint(joins={"power": join}, counts=counts))
    assert one.units[0] is not None
    assert (one.units[0].joins["power"].pairs, one.units[0].joins["power"].failed) == (5, 0)


def test_an_align_has_its_own_totals_and_a_row_for_each_of_its_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    span = 1_554_096_460 * NS, 1_554_096_540 * NS
    align = AlignSummary({"driver": 7, "speed": 300, "x" * 100: 0}, 3, {"driver": span, "speed": span})
    counts = {"rows": 56, "spindle:rows": 56, "spindle:dropped": 4, "spindle:late": 3, "spindle:duplicates": 2}
    counts |= {"failed_rows": 1, "spindle:failed": 1}
    found = shown(monkeypatch, make_checkpoint(aligns={"spindle": align}, counts=counts))
    (unit,) = found.units
    assert unit is not None
    assert (unit.rows, unit.pairs, unit.aligns["spindle"].dropped) == (55, 0, 4)
    lines = lines_of(found)
    assert ["spindle", "0", "55", "1", "4", "3", "2", "7"] in [line.split() for line in lines]
    assert ["spindle", "0", "speed", "300", "2019-04-01T05:27:40..05:29:00"] in [line.split() for line in lines]
    assert [line for line in lines if len(line) > WIDTH] == []


def test_a_grid_has_its_ticks_that_wait_in_place_of_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    align = AlignSummary({"grid": 12, "speed": 300}, 3, {})
    counts = {"rows": 55, "regular:rows": 55}
    lines = lines_of(shown(monkeypatch, make_checkpoint(aligns={"regular": align}, counts=counts)))
    assert ["regular", "0", "55", "0", "0", "0", "0", "12"] in [line.split() for line in lines]
    assert ["regular", "0", "grid", "12", "-"] in [line.split() for line in lines]


def test_it_fits_into_100_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    start_ns = 1_554_096_460 * NS
    span = start_ns, start_ns + 80 * NS
    joins = {name: JoinSummary(7_016, 300_000, 171, span, span) for name in ("mechPower_C11", "x" * 100)}
    counts = {"records": 1_234_567_890, "rejected": 123_456, "pairs": 2_000_000_000}
    counts |= {f"{name}:pairs": 1_000_000_000 for name in joins} | {f"{name}:failed": 5_000_000 for name in joins}
    records = [
        make_checkpoint(
            unit=unit, instance=f"ip-10-0-12-{unit}.eu-central-1.compute.internal", joins=joins, counts=counts
        )
        for unit in range(12)
    ]
    members: dict[str, Any] = {one.instance: [one.unit] for one in records}
    why = "a batch failed with MemoryError: cannot allocate 96 MB; none of it was written, " * 3
    found = shown(monkeypatch, *records, notices=[f"unit 3: not served by process one since 10:00: {why}"], **members)
    assert [line for line in lines_of(found) if len(line) > WIDTH] == []


def test_what_runners_say_of_units_that_they_cannot_serve_stands_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    found = shown(monkeypatch, make_checkpoint(), notices=["unit 0: not served by process one: memory is short"])
    assert found.not_served == lines_of(found)[-1:] == ["unit 0: not served by process one: memory is short"]
    # No release that uses a control topic has run yet, so the topic does not exist.
    assert shown(monkeypatch, make_checkpoint()).not_served == []


def test_a_unit_that_was_never_begun_is_nobody_s(monkeypatch: pytest.MonkeyPatch) -> None:
    found = shown(monkeypatch, make_checkpoint(), make_checkpoint(unit=7))
    assert found.units[1] is None
    assert any(line.split() == ["1", "nobody", "yet"] for line in lines_of(found))


def test_for_programs_all_of_it_is_one_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = shown(monkeypatch, make_checkpoint(), one=[0])
    status._print(found, as_json=True, is_watched=True)
    (line,) = capsys.readouterr().out.splitlines()
    decoded = json.loads(line)
    assert decoded["processes"] == {"process": {"one": [0]}}
    unit = decoded["units"][0]
    assert (unit["state"], unit["committed_s_ago"], unit["lag"], unit["offsets"]) == ("running", 3.0, 8, {DATA: 12})
    assert set(unit["joins"]["power"]) >= {"pairs", "failed", "late", "duplicates", "unmatched", "held_left"}


def test_what_operators_have_ordered_stands_with_the_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    site = SiteState("process")
    records: list[MemberRecord] = [
        Heartbeat(site="process", instance="one", run="run of one", warm=[1]),
        Assignment(site="process", epoch=4, units=[UnitAssignment("one"), UnitAssignment("two", ["one"])], reason="x"),
        Drain(site="process", instance="three"),
        Pin(site="process", unit=1, instance="two"),
        Pin(site="process", unit=0, instance="one"),
        Standbys(site="process", count=1),
    ]
    for offset, record in enumerate(records):
        site.apply(record, offset)
    before = shown(monkeypatch, make_checkpoint())
    found = msgspec.structs.replace(before, assignments={"process": AssignmentStatus.of(site)})
    text = " ".join(lines_of(found))
    orders = "standbys by order: 1; drained: three; pinned: unit 0 to one, unit 1 to two"
    assert f"assignment 4 of process: x; 1 of 1 standbys warm; {orders}" in text
    assert json.loads(msgspec.json.encode(found))["assignments"]["process"]["pinned"] == {"0": "one", "1": "two"}
    for order in (Drain(site="process", instance="three", drained=False), Standbys(site="process")):
        site.apply(order, len(records))
    for unit in (0, 1):
        site.apply(Pin(site="process", unit=unit), len(records))
    found = msgspec.structs.replace(before, assignments={"process": AssignmentStatus.of(site)})
    assert "assignment 4 of process: x; 1 of 1 standbys warm" in lines_of(found)


def test_a_notebook_shows_the_same_as_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [make_checkpoint(), make_checkpoint(unit=7)]
    found = shown(monkeypatch, *records, notices=["unit 1: <memory> is short"], one=[0])
    monkeypatch.setattr(status, "make_admin", lambda _settings: None)
    monkeypatch.setattr(status, "topic_facts", lambda _admin, names: dict.fromkeys(names))
    monkeypatch.setattr(status, "read_status", lambda _admin, _readers: found)
    in_notebook = status.current_status(make_settings())
    assert in_notebook is not None
    shown_html = in_notebook._repr_html_()
    assert shown_html.count("<table>") == shown_html.count("</table>") == 3
    assert "<tr><td>0</td><td>process one</td><td>running</td><td>3 s ago</td><td>8</td>" in shown_html
    assert "<td>nobody yet</td>" in shown_html
    assert "&lt;memory&gt; is short" in shown_html
    for line in lines_of(found):
        for word in line.replace("<", "&lt;").replace(">", "&gt;").split():
            assert word in shown_html


def test_an_application_that_has_never_run_has_no_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "make_admin", lambda _settings: None)
    monkeypatch.setattr(status, "topic_facts", lambda _admin, _names: {})
    assert status.current_status(make_settings()) is None


def test_a_process_that_ends_says_so_in_its_last_record_also_where_nothing_is_new() -> None:
    process = Process()
    process.turn("speed", "torque")
    assert process.transactions.written[-1].stopped is False
    process.owned.snapshot_offsets = dict(process.owned.unit.offsets)
    process.loop.finish_all()
    last = process.transactions.written[-1]
    assert (last.stopped, last.offsets) == (True, {DATA: 2})
    assert _owned(last, Claimant("next", "two")).stopped is False


def test_a_unit_that_goes_to_another_process_is_not_said_to_be_stopped() -> None:
    process = Process()
    process.turn("speed", "torque")
    process.loop.give_back([0], lost=False)
    assert process.transactions.written[-1].stopped is False


def test_repartitioning_is_shown_with_who_does_it_and_how_far_it_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    found = shown(monkeypatch, make_checkpoint(unit=0))
    entries = [
        RepartitionStatus("plant", "lsb.plant.repartition", ["one", "two"], 7),
        RepartitionStatus("lab", "lsb.lab.repartition", [], 0),
        RepartitionStatus("gone", "lsb.gone.repartition", None, None),
    ]
    lines = lines_of(msgspec.structs.replace(found, repartition=entries))
    begin = lines.index(next(line for line in lines if line.startswith("repartitioned")))
    assert [line.split() for line in lines[begin + 1 : begin + 4]] == [
        ["plant", "one", "two", "7", "lsb.plant.repartition"],
        ["lab", "not", "running", "0", "lsb.lab.repartition"],
        ["gone", "not", "known", "no", "such", "topic", "lsb.gone.repartition"],
    ]
    assert not found.repartition


def test_replicas_are_shown_with_how_far_each_is(monkeypatch: pytest.MonkeyPatch) -> None:
    found = shown(monkeypatch, make_checkpoint(unit=0))
    entries = [ReplicaStatus(0, "lsb", 5, 12, 0.25), ReplicaStatus(1, "lsb.r1", 0, 0, None)]
    lines = lines_of(msgspec.structs.replace(found, replicas=entries))
    begin = lines.index(next(line for line in lines if line.startswith("replicas")))
    assert [line.split() for line in lines[begin + 1 : begin + 3]] == [
        ["lsb", "0", "5", "12", "0", "s", "ago"],
        ["lsb.r1", "1", "0", "0", "not", "started"],
    ]
    assert not found.replicas
    assert not any(line.startswith("replicas") for line in lines_of(found))


def test_how_replicas_are_merged_is_shown_for_each_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_settings(application={"name": "lsb", "replicas": 2}, topics={"partitions": 2})
    complete, ignored = {"accepted": True, "complete": True}, {"accepted": False, "complete": False}
    stored: dict[int, list[tuple[str, Any]]] = {
        0: [("machine.out.merged", [complete, ignored]), ("machine.out.merged", [complete, complete]), ("old", None)],
        1: [("machine.out.merged", [complete, ignored]), ("machine.late.merged", [complete, complete])],
    }

    def read_to_end(_log: Any, _clock: Any, topic: str, unit: int, *_range: int) -> list[Any]:
        assert topic == "lsb.merged.state"
        return [
            SimpleNamespace(
                key=name.encode, value=lambda found=found: json.dumps({"union": {"replicas": found}}).encode()
            )
            for name, found in stored[unit]
        ]

    monkeypatch.setattr(merging, "topic_facts", lambda _admin, names: dict.fromkeys(names))
    monkeypatch.setattr(merging, "log_range", lambda *_given: (0, 20))
    monkeypatch.setattr(merging, "read_to_end", read_to_end)
    monkeypatch.setattr(Readers, "log", None)
    nothing: Any = None
    found = merging.read_merging(nothing, settings, ManualClock())
    assert found == [
        MergingStatus("machine.late.merged", 0, 1, 1, 0),
        MergingStatus("machine.late.merged", 1, 1, 1, 0),
        MergingStatus("machine.out.merged", 0, 2, 2, 0),
        MergingStatus("machine.out.merged", 1, 2, 1, 1),
    ]
    assert merging.read_merging(nothing, make_settings(), ManualClock()) == []
    lines = lines_of(msgspec.structs.replace(shown(monkeypatch, make_checkpoint(unit=0)), merging=found))
    begin = lines.index(next(line for line in lines if line.startswith("merged topic")))
    assert lines[begin + 4].split() == ["machine.out.merged", "1", "2", "1", "1"]
    monkeypatch.setattr(merging, "topic_facts", lambda _admin, _names: {})
    assert merging.read_merging(nothing, settings, ManualClock()) == []


def test_each_replica_is_read_from_its_own_topic_and_one_that_was_never_started_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = make_settings(application={"replicas": 3})
    commits = {"lsb.state": AppendedCheckpoint(make_checkpoint(), 7_000)}
    monkeypatch.setattr(replicas, "topic_facts", lambda _admin, _names: dict.fromkeys(["lsb.state", "lsb.r1.state"]))
    monkeypatch.setattr(replicas, "read_appended", lambda readers, _unit: commits.get(readers.settings.state_topic))
    monkeypatch.setattr(replicas, "log_range", lambda *_given: (0, 20))
    monkeypatch.setattr(Readers, "log", None)
    admin: Any = None
    clock = ManualClock(9.5)
    assert replicas.read_replicas(admin, settings, clock) == [
        ReplicaStatus(0, "lsb", 1, 8, 2.5),
        ReplicaStatus(1, "lsb.r1", 0, 0, None),
        ReplicaStatus(2, "lsb.r2", 0, 0, None),
    ]
    assert replicas.read_replicas(admin, make_settings(), clock) == []


def test_a_replica_that_cannot_be_read_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_settings(application={"replicas": 2})
    errors = [UnitStopped("unit 0: a record of the state topic cannot be read"), KafkaException(KafkaError(-185))]

    def read_appended(readers: Readers, _unit: int) -> None:
        if not readers.settings.application.replica:
            raise errors[0]

    monkeypatch.setattr(replicas, "topic_facts", lambda _admin, names: dict.fromkeys(names))
    monkeypatch.setattr(replicas, "read_appended", read_appended)
    monkeypatch.setattr(Readers, "log", None)
    nothing: Any = None
    while errors:
        first, second = replicas.read_replicas(nothing, settings, ManualClock())
        assert first.error
        assert (second.application, second.error) == ("lsb.r1", "")
        del errors[0]
        lines = lines_of(msgspec.structs.replace(shown(monkeypatch, make_checkpoint(unit=0)), replicas=[first, second]))
        assert f"replica 0 cannot be read: {first.error}" in " ".join(lines)
        assert any(line.split()[:2] == ["lsb", "0"] and line.endswith("cannot be read") for line in lines)
