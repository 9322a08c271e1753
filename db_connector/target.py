"""What db_connector writes to, as the metadata of the offsets that it commits says it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from db_connector.dead_letters import SOURCE
from db_connector.points import FORM

if TYPE_CHECKING:
    from db_connector.settings import DbConnectorSettings


def target_of(settings: DbConnectorSettings) -> str:
    """What is written to, as the metadata of each committed offset says it.

    Without the address: the same database may be reached under several. With the form of the points: those that a
    release of another form has written are not the ones of this release.
    """
    own, influxdb = settings.db_connector, settings.influxdb
    return f"{SOURCE}: {own.measurement} in {influxdb.org}/{influxdb.bucket}, points of form {FORM}"


def origin_of(metadata: str | None) -> str:
    """Who has set an offset, for people."""
    if metadata and metadata.startswith(f"{SOURCE}: "):
        return f"was committed by {metadata} (where that still writes, give one of the two another group)"
    return "was set by hand, by another tool or by a release before this one"
