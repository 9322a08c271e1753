"""Compares vectors of offsets. A vector maps input topics to offsets. A topic that it lacks was not read at all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

Vector = Mapping[str, int]
"""An offset for each input topic."""


def reached(start: Vector, wanted: Vector) -> bool:
    """Return whether ``start`` is at least ``wanted`` in every topic."""
    return all(topic in start and start[topic] >= offset for topic, offset in wanted.items())


def highest(one: Vector, other: Vector) -> dict[str, int]:
    """Return the larger offset of each topic."""
    return {**one, **{topic: max(offset, one.get(topic, offset)) for topic, offset in other.items()}}


def lowest(vectors: Iterable[Vector]) -> dict[str, int]:
    """Return the smallest offset of each topic that all vectors have, or no topics if there are no vectors."""
    first, *others = list(vectors) or [{}]
    return {
        topic: min(offset, *(other[topic] for other in others)) if others else offset
        for topic, offset in first.items()
        if all(topic in other for other in others)
    }


def within(vector: Vector, topics: Collection[str]) -> dict[str, int]:
    """Return a vector without other topics than these."""
    return {topic: offset for topic, offset in vector.items() if topic in topics}
