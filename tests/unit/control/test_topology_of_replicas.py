"""Are the replicas of an application and what merges them in its topology, with their rates and troubles?"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from control.facts.flow.endpoints import Endpoints
from control.facts.flow.meters import NOT_THERE, GroupMember, MergerFlow, SinkFlow
from control.facts.graph.parts import Trouble
from control.facts.reading import Facts
from control.facts.topology import Topology
from joiner.runtime.settings import JoinerSettings
from tests.unit.control.topologies import (
    ENDPOINTS,
    MERGED_ENDPOINTS,
    MERGER,
    SHAPES,
    drawn,
    edge,
    facts_of,
    node,
    running,
    with_replicas,
)
from tests.unit.joiner.runtime.joiner_inputs import DATA, make_settings
from tests.unit.joiner.runtime.test_model import make_checkpoint

OUT, MERGED = "topic:machine.out", "topic:machine.out.merged"


def texts(found: Topology) -> list[str]:
    return [one.text for one in found.troubles]


def changed(shape: tuple[JoinerSettings, Facts], **replica: Any) -> tuple[JoinerSettings, Facts]:
    """Return the application with other facts about replica 1."""
    settings, facts = shape
    other = msgspec.structs.replace(facts.replicas[1], **replica)
    return settings, msgspec.structs.replace(facts, replicas=facts.replicas | {1: other})


@pytest.mark.parametrize("shape", [one for one in SHAPES if "replicas" not in one])
def test_without_replicas_there_is_nothing_of_them(shape: str) -> None:
    found = drawn(SHAPES[shape]())
    assert {one.kind for one in found.nodes} & {"replica", "merger", "merged_topic"} == set()


def test_the_results_of_each_replica_lead_to_the_merger_and_on_to_the_database() -> None:
    found = drawn(with_replicas(3), MERGED_ENDPOINTS)
    for number, site in enumerate(("site:process", "replica:1", "replica:2")):
        out = f"{OUT}.r{number}" if number else OUT
        way = (f"topic:{DATA}", site, out, "merger", MERGED, "db_connector", "database")
        for source, target in pairwise(way):
            edge(found, source, target)
    assert found.troubles == []
    assert node(found, f"{OUT}.r2").details["holds"] == "results of replica 2"
    assert not any(one.id.startswith("topic:machine.late.r") for one in found.nodes)
    assert (node(found, "merger").state, node(found, "merger").level) == ("1 merges, 1 waits", "ok")
    assert node(found, "merger").details == {
        "consumer group": "lsb/merge",
        "members": "host-a (merges), host-b (waits)",
    }
    assert edge(found, "merger", MERGED).rate == 200.0


def test_a_connector_of_replica_0_alone_is_not_behind_the_merger() -> None:
    found = drawn(with_replicas(), ENDPOINTS)
    edge(found, OUT, "db_connector")
    assert [one.target for one in found.edges if one.source == MERGED] == []


def test_after_the_others_were_given_up_merging_goes_on_with_replica_0() -> None:
    settings, facts = running()
    facts = msgspec.structs.replace(facts, flow=msgspec.structs.replace(facts.flow, merger=MERGER))
    found = drawn((settings, facts), MERGED_ENDPOINTS)
    edge(found, OUT, "merger")
    edge(found, MERGED, "db_connector")
    assert "replica" not in {one.kind for one in found.nodes}


def test_a_replica_shows_what_it_consumes_and_writes() -> None:
    found = drawn(with_replicas())
    into = edge(found, f"topic:{DATA}", "replica:1")
    assert (into.rate, into.lag, into.unit, into.level) == (500.0, 0, "records", "ok")
    results = edge(found, "replica:1", f"{OUT}.r1")
    assert (results.rate, results.unit) == (200.0, "records")
    shown = node(found, "replica:1")
    assert (shown.label, shown.state, shown.level, shown.rate, shown.lag) == (
        "lsb.r1",
        "5 of 5 units running",
        "ok",
        500.0,
        0,
    )


@pytest.mark.parametrize(
    ("served", "state", "level", "trouble"),
    [
        ([0, 3], "2 of 5 units running", "warning", "Some units of replica 1 are not running"),
        ([], "0 of 5 units running", "trouble", "No unit of replica 1 is running"),
    ],
)
def test_a_replica_that_does_not_run_is_a_trouble(served: list[int], state: str, level: str, trouble: str) -> None:
    found = drawn(with_replicas(served=served))
    assert (node(found, "replica:1").state, node(found, "replica:1").level) == (state, level)
    assert found.troubles == [Trouble(level, trouble)]


def test_a_replica_that_has_never_run_says_how_to_start_it() -> None:
    shape = changed(with_replicas(missing={"machine.out.r1": NOT_THERE}), status=None, rates=[], flow=Facts().flow)
    found = drawn(shape)
    assert (node(found, "replica:1").state, node(found, "replica:1").level) == ("has never run", "warning")
    assert texts(found) == ["Replica 1 has never run: start it with `joiner run --replica 1`"]
    assert (node(found, f"{OUT}.r1").state, node(found, f"{OUT}.r1").level) == ("does not exist yet", "unknown")
    assert edge(found, f"topic:{DATA}", "replica:1").rate is None


def test_what_is_not_current_of_a_replica_is_not_shown_as_such() -> None:
    found = drawn(changed(with_replicas(), trouble="no broker"))
    shown = node(found, "replica:1")
    assert (shown.state, shown.level, shown.rate, shown.lag) == ("not current", "unknown", None, None)
    assert texts(found) == ["What is shown of replica 1 is not current: no broker"]
    assert edge(found, "replica:1", f"{OUT}.r1").level == "unknown"
    settings, facts = with_replicas()
    found = drawn((settings, msgspec.structs.replace(facts, replicas={})))
    assert (node(found, "replica:1").state, texts(found)) == ("not known yet", [])


def test_a_replica_whose_members_are_not_known_is_not_taken_for_dead() -> None:
    settings = make_settings(partitions=2)
    checkpoints = {unit: make_checkpoint(unit=unit) for unit in range(2)}
    found = drawn(changed(with_replicas(), status=facts_of(settings, {}, changed=checkpoints).status))
    assert (node(found, "replica:1").state, node(found, "replica:1").level) == ("members not known", "unknown")
    assert found.troubles == []


@pytest.mark.parametrize(
    ("merger", "state", "level", "trouble"),
    [
        (None, "not known", "unknown", ""),
        (MergerFlow([GroupMember("a", [0])]), "1 merges", "ok", ""),
        (MergerFlow([GroupMember("a", [0])] + [GroupMember("b", [])] * 2), "1 merges, 2 wait", "ok", ""),
        (
            MergerFlow([GroupMember("a", [])]),
            "nobody merges",
            "warning",
            "Nothing merges the replicas yet: no member of consumer group lsb/merge has been given the work",
        ),
        (
            MergerFlow([]),
            "not running",
            "trouble",
            "Nothing merges the replicas: consumer group lsb/merge has no members",
        ),
        (
            MergerFlow(fault="not authorized"),
            "not known",
            "unknown",
            "It is not known which processes merge the replicas: consumer group lsb/merge: not authorized",
        ),
    ],
)
def test_the_merger_is_what_kafka_says_of_its_group(
    merger: MergerFlow | None, state: str, level: str, trouble: str
) -> None:
    found = drawn(with_replicas(merger=merger))
    assert (node(found, "merger").state, node(found, "merger").level) == (state, level)
    assert texts(found) == [trouble] * bool(trouble)
    assert edge(found, OUT, "merger").level == level


def test_readers_that_merge_by_themselves_need_no_merger() -> None:
    shape = with_replicas(merger=MergerFlow([]), missing={"machine.out.merged": NOT_THERE})
    found = drawn(shape)
    assert (node(found, "merger").state, node(found, "merger").level) == ("has never run", "unknown")
    assert (node(found, MERGED).state, found.troubles) == ("does not exist yet", [])


def test_a_stalled_connector_of_merged_results_names_their_topic() -> None:
    sink = SinkFlow(members=[GroupMember("db_connector", [0, 1, 2, 3, 4])], lag=7, rate=0.0, stalled_s=75.0)
    found = drawn(with_replicas(sink=sink), MERGED_ENDPOINTS)
    assert any("results are waiting in machine.out.merged" in text for text in texts(found))


def test_while_the_facts_are_old_the_replicas_have_no_rates() -> None:
    settings, facts = with_replicas()
    found = drawn((settings, msgspec.structs.replace(facts, trouble="no broker")))
    assert {one.rate for one in found.edges} == {None}
    assert node(found, "replica:1").state == "last known: 5 of 5 units running"
    assert node(drawn((settings, Facts()), Endpoints()), "replica:1").state == "not known yet"
