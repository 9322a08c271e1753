"""Remembers which ids were delivered, until no replica can write them any more (see `protocol`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import Any, Final

from joiner.library.merging.spans import Span, joined
from joiner.library.merging.vectors import Vector, highest, reached

SPANS_MAX: Final = 1_000
"""How many spans of ids with a tag a summary contains at most."""

_NOTES_MIN: Final = 1_000
"""Up to how many ids a replica's current transaction may contain before it is looked whether they are remembered."""


class Batch:
    """Ids with the same tag.

    ``ids`` may contain ids that belong to another batch by now; ``count`` is the number of those that do not.
    """

    __slots__ = ("closed", "count", "ids", "owner", "run", "spans", "tag")
    run: Run
    """The run in which it is, once it has a tag."""

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.spans: dict[int, tuple[int, int]] = {}
        """The serials between which the ids are, by the replica from which they were delivered."""
        self.ids: list[Hashable] = []
        self.count = 0
        self.tag: Vector | None = None
        """A vector up to which the ids were emitted. None while the transaction that wrote them has not ended."""
        self.closed = 0
        """The number of the batch among those with a tag, in the order in which they got it."""


class Run:
    """Batches whose tags rise, so that each waits until the one before it is forgotten."""

    __slots__ = ("_last", "batches")

    def __init__(self) -> None:
        self.batches: deque[Batch] = deque()
        self._last: dict[int, int] = {}
        """By the replica from which ids were delivered, the highest serial of these."""

    def may_append(self, batch: Batch) -> bool:
        """Return whether the tag of a batch is at least the last one."""
        return not self.batches or reached(batch.tag or {}, self.batches[-1].tag or {})

    def append(self, batch: Batch) -> None:
        """Append a batch."""
        batch.run = self
        for replica, (first, last) in batch.spans.items():
            self._last[replica] = max(last, self._last.get(replica, last))
            # So that the spans of the first batch begin before those of all others.
            for earlier in reversed(self.batches):
                there, _ = earlier.spans.get(replica, (last + 1, last))
                if there <= first:
                    break
                earlier.spans[replica] = first, last
        self.batches.append(batch)

    def spans(self) -> list[Span]:
        """Return spans that contain all ids. Some that were forgotten may be among them."""
        found = self.batches[0].spans.items() if self.batches else ()
        return [(replica, first, max(last, self._last.get(replica, last))) for replica, (first, last) in found]


