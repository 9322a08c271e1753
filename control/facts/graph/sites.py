"""An application's sites in its graph: their instances with the units they serve, standbys, and moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from control.facts.graph.parts import (
    OK,
    TROUBLE,
    UNKNOWN,
    WARNING,
    Edge,
    Graph,
    Node,
    Trouble,
    numbers,
    topic_id,
    units_text,
    worst,
)
from joiner.runtime.membership.presence import GONE, NOBODY, REBALANCING, RUNNING, STOPPED
from joiner.runtime.membership.presence import UNKNOWN as NOT_KNOWN
from joiner.runtime.membership.status.tables import age

if TYPE_CHECKING:
    from control.facts.flow.meters import Move, UnitFlow
    from control.facts.reading import Facts
    from joiner.runtime.membership.status.summary import AssignmentStatus, Status, UnitSummary
    from joiner.runtime.settings import JoinerSettings

NEVER_RUN: Final = "never run"

ALL_WARM: Final = "all warm"
"""Describes a standby that keeps all units of an instance warm."""

UNITS_DRAWN_MAX: Final = 64
"""If an application has more units than this, the units do not get their own nodes."""


class Output(NamedTuple):
    """A topic that the units write to. ``kind``: the setting that names it. ``content``: its contents, in words."""

    kind: str
    topic: str
    content: str


def add_sites(graph: Graph, settings: JoinerSettings, facts: Facts, outputs: Iterable[Output]) -> None:
    """Add the sites, their instances and units, and the edges from the input topics and to the output topics."""
    if facts.status is None:
        _add_unknown_site(graph, settings, facts, outputs)
        return
    sites = _sites(settings, facts, facts.status)
    for site in sites:
        site.add(graph)
        site.add_edges(graph, outputs)
    _add_moves(graph, facts)


def offset_unit(settings: JoinerSettings, topic: str) -> str:
    """Return what an offset of an input topic stands for. The connector writes no transactions, hence no markers."""
    if topic != settings.topics.data:
        return "offsets"
    return "messages" if settings.topics.has_rows else "records"


def site_id(site: str) -> str:
    """Return the id of a site's node."""
    return f"site:{site}"


def _add_unknown_site(graph: Graph, settings: JoinerSettings, facts: Facts, outputs: Iterable[Output]) -> None:
    """Add the site from the settings, for an application that has never run or about which nothing is known yet."""
    site = settings.application.site
    known = facts.read_ms is not None
    state = "has never run" if known else "not known yet"
    graph.nodes.append(Node(site_id(site), "site", site, state, UNKNOWN, details=_operators(settings)))
    graph.edges += [Edge(topic_id(topic), site_id(site), note=state, level=UNKNOWN) for topic in settings.input_topics]
    graph.edges += [Edge(site_id(site), topic_id(one.topic), note=one.content, level=UNKNOWN) for one in outputs]


def _operators(settings: JoinerSettings) -> dict[str, str]:
    joins, aligns = (", ".join(one.name for one in operators) for operators in (settings.join, settings.align))
    return ({"joins": joins} if joins else {}) | ({"aligns": aligns} if aligns else {})


def _sites(settings: JoinerSettings, facts: Facts, status: Status) -> list[_Site]:
    home = settings.application.site
    units: dict[str, dict[int, UnitSummary | None]] = {}
    for number, unit in enumerate(status.units):
        units.setdefault(home if unit is None else unit.site, {})[number] = unit
    names = units.keys() | {site for site, there in status.processes.items() if there}
    names |= {move.target for move in facts.flow.moves.values()}
    return [_Site(site, settings, facts, status, units.get(site, {})) for site in sorted(names)]


def _add_moves(graph: Graph, facts: Facts) -> None:
    between: dict[tuple[str, str, bool], list[int]] = {}
    for unit, move in facts.flow.moves.items():
        between.setdefault((move.source, move.target, move.is_released), []).append(unit)
    known = {node.id for node in graph.nodes}
    for (source, target, is_released), moved in sorted(between.items()):
        # The source may have stopped and left no node.
        if {site_id(source), site_id(target)} <= known:
            what = "on the way" if is_released else "to be moved"
            level = WARNING if is_released else OK
            graph.edges.append(Edge(site_id(source), site_id(target), note=f"{units_text(moved)} {what}", level=level))


