"""Determines whether a unit's owner is running, from its checkpoint, the consumer groups and the control topic.

Each instance is a member of its site's consumer group. If an instance ends, its group notices within a session timeout.
An instance's heartbeats list the units that it serves. Instances of an older release serve what the group assigns them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from broker.kafka.groups import ListedMember, read_group
from joiner.runtime.kafka.clients import TIMEOUT_S, describe, in_background
from joiner.runtime.membership.consumer_group import CLIENT_ID
from joiner.runtime.membership.state import SiteState
from joiner.runtime.model import RESET_RUN, Checkpoint
from joiner.runtime.settings import JoinerSettings

RUNNING: Final = "running"
STOPPED: Final = "stopped"
GONE: Final = "gone"
REBALANCING: Final = "rebalancing"
NOBODY: Final = "nobody"
UNKNOWN: Final = "not known"

_log = logging.getLogger(__name__)

Members = Mapping[str, Mapping[str, frozenset[int]]]
"""For each site, the members of its group by instance name, each with the units that it serves."""


def read_members(
    admin: AdminClient,
    settings: JoinerSettings,
    sites: Iterable[str],
    states: Mapping[str, SiteState],
    timeout_s: float = TIMEOUT_S,
    report: Callable[[str], None] | None = None,
) -> Members:
    """Return the current members of each site's consumer group.

    ``states``: each site's state according to the control topic. If a group's members cannot be read, its site is
    omitted and the error is reported, to the log unless ``report`` is given.
    """
    asked = {}
    for site in sites:
        read = partial(read_group, admin, settings.kafka, settings.membership_group(site), timeout_s)
        # In the background, because no signal would interrupt the call.
        asked[site] = in_background("group members", read)
    found: dict[str, dict[str, frozenset[int]]] = {}
    for site, answer in asked.items():
        try:
            members = answer.result()
        except KafkaException as error:
            group = settings.membership_group(site)
            (report or _log.warning)(f"the members of group {group!r} cannot be read: {describe(error)}")
            continue
        found[site] = {member.name: _served(member, states.get(site)) for member in members}
    return found


def _served(member: ListedMember, state: SiteState | None) -> frozenset[int]:
    known = None if state is None else state.members.get(member.name)
    if member.client_id == CLIENT_ID and known is not None:
        return frozenset(known.heartbeat.serves)
    return frozenset(place.partition for place in member.assigned)


def state_of(checkpoint: Checkpoint, members: Members) -> str:
    """Return the state of a unit's owner.

    It is one of the constants above, or ``given to <instance>`` if the group has assigned the unit to another process.
    """
    if checkpoint.run == RESET_RUN or checkpoint.on_the_way is not None:
        return NOBODY
    if checkpoint.stopped:
        return STOPPED
    there = members.get(checkpoint.site)
    if there is None:
        return UNKNOWN
    if checkpoint.unit in there.get(checkpoint.instance, ()):
        return RUNNING
    others = sorted(name for name, units in there.items() if checkpoint.unit in units)
    if others:
        # The other process has not committed anything yet, or has not claimed the unit. Its log says why.
        return f"given to {others[0]}"
    return REBALANCING if checkpoint.instance in there else GONE
