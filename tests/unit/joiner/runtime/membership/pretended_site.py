"""A site without a log: tests give it records, and let everybody follow the assignments that result."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec

from joiner.runtime.control import Assignment, Heartbeat
from joiner.runtime.membership.assign import next_assignment
from joiner.runtime.membership.state import SETTLED_BEATS, SiteState


class Site:
    """A site whose records are applied as they are given."""

    def __init__(self, *names: str, units: int = 4, standbys: int = 0) -> None:
        self.state, self.offset = SiteState("plain"), 0
        self.units, self.standbys = units, standbys
        for name in names:
            self.beat(name)

    def apply(self, record: Any) -> bool:
        self.offset += 1
        return self.state.apply(record, self.offset)

    def beat(self, name: str, *, times: int = SETTLED_BEATS, **more: Any) -> None:
        for _ in range(times):
            given = {"run": f"run of {name}", "standbys": self.standbys, **more}
            self.apply(Heartbeat(site="plain", instance=name, **given))

    def change(self, name: str, **changes: Any) -> None:
        """Let an instance report the same as before, with changes."""
        self.apply(msgspec.structs.replace(self.state.members[name].heartbeat, **changes))

    def next(self, *silent: str) -> Assignment | None:
        return next_assignment(self.state, self.units, "a", silent)

    def settle(self, *silent: str) -> list[str]:
        """Accept assignments, and let everybody follow them, until nothing changes. Return the reasons."""
        return [self.state.reason for _ in self.follow(*silent)]

    def follow(self, *silent: str) -> Iterator[list[str]]:
        """Accept assignments, and let everybody follow them, until nothing changes. Yield the owners of each."""
        for count in itertools.count():
            following = self.next(*silent)
            if following is None and not self._warm_up():
                return
            assert count < 100
            if following is None:
                continue
            assert self.apply(following)
            for name in list(self.state.live):
                one = self.state.live[name]
                followed = self._followed(name)
                kept = ("run", "host", "capacity", "leaving", "mixed", "failed", "standbys")
                more = {what: getattr(one, what) for what in kept}
                serves = [unit for unit in self.owned(name) if unit not in one.failed]
                self.beat(name, serves=serves, warm=followed, **more)
            yield self.owners

    def _warm_up(self) -> bool:
        """Let standbys build what they are to keep warm. Return whether any had not done so yet."""
        cold = [name for name, one in self.state.live.items() if sorted(one.warm) != self._followed(name)]
        for name in cold:
            self.change(name, warm=self._followed(name))
        return bool(cold)

    def _followed(self, name: str) -> list[int]:
        return [unit for unit, given in enumerate(self.state.units) if name in given.standbys]

    @property
    def owners(self) -> list[str]:
        return [one.owner for one in self.state.units]

    def owned(self, name: str) -> list[int]:
        return [unit for unit, one in enumerate(self.state.units) if one.owner == name]
