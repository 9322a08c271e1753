"""The topology of an application, as a graph: from the MQTT broker through the units to the database.

It is computed from the settings and the facts. Parts that the service does not observe appear in the graph as
configured, with the level ``unknown``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from broker.kafka.replicas import merged_topic, replica_name
from control.facts.flow.endpoints import POSTGRESQL, place_of
from control.facts.flow.meters import NOT_THERE, RESULTS
from control.facts.flow.reading import has_merger
from control.facts.graph.copies import add_copying
from control.facts.graph.merging import add_merger, add_replica
from control.facts.graph.parts import OK, TROUBLE, UNKNOWN, WARNING, Edge, Graph, Node, Trouble, numbers, topic_id
from control.facts.graph.sites import Output, add_sites, offset_unit
from joiner.runtime.membership.status.tables import age

if TYPE_CHECKING:
    from control.facts.flow.endpoints import Endpoints, Sink, Source
    from control.facts.flow.meters import SinkFlow, TopicFlow
    from control.facts.reading import Facts
    from joiner.runtime.settings import JoinerSettings

NOT_OBSERVED: Final = "not observed"

_SEEN_S: Final = 60.0
"""A connector that has appended nothing for this long is shown as not seen."""

_STALLED_S: Final = 30.0
"""A database connector that has acknowledged nothing for this long is stalled. After a database outage, it may take
``db_connector.backoff_max``, 10 s by default, until it writes again."""

_OUTPUTS: Final = {
    # By the setting that names the topic: the kind of node, and what is written to it. In drawing order.
    RESULTS: ("result_topic", "results"),
    "late": ("late_topic", "late records"),
    "unmatched": ("unmatched_topic", "unmatched records"),
    "rejected": ("dead_letter_topic", "dead letters"),
}


class Topology(msgspec.Struct, frozen=True):
    """An application's graph.

    ``read_ms``, ``trouble``: see `Facts`. While the facts cannot be renewed, the levels are ``unknown`` and the rates
    are missing. ``troubles``: what an operator should look at.
    """

    application: str
    read_ms: int | None
    trouble: str
    nodes: list[Node]
    edges: list[Edge]
    troubles: list[Trouble]


def topology_of(settings: JoinerSettings, endpoints: Endpoints, facts: Facts) -> Topology:
    """Return the topology as currently known."""
    graph = Graph()
    if endpoints.source is not None and settings.topics.data in settings.input_topics:
        _add_source(graph, endpoints.source, settings, facts)
    for topic in settings.input_topics:
        add_copying(graph, settings, facts, topic)
        readers = {f"{name} ({stream})": None for name, stream in _readers(settings, topic)}
        _add_topic(graph, "input_topic", topic, facts, {"read by": ", ".join(readers)})
    outputs = _outputs(settings)
    add_sites(graph, settings, facts, outputs)
    for one in outputs:
        _add_topic(graph, _OUTPUTS[one.kind][0], one.topic, facts, {"holds": one.content})
    if has_merger(settings, is_merged=endpoints.has_merged):
        _add_merging(graph, settings, facts)
    if endpoints.sink is not None:
        _add_sink(graph, endpoints.sink, settings, facts.flow.sink)
    if facts.trouble:
        graph = graph.as_last_known()
    return Topology(settings.application.name, facts.read_ms, facts.trouble, graph.nodes, graph.edges, graph.troubles)


def _add_merging(graph: Graph, settings: JoinerSettings, facts: Facts) -> None:
    """Add the other replicas, what merges their results, and the topics of both."""
    out = settings.topics.out
    for number in range(1, settings.application.replicas):
        add_replica(graph, settings, facts, number)
        own = facts.replicas.get(number)
        details = {"holds": f"results of replica {number}"}
        has_begun = own is not None and own.status is not None
        _add_topic(graph, "result_topic", replica_name(out, number), facts, details, has_begun=has_begun)
    add_merger(graph, settings, facts)
    details = {"holds": "the results of all replicas, each once"}
    has_begun = facts.flow.merger is not None and bool(facts.flow.merger.members)
    _add_topic(graph, "merged_topic", merged_topic(out), facts, details, has_begun=has_begun)


def _outputs(settings: JoinerSettings) -> list[Output]:
    topics = settings.output_topics
    return [Output(kind, topics[kind], content) for kind, (_, content) in _OUTPUTS.items() if kind in topics]


def _readers(settings: JoinerSettings, topic: str) -> list[tuple[str, str]]:
    """Return the joins and aligns that read a topic, each with the quantity that it selects, or else the stream."""
    return [
        (operator.name, stream.quantity or name)
        for operator in settings.operators
        for name, stream in operator.streams.items()
        if settings.selection(stream)["topic"] == topic
    ]


def _add_source(graph: Graph, source: Source, settings: JoinerSettings, facts: Facts) -> None:
    data, rejected = settings.topics.data, settings.topics.rejected
    flow = facts.flow.topics.get(data)
    state, level = _connector_state(flow)
    if level == WARNING:
        why = f"nothing was appended to {data} for a minute or longer"
        text = f"The connector is not seen: {why}. Either it is not running, or no events are arriving."
        graph.troubles.append(Trouble(level, text))
    graph.nodes += [
        Node(
            "mqtt_broker",
            "mqtt_broker",
            "MQTT broker",
            NOT_OBSERVED,
            UNKNOWN,
            details={"address": source.broker, "topic": source.topic},
        ),
        Node("connector", "connector", "connector", state, level, details={"client id": source.client}),
    ]
    graph.edges += [
        Edge("mqtt_broker", "connector", level=UNKNOWN, note=f"{source.topic}; {NOT_OBSERVED}"),
        Edge(
            "connector",
            topic_id(data),
            rate=None if flow is None else flow.rate,
            unit=offset_unit(settings, data),
            level=UNKNOWN if flow is None else level,
            note="everything appended to the topic",
        ),
        Edge("connector", topic_id(rejected), level=UNKNOWN, note=f"dead letters; {NOT_OBSERVED}"),
    ]


def _connector_state(flow: TopicFlow | None) -> tuple[str, str]:
    if flow is None or flow.rate is None:
        return NOT_OBSERVED, UNKNOWN
    if flow.rate > 0:
        return "records arrive", OK
    if flow.quiet_s < _SEEN_S:
        return f"no records for {age(flow.quiet_s)}", UNKNOWN
    return f"not seen for {age(flow.quiet_s)}", WARNING


def _add_topic(
    graph: Graph, kind: str, topic: str, facts: Facts, details: dict[str, str], *, has_begun: bool | None = None
) -> None:
    """Add a topic. ``has_begun``: whether what creates it has run; by default, whether the application has."""
    flow, fault = facts.flow.topics.get(topic), facts.flow.missing.get(topic)
    if has_begun is None:
        has_begun = facts.status is not None
    if fault == NOT_THERE and not has_begun:
        # The joiner creates its topics when it starts, and the connector creates those that it writes to.
        graph.nodes.append(Node(topic_id(topic), kind, topic, "does not exist yet", UNKNOWN, details=details))
        return
    if fault is not None:
        graph.troubles.append(Trouble(WARNING, f"Topic {topic} cannot be read: {fault}"))
        graph.nodes.append(Node(topic_id(topic), kind, topic, "cannot be read", WARNING, details=details))
        return
    state, level = NOT_OBSERVED, UNKNOWN
    if flow is not None:
        level = OK
        state = "grows" if flow.rate else f"nothing new for {age(flow.quiet_s)}"
        details = details | {"ends": f"{flow.end:,} offsets"}
        details |= {} if flow.rate is None else {"appended": f"{flow.rate:,.1f} offsets/s"}
    graph.nodes.append(Node(topic_id(topic), kind, topic, state, level, details=details))


def _add_sink(graph: Graph, sink: Sink, settings: JoinerSettings, flow: SinkFlow | None) -> None:
    out, rejected = sink.results_topic(settings.topics.out), settings.topics.rejected
    state, level = _sink_state(graph, sink, settings, flow)
    members = [] if flow is None else flow.members
    graph.nodes += [
        Node(
            "db_connector",
            "db_connector",
            "db_connector",
            state,
            level,
            lag=None if flow is None else flow.lag,
            details={"consumer group": sink.group}
            | ({"members": ", ".join(f"{one.name} ({numbers(one.partitions) or 'no partitions'})" for one in members)}),
        ),
        Node(
            "database",
            "database",
            sink.kind,
            NOT_OBSERVED,
            UNKNOWN,
            details=_database_details(sink),
        ),
    ]
    graph.edges += [
        Edge(
            topic_id(out),
            "db_connector",
            rate=None if flow is None else flow.rate,
            lag=None if flow is None else flow.lag,
            unit="offsets",
            level=level,
            note="acknowledged by the database",
        ),
        Edge("db_connector", "database", level=UNKNOWN, note=NOT_OBSERVED),
        Edge("db_connector", topic_id(rejected), level=UNKNOWN, note=f"dead letters; {NOT_OBSERVED}"),
    ]


def _database_details(sink: Sink) -> dict[str, str]:
    name = "table" if sink.kind == POSTGRESQL else "measurement"
    details = {"address": sink.url, "database": sink.database, name: sink.measurement}
    return {name: value for name, value in details.items() if value}


def _sink_state(graph: Graph, sink: Sink, settings: JoinerSettings, flow: SinkFlow | None) -> tuple[str, str]:
    """Return the state and the level of the database connector, and note its troubles.

    A trouble contains no constantly changing numbers, because screen readers would read it aloud again and again.
    """
    if flow is None:
        return NOT_OBSERVED, UNKNOWN
    if flow.fault:
        text = f"The lag of the db_connector is not known: consumer group {sink.group}: {flow.fault}"
        graph.troubles.append(Trouble(WARNING, text))
        return "not known", UNKNOWN
    is_waiting, topic = bool(flow.lag), sink.results_topic(settings.topics.out)
    unread = set(range(settings.topics.partitions)) - {one for member in flow.members for one in member.partitions}
    state, level, why = f"{len(flow.members)} running", OK, ""
    if not flow.members:
        state, level = "not running", TROUBLE if is_waiting else WARNING
        why = f"The db_connector is not running: consumer group {sink.group} has no members"
        why += f", and results are waiting in {topic}" if is_waiting else ""
    elif is_waiting and flow.stalled_s >= _STALLED_S:
        state, level = "stalled", TROUBLE
        why = (
            f"The db_connector is stalled: results are waiting in {topic}, and none was acknowledged for "
            f"{_STALLED_S:.0f} s or longer"
        )
    elif unread:
        state, level = f"nobody reads {numbers(unread)}", WARNING
        why = f"No db_connector is assigned partitions {numbers(unread)} of {topic}"
    elif flow.others:
        state, level = "other database", WARNING
        why = (
            f"Offsets of consumer group {sink.group} in partitions {numbers(flow.others)} were committed for a "
            f"database other than {place_of(sink)}"
        )
    if why:
        graph.troubles.append(Trouble(level, why))
    return state, level
