"""The other replicas of an application, and what merges their results, in the application's graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.kafka.replicas import merged_topic, merging_group, replica_name
from control.facts.flow.meters import NOT_THERE, RESULTS
from control.facts.graph.parts import OK, TROUBLE, UNKNOWN, WARNING, Edge, Graph, Node, Trouble, topic_id
from control.facts.graph.sites import offset_unit
from control.facts.reading import Facts
from joiner.runtime.membership.presence import RUNNING
from joiner.runtime.membership.presence import UNKNOWN as NOT_KNOWN

if TYPE_CHECKING:
    from control.facts.flow.meters import MergerFlow
    from joiner.runtime.settings import JoinerSettings

MERGER: Final = "merger"
"""The id and the kind of the node of `joiner merge`."""

_NOT_READ: Final = Facts()


def replica_id(number: int) -> str:
    """Return the id of a replica's node. Replica 0 has those of its sites instead."""
    return f"replica:{number}"


def add_replica(graph: Graph, settings: JoinerSettings, facts: Facts, number: int) -> None:
    """Add another replica as one node, with its flows from the input topics and to its results."""
    own = facts.replicas.get(number, _NOT_READ)
    state, level = _state_of_replica(graph, number, own)
    identity = replica_id(number)
    is_current = not own.trouble
    graph.nodes.append(
        Node(
            identity,
            "replica",
            replica_name(settings.application.name, number),
            state,
            level,
            rate=sum(own.rates) if is_current else None,
            lag=own.lag if is_current else None,
            details={"replica": str(number)},
        )
    )
    flows = [flow for flow in own.flow.units if flow is not None] if is_current else []
    # What flows is known even if it is not known who owns the units.
    flow_level = UNKNOWN if not flows else OK
    for topic in settings.input_topics:
        lags = [flow.lags.get(topic, 0) for flow in flows]
        known = [lag for lag in lags if lag is not None]
        graph.edges.append(
            Edge(
                topic_id(topic),
                identity,
                rate=sum(flow.consumed.get(topic, 0.0) for flow in flows) if flows else None,
                lag=sum(known) if flows and len(known) == len(lags) else None,
                unit=offset_unit(settings, topic),
                note="consumed by its units",
                level=flow_level,
            )
        )
    graph.edges.append(
        Edge(
            identity,
            topic_id(replica_name(settings.topics.out, number)),
            rate=sum(flow.written.get(RESULTS, 0.0) for flow in flows) if flows else None,
            unit="records",
            note="results",
            level=flow_level,
        )
    )


def _state_of_replica(graph: Graph, number: int, own: Facts) -> tuple[str, str]:
    """Return the state and the level of a replica, and note its troubles."""
    if own.trouble:
        if own.trouble != _NOT_READ.trouble:
            text = f"What is shown of replica {number} is not current: {own.trouble}"
            graph.troubles.append(Trouble(WARNING, text))
        return ("not known yet" if own.read_ms is None else "not current"), UNKNOWN
    if own.status is None:
        text = f"Replica {number} has never run: start it with `joiner run --replica {number}`"
        graph.troubles.append(Trouble(WARNING, text))
        return "has never run", WARNING
    states = ["" if unit is None else unit.state for unit in own.status.units]
    if NOT_KNOWN in states:
        return "members not known", UNKNOWN
    running, level = states.count(RUNNING), OK
    if not running:
        level = TROUBLE
        graph.troubles.append(Trouble(level, f"No unit of replica {number} is running"))
    elif running < len(states):
        level = WARNING
        graph.troubles.append(Trouble(level, f"Some units of replica {number} are not running"))
    return f"{running} of {len(states)} units running", level


def add_merger(graph: Graph, settings: JoinerSettings, facts: Facts) -> None:
    """Add `joiner merge`, with the flows from the results of the replicas and to the merged topic."""
    out, group = settings.topics.out, merging_group(settings.application.name)
    merged, found = merged_topic(out), facts.flow.merger
    state, level = _state_of_merger(graph, group, found, has_run=facts.flow.missing.get(merged) != NOT_THERE)
    details = {"consumer group": group}
    if found is not None and found.members:
        named = (f"{one.name} ({'merges' if one.partitions else 'waits'})" for one in found.members)
        details["members"] = ", ".join(named)
    graph.nodes.append(Node(MERGER, MERGER, "joiner merge", state, level, details=details))
    graph.edges += [
        Edge(topic_id(replica_name(out, number)), MERGER, note="merged: each result once", level=level)
        for number in range(settings.application.replicas)
    ]
    flow = facts.flow.topics.get(merged)
    rate = None if flow is None else flow.rate
    graph.edges.append(
        Edge(MERGER, topic_id(merged), rate=rate, unit="offsets", note="from whichever replica was first", level=level)
    )


def _state_of_merger(graph: Graph, group: str, found: MergerFlow | None, *, has_run: bool) -> tuple[str, str]:
    """Return the state and the level of `joiner merge`, and note its troubles.

    ``has_run``: whether the merged topic exists. If not, the readers may merge by themselves.
    """
    if found is None:
        return "not known", UNKNOWN
    if found.fault:
        text = f"It is not known which processes merge the replicas: consumer group {group}: {found.fault}"
        graph.troubles.append(Trouble(WARNING, text))
        return "not known", UNKNOWN
    if not found.members:
        if not has_run:
            return "has never run", UNKNOWN
        graph.troubles.append(Trouble(TROUBLE, f"Nothing merges the replicas: consumer group {group} has no members"))
        return "not running", TROUBLE
    merging = sum(bool(one.partitions) for one in found.members)
    if not merging:
        text = f"Nothing merges the replicas yet: no member of consumer group {group} has been given the work"
        graph.troubles.append(Trouble(WARNING, text))
        return "nobody merges", WARNING
    waiting = len(found.members) - merging
    return f"{merging} merges" + (f", {waiting} {'waits' if waiting == 1 else 'wait'}" if waiting else ""), OK
