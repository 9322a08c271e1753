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

    __slots__ = ("closed", "count", "ids", "owner", "serial", "tag")

    def __init__(self, owner: int, serial: int) -> None:
        self.owner, self.serial = owner, serial
        """The replica, and a serial that is at most that of the first id."""
        self.ids: list[Hashable] = []
        self.count = 0
        self.tag: Vector | None = None
        """A vector up to which the ids were emitted. None while the transaction that wrote them has not ended."""
        self.closed = 0
        """The number of the batch among those with a tag, in the order in which they got it."""


class Remembered:
    """The ids that were delivered, in batches with a tag each.

    An id without a tag belongs to the replica that wrote it first, but gets the tag of whichever replica that has
    written it ends its transaction first. So it does not matter if one of them stops. To that end, it is noted in the
    current transaction of each other replica that has written it. ``top`` is at least every tag.
    """

    def __init__(self, replicas: int) -> None:
        self._batch_of: dict[Hashable, Batch] = {}
        self._open = [Batch(number, 0) for number in range(replicas)]
        """Per replica, the ids of its current transaction."""
        self._closed: list[deque[Batch]] = [deque() for _ in range(replicas)]
        """Per replica, in the order of their tags."""
        self._apart: list[Batch] = []
        """Batches with a tag that may be higher than those of later ones, so that these must not wait for them."""
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

    def discard(self, identity: Hashable) -> None:
        """Forget an id that is remembered."""
        batch = self._batch_of.pop(identity)
        batch.count -= 1
        if not batch.count and batch.tag is not None:
            self._take_out(batch)

    def end_transaction(self, replica: int, tag: Vector, serial: int) -> None:
        """Give the ids of a replica's current transaction their tag, and begin the next one."""
        batch = self._end(replica, tag, serial)
        if batch.count:
            self._append(batch)

    def abandon_transaction(self, replica: int, ends: Vector, serial: int) -> None:
        """Begin another transaction of a replica, although it is not known where the current one ended.

        ``ends``: the ends of the input now, which are beyond that.
        """
        batch = self._end(replica, ends, serial)
        if batch.count:
            self._set_apart(batch)

    def forget_transaction(self, replica: int) -> None:
        """Forget the ids of a replica's current transaction, but not those that others have written first."""
        batch = self._open[replica]
        self._remove(batch)
        self._open[replica] = Batch(replica, batch.serial)
        self._open[replica].ids = [identity for identity in batch.ids if identity in self._batch_of]

    def discard_transaction(self, replica: int) -> None:
        """Forget all ids that a replica has written in its current transaction."""
        batch, self._open[replica] = self._open[replica], Batch(replica, self._open[replica].serial)
        for identity in batch.ids:
            if identity in self._batch_of:
                self.discard(identity)

    def forget(self, until: Vector, left: int = 0) -> Vector:
        """Forget ids whose tags ``until`` has reached, the oldest first, while more than ``left`` are remembered.

        Return the highest of these tags.
        """
        found: Vector = {}
        while len(self) > left:
            # If a replica has gone back, its tags may decrease. Then some are forgotten later than they could be.
            firsts = [one for one in self._firsts() if reached(until, one.tag or {})]
            if not firsts:
                break
            batch = min(firsts, key=lambda one: one.closed)
            self._take_out(batch)
            self._remove(batch)
            found = highest(found, batch.tag or {})
        return found

    def count_until(self, until: Vector) -> int:
        """Return how many ids `forget` would forget."""
        count = sum(batch.count for batch in self._apart if reached(until, batch.tag or {}))
        for closed in self._closed:
            for batch in closed:
                if not reached(until, batch.tag or {}):
                    break
                count += batch.count
        return count

    def oldest_serial(self) -> int | None:
        """Return a serial that is at most that of the oldest id, or None if there is none."""
        batches = [*self._open, *self._firsts()]
        return min((batch.serial for batch in batches if batch.count), default=None)

    def _firsts(self) -> list[Batch]:
        """Return the batches with a tag that do not have to wait for another one of their replica."""
        return [*self._apart, *(closed[0] for closed in self._closed if closed)]

    def _add(self, batch: Batch, identity: Hashable) -> None:
        self._batch_of[identity] = batch
        batch.ids.append(identity)
        batch.count += 1

    def _end(self, replica: int, tag: Vector, serial: int) -> Batch:
        """Return the replica's current transaction with a tag and all ids that get it, and begin the next one."""
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
        return batch

    def _append(self, batch: Batch) -> None:
        closed = self._closed[batch.owner]
        self._closings += 1
        batch.closed = self._closings
        for earlier in reversed(closed):
            if earlier.serial <= batch.serial:
                break
            # So that the first batch has the smallest serial.
            earlier.serial = batch.serial
        closed.append(batch)

    def _set_apart(self, batch: Batch) -> None:
        self._closings += 1
        batch.closed = self._closings
        self._apart.append(batch)

    def _take_out(self, batch: Batch) -> None:
        """Take a batch with a tag out of the list in which it is."""
        (self._apart if batch in self._apart else self._closed[batch.owner]).remove(batch)

    def _remove(self, batch: Batch) -> None:
        for identity in batch.ids:
            if self._batch_of.get(identity) is batch:
                del self._batch_of[identity]

    # The rest saves and restores.

    def summary(self) -> dict[str, Any]:
        """Return what `recall` needs in addition to the ids."""
        return {"top": dict(self.top), "open": [[batch.serial, batch.count] for batch in self._open]}

    def batches(self) -> list[list[Any]]:
        """Return all batches in order: owner, serial, tag or None, whether it is apart, and ids."""
        return [
            [batch.owner, batch.serial, batch.tag and dict(batch.tag), batch in self._apart, ids]
            for batch in self._all()
            if (ids := [identity for identity in batch.ids if self._batch_of.get(identity) is batch])
        ]

    def notes(self) -> list[list[Hashable]]:
        """Return the ids that each replica has written in its current transaction, but others have before."""
        return [[identity for identity in batch.ids if self._is_note(batch, identity)] for batch in self._open]

    def _is_note(self, batch: Batch, identity: Hashable) -> bool:
        there = self._batch_of.get(identity)
        return there is not None and there is not batch and there.tag is None

    def _all(self) -> Iterator[Batch]:
        tagged = [*self._apart, *(batch for closed in self._closed for batch in closed)]
        yield from sorted(tagged, key=lambda batch: batch.closed)
        yield from self._open

    def restore(
        self, summary: Mapping[str, Any], batches: Iterable[list[Any]], notes: Iterable[list[Any]], ends: Vector
    ) -> None:
        """Continue from what `summary`, `batches` and `notes` returned. The replicas may be fewer or more than then.

        ``ends``: the ends of the input now, if there are fewer. The ids of the others without a tag get ``top``, which
        is at least that.
        """
        self.top = highest(summary["top"], ends)
        for open_batch, (serial, _) in zip(self._open, summary["open"], strict=False):
            open_batch.serial = serial
        for owner, serial, tag, is_apart, ids in batches:
            exists = owner < len(self._open)
            batch = self._open[owner] if exists and tag is None else Batch(owner if exists else 0, serial)
            for identity in ids:
                self._add(batch, identity)
            if exists and tag is None:
                continue
            batch.tag = self.top if tag is None else tag
            if is_apart or not exists:
                self._set_apart(batch)
            else:
                self._append(batch)
        for number, noted in zip(range(len(self._open)), notes, strict=False):
            self._open[number].ids += noted

    def untagged_owners(self, summary: Mapping[str, Any], before: int) -> set[int]:
        """Return the replicas of which an id with a lower serial than ``before`` may have had no tag."""
        opened = enumerate(summary["open"][: len(self._open)])
        return {number for number, (serial, count) in opened if count and serial < before}

    def recall(self, summary: Mapping[str, Any], delivered: Iterable[tuple[int, int, Hashable]]) -> None:
        """Remember the ids that were delivered: the serial of each, the replica, and the id.

        Their tags are not known any more. Those that may have one get ``top``. Those of the replicas' current
        transactions have none, unless another replica has written them before the end of one of its own.
        """
        opened = [serial for serial, _ in summary["open"]]
        tagged: dict[int, Batch] = {}
        for serial, owner, identity in delivered:
            if identity in self._batch_of:
                continue
            if owner < min(len(opened), len(self._open)) and serial >= opened[owner]:
                batch = self._open[owner]
            else:
                batch = tagged.setdefault(owner, Batch(min(owner, len(self._open) - 1), serial))
                batch.tag = self.top
            self._add(batch, identity)
        for batch in tagged.values():
            self._set_apart(batch)
