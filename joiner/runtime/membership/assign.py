"""Computes a site's next assignment from the site's state.

The assignment is sticky. A unit changes owners for one of three reasons: its owner is gone, is leaving, is drained or
cannot serve it; the unit is pinned to another instance that can serve it; or the move balances the load. An instance's
load is its number of units divided by its capacity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Final

from joiner.runtime.control import EPOCH_MAX, Assignment, Heartbeat, UnitAssignment
from joiner.runtime.membership.state import SiteState

_CAPACITY_MIN: Final = 0.01


def next_assignment(state: SiteState, units: int, by: str, silent: Collection[str] = ()) -> Assignment | None:
    """Return the next assignment, or None if the current one is right.

    ``units``: the number of units. ``silent``: live members that have not been heard from for too long.
    """
    planner = _Planner(state, units, silent)
    if state.is_mixed:
        planner.adopt_servers()
    else:
        planner.replace_owners()
        if planner.is_unchanged():
            planner.balance()
    planner.choose_standbys()
    if planner.is_unchanged() and not planner.silent:
        return None
    return Assignment(
        site=state.site,
        epoch=min(state.epoch + 1, EPOCH_MAX),
        units=[UnitAssignment(owner, chosen) for owner, chosen in zip(planner.owners, planner.standbys, strict=True)],
        gone={name: state.members[name].offset for name in sorted(planner.silent)},
        by=by,
        reason=planner.reason(),
    )


def wanted_standbys(state: SiteState, live: Mapping[str, Heartbeat]) -> int:
    """Return how many standbys each unit should have: by order or, if there is none, by the instances' settings.

    ``live``: the members whose settings apply. While an operator is changing the settings, they may differ.
    """
    if state.orders.standbys is not None:
        return state.orders.standbys
    return max((heartbeat.standbys for heartbeat in live.values()), default=0)


class _Planner:
    def __init__(self, state: SiteState, units: int, silent: Collection[str]) -> None:
        self.silent = set(silent) & state.live.keys()
        self._state = state
        known = [*state.units, *[UnitAssignment("")] * units][:units]
        self._before = known
        self.owners = [unit.owner for unit in known]
        self.standbys = [list(unit.standbys) for unit in known]
        self._live: Mapping[str, Heartbeat] = {
            name: heartbeat for name, heartbeat in state.live.items() if name not in self.silent
        }
        self._wanted = wanted_standbys(state, self._live)
        staying = [name for name, heartbeat in sorted(self._live.items()) if not heartbeat.leaving]
        # Instances that may own units. Drained ones may only if there are no others.
        able = [name for name in staying if name not in state.drained] or staying
        self._able = {name: max(_CAPACITY_MIN, self._live[name].capacity) for name in able}
        self._load = Counter(owner for owner in self.owners if owner in self._able)
        # The pins that can be honoured.
        self._pinned = {
            unit: name
            for unit, name in state.orders.pinned.items()
            if unit < units and name in self._able and self._can_serve(name, unit)
        }
        # Units that instances are preparing for because the units are pinned to them. So that no unit moves twice, room
        # for such a unit is kept free, but other units do not make way for it before it moves.
        awaited = [unit for unit in self._pinned if self._is_awaited(unit)]
        self._coming = Counter(self._pinned[unit] for unit in awaited)
        self._going = Counter(self.owners[unit] for unit in awaited)
        self._changes: list[str] = []

    def is_unchanged(self) -> bool:
        """Return whether all owners and standbys are the same as in the current assignment."""
        return self.owners == [unit.owner for unit in self._before] and self.standbys == [
            unit.standbys for unit in self._before
        ]

    def adopt_servers(self) -> None:
        """Make the instance that serves a unit its owner, or no instance if an older release serves it."""
        for unit, before in enumerate(self.owners):
            server = self._state.server(unit)
            self.owners[unit] = server if server is not None and server not in self.silent else ""
            if self.owners[unit] != before:
                self._note("the consumer group also assigns units to an older release")

    def replace_owners(self) -> None:
        """Give units to the instances they are pinned to, and reassign the units of instances that cannot own them.

        Pinned units come first, so that the others are spread around them.
        """
        for unit in sorted(range(len(self.owners)), key=lambda unit: unit not in self._pinned):
            owner = self.owners[unit]
            if self._may_follow_pin(unit):
                self._give(unit, self._pinned[unit])
                self._note(f"{self._pinned[unit]} gets units pinned to it")
                continue
            if owner in self._able and self._is_abandoned(unit) and (standby := self._warm_heir(unit)) is not None:
                self._give(unit, standby)
                self._note(f"{standby} has the state of units that nobody serves")
                continue
            # A unit that cannot be served by its owner stays there, unless another instance still serves it.
            if owner in self._able and (self._can_serve(owner, unit) or self._state.server(unit) in {None, owner}):
                continue
            heir = self._heir(unit)
            if heir == owner or (owner in self._able and heir is not None and not self._can_serve(heir, unit)):
                continue
            if heir is None:
                # A leaving owner keeps serving until it stops.
                self.owners[unit] = owner if owner in self._live else ""
                continue
            self._give(unit, heir)
            self._note(f"{owner} {self._why_not(owner)}" if owner else "some units had no owner")

    def balance(self) -> None:
        """Move units from the most loaded instances to the least loaded ones until the loads are as equal as possible.

        Only units being served move, because a unit that its owner cannot serve cannot be served by others either.
        Pinned units add to the load but stay where they are.
        """
        while (move := self._balancing_move()) is not None:
            unit, heir = move
            self._give(unit, heir)
            self._note(f"{heir} gets units to balance the load")

    def _give(self, unit: int, heir: str) -> None:
        self._load[self.owners[unit]] -= 1
        self._load[heir] += 1
        self.owners[unit] = heir

    def _may_follow_pin(self, unit: int) -> bool:
        """Return whether a unit is pinned to an instance that does not own it yet but should from now on.

        It should once the unit's state is warm there. That way, a pin makes no pause longer, and moves nothing as long
        as the state cannot be built. It also should if the owner cannot serve the unit. It should not while another
        instance is about to serve the unit.
        """
        pin, owner = self._pinned.get(unit), self.owners[unit]
        if pin is None or pin == owner or not self._is_settled(pin):
            return False
        if any(unit in heartbeat.claims for name, heartbeat in self._live.items() if name != pin):
            return False
        if self._is_served(unit):
            return pin in self._warm(unit)
        # A warm owner is about to claim the unit; any other may be waiting to retry. If there is no owner, a warm
        # standby comes first (see `_heir`).
        is_waiting = owner in self._able and owner not in self._warm(unit)
        return is_waiting and (pin in self._warm(unit) or not self._can_serve(owner, unit))

    def _is_awaited(self, unit: int) -> bool:
        """Return whether the instance that a unit is pinned to should build its state before owning the unit."""
        pin = self._pinned.get(unit)
        is_elsewhere = pin is not None and pin != self.owners[unit] and self._is_served(unit)
        return is_elsewhere and not self._state.is_mixed and self._is_settled(self._pinned[unit])

    def _is_abandoned(self, unit: int) -> bool:
        """Return whether a unit is not served, and its owner has yet to build its state.

        A warm standby then serves the unit sooner. Nothing is taken from an owner that is already claiming the unit.
        """
        is_claimed = any(unit in heartbeat.claims for heartbeat in self._live.values())
        is_busy = is_claimed or self._is_served(unit) or self.owners[unit] in self._warm(unit)
        return self._state.is_abandoned(unit) and not is_busy

    def _is_served(self, unit: int) -> bool:
        return any(unit in heartbeat.serves for heartbeat in self._live.values())

    def _balancing_move(self) -> tuple[int, str] | None:
        """Return a unit that should move so that loads even out, and its new owner, or None if there is none.

        The unit comes from the most loaded instance and goes to the least loaded one for which this is possible.
        """
        movable: dict[str, list[int]] = {}
        for unit, owner in enumerate(self.owners):
            if owner in self._able and unit in self._live[owner].serves and not self._is_fixed(unit):
                movable.setdefault(owner, []).append(unit)
        # The loads with one more unit, and the current loads.
        receiving = {name: (self._load[name] + self._coming[name] + 1) / able for name, able in self._able.items()}
        giving = {name: (self._load[name] - self._going[name]) / able for name, able in self._able.items()}
        sources = sorted(movable, key=lambda name: (-giving[name], name))
        for target in sorted(filter(self._is_settled, self._able), key=lambda name: (receiving[name], name)):
            for source in sources:
                if receiving[target] >= giving[source]:
                    break
                units = [unit for unit in movable[source] if self._can_serve(target, unit)]
                if units:
                    return self._easiest(units, target), target
        return None

    def _easiest(self, units: list[int], target: str) -> int:
        """Return the unit that ``target`` could take over most easily."""
        return min(units, key=lambda unit: (target not in self._warm(unit), target not in self.standbys[unit], unit))

    def choose_standbys(self) -> None:
        """Keep the standbys that can serve their unit and are on other hosts, and replace the rest.

        A warm standby that is replaced remains a standby until its successor is warm. An instance that a unit is pinned
        to is an additional standby until it is warm, and then becomes the owner.
        """
        followed = Counter(name for names in self.standbys for name in names)
        for unit, owner in enumerate(self.owners):
            able = [name for name in self._able if name != owner and self._can_serve(name, unit)]
            before = [name for name in self.standbys[unit] if name in able]
            warm = self._warm(unit)
            chosen: list[str] = []
            while len(chosen) < self._wanted and len(chosen) < len(able):
                free = [name for name in able if name not in chosen]
                order = self._suitability([owner, *chosen], before, warm, followed)
                chosen.append(min(free, key=order))
            for name in chosen:
                followed[name] += name not in before
            cold = sum(name not in warm for name in chosen)
            if self._is_awaited(unit) and (pin := self._pinned[unit]) not in chosen:
                chosen.append(pin)
                self._note(f"{pin} prepares for units pinned to it")
            staying = [name for name in before if name in warm and name not in chosen][:cold]
            # A standby that is not warm yet comes after those that are.
            self.standbys[unit] = sorted([*chosen, *staying], key=lambda name: name not in warm)

    def _suitability(
        self, others: list[str], before: list[str], warm: set[str], followed: Counter[str]
    ) -> Callable[[str], tuple[object, ...]]:
        """Return a sort key that puts the most suitable additional standby of a unit first.

        ``others``: the owner and the standbys already chosen. ``before``: the current standbys.
        """
        hosts = {self._live[name].host for name in others if name in self._live}

        def order(name: str) -> tuple[object, ...]:
            is_apart = self._live[name].host not in hosts
            if name in before:
                # It is replaced only by an instance that is on another host and has been running for a moment.
                return 0 if is_apart else 2, name not in warm, before.index(name)
            return (
                1 if is_apart and self._is_settled(name) else 3,
                not is_apart,
                followed[name] / self._able[name],
                name,
            )

        return order

    def reason(self) -> str:
        """Return what has changed."""
        for name in sorted(self.silent):
            self._note(f"{name} {self._why_not(name)}")
        return "; ".join(self._changes) or "other standbys"

    def _heir(self, unit: int) -> str | None:
        if not self._able:
            return None
        warm, ranks = self._warm(unit), self.standbys[unit]
        serving = self._state.server(unit)

        def order(name: str) -> tuple[object, ...]:
            rank = ranks.index(name) if name in ranks and name in warm else len(ranks)
            load = (self._load[name] + 1) / self._able[name]
            return name != serving, not self._can_serve(name, unit), rank, name != self._pinned.get(unit), load, name

        return min(self._able, key=order)

    def _warm_heir(self, unit: int) -> str | None:
        heir = self._heir(unit)
        return heir if heir in self._warm(unit) else None

    def _warm(self, unit: int) -> set[str]:
        return {name for name, heartbeat in self._live.items() if unit in heartbeat.warm}

    def _can_serve(self, name: str, unit: int) -> bool:
        return unit not in self._live[name].failed

    def _is_settled(self, name: str) -> bool:
        return self._state.members[name].is_settled

    def _is_fixed(self, unit: int) -> bool:
        """Return whether a unit must not be moved to balance the load."""
        return unit in self._pinned

    def _why_not(self, name: str) -> str:
        if name in self.silent or name not in self._live:
            return "is gone"
        if self._live[name].leaving:
            return "is leaving"
        return "is drained" if name in self._state.drained else "cannot serve all of its units"

    def _note(self, change: str) -> None:
        if change not in self._changes:
            self._changes.append(change)
