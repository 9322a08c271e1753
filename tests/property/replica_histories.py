"""Replicas of a unit and a reader that merges their outputs, for histories that are derived from a seed.

The replicas consume one or two input topics and write the ids that become certain. They die, lag, are founded later
and are reset. The reader is killed, and continues from what it has saved. Nothing here uses Kafka or a clock.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import add
from typing import Any, Final, Protocol

TOPICS: Final = ("a", "b")
END: Final = 40
"""The number of messages in each input topic."""

_ABORTED: Final = 0.02
"""How likely Kafka aborts a transaction that was committed."""

_REGULAR: Final = 0.1
"""How likely a transaction has a start record although it writes nothing."""

Vector = tuple[int, ...]


class Union(Protocol):
    """What a reader needs of `joiner.library.merging.protocol.ReplicaUnion`, also of a broken copy."""

    @property
    def remembered(self) -> int: ...
    @property
    def complete(self) -> list[int]: ...
    def topics(self) -> set[str]: ...
    def goes_back(self, replica: int, start: Any) -> bool: ...
    def on_start(self, replica: int, start: Any, ends: Any = None) -> bool: ...
    def on_result(self, replica: int, identity: Any, serial: int = 0) -> Any: ...
    def oldest_serial(self) -> int | None: ...
    def summary(self) -> dict[str, Any]: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: Any, ends: Any) -> None: ...
    def recall(self, summary: Any, delivered: Any, written: Any, ends: Any) -> None: ...


class Emission:
    """What has been emitted up to a vector: a function that only grows.

    Each id is certain once one of several vectors is reached, so that two replicas may have emitted it although neither
    has consumed what the other one has.
    """

    def __init__(self, chance: random.Random, topics: int, first: int = 0) -> None:
        """``first``: the first of the ids, which are numbers."""
        self._first = first
        self._needs: list[list[Vector]] = []
        for _ in range(chance.randint(5, 60)):
            at = chance.randint(1, END - 6)
            self._needs.append(
                [
                    tuple(at + chance.choice((0, 0, 1, chance.randint(0, 6))) for _ in range(topics))
                    for _ in range(chance.randint(1, 2))
                ]
            )
        self._found: dict[Vector, frozenset[int]] = {}

    def upto(self, at: Vector) -> frozenset[int]:
        """Return the ids emitted up to a vector."""
        if at not in self._found:
            self._found[at] = frozenset(
                number
                for number, needs in enumerate(self._needs, self._first)
                if any(all(have >= need for have, need in zip(at, wanted, strict=True)) for wanted in needs)
            )
        return self._found[at]


@dataclass
class Writer:
    """A replica, and its output in one topic and partition: start records and ids."""

    at: Vector | None
    """The vector of its checkpoint. None until it is founded."""
    log: list[tuple[str, Any]] = field(default_factory=list)
    is_alive: bool = True
    wrote_last: bool = True
    has_begun_anew: bool = True
    generation: int = 0
    """Under which settings it runs."""
    missing: list[int] | None = None
    """The ids of its last transaction, if Kafka has aborted that although it was committed."""
    resets: set[int] = field(default_factory=set)
    """Where in the log the vectors are at which it has begun again, and has said so."""


@dataclass(frozen=True)
class Defect:
    """How replicas break their promises.

    ``late_by``: by how much the start vectors of replica 1 are too high. ``hides_founding``: a replica that begins anew
    does not say so. ``hides_resolving``: an owner that writes missing ids tells an earlier vector instead.
    """

    late_by: int = 0
    hides_founding: bool = False
    hides_resolving: bool = False


SOUND: Final = Defect()


class Replicas:
    """The replicas of one unit."""

    def __init__(self, chance: random.Random, count: int, defect: Defect = SOUND, first: int = 0) -> None:
        """``first``: the first offset in the last topic, until that is recreated."""
        self._chance, self._defect = chance, defect
        self.topics = chance.randint(1, 2)
        self.writes_starts = True
        """Whether transactions have start records, which they have not in an application without replicas."""
        self.emissions = [Emission(chance, self.topics)]
        """What is emitted under the settings of each generation."""
        self._is_sparse = chance.random() < 0.3
        """Whether only some transactions have a start record: those with ids, the next one after each of these, and the
        first one of a replica."""
        zero: Vector = (0,) * self.topics
        self.writers = [Writer(None) for _ in range(count)]
        self.writers[0].at = zero
        self._recreated = 0
        """The generation that was the first to read the second topic as it is now."""
        self._firsts = [first]
        """The first offset in the last topic, by generation."""
        self._checkpoints = [zero]
        """Those of replica 0."""
        self.ends = self.vector(zero, 0)
        """The lowest ends that the input can have: per topic, the highest offset that a replica has consumed."""

    @property
    def emission(self) -> Emission:
        """What is emitted under the newest settings."""
        return self.emissions[-1]

    def change_topics(self, topics: int, *, is_recreated: bool) -> None:
        """Reset replica 0 with settings that read the first ``topics`` input topics only. The others are unchanged.

        ``is_recreated``: the last topic was deleted since, and has a new one with this name if it is still read.
        """
        self.topics = topics
        self.emissions.append(Emission(self._chance, topics, 1_000 * len(self.emissions)))
        if is_recreated:
            self.ends.pop(TOPICS[-1], None)
            self._recreated = len(self.emissions) - 1
        self._firsts.append(0 if is_recreated else self._firsts[-1])
        self.ends = self.vector((0,) * topics, -1) | self.ends
        self.found(0)

    def vector(self, at: Vector, generation: int) -> dict[str, int]:
        """Return the offsets at which a generation is once it has consumed so many messages of each topic."""
        return dict(zip(TOPICS, map(add, at, (0, self._firsts[generation])), strict=False))

    def write(self, number: int, to: Vector, *, is_aborted: bool = False, has_start: bool = False) -> None:
        """Let a replica consume up to a vector, in one transaction.

        ``is_aborted``: Kafka aborts it afterwards. ``has_start``: it has a start record in any case, as one
        has regularly.
        """
        writer = self.writers[number]
        assert writer.at is not None
        exist = TOPICS if writer.generation >= self._recreated else TOPICS[:1]
        consumed = self.vector(to, writer.generation)
        self.ends |= {topic: max(self.ends[topic], consumed[topic]) for topic in exist if topic in consumed}
        emission = self.emissions[writer.generation]
        ids = sorted(emission.upto(to) - emission.upto(writer.at))
        self._chance.shuffle(ids)
        if writer.missing is not None:
            self._resolve(writer)
        if is_aborted and not writer.has_begun_anew:
            writer.missing, writer.at = ids, to
            return
        is_due = ids or writer.wrote_last or writer.has_begun_anew or not self._is_sparse
        if self.writes_starts and (is_due or has_start):
            if writer.has_begun_anew and not self._defect.hides_founding:
                if writer.log:
                    writer.resets.add(len(writer.log) + 1)
                writer.log.append(("start", {}))
            writer.has_begun_anew = False
            start = tuple(offset + (self._defect.late_by if number == 1 else 0) for offset in writer.at)
            writer.log.append(("start", self.vector(start, writer.generation)))
        writer.log += [("id", identity) for identity in ids]
        writer.wrote_last, writer.at = bool(ids), to
        if number == 0:
            self._checkpoints.append(to)

    def step(self) -> None:
        """Let something happen to a replica."""
        chance = self._chance
        number = chance.randrange(len(self.writers))
        writer = self.writers[number]
        match chance.choices(("write", "sleep", "reset", "resolve"), (20, 1.5, 0.4, 0.4))[0]:
            case "sleep":
                writer.is_alive = not writer.is_alive
            case "reset" if writer.at is not None:
                self.found(number)
            case "resolve" if writer.is_alive and not writer.has_begun_anew:
                self._resolve(writer)
            case _ if writer.at is None:
                self.found(number)
            case _ if writer.is_alive:
                pace = chance.choice((1, 3, 12))
                to = tuple(min(END, offset + chance.randint(0, pace)) for offset in writer.at)
                has_start = chance.random() < _REGULAR
                self.write(number, to, is_aborted=chance.random() < _ABORTED, has_start=has_start)

    def found(self, number: int) -> None:
        """Begin anew: replica 0 with the newest settings, from the beginning, the others from a checkpoint of it."""
        writer = self.writers[number]
        writer.generation = self.writers[0].generation
        if number == 0:
            writer.generation = len(self.emissions) - 1
            self._checkpoints = [(0,) * self.topics]
        writer.has_begun_anew, writer.missing = True, None
        writer.at = self._chance.choice(self._checkpoints[-6:])

    def _resolve(self, writer: Writer) -> None:
        """Let the next owner write missing ids, and perhaps another one find that none are missing."""
        for _ in range(self._chance.randint(1, 2)):
            earlier = [what for kind, what in writer.log if kind == "start" and what][-3:]
            writer.log.append(("start", earlier[0] if self._defect.hides_resolving else {}))
            writer.log += [("id", identity) for identity in writer.missing or ()]
            writer.wrote_last, writer.missing = True, None

    def finish(self) -> None:
        """Let all replicas consume everything."""
        for number, writer in enumerate(self.writers):
            if writer.at is None:
                self.found(number)
            for has_start in (False, False, True):
                self.write(number, (END,) * self.topics, has_start=has_start)

    def write_starts(self) -> None:
        """Let all replicas write another start record."""
        for number in range(len(self.writers)):
            self.write(number, (END,) * self.topics, has_start=True)


@dataclass
class _Saved:
    state: dict[str, Any]
    positions: list[int]
    delivered: int
    remembered: int
    oldest: int | None
    resets: int


class Reader:
    """Merges the outputs of replicas by a `Union`. What it delivers and its state are saved together.

    ``keeps_ids``: whether it saves the ids it remembers, or reads them again from what it has delivered.
    """

    def __init__(self, replicas: Replicas, make: Callable[[], Union], *, keeps_ids: bool) -> None:
        self._replicas, self._make, self._keeps_ids = replicas, make, keeps_ids
        self.union = make()
        self.delivered: list[tuple[int, int]] = []
        self.skips = False
        """Whether the only complete replica was reset, and may have skipped something."""
        self.resets: list[int] = []
        """How much had been delivered each time that the only complete replica was reset."""
        self.most_remembered = self._recalled = 0
        """The most ids that were remembered, unless more had been recalled, and how many these were."""
        self.recalled_more = 0
        """How many ids were recalled that had been forgotten."""
        self._positions = [0] * len(replicas.writers)
        self.save()

    def save(self) -> None:
        """Save everything, as a transaction does."""
        state = self.union.state() if self._keeps_ids else self.union.summary()
        self._saved = _Saved(
            state,
            list(self._positions),
            len(self.delivered),
            self.union.remembered,
            self.union.oldest_serial(),
            len(self.resets),
        )

    def restart(self) -> None:
        """Lose everything that is not saved."""
        saved = self._saved
        self.union, self._positions = self._make(), list(saved.positions)
        del self.delivered[saved.delivered :], self.resets[saved.resets :]
        self.union.restore(saved.state, self._ends)
        if not self._keeps_ids and saved.oldest is not None:
            since = range(saved.oldest, len(self.delivered))
            delivered = [(serial, *self.delivered[serial]) for serial in since]
            self.union.recall(saved.state, delivered, self._written_since(), self._ends)
        self._recalled = 0 if self._keeps_ids else self.union.remembered
        self.recalled_more = max(self.recalled_more, self._recalled - saved.remembered)

    def change(self, make: Callable[[], Union], count: int) -> None:
        """Continue with another number of replicas. Those that are added are read from the beginning."""
        self.save()
        self._make, self._saved.positions = make, [*self._saved.positions, *([0] * count)][:count]
        self.restart()

    def repeated(self) -> set[Any]:
        """Return what was delivered more often than once, and once more for each reset before which it had been."""
        counts = Counter(identity for _, identity in self.delivered)
        for end in self.resets:
            counts.subtract({identity for _, identity in self.delivered[:end]})
        return {identity for identity, count in counts.items() if count > 1}

    def _written_since(self) -> list[tuple[int, int]]:
        """Return what the replicas have written between their last start records and the positions."""
        found: list[tuple[int, int]] = []
        for number, position in enumerate(self._positions):
            log = self._replicas.writers[number].log[:position]
            last = max((at for at, (kind, _) in enumerate(log) if kind == "start"), default=position)
            found += [(number, what) for _, what in log[last + 1 :]]
        return found

    def _ends(self) -> dict[str, int]:
        """Return the ends of the topics for which a reader asks."""
        return {topic: end for topic, end in self._replicas.ends.items() if topic in self.union.topics()}

    def read(self, number: int, count: int) -> bool:
        """Read up to ``count`` messages of a replica. Return whether any could be read."""
        log, before = self._replicas.writers[number].log, self._positions[number]
        for kind, what in log[before : before + count]:
            if kind == "start":
                self._start(number, what)
            else:
                verdict = self.union.on_result(number, what, len(self.delivered)).value
                if verdict == "wait":
                    break
                if verdict == "deliver":
                    self.delivered.append((number, what))
            self._positions[number] += 1
            if self.union.remembered > self._recalled:
                self.most_remembered = max(self.most_remembered, self.union.remembered)
        return self._positions[number] > before

    def _start(self, number: int, vector: dict[str, int]) -> None:
        ends = self._ends() if self.union.goes_back(number, vector) else None
        was_reset = self._positions[number] in self._replicas.writers[number].resets
        if was_reset and self.union.complete == [number]:
            self.resets.append(len(self.delivered))
            # Replica 0 begins anew at the beginning.
            self.skips = self.skips or number > 0
        self.union.on_start(number, vector, ends)

    def read_everything(self) -> bool:
        """Read until nothing can be read any more. Return whether everything was read."""
        while sum(self.read(number, 7) for number in range(len(self._positions))):
            pass
        logs = [writer.log for writer in self._replicas.writers]
        return all(at == len(log) for at, log in zip(self._positions, logs, strict=False))
