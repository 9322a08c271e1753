"""Remembers which ids were delivered, until no replica can write them any more (see `protocol`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

from joiner.library.merging.vectors import Vector, highest, reached


class Batch:
    """Ids with the same tag.

    ``ids`` may contain ids that belong to another batch by now; ``count`` is the number of those that do not.
    """

    __slots__ = ("closed", "count", "end", "ids", "owner", "serial", "tag")

    def __init__(self, owner: int, serial: int) -> None:
        self.owner, self.serial = owner, serial
        """The replica, and a serial that is at most that of the first id."""
        self.end = serial
        """For an orphan, a serial that is higher than that of the last id."""
        self.ids: list[Hashable] = []
        self.count = 0
        self.tag: Vector | None = None
        """A vector up to which the ids were emitted. None while the transaction that wrote them has not ended."""
        self.closed = 0
        """The number of the batch among those with a tag, in the order in which they got it."""


class Remembered:
    """The ids that were delivered, in batches with a tag each.

    An id without a tag belongs to the replica that wrote it first, but gets the tag of whichever replica that has
    written it ends its transaction first. So it does not matter if one of them stops. ``top`` is at least every tag.
    """

    def __init__(self, replicas: int) -> None:
        self._batch_of: dict[Hashable, Batch] = {}
        self._open = [Batch(number, 0) for number in range(replicas)]
        """Per replica, the ids of its current transaction."""
        self._closed: list[deque[Batch]] = [deque() for _ in range(replicas)]
        self._orphans: list[Batch] = []
        """Ids without a tag, of replicas that went back. They get that of the next replica that writes them."""
        self._closings = 0
        self.top: Vector = {}

    def __len__(self) -> int:
        return len(self._batch_of)

    def add(self, replica: int, identity: Hashable) -> None:
        """Remember an id that a replica has written."""
        self._add(self._open[replica], identity)

    def find(self, replica: int, identity: Hashable) -> bool:
        """Return whether an id is remembered that a replica has written, and note that this replica has."""
        batch = self._batch_of.get(identity)
        if batch is None:
            return False
        if batch.tag is None and batch is not self._open[replica]:
            self._open[replica].ids.append(identity)
        return True

    def end_transaction(self, replica: int, tag: Vector, serial: int) -> None:
        """Give the ids of a replica's current transaction their tag, and begin the next one."""
        batch, self._open[replica] = self._open[replica], Batch(replica, serial)
        batch.tag = dict(tag)
        self.top = highest(self.top, tag)
        for identity in batch.ids:
            there = self._batch_of.get(identity)
            if there is not None and there is not batch and there.tag is None:
                there.count -= 1
                batch.count += 1
                batch.serial = min(batch.serial, there.serial)
                self._batch_of[identity] = batch
        self._orphans = [orphan for orphan in self._orphans if orphan.count]
        self._append(batch)

    def abandon_transaction(self, replica: int, serial: int) -> None:
        """Begin another transaction of a replica, although it is not known where the current one ended."""
        batch, self._open[replica] = self._open[replica], Batch(replica, serial)
        if batch.count:
            batch.end = serial
            self._orphans.append(batch)

    def forget_transaction(self, replica: int) -> None:
        """Forget the ids of a replica's current transaction."""
        batch = self._open[replica]
        self._open[replica] = Batch(replica, batch.serial)
        self._remove(batch)

    def forget(self, until: Vector, left: int = 0) -> Vector:
        """Forget ids whose tags ``until`` has reached, the oldest first, while more than ``left`` are remembered.

        Return the highest of these tags.
        """
        found: Vector = {}
        while len(self) > left:
            # The tags of a replica do not decrease. If it has gone back, some are forgotten later than they could be.
            firsts = [closed[0] for closed in self._closed if closed and reached(until, closed[0].tag or {})]
            if not firsts:
                break
            batch = min(firsts, key=lambda one: one.closed)
            self._closed[batch.owner].popleft()
            self._remove(batch)
            found = highest(found, batch.tag or {})
        return found

    def count_until(self, until: Vector) -> int:
        """Return how many ids `forget` would forget."""
        count = 0
        for closed in self._closed:
            for batch in closed:
                if not reached(until, batch.tag or {}):
                    break
                count += batch.count
        return count

    def oldest_serial(self) -> int | None:
        """Return a serial that is at most that of the oldest id, or None if there is none."""
        batches = [*self._open, *self._orphans, *(closed[0] for closed in self._closed if closed)]
        return min((batch.serial for batch in batches if batch.count), default=None)

    def _add(self, batch: Batch, identity: Hashable) -> None:
        self._batch_of[identity] = batch
        batch.ids.append(identity)
        batch.count += 1

    def _append(self, batch: Batch) -> None:
        if not batch.count:
            return
        closed = self._closed[batch.owner]
        self._closings += 1
        batch.closed = self._closings
        for earlier in reversed(closed):
            if earlier.serial <= batch.serial:
                break
            # So that the first batch has the smallest serial.
            earlier.serial = batch.serial
        closed.append(batch)

    def _remove(self, batch: Batch) -> None:
        for identity in batch.ids:
            if self._batch_of.get(identity) is batch:
                del self._batch_of[identity]

    # The rest saves and restores.

    def summary(self) -> dict[str, Any]:
        """Return what `recall` needs in addition to the ids."""
        return {
            "top": dict(self.top),
            "open": [batch.serial for batch in self._open],
            "orphans": [[batch.owner, batch.serial, batch.end] for batch in self._orphans if batch.count],
        }

    def batches(self) -> list[list[Any]]:
        """Return all batches in order: owner, serial, end, tag or None, whether it is an orphan, and ids."""
        return [
            [batch.owner, batch.serial, batch.end, batch.tag and dict(batch.tag), is_orphan, ids]
            for batch, is_orphan in self._all()
            if (ids := [identity for identity in batch.ids if self._batch_of.get(identity) is batch])
        ]

    def _all(self) -> Iterator[tuple[Batch, bool]]:
        tagged = sorted((batch for closed in self._closed for batch in closed), key=lambda batch: batch.closed)
        yield from ((batch, False) for batch in tagged)
        yield from ((batch, False) for batch in self._open)
        yield from ((batch, True) for batch in self._orphans)

    def restore(self, summary: Mapping[str, Any], batches: Iterable[list[Any]]) -> None:
        """Continue from what `summary` and `batches` returned. The replicas may be fewer or more than then."""
        self.top = dict(summary["top"])
        for number, serial in enumerate(summary["open"][: len(self._open)]):
            self._open[number] = Batch(number, serial)
        for owner, serial, end, tag, is_orphan, ids in batches:
            batch = self._placed(owner, serial, end, tag, is_orphan=is_orphan)
            for identity in ids:
                self._add(batch, identity)
            if tag is not None:
                self._append(batch)

    def recall(self, summary: Mapping[str, Any], delivered: Iterable[tuple[int, int, Hashable]]) -> None:
        """Remember the ids that were delivered: the serial of each, the replica, and the id.

        The tags of the ids are not known any more, so they all get ``top``.
        """
        opened = summary["open"]
        ranges = [
            (owner, serial, end, self._placed(owner, serial, end, None, is_orphan=True))
            for owner, serial, end in summary["orphans"]
        ]
        tagged: dict[int, Batch] = {}
        for serial, owner, identity in delivered:
            if identity in self._batch_of:
                continue
            lost = [batch for of, low, end, batch in ranges if of == owner and low <= serial < end]
            if lost:
                batch = lost[-1]
            elif owner < len(opened) and serial < opened[owner]:
                batch = tagged.setdefault(owner, self._placed(owner, serial, serial, self.top, is_orphan=False))
            else:
                batch = self._placed(owner, serial, serial, None, is_orphan=False)
            self._add(batch, identity)
        for batch in tagged.values():
            self._append(batch)

    def _placed(self, owner: int, serial: int, end: int, tag: Vector | None, *, is_orphan: bool) -> Batch:
        """Return the batch for restored ids: a new one, or that of the replica's current transaction."""
        exists = owner < len(self._open)
        if exists and tag is None and not is_orphan:
            return self._open[owner]
        batch = Batch(owner if exists else 0, serial)
        batch.tag, batch.end = tag, end
        if tag is None:
            self._orphans.append(batch)
        return batch
