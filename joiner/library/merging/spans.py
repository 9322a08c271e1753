"""Describes which of the messages that were delivered are remembered, without their ids."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

Span = tuple[int, int, int]
"""A replica, and the first and the last serial of what was delivered from it."""


def joined(spans: Iterable[Span], most: int) -> list[Span]:
    """Return spans, in order, that contain the given ones. Those that overlap or touch are one.

    If there are more than ``most``, which must be at least the number of replicas, those that are closest become one.
    """
    found = _join(sorted(spans), 1)
    if len(found) <= most:
        return found
    gaps = sorted(later[1] - one[2] for one, later in pairwise(found) if one[0] == later[0])
    return _join(found, gaps[len(found) - most - 1])


def _join(spans: Iterable[Span], gap: int) -> list[Span]:
    """Join the spans of a replica of which the next one begins at most ``gap`` after the end of the one before."""
    found: list[Span] = []
    for number, first, last in spans:
        if found and found[-1][0] == number and first - found[-1][2] <= gap:
            found[-1] = number, found[-1][1], max(last, found[-1][2])
        else:
            found.append((number, first, last))
    return found
