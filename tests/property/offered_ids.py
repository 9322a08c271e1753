"""Offers ids to a union of replicas, numbers what it delivers, and restarts it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from joiner.library.merging.protocol import ReplicaUnion
from joiner.library.merging.vectors import Vector

DELIVERED: Final[WeakKeyDictionary[ReplicaUnion, list[tuple[int, int, Any]]]] = WeakKeyDictionary()
"""What was delivered by each union: the serial, the replica and the id."""


def verdicts(union: ReplicaUnion, replica: int, *identities: Any) -> list[str]:
    """Offer ids that a replica has written."""
    delivered = DELIVERED.setdefault(union, [])
    found: list[str] = []
    for identity in identities:
        found.append(union.on_result(replica, identity, len(delivered)).value)
        if found[-1] == "deliver":
            delivered.append((len(delivered), replica, identity))
    return found


def restored(union: ReplicaUnion, replicas: int = 2, limit: int = 100, ends: Vector | None = None) -> ReplicaUnion:
    """Return a union that continues from a summary, and has not recalled any ids."""
    again = ReplicaUnion(replicas, limit)
    again.restore(through_json(union.summary()), lambda: ends or {})
    DELIVERED[again] = list(DELIVERED[union])
    return again


def restarted(
    union: ReplicaUnion,
    replicas: int = 2,
    limit: int = 100,
    ends: Vector | None = None,
    written: Sequence[tuple[int, Any]] = (),
) -> ReplicaUnion:
    """Return a union that continues from a summary and what was delivered."""
    again = restored(union, replicas, limit, ends)
    again.recall(through_json(union.summary()), DELIVERED[union], written, lambda: ends or {})
    return again


def through_json(summary: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(summary)))
