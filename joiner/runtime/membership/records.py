"""The records of the control topic by which the instances of a site agree on an assignment.

Every instance writes heartbeats. Any instance may write an assignment, which is accepted if its epoch is the next one
and none of the instances that it declares gone has been heard since. The topic has one partition, so all readers accept
the same assignments. Old releases skip these records.
"""

from __future__ import annotations

import msgspec

from joiner.runtime.control import FORMAT_VERSION


class _Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag=str.lower):
    format: int = FORMAT_VERSION
    site: str


class Heartbeat(_Record, frozen=True, kw_only=True):
    """Reports that the run ``run`` of an instance is alive, and what it does. Written at once when something changes.

    ``serves``: the units it runs. ``claims``: the units it is claiming. ``warm``: the units whose state it holds at
    their last checkpoint, and which it could claim without a replay. ``failed``: the units that cannot run on it.
    ``capacity``: its share of the units, in relation to the other instances. ``leaving``: it is shutting down.
    """

    instance: str
    run: str
    host: str = ""
    capacity: float = 1.0
    serves: list[int] = []
    claims: list[int] = []
    warm: list[int] = []
    failed: list[int] = []
    leaving: bool = False


class Left(_Record, frozen=True, kw_only=True):
    """The run ``run`` of an instance has stopped and serves no unit."""

    instance: str
    run: str


class UnitAssignment(msgspec.Struct, frozen=True, array_like=True):
    """The owner of a unit, or an empty string if no instance can own it, and its standbys in the order of takeover."""

    owner: str
    standbys: list[str] = []


class Assignment(_Record, frozen=True, kw_only=True):
    """Assigns the units of a site, in the order of their numbers.

    It replaces the assignment of the epoch before. ``gone``: instances that have not been heard of for too long, each
    with the offset of its last heartbeat. ``by``: the instance that wrote it. ``reason``: what has changed, for
    operators.
    """

    epoch: int
    units: list[UnitAssignment]
    gone: dict[str, int] = {}
    by: str = ""
    reason: str = ""


class Drain(_Record, frozen=True, kw_only=True):
    """Orders that an instance be given no units (``drained``), or that it may have units again."""

    instance: str
    drained: bool = True


class Summary(_Record, frozen=True, kw_only=True):
    """States what the records up to the offset ``read`` amount to, so that a new instance need not read all of them.

    ``drained``: the instances that are drained. Heartbeats are not included, because they are repeated.
    """

    read: int
    epoch: int
    units: list[UnitAssignment]
    drained: list[str] = []


Record = Heartbeat | Left | Assignment | Drain | Summary
