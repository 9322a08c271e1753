"""Computes what an operator holds for each thing, and which streams the held records are waiting for. Pure.

A record is held until the frontiers of its own stream, and of every stream in which it may have a neighbour, have
passed it (docs/semantics.md, sections 3 and 8). So a stream is being waited for as long as another one holds a record
that is not below its frontier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from joiner.core.frontier import NEVER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


class HeldByKey(NamedTuple):
    """What an operator holds for each of k things: columns of shape (k,), by stream.

    ``held``: the number of held records. ``frontier_ns``: the frontier of the thing. ``awaited_ns``: the time of the
    latest record of another stream that waits for this one. All are int64, and the times are `NEVER` if there is none.
    """

    things: list[str]
    held: dict[str, Ints]
    frontier_ns: dict[str, Ints]
    awaited_ns: dict[str, Ints]

    @classmethod
    def of(
        cls,
        things: Sequence[str],
        keys: Ints,
        records: Mapping[str, Ints],
        frontier_ns: Mapping[str, Ints],
        waits: Sequence[tuple[str, str]],
    ) -> Self:
        """Count the held records of ``keys``, shape (k,), whose names are ``things[key]``.

        ``records``: by stream, the keys and the times in ns of its held records, shape (2, n). ``frontier_ns``: by
        stream, the frontiers of ``keys``. ``waits``: pairs of streams, the first of which may wait for the second.
        """
        held, latest_ns = {}, {}
        for stream, (key, ts) in records.items():
            held[stream] = np.bincount(key, minlength=len(things)).astype(np.int64).take(keys)
            latest = np.full(len(things), NEVER)
            np.maximum.at(latest, key, ts)
            latest_ns[stream] = latest.take(keys)
        awaited_ns = {stream: np.full(len(keys), NEVER) for stream in frontier_ns}
        for waiting, stream in waits:
            waits_at = np.where(latest_ns[waiting] >= frontier_ns[stream], latest_ns[waiting], NEVER)
            np.maximum(awaited_ns[stream], waits_at, out=awaited_ns[stream])
        return cls([things[key] for key in keys.tolist()], held, dict(frontier_ns), awaited_ns)

    def totals(self) -> Ints:
        """Return how many records of each thing are held, shape (k,)."""
        found: Ints = np.sum([*self.held.values()], axis=0, dtype=np.int64)
        return found
