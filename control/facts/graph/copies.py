"""The copying of topics to repartition topics in an application's graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from control.facts.graph.parts import OK, TROUBLE, UNKNOWN, WARNING, Edge, Graph, Node, Trouble, topic_id

if TYPE_CHECKING:
    from control.facts.reading import Facts
    from joiner.runtime.settings import JoinerSettings

_NOT_KNOWN = "not known"


def add_copying(graph: Graph, settings: JoinerSettings, facts: Facts, target: str) -> None:
    """Add what copies a topic to ``target``, and the flow to that, if it is a repartition topic."""
    source = next((topic for topic, copies in settings.repartitioned.items() if copies == target), None)
    if source is None:
        return
    found = None if facts.flow.copies is None else facts.flow.copies.topics.get(source)
    state, level = _state(graph, settings, facts, source)
    lag = None if found is None else found.lag
    flow = facts.flow.topics.get(target)
    details = {"copied to": target, "consumer group": settings.repartition_group}
    if found is not None and found.members:
        details["members"] = ", ".join(found.members)
    identity = f"copies:{source}"
    graph.nodes.append(Node(identity, "repartition", source, state, level, lag=lag, details=details))
    rate = None if flow is None else flow.rate
    graph.edges.append(Edge(identity, topic_id(target), rate=rate, lag=lag, unit="offsets", level=level, note="copied"))


def _state(graph: Graph, settings: JoinerSettings, facts: Facts, source: str) -> tuple[str, str]:
    """Return the state and the level of copying a topic, and note its troubles."""
    copies = facts.flow.copies
    if copies is None:
        return _NOT_KNOWN, UNKNOWN
    if copies.fault:
        text = f"It is not known how far {source} is repartitioned: {copies.fault}"
        graph.troubles.append(Trouble(WARNING, text))
        return _NOT_KNOWN, UNKNOWN
    found = copies.topics.get(source)
    if found is None or found.members is None:
        return _NOT_KNOWN, UNKNOWN
    state, level, why = f"{len(found.members)} running", OK, ""
    if found.lag is None:
        state, level, why = "waits for the topic", WARNING, f"Topic {source} is to be repartitioned, but does not exist"
    elif not found.members:
        is_waiting = bool(found.lag)
        state, level = "not running", TROUBLE if is_waiting else WARNING
        why = f"Nothing repartitions {source}: consumer group {settings.repartition_group} has no members for it"
        why += ", and messages are waiting" if is_waiting else ""
    if facts.status is None and level != OK:
        # An application that has never run needs nothing yet.
        return state, UNKNOWN
    if why:
        graph.troubles.append(Trouble(level, why))
    return state, level
