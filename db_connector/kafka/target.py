"""Names the database that results are written to. The name is committed as metadata with each offset, and checked."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_BEGINNING

from db_connector.kafka.dead_letters import SOURCE

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition

    from db_connector.sinks.sink import Sink

log = logging.getLogger(__name__)


def target_of(sink: Sink) -> str:
    """Return the name that identifies the target in the metadata of committed offsets.

    It excludes the address, because the same database may be reachable at several.
    """
    return f"{SOURCE}: {sink.target}"


def start_of(committed: TopicPartition, target: str, group: str) -> int:
    """Return the offset to start from: the committed one if it was committed for this target, else the beginning.

    Starting at the beginning loses nothing, and in a database, results that are written again replace themselves.
    """
    if committed.offset >= 0 and committed.metadata == target:
        return int(committed.offset)
    if committed.offset >= 0:
        log.warning(
            "%s partition %s: the offset %s of group %s %s, so it is ignored: all results are written again from"
            " the beginning of the log",
            committed.topic,
            committed.partition,
            committed.offset,
            group,
            origin_of(committed.metadata),
        )
    return OFFSET_BEGINNING


def origin_of(metadata: str | None) -> str:
    """Describe, for a log line, where a start offset came from."""
    if metadata and metadata.startswith(f"{SOURCE}: "):
        return f"was committed by {metadata} (if that process is still writing, give one of the two a different group)"
    return "was set by hand, by another tool or by an earlier release"
