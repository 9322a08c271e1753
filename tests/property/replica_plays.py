"""Plays random histories of replicas and of a reader that merges them, and judges what the reader has delivered."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from tests.property.replica_histories import END, SOUND, Defect, Reader, Replicas, Union

_RECALLED_MORE: Final = 40
"""How many ids may be recalled that had been forgotten: at most those of a few transactions."""


def play(seed: int, make: Callable[[int, int], Union], defect: Defect = SOUND) -> str | None:
    """Play the history of a seed. Return what is wrong, or None. ``make``: see `ReplicaUnion`."""
    wrong, _ = history(seed, make, defect)
    return wrong


def history(seed: int, make: Callable[[int, int], Union], defect: Defect = SOUND) -> tuple[str | None, Reader]:
    """Play the history of a seed. Return what is wrong, or None, and the reader."""
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
            return "no replica is complete", reader
    replicas.finish()
    if not reader.read_everything():
        return "the reader waits forever", reader
    # A replica that could not be accepted yet at its last start record, because of others, is accepted now.
    replicas.write_starts()
    reader.read_everything()
    return _difference(reader, replicas, limit), reader


def play_change(seed: int, make: Callable[[int, int], Union]) -> str | None:
    """Play a history in which input topics are removed and added again. Return what is wrong, or None.

    Results may be lost, because a replica with old settings may be complete.
    """
    chance = random.Random(seed)
    count, limit = chance.randint(2, 3), chance.choice((1, 4, 16, 64))
    replicas = Replicas(chance, count)
    reader = Reader(replicas, lambda: make(count, limit), keeps_ids=chance.random() < 0.5)
    for topics in chance.choice(((2, 1), (2, 1, 2)))[2 - replicas.topics :]:
        if topics != replicas.topics:
            replicas.change_topics(topics, is_recreated=chance.random() < 0.5)
            for number in chance.sample(range(1, count), count - 1):
                _go_on(chance, replicas, reader, chance.randint(0, 10))
                replicas.found(number)
        _go_on(chance, replicas, reader, chance.randint(0, 40))
    return _end(replicas, reader, limit)


def play_recreation(seed: int, make: Callable[[int, int], Union]) -> str | None:
    """Play a history in which an input topic is deleted and recreated. Return what is wrong, or None.

    All replicas are reset then, and the reader has read what they wrote before. Ids may still be kept if no replica was
    the only complete one when it went back.
    """
    chance = random.Random(seed)
    count, limit = chance.randint(2, 3), chance.choice((4, 16, 64))
    replicas = Replicas(chance, count, first=100)
    reader = Reader(replicas, lambda: make(count, limit), keeps_ids=chance.random() < 0.5)
    _go_on(chance, replicas, reader, chance.randint(0, 40))
    if not reader.read_everything() or replicas.topics == 1:
        return None
    reader.save()
    replicas.change_topics(2, is_recreated=True)
    for number in range(1, count):
        replicas.found(number)
    before = len(reader.resets)
    _go_on(chance, replicas, reader, chance.randint(0, 40))
    wrong = _end(replicas, reader, limit)
    return wrong if len(reader.resets) > before else None


def _end(replicas: Replicas, reader: Reader, limit: int) -> str | None:
    """Let the replicas write everything. Return what is wrong, or None."""
    replicas.finish()
    for _ in range(3):
        if not reader.read_everything():
            return "the reader waits forever"
        replicas.write_starts()
    reader.read_everything()
    return _unfinished(reader, replicas, limit)


def _go_on(chance: random.Random, replicas: Replicas, reader: Reader, steps: int) -> None:
    for _ in range(steps):
        replicas.step()
        reader.read(chance.randrange(len(replicas.writers)), chance.randint(0, 20))
        if chance.random() < 0.1:
            reader.save()
        if chance.random() < 0.05:
            reader.restart()


def _difference(reader: Reader, replicas: Replicas, limit: int) -> str | None:
    found = {identity for _, identity in reader.delivered}
    missing = sorted(replicas.emission.upto((END,) * replicas.topics) - found)
    if missing and not reader.skips:
        return f"lost: {missing}"
    return _unfinished(reader, replicas, limit)


def _unfinished(reader: Reader, replicas: Replicas, limit: int) -> str | None:
    """Return what is delivered too often, or not as it should be once all replicas have written everything, or None."""
    if twice := sorted(reader.repeated()):
        return f"delivered too often: {twice}"
    if reader.most_remembered > limit:
        return f"{reader.most_remembered} ids were remembered, but only {limit} are allowed"
    union = reader.union
    if reader.recalled_more > _RECALLED_MORE:
        return f"{reader.recalled_more} ids were recalled that had been forgotten"
    if union.remembered or union.oldest_serial() is not None:
        return f"{union.remembered} ids are still remembered"
    if union.complete != list(range(len(replicas.writers))):
        return f"only {union.complete} are complete"
    return None
