"""Pauses topics that run ahead of others in event time and so fill a buffer, and limits the size of batches.

Records later than all records of another stream are held because that stream lags. If they make up more than half of
the records that a join or an align holds, and its buffer is more than half full, their topic is paused until the other
one has caught up. It is not paused if the other topic has been silent for a while, because waiting would not help. This
affects the memory used, never the results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from joiner.runtime.settings import JoinerSettings

PAUSE_ABOVE: Final = 0.5
RESUME_BELOW: Final = 0.25
"""Thresholds for the used share of the buffer and for the lead of a stream. A topic is paused once both are above
`PAUSE_ABOVE`, and resumed once one of them is no longer above `RESUME_BELOW`."""

SILENT_S: Final = 10.0
"""A topic is not paused to wait for another topic that has been at its end for this many seconds."""


ROWS_MAX: Final = 500_000
"""Approximate maximum number of single-column rows in a batch. Each takes a few hundred bytes until it is written."""

_ROW_VALUES: Final = 3
"""Besides the values of its columns, a row takes as much memory as this many values."""

_FORGETTING: Final = 0.8
"""The estimate of rows per record falls by at most this factor while each unit of the process has one batch."""


class Lead(NamedTuple):
    """How far a stream of a join or an align, read from ``topic``, is ahead of another one, read from ``behind``.

    ``fill``: the used share of the operator's buffer. ``share``: the share of the records in it that belong to the
    first stream and are later than all records of the second one.
    """

    topic: str
    behind: str
    fill: float
    share: float


def topics_to_pause(leads: Iterable[Lead], paused: Collection[str], silent: Collection[str]) -> set[str]:
    """Return the topics to pause. ``paused``: topics already paused; ``silent``: topics at their end for `SILENT_S`."""
    waits_for: dict[str, set[str]] = {}
    for lead in leads:
        limit = RESUME_BELOW if lead.topic in paused else PAUSE_ABOVE
        if min(lead.fill, lead.share) > limit and lead.behind not in silent:
            waits_for.setdefault(lead.topic, set()).add(lead.behind)
    found: set[str] = set()
    # A topic waits only for topics that are being read, or that wait for such a topic, so there is never a cycle.
    while more := {topic for topic, others in waits_for.items() if others.isdisjoint(waits_for.keys() - found)} - found:
        found |= more
    return found


class BatchLimit:
    """Limits the records of a batch if each of them may complete many rows of a grid.

    How many rows they complete is known only after the batch has been processed. At first, the number per record is
    assumed to be the maximum that a record can add. Later, it is estimated from recent batches. The limit affects the
    memory used, never the results.
    """

    def __init__(self, settings: JoinerSettings) -> None:
        grids = [align.grid for align in settings.align if align.grid is not None]
        self._rows_per_record = float(sum(grid.rows_per_record_max for grid in grids))
        columns = max((len(align.columns) for align in settings.align if align.grid is not None), default=0)
        self._rows_max = ROWS_MAX * (1 + _ROW_VALUES) / (columns + _ROW_VALUES)
        self._has_grids = bool(grids)

    def note(self, records: int, results: int, units: int) -> None:
        """Adjust the limit to a batch that has been processed.

        ``results``: the number of its results, and of the rows for which a function failed, which become dead letters.
        ``units``: how many units share the limit. Batches of other units must not mask one unit's many rows.
        """
        if records:
            self._rows_per_record = max(results / records, _FORGETTING ** (1 / units) * self._rows_per_record)

    def records(self, most: int) -> int:
        """Return how many records to read. ``most``: how many would be read without any grids."""
        if not self._has_grids or self._rows_per_record * most <= self._rows_max:
            return most
        return max(1, int(self._rows_max / self._rows_per_record))