class _Site:
    """A site with the units that belong to it according to their checkpoints."""

    def __init__(
        self,
        name: str,
        settings: JoinerSettings,
        facts: Facts,
        status: Status,
        units: Mapping[int, UnitSummary | None],
    ) -> None:
        self._name, self._settings, self._facts, self._units = name, settings, facts, units
        self._there: Mapping[str, list[int]] | None = status.processes.get(name)
        """The members of its group, or None if they are not known."""
        self._assignment: AssignmentStatus | None = status.assignments.get(name)
        self._served: dict[str, list[int]] = {}
        self._unowned: dict[int, tuple[str, str]] = {}
        """The units without a running owner, each with the cause and the level."""
        for number, unit in units.items():
            if unit is not None and unit.state in {RUNNING, NOT_KNOWN}:
                self._served.setdefault(unit.instance, []).append(number)
            else:
                self._unowned[number] = _cause(unit, facts.flow.moves.get(number))

    def add(self, graph: Graph) -> None:
        """Add the site and everything in it."""
        nodes = [*self._instances(), *self._owned_by_none(graph)]
        # The units are served even if their standbys are not warm.
        level = worst(node.level for node in nodes if node.kind != "standbys")
        served = sum(map(len, self._served.values()))
        details = _operators(self._settings)
        if (one := self._assignment) is not None:
            details |= {f"assignment {one.epoch}": one.reason or "reason not known"}
        state = f"{served} of {len(self._units)} units served" if self._units else "no units"
        if self._there is None:
            state = "members not known"
        graph.nodes.append(
            Node(
                site_id(self._name),
                "site",
                self._name,
                state,
                level,
                units=sorted(self._units),
                rate=sum(self._facts.rates[number] for number in self._units),
                lag=self._lag(self._units),
                details=details,
            )
        )
        graph.nodes += nodes

    def add_edges(self, graph: Graph, outputs: Iterable[Output]) -> None:
        """Add the edges from the input topics and to the output topics, if the site has units."""
        if not self._units:
            return
        flows = [flow for number in self._units if (flow := self._flow(number)) is not None]
        for topic in self._settings.input_topics:
            lags = {number: self._flow_lag(number, topic) for number in self._units}
            known = [lag for lag in lags.values() if lag is not None]
            waiting = sum(lags[number] or 0 for number in self._unowned)
            graph.edges.append(
                Edge(
                    topic_id(topic),
                    site_id(self._name),
                    rate=sum(flow.consumed.get(topic, 0.0) for flow in flows) if flows else None,
                    lag=sum(known) if len(known) == len(lags) else None,
                    unit=offset_unit(self._settings, topic),
                    note=f"{waiting:,} wait for units without an owner" if waiting else "consumed by its units",
                    level=TROUBLE if waiting else OK,
                )
            )
        for one in outputs:
            graph.edges.append(
                Edge(
                    site_id(self._name),
                    topic_id(one.topic),
                    rate=sum(flow.written.get(one.kind, 0.0) for flow in flows) if flows else None,
                    unit="records",
                    note=one.content,
                )
            )

    def _instances(self) -> list[Node]:
        assignment = self._assignment
        following = set() if assignment is None else {name for names in assignment.standbys for name in names}
        drained = set() if assignment is None else set(assignment.drained)
        found = []
        for name in sorted({*self._served, *(self._there or ()), *following, *drained}):
            served = sorted(self._served.get(name, ()))
            state, level = self._instance_state(name, served, is_drained=name in drained)
            node = Node(
                f"instance:{self._name}/{name}",
                "instance",
                name,
                state,
                level,
                within=site_id(self._name),
                units=served,
                rate=sum(self._facts.rates[number] for number in served) if served else None,
                lag=self._lag(served) if served else None,
                details=self._standby_of(name),
            )
            found += [node, *self._unit_nodes(node), *self._standbys(node)]
        return found

    def _instance_state(self, name: str, served: list[int], *, is_drained: bool) -> tuple[str, str]:
        if self._there is None:
            return "not known", UNKNOWN
        if name not in self._there:
            return ("drained, not running" if is_drained else "not running"), (OK if is_drained else WARNING)
        if is_drained:
            return "drained", OK
        return ("running" if served else "no units"), OK

    def _standby_of(self, name: str) -> dict[str, str]:
        if self._assignment is None or name not in (self._there or ()):
            return {}
        follows = [number for number, names in enumerate(self._assignment.standbys) if name in names]
        warm = [number for number in follows if name in self._assignment.warm[number]]
        found = {"standby of": numbers(follows), "warm": numbers(warm)}
        return {what: text for what, text in found.items() if text}

    def _owned_by_none(self, graph: Graph) -> list[Node]:
        if not self._unowned:
            return []
        causes: dict[tuple[str, str], list[int]] = {}
        for number, why in self._unowned.items():
            causes.setdefault(why, []).append(number)
        for (cause, level), units in causes.items():
            have = f"{'has' if len(units) == 1 else 'have'} no owner"
            graph.troubles.append(Trouble(level, f"{units_text(units).capitalize()} of {self._name} {have}: {cause}"))
        node = Node(
            f"unowned:{self._name}",
            "unowned",
            "no owner",
            "; ".join(cause for cause, _ in causes),
            worst(level for _, level in causes),
            within=site_id(self._name),
            units=sorted(self._unowned),
            lag=self._lag(self._unowned),
            details={cause: numbers(units) for (cause, _), units in causes.items()},
        )
        return [node, *self._unit_nodes(node), *self._standbys(node)]

    def _unit_nodes(self, group: Node) -> list[Node]:
        if self._settings.topics.partitions > UNITS_DRAWN_MAX:
            return []
        return [self._unit_node(group, number) for number in group.units]

    def _unit_node(self, group: Node, number: int) -> Node:
        unit = self._units[number]
        served = (NOT_KNOWN, UNKNOWN) if group.level == UNKNOWN else (RUNNING, OK)
        state, level = self._unowned.get(number, served)
        details: dict[str, str] = {}
        if unit is not None:
            details = {"last commit": f"{age(unit.committed_s_ago)} ago", "results": f"{unit.pairs + unit.rows:,}"}
        return Node(
            f"unit:{number}",
            "unit",
            str(number),
            state,
            level,
            within=group.id,
            units=[number],
            rate=self._facts.rates[number],
            lag=self._lag([number]),
            details=details,
        )

    def _standbys(self, group: Node) -> list[Node]:
        """Return a node for the standbys of an instance's units, or of the units without an owner."""
        assignment = self._assignment
        if assignment is None:
            return []
        details: dict[str, list[str]] = {}
        is_cold = False
        followed: dict[str, list[int]] = {}
        for number in group.units:
            for name in assignment.standbys[number] if number < len(assignment.standbys) else ():
                followed.setdefault(name, []).append(number)
        for name, units in sorted(followed.items()):
            warm = [number for number in units if name in assignment.warm[number]]
            cold = sorted(set(units) - set(warm))
            is_cold = is_cold or bool(cold)
            details[name] = [f"{numbers(warm)} warm"] * bool(warm) + [f"{numbers(cold)} not warm"] * bool(cold)
            if set(warm) == set(group.units):
                details[name] = [ALL_WARM]
            if self._there is not None and name not in self._there:
                # The assignment dates from when an instance last ran.
                details[name], is_cold = ["not running"], True
        if not followed:
            return []
        return [
            Node(
                f"standbys:{self._name}/{group.label if group.kind == 'instance' else ''}",
                "standbys",
                ", ".join(sorted(followed)),
                "not warm" if is_cold else "warm",
                WARNING if is_cold else OK,
                within=site_id(self._name),
                beside=group.id,
                units=sorted({number for units in followed.values() for number in units}),
                details={name: ", ".join(texts) for name, texts in details.items()},
            )
        ]

    def _flow(self, number: int) -> UnitFlow | None:
        flows = self._facts.flow.units
        return flows[number] if number < len(flows) else None

    def _flow_lag(self, number: int, topic: str) -> int | None:
        flow = self._flow(number)
        # A unit that has never run has not read anything.
        return 0 if flow is None and self._units[number] is None else None if flow is None else flow.lags.get(topic, 0)

    def _lag(self, units: Iterable[int]) -> int | None:
        lags = [self._flow_lag(number, topic) for number in units for topic in self._settings.input_topics]
        known = [lag for lag in lags if lag is not None]
        return sum(known) if len(known) == len(lags) else None


def _cause(unit: UnitSummary | None, move: Move | None) -> tuple[str, str]:
    """Return why a unit has no running owner, and how bad that is."""
    if unit is None:
        return NEVER_RUN, WARNING
    if unit.state == NOBODY and move is not None:
        return f"on the way from {move.source}", WARNING
    known = {
        STOPPED: (f"stopped by {unit.instance}", TROUBLE),
        GONE: (f"{unit.instance} is gone", TROUBLE),
        NOBODY: ("reset", TROUBLE),
        REBALANCING: (f"{unit.instance} does not serve it yet", WARNING),
    }
    # The unit is assigned to another instance, which has not claimed it yet.
    return known.get(unit.state, (unit.state, WARNING))
