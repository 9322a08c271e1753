"""The protocol by which a reader merges the outputs of replicas. It uses no Kafka, no clock and no randomness.

The output of a unit is a function of the offsets that it has consumed: ``E(C)`` are the ids emitted up to the vector
``C``. It only grows with ``C``. Replicas write the same ids, each in its own transactions and at its own time. The
first message of a transaction is a start record with the vector at which the transaction begins. A start record with
the vector ``S`` says: before it, this replica has written all of its part of ``E(S)``. A `ReplicaUnion` decides for
each id whether to deliver it. It is for one partition of one kind of output, because each has its own start records.

**Nothing is delivered twice.** An id that was delivered is remembered. The next start vector of a replica that wrote it
is its *tag* ``T``: the id is in ``E(T)``. It is forgotten once the start vectors of all replicas that may deliver have
reached ``T``, because these replicas have written it already. The *floor* is the highest tag that was forgotten, in
each topic: what was delivered and is not remembered is in ``E(floor)``. A replica is *accepted* while its start vector
has reached the floor. What other replicas write is dropped.

**Nothing is lost.** What a replica wrote while it was not accepted may be missing. A replica is *complete* if all that
it has written was delivered. One that is accepted again becomes complete when the start vector of a complete one has
reached the vector at which it was accepted. One complete replica is always accepted. At first, this is replica 0.

**Every id gets a tag.** If a replica goes back (see below), the end of its transaction is never known. Then the tag of
the ids in it are the ends of the input at that time, because no replica has consumed more. So nothing is remembered for
ever, provided that the input grows. The same applies to the ids of a replica that is gone from the settings.

**One replica alone** writes each id once, and may write no start records. An id that another replica was first to write
is forgotten when it comes, and the others are not remembered. A replica that is added waits for the next start record.

**Memory is bounded.** An id is forgotten at once if all replicas have passed its tag, and otherwise only if memory is
full: then the oldest half is forgotten, as far as possible, although a replica may be behind. If it is behind the floor
by that, it is *ignored*: it is not accepted until it has reached the floor, which does not rise while there is room.
A complete replica always stays. If memory is full and the complete replica itself is behind, an incomplete one has to
wait. The complete one never waits: the ids of its current transaction are forgotten instead, and no other replica is
accepted until its next start vector, which is their tag, is known and reached.

**An empty vector** says that a replica does not continue from its last start record: it begins, also after a reset, or
its earlier start records may not hold. It must write that to each of its outputs, because its next vector may be later,
and nothing else would show this. Its next start record must hold again, and everything that it has written before that
must be in ``E`` of that vector: otherwise, what it wrote while it was not accepted would count as still to come. Until
then, it is neither accepted nor complete. A vector that goes back, that has other topics, or that is the same although
ids were written since, is treated alike. The only complete replica stays complete. If its next vector is below the
floor, as after a reset of the whole application, the floor is lowered to it: nothing is lost, and what was forgotten is
delivered again, as in an application without replicas. If it has only written what was missing, its next vector is not
below the floor, and nothing is delivered again. If it was reset and begins at a later vector, what it skips may be
lost, because what the others wrote of that was dropped. An operator must therefore not reset a replica while no other
one is complete.

**Input topics** may be added and removed, each time by a reset. The complete replicas all read the same topics. A
replica that reads others is not accepted: what it writes follows from other settings, and if it reads more, a complete
one never reaches the vector at which it was accepted. So the topics change only if the only complete replica goes back.
Then those that it has ceased to read are taken out of the floor and of all tags, because no vector would ever reach
them. If a topic was recreated, its offsets begin anew. So at that moment, tags that are beyond the ends of the input
become these ends. Others may remain if another replica was complete then, or if the reader was behind: lowering tags
while a replica that read the former topic is complete would deliver ids twice.

**Restarts.** A reader that does not save the ids reads what it has delivered again (see `recall`), and remembers what
was remembered, which the *serials* tell: the numbers of the messages that it has delivered. The tags are not known any
more, and become as high as they may be.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from enum import Enum
from typing import Any, Final

from joiner.library.merging.memory import Recall, Remembered
from joiner.library.merging.replica import (
    Replica,
    choices_to_keep,
    find_complete,
    go_on_alone,
    reads_the_same,
    topics_read,
)
from joiner.library.merging.vectors import Vector, highest, lowest, reached, within

REMEMBERED_MAX: Final = 100_000
"""How many ids are remembered at most per partition, unless a caller says otherwise."""

RECALLED_MORE: Final = 100_000
"""How many more may be remembered for a moment after a restart, because ids that were forgotten may be among them."""


class Verdict(Enum):
    """What to do with an id."""

    DELIVER = "deliver"
    KNOWN = "known"
    """Drop it, because it was delivered already."""
    IGNORED = "ignored"
    """Drop it, because its replica is not accepted."""
    WAIT = "wait"
    """Memory is full. Offer the id again after the next start record of another replica, and until then nothing else of
    its replica."""


class ReplicaUnion:
    """Decides which ids are delivered, and remembers at most ``limit`` of them.

    A process that has stopped continues from its `state`, which contains the ids, or from its `summary`, which does
    not, if it has kept what it delivered (see `recall`).
    """

    def __init__(self, replicas: int, limit: int) -> None:
        if replicas < 1 or limit < 1:
            message = f"replicas ({replicas}) and limit ({limit}) must be at least 1"
            raise ValueError(message)
        self._limit = limit
        self._replicas = [Replica(number) for number in range(replicas)]
        self._memory = Remembered(replicas)
        self._floor: Vector = {}

    @property
    def remembered(self) -> int:
        """The number of ids that are remembered."""
        return len(self._memory)

    @property
    def accepted(self) -> list[int]:
        """The replicas whose results are delivered."""
        return [one.number for one in self._replicas if one.is_accepted]

    @property
    def complete(self) -> list[int]:
        """The replicas all of whose results were delivered. There is always one."""
        return [one.number for one in self._replicas if one.is_complete]

    def topics(self) -> set[str]:
        """Return the input topics of which the ends may be needed, also for ids of a replica that is gone."""
        of_all = {topic for one in self._replicas for topic in one.topics}
        return topics_read(self._replicas) or of_all.union(self._floor, self._memory.top)

    def goes_back(self, replica: int, start: Vector) -> bool:
        """Return whether a start vector says that the replica was reset."""
        return self._replicas[replica].goes_back(start)

    def on_start(self, replica: int, start: Vector, ends: Vector | None = None) -> bool:
        """Note the start vector of a replica's next transaction. Return whether the only complete replica went back.

        Then results may be delivered again and, if it is founded anew, be missing. ``ends``: the ends of the input
        `topics` now. They are needed if the replica `goes_back`; otherwise, raises ValueError.
        """
        one = self._replicas[replica]
        goes_back = one.goes_back(start)
        is_only = goes_back and self.complete == [replica]
        if goes_back:
            if ends is None:
                raise ValueError("where the replica goes back, the ends of the input are needed")
            if is_only and not ends:
                # There has been no start record yet that tells the topics.
                self._forget_transaction(one)
            else:
                self._memory.break_off(replica, ends)
            if not is_only:
                one.ignore()
            elif ends:
                self._memory.change_tags(lambda tag: lowest([tag, ends]))
        else:
            self._memory.end_transaction(replica, start)
        has_forgotten = one.has_forgotten
        one.begin(start)
        if start and self.complete == [replica]:
            # It is below the floor if the replica was reset, but not if that has only written what was missing.
            self._floor = lowest([self._floor, start])
        self._leave_topics()
        if has_forgotten:
            self._raise_floor(start)
        if not one.is_accepted and self._may_accept(one):
            one.is_accepted, one.is_complete, one.accepted_at = True, False, one.start
        find_complete(self._replicas)
        self._forget()
        return is_only

    def on_result(self, replica: int, identity: Hashable, serial: int = 0) -> Verdict:
        """Decide about an id that a replica has written. ``serial``: its number if it is delivered (see `recall`)."""
        one = self._replicas[replica]
        one.has_written = True
        is_known = self._memory.find(replica, identity)
        if self._is_alone:
            one.has_forgotten = True
            if is_known:
                self._memory.discard(identity)
        if is_known:
            return Verdict.KNOWN
        if not one.is_accepted:
            return Verdict.IGNORED
        if one.has_forgotten:
            return Verdict.DELIVER
        if len(self._memory) >= self._limit:
            if not self._make_room():
                if one.is_complete:
                    self._forget_transaction(one)
                return Verdict.DELIVER if one.is_complete else Verdict.WAIT
            if replica not in self.accepted:
                return Verdict.IGNORED
        self._memory.add(replica, identity, serial)
        return Verdict.DELIVER

    def lose(self, replica: int, ends: Vector) -> bool:
        """Note that some messages of a replica cannot be read any more. Return False if that loses results.

        ``ends``: the ends of the input `topics` now.
        """
        one = self._replicas[replica]
        if self.complete == [replica]:
            return False
        self._memory.break_off(replica, ends)
        one.ignore()
        one.start, one.has_written = {}, False
        return True

    @property
    def _is_alone(self) -> bool:
        return len(self._replicas) == 1

    def _may_accept(self, one: Replica) -> bool:
        # A start record with an empty vector says that the next one does not continue this transaction.
        is_known = bool(one.start) and not any(other.has_forgotten for other in self._replicas)
        return is_known and reads_the_same(one, self._replicas) and reached(one.start, self._floor)

    def _leave_topics(self) -> None:
        """If the complete replicas have ceased to read topics, take these out of all vectors.

        Replicas that read other topics than the complete ones are ignored.
        """
        for one in self._replicas:
            if one.is_accepted and not reads_the_same(one, self._replicas):
                one.ignore()
        read = topics_read(self._replicas)
        if read and not read.issuperset([*self._floor, *self._memory.top]):
            self._floor = within(self._floor, read)
            self._memory.change_tags(lambda tag: within(tag, read))

    def _forget(self) -> None:
        """Forget the ids that no replica will write again."""
        self._raise_floor(self._memory.forget(lowest(one.start for one in self._replicas)))

    def _raise_floor(self, tag: Vector) -> None:
        if not tag:
            return
        self._floor = highest(self._floor, tag)
        for one in self._replicas:
            if one.is_accepted and not reached(one.start, self._floor):
                one.ignore()

    def _make_room(self) -> bool:
        """Forget the oldest ids, so that as few replicas as possible are ignored. Return whether there is room now."""
        for choices in choices_to_keep(self._replicas):
            gains = [self._memory.count_until(lowest(one.start for one in kept)) for kept in choices]
            if any(gains):
                kept = choices[gains.index(max(gains))]
                self._raise_floor(self._memory.forget(lowest(one.start for one in kept), self._limit // 2))
                break
        return len(self._memory) < self._limit

    def _forget_transaction(self, one: Replica) -> None:
        """Forget the ids of a complete replica's current transaction. Its next start vector is their tag."""
        self._memory.forget_transaction(one.number)
        go_on_alone(one, self._replicas)

    # The rest saves and restores.

    def oldest_serial(self) -> int | None:
        """Return a serial that is at most that of the oldest id that is remembered, or None if there is none."""
        return self._memory.oldest_serial()

    def summary(self) -> dict[str, Any]:
        """Return the state without the ids, as a JSON object."""
        return {
            "floor": dict(self._floor),
            "memory": self._memory.summary(),
            "replicas": [one.summary() for one in self._replicas],
        }

    def state(self) -> dict[str, Any]:
        """Return the whole state. It consists of built-in types and the ids."""
        return self.summary() | {"batches": self._memory.batches(), "notes": self._memory.notes()}

    def restore(self, state: Mapping[str, Any], ends: Callable[[], Vector] = dict) -> None:
        """Continue from a `state` or a `summary`. Call this before anything else.

        There may be other replicas than then. If there are fewer, ``ends`` is called, and must return the ends of the
        input `topics`. Raises ValueError if none of the replicas that remain is complete.
        """
        for one, saved in zip(self._replicas, state["replicas"], strict=False):
            one.restore(saved)
        if not self.complete:
            raise ValueError("only a replica that no longer exists has delivered everything")
        self._floor = dict(state["floor"])
        self._memory.top = state["memory"]["top"]
        gone = ends() if len(state["replicas"]) > len(self._replicas) else {}
        self._memory.restore(state["memory"], state.get("batches", ()), state.get("notes", ()), gone)
        self._tidy()

    def recall(
        self,
        summary: Mapping[str, Any],
        delivered: Iterable[tuple[int, int, Hashable]],
        written: Iterable[tuple[int, Hashable]],
        ends: Callable[[], Vector],
    ) -> None:
        """After restoring a `summary`, remember again the ids that were delivered since `oldest_serial`.

        ``delivered``: the serial of each id, the replica from which it was delivered, and the id. The caller numbers
        what it delivers: each serial is larger than the one before. ``written``: the replica and the id of what each
        replica has written since its last start record. It is used for one replica alone. ``ends``: returns the ends of
        the input `topics` now, if they are needed. Raises ValueError if memory does not suffice.
        """
        recall = Recall(self._memory, summary["memory"], self.topics(), ends)
        most = self._limit + RECALLED_MORE
        for serial, replica, identity in delivered:
            if len(self._memory) >= most:
                self._make_room()
            if len(self._memory) >= most:
                message = f"more than {most} ids must be remembered"
                raise ValueError(message)
            if replica or not self._is_alone:
                recall(serial, replica, identity)
        for replica, identity in written if self._is_alone and len(self._memory) else ():
            if replica == 0 and self._memory.find(0, identity):
                self._memory.discard(identity)
        self._tidy()

    def _tidy(self) -> None:
        """Forget what need not be remembered with the replicas that there are now, or what is too much."""
        if self._is_alone:
            self._replicas[0].has_forgotten = True
            self._memory.discard_transaction(0)
        self._forget()
        if len(self._memory) > self._limit:
            self._make_room()

    def give_up(self, summary: Mapping[str, Any], serial: int) -> bool:
        """After restoring a `summary`, do without the ids that were delivered before a serial and cannot be recalled.

        Replicas that may still write them are ignored. Return False if the complete one that is kept may, too.
        """
        top, untagged = self._memory.top, self._memory.untagged_owners(summary["memory"], serial)
        kept = max(self._replicas, key=lambda one: (one.is_complete, reached(one.start, top), one.number in untagged))
        if not untagged and reached(kept.start, top):
            self._raise_floor(top)
            return True
        go_on_alone(kept, self._replicas)
        return reached(kept.start, top) and untagged <= {kept.number}
