"""Computes the next assignment of a site from its state.

The assignment is sticky. A unit changes its owner only if the owner is gone, leaves or is drained, or, one unit at a
time, to balance the load. Load is the number of units in relation to the capacity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from joiner.runtime.control import Assignment, Heartbeat, UnitAssignment
from joiner.runtime.membership.state import SiteState

_CAPACITY_MIN: Final = 0.01


def next_assignment(
    state: SiteState, units: int, standbys: int, by: str, silent: Collection[str] = ()
) -> Assignment | None:
    """Return the assignment that should follow, or None if the present one is right.

    ``units``: the number of units. ``standbys``: how many standbys each unit should have. ``silent``: live members that
    have not been heard of for too long.
    """
    planner = _Planner(state, units, standbys, silent)
    if state.is_mixed:
        planner.adopt_servers()
    else:
        planner.replace_owners()
        if planner.is_unchanged() and planner.has_settled():
            planner.balance()
    planner.choose_standbys()
    if planner.is_unchanged() and not planner.silent:
        return None
    return Assignment(
        site=state.site,
        epoch=state.epoch + 1,
        units=[UnitAssignment(owner, chosen) for owner, chosen in zip(planner.owners, planner.standbys, strict=True)],
        gone={name: state.members[name].offset for name in sorted(planner.silent)},
        by=by,
        reason=planner.reason(),
    )


class _Planner:
    def __init__(self, state: SiteState, units: int, standbys: int, silent: Collection[str]) -> None:
        self.silent = set(silent) & state.live.keys()
        self._state = state
        self._wanted = standbys
        known = [*state.units, *[UnitAssignment("")] * units][:units]
        self._before = known
        self.owners = [unit.owner for unit in known]
        self.standbys = [list(unit.standbys) for unit in known]
        self._live: Mapping[str, Heartbeat] = {
            name: heartbeat for name, heartbeat in state.live.items() if name not in self.silent
        }
        # Instances that may have units.
        self._able = {
            name: max(_CAPACITY_MIN, heartbeat.capacity)
            for name, heartbeat in sorted(self._live.items())
            if not heartbeat.leaving and name not in state.drained
        }
        self._load = Counter(owner for owner in self.owners if owner in self._able)
        self._changes: list[str] = []

    def is_unchanged(self) -> bool:
        """Return whether no owner and no standby differs from the present assignment."""
        return self.owners == [unit.owner for unit in self._before] and self.standbys == [
            unit.standbys for unit in self._before
        ]

    def has_settled(self) -> bool:
        """Return whether every unit is served by its owner, or cannot be."""
        return all(
            owner not in self._live or unit in self._live[owner].serves or unit in self._live[owner].failed
            for unit, owner in enumerate(self.owners)
        )

    def adopt_servers(self) -> None:
        """Let each unit be owned by the instance that serves it, or by none if that is of an older release."""
        for unit, before in enumerate(self.owners):
            server = self._state.server(unit)
            self.owners[unit] = server if server is not None and server not in self.silent else ""
            if self.owners[unit] != before:
                self._note("the consumer group assigns the units to an older release as well")

    def replace_owners(self) -> None:
        """Give the units of instances that cannot have them to others."""
        for unit, owner in enumerate(self.owners):
            if owner in self._able:
                continue
            heir = self._heir(unit)
            if heir is None:
                # A leaving owner keeps serving until it stops.
                self.owners[unit] = owner if owner in self._live else ""
                continue
            self._load[heir] += 1
            self.owners[unit] = heir
            if owner:
                self._note(f"{owner} {self._why_not(owner)}")

    def balance(self) -> None:
        """Move one unit from the most loaded instance to the least loaded one, if that makes the loads more equal."""
        settled = [name for name in self._able if self._state.members[name].is_settled]
        if not settled:
            return
        least = min(settled, key=lambda name: ((self._load[name] + 1) / self._able[name], name))
        most = max(self._able, key=lambda name: (self._load[name] / self._able[name], name))
        if (self._load[least] + 1) / self._able[least] >= self._load[most] / self._able[most]:
            return
        units = [unit for unit, owner in enumerate(self.owners) if owner == most]
        unit = min(units, key=lambda unit: (least not in self._warm(unit), least not in self.standbys[unit], unit))
        self.owners[unit] = least
        self._load[most] -= 1
        self._load[least] += 1
        self._note(f"unit {unit} to {least} to balance the load")

    def choose_standbys(self) -> None:
        """Keep the standbys that are able, and add others, on other hosts if possible."""
        followed = Counter(name for names in self.standbys for name in names)
        for unit, owner in enumerate(self.owners):
            kept = [name for name in self.standbys[unit] if name in self._able and name != owner][: self._wanted]
            while len(kept) < self._wanted:
                free = [name for name in self._able if name != owner and name not in kept]
                if not free:
                    break
                hosts = {self._live[name].host for name in (owner, *kept) if name in self._live}
                chosen = min(
                    free,
                    key=lambda name: (self._live[name].host in hosts, followed[name] / self._able[name], name),
                )
                kept.append(chosen)
                followed[chosen] += 1
            # A standby that is not warm yet comes after those that are.
            warm = self._warm(unit)
            self.standbys[unit] = sorted(kept, key=lambda name: name not in warm)

    def reason(self) -> str:
        """Return what has changed."""
        for name in sorted(self.silent):
            self._note(f"{name} {self._why_not(name)}")
        return "; ".join(self._changes) or "standbys"

    def _heir(self, unit: int) -> str | None:
        if not self._able:
            return None
        warm, ranks = self._warm(unit), self.standbys[unit]
        serving = self._state.server(unit)

        def order(name: str) -> tuple[object, ...]:
            rank = ranks.index(name) if name in ranks and name in warm else len(ranks)
            return name != serving, rank, (self._load[name] + 1) / self._able[name], name

        return min(self._able, key=order)

    def _warm(self, unit: int) -> set[str]:
        return {name for name, heartbeat in self._live.items() if unit in heartbeat.warm}

    def _why_not(self, name: str) -> str:
        if name in self.silent or name not in self._live:
            return "is gone"
        return "is leaving" if self._live[name].leaving else "is drained"

    def _note(self, change: str) -> None:
        if change not in self._changes:
            self._changes.append(change)
