"""Watches a site through its control topic, with one client, so that frequent reads do not slow the instances down."""

from __future__ import annotations

from broker.kafka.topics import topic_facts
from joiner.runtime.kafka.clients import make_admin
from joiner.runtime.kafka.member_log import MemberLog
from joiner.runtime.membership.state import SiteState
from joiner.runtime.settings import JoinerSettings


class SiteWatch:
    """The state of a site, as its instances see it."""

    def __init__(self, settings: JoinerSettings, site: str = "process") -> None:
        self._settings = settings
        self._state = SiteState(site)
        self._log: MemberLog | None = None

    def look(self) -> SiteState:
        """Read the new records, and return the state."""
        if self._log is None:
            topic = self._settings.control_topic
            if topic not in topic_facts(make_admin(self._settings.kafka), [topic]):
                return self._state
            self._log = MemberLog(self._settings)
        for logged in self._log.read():
            self._state.apply(logged.record, logged.offset)
        return self._state

    def close(self) -> None:
        """Stop watching."""
        if self._log is not None:
            self._log.close(0.0)


def is_settled(state: SiteState, units: int, wanted: int, standbys: int) -> bool:
    """Return whether ``wanted`` instances serve all ``units`` as assigned, with ``standbys`` warm standbys each."""
    able = {name: beat for name, beat in state.live.items() if name not in state.drained}
    shares = [len(beat.serves) for beat in able.values()]
    return (
        len(able) == wanted
        and len(state.units) == units
        and max(shares) - min(shares) <= 1
        and all(one.owner in able and unit in able[one.owner].serves for unit, one in enumerate(state.units))
        and all(
            len(one.standbys) == standbys and all(name in able and unit in able[name].warm for name in one.standbys)
            for unit, one in enumerate(state.units)
        )
    )
