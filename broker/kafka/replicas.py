"""The names of an application's replicas and of their topics, and of what merges their outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

REPLICAS_MAX: Final = 3
"""The maximum number of replicas. If each can survive the loss of another, three survive the loss of any two."""

REPLICA_VARIABLE: Final = "LSB_REPLICA"
"""The environment variable with the number of the replica, for containers whose command is fixed."""


REPLICA_HEADER: Final = "lsb-replica"
"""The header of a merged message with the number of the replica that was first."""


def replica_name(name: str, replica: int) -> str:
    """Return the name of a replica's output topic, or of the application as which it runs.

    Replica 0 has the name of the application itself.
    """
    return f"{name}.r{replica}" if replica else name


def shared_name(name: str, replica: int) -> str:
    """Return the name of which `replica_name` has made this one: that of the application or of its output topic."""
    return name.removesuffix(replica_name("", replica))


def merged_topic(topic: str) -> str:
    """Return the name of the topic with the union of the replicas' outputs in ``topic``."""
    return f"{topic}.merged"


def merging_group(application: str) -> str:
    """Return the consumer group of the processes that merge. No application or site can have this name.

    ``application``: the name of replica 0.
    """
    return f"{application}/merge"


def merging_state_topic(application: str) -> str:
    """Return the topic that says how far the replicas of an application were merged."""
    return f"{application}.merged.state"


def replica_of(headers: object) -> int | None:
    """Return the number of the replica from which a message was merged, or None if its headers do not say that."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    found = dict(pairs if isinstance(pairs, Iterable) else ()).get(REPLICA_HEADER)
    return int(found) if isinstance(found, bytes) and len(found) == 1 and found.isdigit() else None
