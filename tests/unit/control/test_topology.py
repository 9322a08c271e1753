"""Is the topology what is known of an application, with its rates, its lag and its troubles, and nothing more?"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from control.facts.flow.endpoints import Endpoints
from control.facts.flow.meters import NOT_THERE, Flow, GroupMember, SinkFlow, TopicFlow
from control.facts.graph.parts import LEVELS, Trouble, numbers
from control.facts.reading import Facts
from control.facts.topology import Topology
from joiner.runtime.control import Drain
from joiner.runtime.model import RESET_RUN
from joiner.runtime.settings import JoinerSettings
from tests.unit.control import topologies
from tests.unit.control.topologies import (
    ENDPOINTS,
    SHAPES,
    SINK,
    drawn,
    edge,
    facts_of,
    flow_of,
    node,
    running,
    state_of,
    status_of,
    topics_of,
)
from tests.unit.joiner.runtime.joiner_inputs import DATA, make_settings
from tests.unit.joiner.runtime.test_model import make_checkpoint


def kinds(found: Topology) -> set[str]:
    return {one.kind for one in found.nodes}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("endpoints", [ENDPOINTS, Endpoints()])
def test_a_graph_of_any_shape_hangs_together(shape: str, endpoints: Endpoints) -> None:
    found = drawn(SHAPES[shape](), endpoints)
    ids = [one.id for one in found.nodes]
    assert len(ids) == len(set(ids))
    assert {one.source for one in found.edges} | {one.target for one in found.edges} <= set(ids)
    assert {one.within for one in found.nodes} | {one.beside for one in found.nodes} <= {*ids, ""}
    assert {one.level for one in found.nodes} | {one.level for one in found.edges} <= set(LEVELS)
    ends = [(one.source, one.target) for one in found.edges if "move" not in one.note and "way" not in one.note]
    assert len(ends) == len(set(ends))
    assert msgspec.json.decode(msgspec.json.encode(found), type=Topology) == found


def test_from_the_broker_to_the_database_each_part_follows_the_one_before() -> None:
    found = drawn(running())
    way = ["mqtt_broker", "connector", f"topic:{DATA}", "site:process", "topic:machine.out", "db_connector", "database"]
    for source, target in pairwise(way):
        edge(found, source, target)
    for kind in ("late", "unmatched", "rejected"):
        edge(found, "site:process", f"topic:machine.{kind}")


def test_rates_and_lag_are_the_sums_over_the_units_of_a_site() -> None:
    settings = make_settings(partitions=3)
    flows = {0: flow_of(10.0, 4.0, lag=1), 1: flow_of(20.0, 5.0, lag=2), 2: flow_of(40.0, 6.0, lag=4)}
    served = {"process": {"one": [0], "two": [1]}, "edge": {"three": [2]}}
    facts = facts_of(settings, served, flows=flows, topics=topics_of(settings, data=TopicFlow(70, 77.0, 0.0)))
    found = drawn((settings, facts))
    assert edge(found, "connector", f"topic:{DATA}").rate == 77.0
    into = edge(found, f"topic:{DATA}", "site:process")
    assert (into.rate, into.lag, into.unit, into.level) == (30.0, 3, "records", "ok")
    assert edge(found, f"topic:{DATA}", "site:edge").lag == 4
    results = edge(found, "site:process", "topic:machine.out")
    assert (results.rate, results.unit, results.lag) == (9.0, "records", None)
    assert edge(found, "site:edge", "topic:machine.late").rate == 1.0
    to_sink = edge(found, "topic:machine.out", "db_connector")
    assert (to_sink.rate, to_sink.lag, to_sink.unit) == (90.0, 0, "offsets")
    assert (node(found, "instance:process/two").rate, node(found, "instance:process/two").lag) == (20.0, 2)
    assert (node(found, "unit:2").within, node(found, "unit:2").lag) == ("instance:edge/three", 4)


def test_what_the_service_does_not_see_is_shown_as_configured_and_not_as_observed() -> None:
    found = drawn(running())
    for identity in ("mqtt_broker", "database"):
        assert (node(found, identity).state, node(found, identity).level) == ("not observed", "unknown")
    assert node(found, "mqtt_broker").details == {"address": "127.0.0.1:1883", "topic": "machine/states"}
    assert node(found, "database").details["database"] == "-/lsb/autogen"
    for source, target in (("mqtt_broker", "connector"), ("db_connector", "database")):
        assert edge(found, source, target).rate is None
        assert edge(found, source, target).level == "unknown"


def test_a_file_without_connectors_shows_none() -> None:
    found = drawn(running(), Endpoints())
    assert kinds(found) & {"mqtt_broker", "connector", "db_connector", "database"} == set()
    assert drawn(running(), Endpoints(sink=ENDPOINTS.sink)).nodes[0].kind == "input_topic"


def test_a_connector_is_shown_only_if_the_application_reads_what_it_writes() -> None:
    join = {"name": "p", "left": {"topic": "a"}, "right": {"topic": "b"}, "function": "product", "output": "c"}
    settings = make_settings(join)
    found = drawn((settings, Facts(read_ms=1, trouble="")))
    assert "connector" not in kinds(found)
    assert {one.label for one in found.nodes if one.kind == "input_topic"} == {"a", "b"}


def test_an_application_that_has_never_run_shows_what_is_configured() -> None:
    found = drawn(topologies.never_run())
    assert node(found, "site:process").state == "has never run"
    assert {one.rate for one in found.edges} == {None}
    assert {one.level for one in found.nodes} == {"unknown"}
    assert found.troubles == []
    assert node(drawn((make_settings(), Facts())), "site:process").state == "not known yet"


@pytest.mark.parametrize(
    ("checkpoint", "cause", "level"),
    [
        (make_checkpoint(instance="three", run="three"), "three is gone", "trouble"),
        (make_checkpoint(instance="three", stopped=True), "stopped by three", "trouble"),
        (make_checkpoint(run=RESET_RUN), "reset", "trouble"),
        (make_checkpoint(instance="two"), "two does not serve it yet", "warning"),
        (None, "never run", "warning"),
    ],
)
def test_a_unit_without_an_owner_is_a_trouble_with_its_cause(checkpoint: Any, cause: str, level: str) -> None:
    settings = make_settings(partitions=3)
    lost = None if checkpoint is None else msgspec.structs.replace(checkpoint, unit=1)
    flows = {1: flow_of(0.0, 0.0, lag=7)}
    found = drawn((settings, facts_of(settings, {"process": {"one": [0], "two": [2]}}, changed={1: lost}, flows=flows)))
    unowned = node(found, "unowned:process")
    assert (unowned.units, unowned.state, unowned.level) == ([1], cause, level)
    assert (node(found, "unit:1").within, node(found, "unit:1").level) == (unowned.id, level)
    assert Trouble(level, f"Unit 1 of process has no owner: {cause}") in found.troubles
    assert node(found, "site:process").level == level
    assert node(found, "site:process").state == "2 of 3 units served"
    into = edge(found, f"topic:{DATA}", "site:process")
    if checkpoint is not None:
        assert (into.lag, into.level, into.note) == (7, "trouble", "7 wait for units without an owner")


def test_a_unit_that_another_instance_is_to_claim_says_so() -> None:
    settings = make_settings(partitions=2)
    # The checkpoint of unit 1 still names its owner before.
    facts = facts_of(settings, {"process": {"one": [0], "two": [1]}}, changed={1: make_checkpoint(unit=1)})
    found = drawn((settings, facts))
    assert node(found, "unowned:process").state == "given to two"
    assert node(found, "unit:1").level == "warning"


def test_members_that_are_not_known_are_not_taken_for_running_or_gone() -> None:
    settings, facts = running(units=2, instances=1)
    assert facts.status is not None
    facts = msgspec.structs.replace(facts, status=_without_members(settings))
    found = drawn((settings, facts))
    assert (node(found, "instance:process/one").state, node(found, "instance:process/one").level) == (
        "not known",
        "unknown",
    )
    assert node(found, "unit:0").level == "unknown"
    assert node(found, "site:process").state == "members not known"
    assert "unowned" not in kinds(found)


def _without_members(settings: JoinerSettings) -> Any:
    checkpoints = {unit: make_checkpoint(unit=unit) for unit in range(2)}
    return facts_of(settings, {}, changed=checkpoints).status


def test_a_move_is_an_edge_between_sites() -> None:
    found = drawn(topologies.moving())
    between = [one for one in found.edges if (one.source, one.target) == ("site:process", "site:edge")]
    assert [(one.note, one.level) for one in between] == [
        ("unit 2 to be moved", "ok"),
        ("unit 1 on the way", "warning"),
    ]
    assert node(found, "unowned:edge").state == "on the way from process"
    assert node(found, "instance:process/one").units == [2, 3]
    assert node(found, "instance:edge/two").units == [0]


def test_standbys_are_beside_the_instance_whose_units_they_follow_warm_or_not() -> None:
    found = drawn(running(units=4, instances=2, standbys=1))
    warm, cold = node(found, "standbys:process/host-01"), node(found, "standbys:process/host-00")
    assert (warm.beside, warm.label, warm.state) == ("instance:process/host-01", "host-00", "warm")
    assert warm.details == {"host-00": "all warm"}
    assert (cold.state, cold.details) == ("not warm", {"host-01": "2 warm, 0 not warm"})
    assert node(found, "instance:process/host-01").details == {"standby of": "0 2", "warm": "2"}
    assert "standbys" not in kinds(drawn(running(standbys=0)))


def test_a_standby_that_does_not_run_is_not_called_warm() -> None:
    settings, _ = running(units=2, instances=2, standbys=1)
    served = {"one": [0], "two": [1]}
    state = state_of("process", served, 2, standbys=1)
    found = drawn((settings, facts_of(settings, {"process": {"one": [0]}}, states={"process": state})))
    assert node(found, "standbys:process/one").details == {"two": "not running"}
    assert (node(found, "standbys:process/one").level, node(found, "instance:process/two").details) == ("warning", {})


def test_instances_without_units_are_shown_as_what_they_are() -> None:
    settings, _ = running(units=2, instances=1)
    served = {"one": [0, 1], "idle": [], "away": []}
    state = state_of("process", served, 2)
    state.apply(Drain(site="process", instance="away"), 99)
    there = {"process": {"one": [0, 1], "idle": []}}
    found = drawn((settings, facts_of(settings, there, states={"process": state})))
    assert node(found, "instance:process/idle").state == "no units"
    assert node(found, "instance:process/away").state == "drained, not running"


def test_several_input_topics_have_an_edge_each_and_name_their_readers() -> None:
    settings, facts = topologies.several_inputs()
    found = drawn((settings, facts))
    assert settings.input_topics == ["line-2.data", "machine.data", "plant.orders"]
    for topic in settings.input_topics:
        into = edge(found, f"topic:{topic}", "site:process")
        assert (into.rate, into.lag) == (206.0, 6)
        assert into.unit == ("records" if topic == DATA else "offsets")
    assert node(found, "topic:plant.orders").details["read by"] == "gap (left)"
    assert (
        node(found, f"topic:{DATA}").details["read by"]
        == "power (speed), power (torque), table (torque), table (speed)"
    )
    assert node(found, "site:process").details == {"joins": "power, gap", "aligns": "table"}


@pytest.mark.parametrize(
    ("flow", "state", "level", "trouble"),
    [
        (None, "not observed", "unknown", ""),
        (SINK, "1 running", "ok", ""),
        (msgspec.structs.replace(SINK, lag=9, stalled_s=5.0), "1 running", "ok", ""),
        (
            msgspec.structs.replace(SINK, lag=9_000, stalled_s=30.0),
            "stalled",
            "trouble",
            "none was acknowledged for 30 s or longer",
        ),
        (msgspec.structs.replace(SINK, lag=0, stalled_s=0.0, members=[]), "not running", "warning", "has no members"),
        (
            msgspec.structs.replace(SINK, lag=3, members=[]),
            "not running",
            "trouble",
            "results are waiting in machine.out",
        ),
        (msgspec.structs.replace(SINK, lag=None, members=[]), "not running", "warning", "has no members"),
        (msgspec.structs.replace(SINK, members=[GroupMember("a", [0, 4])]), "nobody reads 1-3", "warning", "1-3"),
        (msgspec.structs.replace(SINK, others=[2]), "other database", "warning", "partitions 2 were committed"),
        (SinkFlow(fault="not authorized"), "not known", "unknown", "consumer group db_connector: not authorized"),
    ],
)
def test_a_sink_that_does_not_follow_is_a_trouble(flow: Any, state: str, level: str, trouble: str) -> None:
    settings = make_settings(partitions=5)
    served = {"process": {"one": [0, 1, 2, 3, 4]}}
    found = drawn((settings, facts_of(settings, served, sink=flow)))
    sink = node(found, "db_connector")
    assert (sink.state, sink.level) == (state, level)
    assert edge(found, "topic:machine.out", "db_connector").level == level
    assert bool(found.troubles) == bool(trouble)
    assert trouble in "".join(one.text for one in found.troubles)


@pytest.mark.parametrize(
    ("flow", "state", "level"),
    [
        (TopicFlow(5, None, 0.0), "not observed", "unknown"),
        (TopicFlow(5, 2.0, 0.0), "records arrive", "ok"),
        (TopicFlow(5, 0.0, 20.0), "no records for 20 s", "unknown"),
        (TopicFlow(5, 0.0, 60.0), "not seen for 60 s", "warning"),
    ],
)
def test_a_connector_is_known_by_what_it_appends_only(flow: TopicFlow, state: str, level: str) -> None:
    settings = make_settings(partitions=1)
    facts = facts_of(settings, {"process": {"one": [0]}}, topics=topics_of(settings, data=flow))
    found = drawn((settings, facts))
    assert (node(found, "connector").state, node(found, "connector").level) == (state, level)
    assert bool(found.troubles) == (level == "warning")


def test_a_topic_that_cannot_be_read_is_named_with_the_cause() -> None:
    settings = make_settings(partitions=1)
    topics = topics_of(settings)
    del topics["machine.late"]
    facts = facts_of(settings, {"process": {"one": [0]}}, topics=topics, missing={"machine.late": "unknown topic"})
    found = drawn((settings, facts))
    assert (node(found, "topic:machine.late").state, node(found, "topic:machine.late").level) == (
        "cannot be read",
        "warning",
    )
    assert found.troubles == [Trouble("warning", "Topic machine.late cannot be read: unknown topic")]


def test_topics_that_do_not_exist_before_the_first_run_are_no_trouble() -> None:
    settings, facts = topologies.never_run()
    flow = Flow(missing=dict.fromkeys(topics_of(settings), NOT_THERE))
    found = drawn((settings, msgspec.structs.replace(facts, flow=flow)))
    assert node(found, f"topic:{DATA}").state == "does not exist yet"
    assert found.troubles == []
    settings, facts = running()
    found = drawn((settings, msgspec.structs.replace(facts, flow=flow)))
    assert Trouble("warning", f"Topic {DATA} cannot be read: it does not exist") in found.troubles


def test_while_the_facts_cannot_be_renewed_nothing_is_shown_as_current() -> None:
    settings, facts = topologies.with_trouble()
    facts = msgspec.structs.replace(facts, trouble="Kafka does not answer")
    found = drawn((settings, facts))
    assert found.trouble == "Kafka does not answer"
    assert {one.level for one in found.nodes} | {one.level for one in found.edges} == {"unknown"}
    assert {one.rate for one in found.nodes} | {one.rate for one in found.edges} == {None}
    assert {one.lag for one in found.nodes} | {one.lag for one in found.edges} == {None}
    assert node(found, "instance:process/one").state == "last known: running"
    assert found.troubles == []


def test_many_units_are_numbers_of_their_instance() -> None:
    found = drawn(running(units=64, instances=16))
    assert sum(one.kind == "unit" for one in found.nodes) == 64
    found = drawn(running(units=200, instances=16))
    assert "unit" not in kinds(found)
    instances = [one for one in found.nodes if one.kind == "instance"]
    assert sorted(unit for one in instances for unit in one.units) == list(range(200))


def test_numbers_are_shown_in_ranges() -> None:
    assert numbers([]) == ""
    assert numbers([3]) == "3"
    assert numbers([4, 3]) == "3 4"
    assert numbers([7, 0, 1, 2, 3, 9, 10]) == "0-3 7 9 10"


def test_what_copies_a_topic_precedes_its_repartition_topic() -> None:
    shape = topologies.repartitioned(status_of("plant", ["one", "two"], 7))
    found = drawn(shape)
    ids = [one.id for one in found.nodes]
    assert ids.index("copies:plant") + 1 == ids.index("topic:lsb.plant.repartition")
    copying = node(found, "copies:plant")
    assert (copying.label, copying.state, copying.level, copying.lag) == ("plant", "2 running", "ok", 7)
    assert copying.details["members"] == "one, two"
    flow = edge(found, "copies:plant", "topic:lsb.plant.repartition")
    assert (flow.rate, flow.lag, flow.unit) == (500.0, 7, "offsets")
    assert found.troubles == []
    assert node(found, "copies:orders").state == "not known"
    assert "repartition" not in kinds(drawn(running()))


@pytest.mark.parametrize(
    ("members", "lag", "state", "level", "trouble"),
    [
        ([], 3, "not running", "trouble", "lsb/repartition has no members for it, and messages are waiting"),
        ([], 0, "not running", "warning", "lsb/repartition has no members for it"),
        (["one"], None, "waits for the topic", "warning", "plant is to be repartitioned, but does not exist"),
        (None, 3, "not known", "unknown", ""),
    ],
)
def test_copying_that_does_not_go_on_is_a_trouble(
    members: Any, lag: int | None, state: str, level: str, trouble: str
) -> None:
    settings, facts = topologies.repartitioned(status_of("plant", members, lag))
    found = drawn((settings, facts))
    copying = node(found, "copies:plant")
    assert (copying.state, copying.level) == (state, level)
    assert [one.level for one in found.troubles] == ([level] if trouble else [])
    assert all(one.text.endswith(trouble) for one in found.troubles)
    # Before the first run, nothing is expected.
    found = drawn((settings, msgspec.structs.replace(facts, status=None)))
    assert node(found, "copies:plant").level == "unknown"
    assert found.troubles == []


def test_copying_of_which_nothing_is_known_says_why() -> None:
    found = drawn(topologies.repartitioned(fault="not authorized"))
    assert {node(found, f"copies:{topic}").level for topic in ("plant", "orders")} == {"unknown"}
    assert "It is not known how far plant is repartitioned: not authorized" in [one.text for one in found.troubles]
