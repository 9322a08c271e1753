"""What the driver asks of a worker, and what it gets back: one small row for a unit and batch each way.

The records themselves do not travel through Spark on their way in. Kafka has co-partitioned them by unit already, which
is all that a shuffle could do; so what is shuffled are ranges, and whoever gets a range reads it from Kafka.
"""

from __future__ import annotations

import msgspec

from joiner.run.pausing import Lead
from joiner.run.progress import JoinProgress


class Plan(msgspec.Struct, frozen=True):
    """A range of a unit's input: from the vector ``begin`` up to ``end``, both by topic.

    ``claim`` numbers the claims of the driver, so that it can tell what was planned before it lost a unit and took it
    again. ``snapshot``: the state at the end is wanted. ``begin`` equal to ``end`` builds the state and joins nothing.
    """

    unit: int
    claim: int
    begin: dict[str, int]
    end: dict[str, int]
    snapshot: bool = False


class Outcome(msgspec.Struct):
    """What became of a plan: messages to be written by topic (keys, values), and what the unit is like at its end.

    ``stopped``: the unit cannot go on, for this reason. ``failed``: not now, the plan may be tried again. In both
    cases nothing else is there, and the unit's state is that before the plan.
    """

    plan: Plan
    messages: dict[str, tuple[list[bytes | None], list[bytes | None]]] = msgspec.field(default_factory=dict)
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    joins: dict[str, JoinProgress] = msgspec.field(default_factory=dict)
    leads: list[Lead] = msgspec.field(default_factory=list)
    records: int = 0
    pairs: int = 0
    held: int = 0
    snapshot: bytes | None = None
    spent_s: dict[str, float] = msgspec.field(default_factory=dict)
    stopped: str = ""
    failed: str = ""


class Turn(msgspec.Struct, frozen=True):
    """An offset of the source: the number of the batch that ends at it, and the plans of that batch."""

    number: int = 0
    plans: list[Plan] = msgspec.field(default_factory=list)


_outcome = msgspec.msgpack.Decoder(Outcome)
_plan = msgspec.msgpack.Decoder(Plan)


def encode(content: Plan | Outcome) -> bytes:
    """The bytes that travel through Spark."""
    return msgspec.msgpack.encode(content)


def decode_plan(data: bytes) -> Plan:
    """Inverse of `encode`."""
    return _plan.decode(data)


def decode_outcome(data: bytes) -> Outcome:
    """Inverse of `encode`."""
    return _outcome.decode(data)
