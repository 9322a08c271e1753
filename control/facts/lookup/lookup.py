"""What is read from Kafka on request, for one application: its keys, the last records of a thing, its replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from control.facts.lookup.keys import Keys, KeysRead, Selection, read_keys
from control.facts.lookup.one_at_a_time import OneAtATime
from control.facts.lookup.records import Frontiers, Subject, ThingRecords, read_records
from control.facts.lookup.replicas import ReplicasRead, read_replicas

if TYPE_CHECKING:
    from joiner.operators import JoinSettings
    from joiner.runtime.clock import Clock
    from joiner.runtime.settings import JoinerSettings


class Lookup:
    """Runs one reading at a time, in a thread, and keeps the results for a few seconds. Thread-safe."""

    def __init__(self, settings: JoinerSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._readings = OneAtATime(settings.application.name, clock)

    async def keys(self, wanted: Selection, limit: int) -> Keys:
        """Return the first ``limit`` of the wanted keys. Raises `Unavailable` if they cannot be read now."""
        unit, thing = wanted.unit, wanted.thing
        for key in ((None, ""), (unit, ""), (unit, thing)):
            known: KeysRead | None = self._readings.kept(("keys", *key))
            if known is not None and (found := known.select(wanted, limit)) is not None:
                return found
        units = range(self._settings.topics.partitions) if unit is None else (unit,)
        read = await self._readings.result(
            ("keys", unit, thing), lambda deadline: read_keys(self._settings, self._clock, units, thing, deadline)
        )
        return read.of_operator(wanted.operator, limit)

    async def records(self, join: JoinSettings, thing: str, limit: int) -> ThingRecords:
        """Return at most ``limit`` of a thing's records from each side of a join, and their pairs.

        Raises `Unavailable` if they cannot be read now.
        """
        subject = Subject(self._settings, join, thing)
        # The keys may no longer be kept once the records have been read.
        frontiers = self._frontiers(subject)
        found = await self._readings.result(
            ("records", join.name, thing, limit),
            lambda deadline: read_records(subject, self._clock, limit, deadline),
        )
        return msgspec.structs.replace(found, frontiers=self._frontiers(subject) or frontiers)

    async def replicas(self) -> ReplicasRead:
        """Return which replica was first to write the last results. Raises `Unavailable` if that cannot be read now."""
        return await self._readings.result(
            ("replicas",), lambda deadline: read_replicas(self._settings, self._clock, deadline)
        )

    def stop(self) -> None:
        """Make the reading in progress end soon."""
        self._readings.stop()

    def join(self, wait_s: float) -> None:
        """Wait up to ``wait_s`` seconds for the reading in progress to end."""
        self._readings.join(wait_s)

    def _frontiers(self, subject: Subject) -> Frontiers | None:
        """Return a thing's frontiers if the keys of its unit were read recently."""
        for unit in (None, subject.unit):
            known: KeysRead | None = self._readings.kept(("keys", unit, ""))
            if known is None:
                continue
            as_of = next((one.as_of for one in known.units if one.unit == subject.unit), None)
            for key in known.keys:
                if (key.operator, key.thing) == (subject.join.name, subject.thing) and as_of is not None:
                    left, right = (key.streams[side].frontier_ns for side in ("left", "right"))
                    return Frontiers(left, right, as_of)
        return None
