"""The target of the writes, as it is named in the metadata of committed offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from db_connector.kafka.dead_letters import SOURCE
from db_connector.points import FORM

if TYPE_CHECKING:
    from db_connector.settings import DbConnectorSettings


def target_of(settings: DbConnectorSettings) -> str:
    """The target, as the metadata of each committed offset names it.

    Without the address, as one database may be reached under several. With the form of the points, as points of another
    form, written by another release, are not those of this release.
    """
    own, influxdb = settings.db_connector, settings.influxdb
    return f"{SOURCE}: {own.measurement} in {influxdb.org}/{influxdb.bucket}, points of form {FORM}"


def origin_of(metadata: str | None) -> str:
    """Where an offset comes from, as text for a log line."""
    if metadata and metadata.startswith(f"{SOURCE}: "):
        return f"was committed by {metadata} (if that one still writes, give one of the two another group)"
    return "was set by hand, by another tool or by an earlier release"
