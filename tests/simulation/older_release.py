"""Processes of the release before the control topic assigned units: they know the consumer group alone."""

from __future__ import annotations

from typing import ClassVar, Final

from joiner.runtime.membership.consumer_group import GroupMembership
from joiner.runtime.membership.site import Host, SiteMembership
from joiner.runtime.membership.state import SiteState
from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.ownership.services import Services
from joiner.runtime.settings import JoinerSettings


class OlderMembership(GroupMembership):
    """Takes the place of `SiteMembership` in a process of the older release."""

    client_id: ClassVar[str] = "rdkafka"
    follow: Final = frozenset[int]()
    hold: Final = frozenset[int]()
    has_heirs: Final = False
    is_current: Final = True
    has_news: Final = False

    def __init__(self, settings: JoinerSettings, claimant: Claimant, host: Host, services: Services) -> None:
        super().__init__(settings, claimant.site, host.give_back, services.clock)
        # It does not read what the instances of the newer release agree on.
        self.state = SiteState(claimant.site)

    def wake(self) -> None:
        """Nothing: the next poll comes soon enough."""

    def leave(self) -> None:
        """Nothing: the group learns of it when the membership is closed."""


def membership_of(
    older: set[str], settings: JoinerSettings, claimant: Claimant, host: Host, services: Services
) -> SiteMembership | OlderMembership:
    """Return the membership of a process. ``older``: the instances that run the older release."""
    kind = OlderMembership if claimant.instance in older else SiteMembership
    return kind(settings, claimant, host, services)
