"""What the instances of an application do, as a test on real servers sees it."""

from __future__ import annotations

from collections import Counter

from confluent_kafka import KafkaException

from joiner.cli.status import current_status
from joiner.runtime.membership.status.summary import AssignmentStatus
from tests.integration.joiner_application import PARTITIONS, Application


def assignment(app: Application) -> AssignmentStatus | None:
    """Return the last assignment of the site as `joiner status` shows it, if it is known."""
    try:
        status = current_status(app.settings())
    except KafkaException:
        return None  # a topic is being created
    return None if status is None else status.assignments.get("process")


def owners(app: Application) -> list[str]:
    """Return the owner of each unit, by the last assignment."""
    return [] if (found := assignment(app)) is None else found.owners


def warm(app: Application) -> int:
    """Return how many standbys are warm."""
    return 0 if (found := assignment(app)) is None else sum(map(len, found.warm))


def are_shared(app: Application, *instances: str) -> bool:
    """Return whether the assignment is even, and followed."""
    counts = Counter(owners(app))
    is_even = counts.keys() == set(instances) and max(counts.values()) - min(counts.values()) <= 1
    return is_even and commits_of(app) == set(instances)


def commits_of(app: Application) -> set[str]:
    """Return the owners of all units, or nothing as long as a unit has never been claimed."""
    found = app.checkpoints()
    return {one.instance for one in found.values()} if len(found) == PARTITIONS else set()
