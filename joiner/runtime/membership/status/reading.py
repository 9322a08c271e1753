"""Reads the status of an application from its checkpoints, the control topic and the consumer groups.

The lag is the number of records between the consumed offsets and the current ends of the input logs. Whether a unit's
owner is still running is shown where this can be determined (see `membership.presence`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from broker.kafka.topics import topic_facts
from joiner.runtime.kafka.checkpoint_log import AppendedCheckpoint, read_appended
from joiner.runtime.membership.observer import read_sites
from joiner.runtime.membership.presence import Members, read_members
from joiner.runtime.membership.state import SiteState
from joiner.runtime.membership.status.merging import read_merging
from joiner.runtime.membership.status.replicas import lag_of, read_replicas
from joiner.runtime.membership.status.summary import AssignmentStatus, Status, UnitSummary
from joiner.runtime.ownership.unit_reports import read_notices
from joiner.runtime.repartition.status import read_repartition

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from joiner.runtime.kafka.readers import Readers
    from joiner.runtime.settings import JoinerSettings


def read_status(admin: AdminClient, readers: Readers) -> Status:
    """Return the status of an application that has run before, read with the given Kafka clients.

    Raises KafkaException if a request to Kafka fails, and `UnitStopped` if a checkpoint is damaged.
    """
    settings, clock = readers.settings, readers.clock
    found = [read_appended(readers, unit) for unit in range(settings.topics.partitions)]
    has_control = settings.control_topic in topic_facts(admin, [settings.control_topic])
    states = read_sites(settings, clock) if has_control else {}
    members = read_members(admin, settings, sites_of(settings, found, states), states)
    lags = [0 if one is None else lag_of(readers.log, one.checkpoint) for one in found]
    notices = read_notices(settings, clock) if has_control else []
    status = compose_status(settings, found, lags, members, states, notices, clock.wall_s())
    return msgspec.structs.replace(
        status,
        repartition=read_repartition(admin, settings),
        replicas=read_replicas(admin, settings, clock),
        merging=read_merging(admin, settings, clock),
    )


def sites_of(
    settings: JoinerSettings, found: Iterable[AppendedCheckpoint | None], states: Mapping[str, SiteState]
) -> list[str]:
    """Return the sites that own units, those whose instances have been heard from, and the site in the settings."""
    own = {one.checkpoint.site for one in found if one is not None}
    return sorted({*own, *(site for site, state in states.items() if state.live), settings.application.site})


def compose_status(
    settings: JoinerSettings,
    found: Sequence[AppendedCheckpoint | None],
    lags: Sequence[int | None],
    members: Members,
    states: Mapping[str, SiteState],
    notices: list[str],
    now_s: float,
) -> Status:
    """Build the status from these facts. ``found`` and ``lags``: by unit. ``now_s``: seconds since the epoch."""
    return Status(
        settings.application.name,
        datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds"),
        settings.fingerprint(),
        {site: {name: sorted(mine) for name, mine in sorted(there.items())} for site, there in members.items()},
        [
            None if one is None else UnitSummary.of(one, members, lag, now_s)
            for one, lag in zip(found, lags, strict=True)
        ],
        notices,
        {site: AssignmentStatus.of(state) for site, state in sorted(states.items()) if state.epoch},
    )