class Remembered:
    """The ids that were delivered, in batches with a tag each.

    An id without a tag belongs to the replica that wrote it first, but gets the tag of whichever replica that has
    written it ends its transaction first. So it does not matter if one of them stops. To that end, it is noted in the
    current transaction of each other replica that has written it. ``top`` is at least every tag.
    """

    def __init__(self, replicas: int) -> None:
        self._batch_of: dict[Hashable, Batch] = {}
        self._open = [Batch(number) for number in range(replicas)]
        """Per replica, the ids of its current transaction."""
        self._current: dict[int, Run] = {}
        """By owner, the run of those that have got their tags last."""
        self._earlier: list[Run] = []
        """Other runs. Their tags may be higher than those of later batches, so that these must not wait for them."""
        self._closings = 0
        """How many batches have got a tag."""
        self.top: Vector = {}

    def __len__(self) -> int:
        return len(self._batch_of)

    def __contains__(self, identity: Hashable) -> bool:
        return identity in self._batch_of

    def add(self, replica: int, identity: Hashable, serial: int) -> None:
        """Remember an id that a replica has written. ``serial`` is larger than that of the last one."""
        self.put(self._open[replica], replica, identity, serial)

    def is_open(self, replica: int) -> bool:
        """Return whether there is such a replica, which therefore has a current transaction."""
        return replica < len(self._open)

    def find(self, replica: int, identity: Hashable) -> bool:
        """Return whether an id is remembered that a replica has written, and note that this replica has."""
        batch = self._batch_of.get(identity)
        if batch is None:
            return False
        if batch.tag is None and batch is not self._open[replica]:
            self._open[replica].ids.append(identity)
            if len(self._open[replica].ids) > 2 * len(self) + _NOTES_MIN:
                self._drop_old_notes(self._open[replica])
        return True

    def discard(self, identity: Hashable) -> None:
        """Forget an id that is remembered."""
        batch = self._batch_of.pop(identity)
        batch.count -= 1
        if not batch.count and batch.tag is not None:
            self._take_out(batch)

    def end_transaction(self, replica: int, tag: Vector) -> None:
        """Give the ids of a replica's current transaction their tag, and begin the next one."""
        batch = self._end(replica, tag)
        if batch.count:
            self._append(batch)

    def forget_transaction(self, replica: int) -> None:
        """Forget the ids of a replica's current transaction, but not those that others have written first."""
        batch = self._open[replica]
        self._remove(batch)
        self._open[replica] = Batch(replica)
        self._open[replica].ids = [identity for identity in batch.ids if identity in self._batch_of]

    def break_off(self, replica: int, ends: Vector) -> None:
        """End the current transaction of a replica that goes back. ``ends``: those of the input, if they are known."""
        if ends:
            self.end_transaction(replica, ends)
            return
        # All have reached an empty tag, and the replica may begin before what others were first to write.
        batch = self._open[replica]
        batch.ids = [identity for identity in batch.ids if self._batch_of.get(identity) is batch]

    def discard_transaction(self, replica: int) -> None:
        """Forget all ids that a replica has written in its current transaction."""
        batch, self._open[replica] = self._open[replica], Batch(replica)
        for identity in batch.ids:
            if identity in self._batch_of:
                self.discard(identity)

    def forget(self, until: Vector, left: int = 0) -> Vector:
        """Forget ids whose tags ``until`` has reached, the oldest first, while more than ``left`` are remembered.

        Return the highest of these tags.
        """
        found: Vector = {}
        while len(self) > left:
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
        count = 0
        for run in self._runs():
            for batch in run.batches:
                if not reached(until, batch.tag or {}):
                    break
                count += batch.count
        return count

    def change_tags(self, change: Callable[[Vector], Vector]) -> None:
        """Change all tags in the same way. A tag that is higher than another one must not become lower than that."""
        self.top = change(self.top)
        for batch in self._all():
            batch.tag = change(batch.tag) if batch.tag is not None else None

    def oldest_serial(self) -> int | None:
        """Return a serial that is at most that of the oldest id, or None if there is none."""
        return min((first for _, first, _ in (*self._untagged(), *self._tagged())), default=None)

    def put(self, batch: Batch, replica: int, identity: Hashable, serial: int) -> None:
        """Put an id that was delivered from a replica into a batch."""
        self._batch_of[identity] = batch
        batch.ids.append(identity)
        batch.count += 1
        first, _ = batch.spans.get(replica, (serial, serial))
        batch.spans[replica] = first, serial

    def set_apart(self, batch: Batch) -> None:
        """Take a new batch with a tag, for which no other one has to wait."""
        run = Run()
        self._earlier.append(run)
        self._close(batch, run)

    def _runs(self) -> Iterator[Run]:
        yield from self._earlier
        yield from self._current.values()

    def _firsts(self) -> list[Batch]:
        """Return the batches with a tag that do not have to wait for another one."""
        return [run.batches[0] for run in self._runs() if run.batches]

    def _end(self, replica: int, tag: Vector) -> Batch:
        """Return the replica's current transaction with a tag and all ids that get it, and begin the next one."""
        batch, self._open[replica] = self._open[replica], Batch(replica)
        batch.tag = dict(tag)
        self.top = highest(self.top, tag)
        others: set[int] = set()
        for identity in batch.ids:
            there = self._batch_of.get(identity)
            if there is not None and there is not batch and there.tag is None:
                there.count -= 1
                batch.count += 1
                self._batch_of[identity] = batch
                others.add(there.owner)
        for other in others:
            batch.spans |= self._open[other].spans
        return batch

    def _append(self, batch: Batch) -> None:
        run = self._current.setdefault(batch.owner, Run())
        if not run.may_append(batch):
            # The replica has gone back.
            self._earlier.append(run)
            run = self._current[batch.owner] = Run()
        self._close(batch, run)

    def _close(self, batch: Batch, run: Run) -> None:
        self._closings += 1
        batch.closed = self._closings
        run.append(batch)

    def _take_out(self, batch: Batch) -> None:
        """Take a batch with a tag out of its run."""
        batch.run.batches.remove(batch)
        if not batch.run.batches and batch.run in self._earlier:
            self._earlier.remove(batch.run)

    def _drop_old_notes(self, batch: Batch) -> None:
        """Drop ids that were forgotten or have got their tags: a replica may never end its transaction."""
        batch.ids = [
            identity
            for identity in dict.fromkeys(batch.ids)
            if (there := self._batch_of.get(identity)) is not None and there.tag is None
        ]

    def _remove(self, batch: Batch) -> None:
        for identity in batch.ids:
            if self._batch_of.get(identity) is batch:
                del self._batch_of[identity]
        batch.count = 0

    # The rest saves and restores.

    def summary(self) -> dict[str, Any]:
        """Return what `Recall` needs in addition to the ids."""
        return {"top": dict(self.top), "untagged": self._untagged(), "tagged": self._tagged()}

    def _untagged(self) -> list[Span]:
        """Return the span of each replica's current transaction, if that has ids."""
        return [(number, *batch.spans[number]) for number, batch in enumerate(self._open) if batch.count]

    def _tagged(self) -> list[Span]:
        """Return spans that contain all ids with a tag. Some that were forgotten may be among them."""
        return joined([span for run in self._runs() for span in run.spans()], SPANS_MAX)

    def batches(self) -> list[list[Any]]:
        """Return all batches in order: owner, tag or None, and ids."""
        return [
            [batch.owner, batch.tag and dict(batch.tag), ids]
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
        tagged = [batch for run in self._runs() for batch in run.batches]
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
        for owner, tag, ids in batches:
            is_open = tag is None and self.is_open(owner)
            batch = self._open[owner] if is_open else Batch(owner)
            for identity in ids:
                self.put(batch, owner, identity, 0)
            if not is_open:
                batch.tag = self.top if tag is None else tag
                self._append(batch)
        for number, noted in zip(range(len(self._open)), notes, strict=False):
            self._open[number].ids += noted

    def untagged_owners(self, summary: Mapping[str, Any], before: int) -> set[int]:
        """Return the replicas of which an id with a lower serial than ``before`` may have had no tag."""
        return {number for number, first, _ in summary["untagged"] if number < len(self._open) and first < before}


class Recall:
    """Call it with the serial, the replica and the id of each message that was delivered, in order.

    Those are remembered again that are in a span of the summary. Their tags are not known any more. Those that may have
    one get the highest of these. The others get the ends of the input, because no replica has consumed more. If these
    are not known, those of a replica that still exists wait for the end of its transaction.
    """

    def __init__(
        self, memory: Remembered, summary: Mapping[str, Any], topics: Collection[str], ends: Callable[[], Vector]
    ) -> None:
        """``summary``: `Remembered.summary`. ``topics``: those of the input. ``ends``: returns the ends now, if needed.

        A topic without an end is not known to Kafka. Before the first start record, no topics are known.
        """
        self._memory = memory
        self._untagged = {replica: (first, last) for replica, first, last in summary["untagged"]}
        found = ends() if self._untagged else {}
        self._is_known = bool(topics) and found.keys() >= set(topics)
        self._tags = {False: dict(summary["top"]), True: highest(summary["top"], found)}
        memory.top = highest(memory.top, self._tags[True])
        self._tagged: dict[int, deque[tuple[int, int]]] = {}
        """By replica, the spans that are not passed yet."""
        for replica, first, last in summary["tagged"]:
            self._tagged.setdefault(replica, deque()).append((first, last))
        self._batches: dict[tuple[int, bool], Batch] = {}
        """The current batch, by replica, and by whether the ids in it may have no tag."""

    def __call__(self, serial: int, replica: int, identity: Hashable) -> None:
        """Remember an id again, if it may have been remembered."""
        first, last = self._untagged.get(replica, (1, 0))
        has_none = first <= serial <= last
        spans = self._tagged.get(replica)
        while spans and spans[0][1] < serial:
            spans.popleft()
            self._batches.pop((replica, False), None)
        if not (has_none or (spans and spans[0][0] <= serial)):
            return
        if identity in self._memory:
            # It was forgotten, and delivered again after a reset.
            self._memory.discard(identity)
        if has_none and not self._is_known and self._memory.is_open(replica):
            self._memory.add(replica, identity, serial)
            return
        batch = self._batches.get((replica, has_none))
        if batch is None or not batch.count:
            # There is none yet, or it was forgotten.
            batch = self._batches[replica, has_none] = Batch(replica)
            batch.tag = self._tags[has_none]
            self._memory.set_apart(batch)
        self._memory.put(batch, replica, identity, serial)
