"""Histories of replicas and of a reader that merges their outputs, derived from a seed.

The replicas consume one or two input topics and write the ids that become certain. They die, lag, are founded later
and are reset. The reader is killed, and continues from what it has saved. Nothing here uses Kafka or a clock.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

TOPICS: Final = ("a", "b")
END: Final = 40
"""The number of messages in each input topic."""

Vector = tuple[int, ...]


class Union(Protocol):
    """What a reader needs of `joiner.library.merging.protocol.ReplicaUnion`, also of a broken copy."""

    @property
    def remembered(self) -> int: ...
    @property
    def complete(self) -> list[int]: ...
    def goes_back(self, replica: int, start: Any) -> bool: ...
    def on_start(self, replica: int, start: Any, serial: int = 0) -> bool: ...
    def on_result(self, replica: int, identity: Any) -> Any: ...
    def oldest_serial(self) -> int | None: ...
    def summary(self) -> dict[str, Any]: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: Any) -> None: ...
    def recall(self, summary: Any, delivered: Any) -> None: ...


class Emission:
    """What has been emitted up to a vector: a function that only grows.

    Each id is certain once one of several vectors is reached, so that two replicas may have emitted it although neither
    has consumed what the other one has.
    """

    def __init__(self, chance: random.Random, topics: int) -> None:
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
                for number, needs in enumerate(self._needs)
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
    was_refounded: bool = False


@dataclass(frozen=True)
class Defect:
    """How replicas break their promises. ``late_by``: by how much the start vectors of replica 1 are too high."""

    late_by: int = 0
    hides_founding: bool = False


SOUND: Final = Defect()


class Replicas:
    """The replicas of one unit."""

    def __init__(self, chance: random.Random, count: int, defect: Defect = SOUND) -> None:
        self._chance, self._defect = chance, defect
        self.topics = chance.randint(1, 2)
        self.emission = Emission(chance, self.topics)
        self._is_sparse = chance.random() < 0.3
        """Whether only some transactions have a start record: those with ids, the next one after each of these, and the
        first one of a replica that was founded anew."""
        zero: Vector = (0,) * self.topics
        self.writers = [Writer(None) for _ in range(count)]
        self.writers[0].at = zero
        self._checkpoints = [zero]
        """Those of replica 0."""

    def write(self, number: int, to: Vector) -> None:
        """Let a replica consume up to a vector, in one transaction."""
        writer = self.writers[number]
        assert writer.at is not None
        ids = sorted(self.emission.upto(to) - self.emission.upto(writer.at))
        self._chance.shuffle(ids)
        if ids or writer.wrote_last or writer.was_refounded or not self._is_sparse:
            if writer.was_refounded and not self._defect.hides_founding:
                writer.log.append(("start", {}))
            writer.was_refounded = False
            start = tuple(offset + (self._defect.late_by if number == 1 else 0) for offset in writer.at)
            writer.log.append(("start", dict(zip(TOPICS, start, strict=False))))
        writer.log += [("id", identity) for identity in ids]
        writer.wrote_last, writer.at = bool(ids), to
        if number == 0:
            self._checkpoints.append(to)

    def step(self) -> None:
        """Let something happen to a replica."""
        chance = self._chance
        number = chance.randrange(len(self.writers))
        writer = self.writers[number]
        match chance.choices(("write", "sleep", "reset"), (20, 1.5, 0.4))[0]:
            case "sleep":
                writer.is_alive = not writer.is_alive
            case "reset" if writer.at is not None:
                self._found(number)
            case _ if writer.at is None:
                self._found(number)
            case _ if writer.is_alive:
                pace = chance.choice((1, 3, 12))
                self.write(number, tuple(min(END, offset + chance.randint(0, pace)) for offset in writer.at))

    def _found(self, number: int) -> None:
        """Begin anew: replica 0 from the beginning, the others from a checkpoint of replica 0."""
        writer = self.writers[number]
        if number == 0:
            self._checkpoints = [(0,) * self.topics]
        writer.was_refounded = bool(writer.log) and number > 0
        writer.at = self._chance.choice(self._checkpoints[-6:])

    def finish(self) -> None:
        """Let all replicas consume everything."""
        for number, writer in enumerate(self.writers):
            if writer.at is None:
                self._found(number)
            for _ in range(3):
                self.write(number, (END,) * self.topics)


@dataclass
class _Saved:
    state: dict[str, Any]
    positions: list[int]
    delivered: int
    oldest: int | None


class Reader:
    """Merges the outputs of replicas by a `Union`. What it delivers and its state are saved together.

    ``keeps_ids``: whether it saves the ids it remembers, or reads them again from what it has delivered.
    """

    def __init__(self, replicas: Replicas, make: Callable[[], Union], *, keeps_ids: bool) -> None:
        self._replicas, self._make, self._keeps_ids = replicas, make, keeps_ids
        self.union = make()
        self.delivered: list[tuple[int, int]] = []
        self.begins_anew = self.skips = False
        """Whether the only complete replica was reset, and whether it was founded anew."""
        self.most_remembered = 0
        self._positions = [0] * len(replicas.writers)
        self.save()

    def save(self) -> None:
        """Save everything, as a transaction does."""
        state = self.union.state() if self._keeps_ids else self.union.summary()
        self._saved = _Saved(state, list(self._positions), len(self.delivered), self.union.oldest_serial())

    def restart(self) -> None:
        """Lose everything that is not saved."""
        saved = self._saved
        self.union, self._positions = self._make(), list(saved.positions)
        del self.delivered[saved.delivered :]
        self.union.restore(saved.state)
        if not self._keeps_ids and saved.oldest is not None:
            since = range(saved.oldest, len(self.delivered))
            self.union.recall(saved.state, [(serial, *self.delivered[serial]) for serial in since])

    def read(self, number: int, count: int) -> bool:
        """Read up to ``count`` messages of a replica. Return whether any could be read."""
        log, before = self._replicas.writers[number].log, self._positions[number]
        for kind, what in log[before : before + count]:
            if kind == "start":
                if self.union.goes_back(number, what):
                    self.save()
                is_only = self.union.on_start(number, what, self._saved.delivered)
                self.begins_anew, self.skips = self.begins_anew or is_only, self.skips or (is_only and not what)
            else:
                verdict = self.union.on_result(number, what).value
                if verdict == "wait":
                    break
                if verdict == "deliver":
                    self.delivered.append((number, what))
            self._positions[number] += 1
            if self._keeps_ids:
                self.most_remembered = max(self.most_remembered, self.union.remembered)
        return self._positions[number] > before

    def read_everything(self) -> bool:
        """Read until nothing can be read any more. Return whether everything was read."""
        while sum(self.read(number, 7) for number in range(len(self._positions))):
            pass
        return self._positions == [len(writer.log) for writer in self._replicas.writers]


def play(seed: int, make: Callable[[int, int], Union], defect: Defect = SOUND) -> str | None:
    """Play the history of a seed. Return what is wrong, or None. ``make``: see `ReplicaUnion`."""
    chance = random.Random(seed)
    count, limit = chance.randint(2, 3), chance.choice((1, 2, 4, 8, 16, 64))
    replicas = Replicas(chance, count, defect)
    reader = Reader(replicas, lambda: make(count, limit), keeps_ids=chance.random() < 0.5)
    paces = [chance.choice((1, 5, 5, 20)) for _ in range(count)]
    for _ in range(chance.randint(20, 150)):
        replicas.step()
        if chance.random() < 0.7:
            number = chance.randrange(count)
            reader.read(number, chance.randint(0, paces[number]))
        if chance.random() < 0.2:
            reader.save()
        if chance.random() < 0.05:
            reader.restart()
        if not reader.union.complete:
            return "no replica is complete"
    replicas.finish()
    if not reader.read_everything():
        return "the reader waits forever"
    return _difference(reader, replicas, limit)


def _difference(reader: Reader, replicas: Replicas, limit: int) -> str | None:
    counts = Counter(identity for _, identity in reader.delivered)
    missing = sorted(replicas.emission.upto((END,) * replicas.topics) - counts.keys())
    if missing and not reader.skips:
        return f"lost: {missing}"
    twice = sorted(identity for identity, count in counts.items() if count > 1)
    if twice and not reader.begins_anew:
        return f"delivered twice: {twice}"
    if reader.most_remembered > limit:
        return f"{reader.most_remembered} ids were remembered, but only {limit} are allowed"
    return None
