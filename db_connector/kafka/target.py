"""Names the target of the writes. The name is committed as metadata with each offset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from db_connector.kafka.dead_letters import SOURCE
from db_connector.points import FORM

if TYPE_CHECKING:
    from db_connector.settings import DbConnectorSettings


def target_of(settings: DbConnectorSettings) -> str:
    """Return the name of the target, which is committed as metadata with each offset.

    It excludes the address, because one database may be reachable at several. It includes the point format, because
    points in another format, written by another release, do not replace those of this release.
    """
    own, influxdb = settings.db_connector, settings.influxdb
    return f"{SOURCE}: {own.measurement} in {influxdb.org}/{influxdb.bucket}, points of form {FORM}"


def origin_of(metadata: str | None) -> str:
    """Return where an offset comes from, as text for a log line."""
    if metadata and metadata.startswith(f"{SOURCE}: "):
        return f"was committed by {metadata} (if that process is still writing, give one of the two another group)"
    return "was set by hand, by another tool or by an earlier release"
