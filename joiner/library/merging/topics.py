"""The names of the replicas' topics and of their union."""

from __future__ import annotations


def replica_name(name: str, replica: int) -> str:
    """Return the name of a replica's output topic, or of the application as which it runs.

    Replica 0 has the name of the application itself.
    """
    return f"{name}.r{replica}" if replica else name


def merged_topic(topic: str) -> str:
    """Return the name of the topic that gets the union of the replicas' outputs."""
    return f"{topic}.merged"
