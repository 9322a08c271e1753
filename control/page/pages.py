"""The service's pages, in the order of the frame's navigation."""

from __future__ import annotations

from typing import Final

from control.page.actions import ActionsSection
from control.page.dead_letters import LetterSection
from control.page.frame import Place
from control.page.lookup.join import JoinSection
from control.page.lookup.replicas import ReplicasSection, has_replicas
from control.page.overview import OverviewSection
from control.page.topology import TopologySection

PLACES: Final = (
    Place("/", "Overview", OverviewSection),
    Place("/topology", "Topology", TopologySection),
    Place("/join", "Join", JoinSection),
    Place("/replicas", "Replicas", ReplicasSection, has_replicas),
    Place("/dead-letters", "Dead letters", LetterSection),
    Place("/actions", "Actions", ActionsSection),
)
