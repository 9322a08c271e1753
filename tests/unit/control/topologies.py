"""Applications of several shapes, as facts, for tests of their topology."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from control.facts.flow.endpoints import Endpoints, Sink, Source
from control.facts.flow.meters import CopyFlow, Flow, GroupMember, MergerFlow, Move, SinkFlow, TopicFlow, UnitFlow
from control.facts.flow.reading import topics_of as topics_with_replicas
from control.facts.graph.parts import Edge, Node
from control.facts.reading import Facts
from control.facts.topology import Topology, topology_of
from joiner.runtime.control import Assignment, Drain, Heartbeat, UnitAssignment
from joiner.runtime.kafka.checkpoint_log import AppendedCheckpoint
from joiner.runtime.membership.state import SiteState
from joiner.runtime.membership.status.reading import compose_status
from joiner.runtime.model import Checkpoint, OnTheWay
from joiner.runtime.repartition.status import RepartitionStatus
from joiner.runtime.settings import JoinerSettings, replica_settings
from tests.unit.joiner.runtime.joiner_inputs import DATA, GAP, POWER, make_settings
from tests.unit.joiner.runtime.test_model import make_checkpoint

ENDPOINTS: Final = Endpoints(
    Source("127.0.0.1:1883", "machine/states", "lsb-connector"),
    Sink("db_connector", "http://127.0.0.1:8086", "-/lsb/autogen", "joined"),
)
NOW_S: Final = 1_000.0
Served = Mapping[str, Mapping[str, Sequence[int]]]
"""The units that each instance serves, by site and instance."""


def flow_of(consumed: float, results: float, lag: int | None = 0, topics: Sequence[str] = (DATA,)) -> UnitFlow:
    """Return what a unit reads of each topic and writes, per second."""
    written = {"out": results, "late": 1.0, "unmatched": 0.5, "rejected": 0.0}
    return UnitFlow(dict.fromkeys(topics, consumed), dict.fromkeys(topics, lag), written)


def state_of(site: str, served: Mapping[str, Sequence[int]], units: int, standbys: int = 0) -> SiteState:
    """Return a site whose instances serve these units. The next instances in order are standbys; the last is cold."""
    names = sorted(served)
    owners = {unit: name for name in names for unit in served[name]}
    following = {
        unit: [names[(names.index(owners[unit]) + 1 + more) % len(names)] for more in range(standbys)]
        for unit in owners
    }
    state = SiteState(site)
    for name in names:
        warm = [unit for unit, followers in following.items() if name in followers and (unit or name != names[-1])]
        state.apply(Heartbeat(site=site, instance=name, run=name, serves=list(served[name]), warm=warm), state.read + 1)
    assigned = [UnitAssignment(owners.get(unit, ""), following.get(unit, [])) for unit in range(units)]
    state.apply(Assignment(site=site, epoch=3, units=assigned, reason=f"{names[-1]} has joined"), state.read + 1)
    return state


def facts_of(
    settings: JoinerSettings,
    served: Served,
    *,
    changed: Mapping[int, Checkpoint | None] | None = None,
    states: Mapping[str, SiteState] | None = None,
    flows: Mapping[int, UnitFlow] | None = None,
    **flow: Any,
) -> Facts:
    """Return the facts of an application whose units are served by these instances.

    ``changed``: checkpoints of further units, or of the same. ``flows``: by unit. ``flow``: see `Flow`.
    """
    units = settings.topics.partitions
    found: list[Checkpoint | None] = [None] * units
    for site, instances in served.items():
        for name, mine in instances.items():
            for unit in mine:
                found[unit] = make_checkpoint(unit=unit, site=site, instance=name, run=name)
    for unit, checkpoint in (changed or {}).items():
        found[unit] = checkpoint
    given = flows or {}
    unit_flows = [None if found[unit] is None else given.get(unit, flow_of(100.0, 40.0)) for unit in range(units)]
    lags = [sum(lag or 0 for lag in one.lags.values()) if one else 0 for one in unit_flows]
    members = {site: {name: frozenset(mine) for name, mine in there.items()} for site, there in served.items()}
    appended = [None if one is None else AppendedCheckpoint(one, 997_000) for one in found]
    status = compose_status(settings, appended, lags, members, states or {}, [], NOW_S)
    rates = [0.0 if one is None else sum(one.consumed.values()) for one in unit_flows]
    flow = {"topics": topics_of(settings), "sink": SINK, **flow}
    return Facts(
        status=status,
        rates=rates,
        lag=sum(lags),
        read_ms=1_000_000,
        trouble="",
        flow=Flow(units=unit_flows, **flow),
    )


def topics_of(settings: JoinerSettings, **changed: TopicFlow) -> dict[str, TopicFlow]:
    """Return what is appended to each topic. ``changed``: by the last part of the name."""
    names = [*settings.input_topics, *settings.output_topics.values()]
    return {name: changed.get(name.rpartition(".")[2], TopicFlow(10_000, 500.0, 0.0)) for name in names}


SINK: Final = SinkFlow(members=[GroupMember("db_connector", [0, 1, 2, 3, 4])], lag=0, rate=90.0)


def running(units: int = 5, instances: int = 2, standbys: int = 0, **sections: Any) -> tuple[JoinerSettings, Facts]:
    """Return an application whose units are spread over the instances of a site."""
    settings = make_settings(POWER | {"emit_unmatched": "both"}, GAP, partitions=units, **sections)
    served = {f"host-{number:02}": list(range(number, units, instances)) for number in range(instances)}
    states = {"process": state_of("process", served, units, standbys)}
    members = [GroupMember("db_connector", list(range(units)))]
    sink = msgspec.structs.replace(SINK, members=members)
    return settings, facts_of(settings, {"process": served}, states=states, sink=sink)


def never_run() -> tuple[JoinerSettings, Facts]:
    """Return an application that has never run. Kafka has been asked."""
    return make_settings(partitions=5), Facts(read_ms=1_000_000, trouble="")


def moving() -> tuple[JoinerSettings, Facts]:
    """Return two sites: unit 1 is on the way from one to the other, and unit 2 is to follow."""
    settings = make_settings(partitions=4)
    served = {"process": {"one": [2, 3]}, "edge": {"two": [0]}}
    way = OnTheWay("m", "process").run()
    released = make_checkpoint(unit=1, site="edge", instance="one", run=way)
    moves = {1: Move("process", "edge", is_released=True), 2: Move("process", "edge", is_released=False)}
    return settings, facts_of(settings, served, changed={1: released}, moves=moves)


def with_trouble() -> tuple[JoinerSettings, Facts]:
    """Return an application with a unit that nobody serves, a connector that is not seen, and a sink that is stuck."""
    settings = make_settings(partitions=5)
    gone = make_checkpoint(unit=1, instance="three", run="three")
    state = state_of("process", {"one": [0, 2], "two": [3, 4]}, 5, 1)
    state.apply(Drain(site="process", instance="four"), 10)
    facts = facts_of(
        settings,
        {"process": {"one": [0, 2], "two": [3, 4]}},
        changed={1: gone},
        states={"process": state},
        flows={1: flow_of(0.0, 0.0, lag=1234)},
        topics=topics_of(settings, data=TopicFlow(10_000, 0.0, 240.0)),
        sink=SinkFlow(members=SINK.members, lag=5_600, rate=0.0, stalled_s=75.0),
    )
    return settings, facts


def several_inputs() -> tuple[JoinerSettings, Facts]:
    """Return several joins and aligns, which read three topics, in two instances."""
    joins = [POWER, GAP | {"left": {"topic": "plant.orders"}, "right": {"topic": "line-2.data", "quantity": "speed"}}]
    align = {"name": "table", "driver": "torque", "columns": {"speed": {}}}
    settings = make_settings(*joins, partitions=4, align=[align])
    topics = settings.input_topics
    flows = {unit: flow_of(50.0 + unit, 20.0, lag=unit, topics=topics) for unit in range(4)}
    return settings, facts_of(settings, {"process": {"one": [0, 1], "two": [2, 3]}}, flows=flows)


PLANT: Final = {"name": "speed", "topic": "plant", "key": "$.id", "time": "$.ts", "value": "$.v", "repartition": True}


def repartitioned(*copied: RepartitionStatus, fault: str = "") -> tuple[JoinerSettings, Facts]:
    """Return an application that repartitions two topics. ``copied``: what is known of that."""
    settings = make_settings(partitions=2, stream=[PLANT, PLANT | {"name": "torque", "topic": "orders"}])
    copies = CopyFlow({one.topic: one for one in copied}, fault)
    return settings, facts_of(settings, {"process": {"one": [0, 1]}}, copies=copies)


MERGER: Final = MergerFlow([GroupMember("host-a", [0]), GroupMember("host-b", [])])


def with_replicas(count: int = 2, served: Sequence[int] = (0, 1, 2, 3, 4), **flow: Any) -> tuple[JoinerSettings, Facts]:
    """Return an application with replicas. ``served``: the running units of replica 1. ``flow``: see `Flow`."""
    settings = make_settings(partitions=5, application={"replicas": count})
    names = topics_with_replicas(settings, is_merged=True)
    topics = {name: TopicFlow(10_000, 200.0, 0.0) for name in names}
    given: dict[str, Any] = {"topics": topics, "merger": MERGER, **flow}
    facts = facts_of(settings, {"process": {"one": range(5)}}, **given)
    others = {}
    for number in range(1, count):
        gone = {unit: make_checkpoint(unit=unit, instance="gone", run="gone") for unit in range(5)}
        here = {"process": {f"r{number}": served if number == 1 else range(5)}}
        others[number] = facts_of(
            replica_settings(settings, number), here, changed={unit: gone[unit] for unit in gone if unit not in served}
        )
    return settings, msgspec.structs.replace(facts, replicas=others)


MERGED_ENDPOINTS: Final = Endpoints(
    ENDPOINTS.source, None if ENDPOINTS.sink is None else msgspec.structs.replace(ENDPOINTS.sink, is_merged=True)
)


def status_of(topic: str, members: list[str] | None, lag: int | None) -> RepartitionStatus:
    """Return the status of repartitioning a topic."""
    return RepartitionStatus(topic, f"lsb.{topic}.repartition", members, lag)


def drawn(shape: tuple[JoinerSettings, Facts], endpoints: Endpoints = ENDPOINTS) -> Topology:
    """Return the topology of an application."""
    return topology_of(shape[0], endpoints, shape[1])


SHAPES: Final[Mapping[str, Callable[[], tuple[JoinerSettings, Facts]]]] = {
    "never run": never_run,
    "one instance": lambda: running(instances=1),
    "with standbys": lambda: running(standbys=1),
    "moving": moving,
    "with trouble": with_trouble,
    "several inputs": several_inputs,
    "repartitioned": lambda: repartitioned(status_of("plant", ["one", "two"], 0), status_of("orders", [], 1_234)),
    "huge": lambda: running(units=64, instances=16),
    "huge with standbys": lambda: running(units=64, instances=16, standbys=2),
    "beyond": lambda: running(units=200, instances=16),
    "with replicas": with_replicas,
    "with three replicas": lambda: with_replicas(3, served=[0, 3]),
}
"""The shapes, by name."""


def node(found: Topology, identity: str) -> Node:
    """Return the only node with an id."""
    (one,) = [one for one in found.nodes if one.id == identity]
    return one


def edge(found: Topology, source: str, target: str) -> Edge:
    """Return the only edge between two nodes."""
    (one,) = [one for one in found.edges if (one.source, one.target) == (source, target)]
    return one
