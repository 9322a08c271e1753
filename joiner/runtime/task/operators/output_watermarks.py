"""Finds the watermarks that a unit can write to its result topic, for readers that join or align its results.

A watermark names the quantity of the results and a thing, or all things. It is true because it is taken from the state
after a batch and written after that batch's results, in the same transaction and partition: the state gives a lower
bound on the time of every later result (`UnitOperator.bounds_ns`). Unlike results, watermarks are not a function of the
vector C, and need not be: a watermark is true whenever it is taken, and a reader's results depend only on the log that
it reads.

A unit remembers which watermarks it has written only in memory, so its next owner writes them again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from broker.times import TIME_MAX_NS, TIME_MIN_NS, UNIT_NS, iso_text
from broker.wire.columns import StringColumn, glue
from broker.wire.records import encode, encode_lines
from joiner.core.frontier import FOREVER, NEVER
from joiner.runtime.task.batch import Batch
from joiner.runtime.task.emit import Things

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joiner.runtime.settings import JoinerSettings
    from joiner.runtime.task.decoding.keys import Keys
    from joiner.runtime.task.operators.operator import UnitOperator

    Ints = NDArray[np.int64]

WATERMARKS_MAX: Final = 10_000
"""Maximum number of watermarks for single things per transaction, about 1 MB. Later transactions write the rest."""


class OutputWatermarks:
    """The watermarks of one unit, and which of them have been written."""

    def __init__(self, settings: JoinerSettings, keys: Keys, operators: Sequence[UnitOperator]) -> None:
        self._keys, self._time_unit = keys, settings.events.time_unit
        # A message with many results has no key, and the messages of a topic either all have keys or none do.
        self._has_keys = settings.application.results != "arrow"
        self._operators = {operator.output: operator for operator in operators}
        self._quantities = {output: _Quantity() for output in self._operators}
        self.has_more = False
        """Whether the last `take` left out watermarks, because there were too many."""

    def take(self) -> Batch:
        """Return the messages for the watermarks that have risen since they were last returned (see `has_more`)."""
        parts, room, self.has_more = [], max(1, WATERMARKS_MAX // len(self._operators)), False
        in_use, count = np.sort(self._keys.numbers_in_use()), len(self._keys.things)
        for output, operator in self._operators.items():
            bounds, of_unused = operator.bounds_ns(count)
            of_all, risen, is_cut = self._quantities[output].take(in_use, bounds, of_unused, room)
            self.has_more = self.has_more or is_cut
            if of_all is not None:
                parts.append(self._encode(output, np.array([of_all], dtype=np.int64), None))
            if len(risen):
                names = [self._keys.things[key] for key in risen.tolist()]
                things = Things(names, np.arange(len(names)))
                parts.append(self._encode(output, bounds.take(risen), things))
        return Batch.concat(parts)

    def keep(self, numbers: Ints) -> None:
        """Forget what has been written for all keys except ``numbers``, because their numbers may be reused."""
        for quantity in self._quantities.values():
            quantity.keep(numbers)

    def _encode(self, output: str, ts_ns: Ints, things: Things | None) -> Batch:
        pieces: list[StringColumn | bytes] = [
            b'{"mark":',
            _times(ts_ns, self._time_unit),
            b',"quantity":' + encode(output),
        ]
        if things is not None:
            pieces += [b',"thing":', things.texts()]
        values = glue(*pieces, b"}")
        if not self._has_keys:
            return Batch(None, values)
        return Batch(StringColumn.repeated(b"", len(values)) if things is None else things.keys(), values)


def _times(ts_ns: Ints, unit: str) -> StringColumn:
    """Return times as JSON: integers in ``unit`` or, if finer, ISO 8601. A watermark's time cannot be a decimal."""
    unit_ns = UNIT_NS[unit]
    texts = [ts // unit_ns if ts % unit_ns == 0 else iso_text(ts) for ts in ts_ns.tolist()]
    return StringColumn.of_lines(encode_lines(texts))


class _Quantity:
    """The watermarks written for one quantity, in ns: for each key, and for all keys together."""

    def __init__(self) -> None:
        self._by_key: Ints = np.empty(0, dtype=np.int64)
        self._of_all = NEVER
        self._next = 0
        """The key to begin the next watermarks with, so that every key gets its turn."""

    def take(self, in_use: Ints, bounds: Ints, of_unused: int, room: int) -> tuple[int | None, Ints, bool]:
        """Return the watermark for all keys, the keys whose watermarks have risen, and whether more such keys remain.

        The first value is None if the watermark for all keys has not risen.

        ``in_use``: the keys in use, ascending. ``bounds``: of all keys, in ns. ``room``: the maximum number of keys.
        """
        self._grow(len(bounds))
        of_all = min(of_unused, int(bounds.take(in_use).min(initial=FOREVER)))
        has_risen = max(self._of_all, TIME_MIN_NS - 1) < of_all <= TIME_MAX_NS
        if has_risen:
            self._of_all = of_all
        now, before = bounds.take(in_use), np.maximum(self._by_key.take(in_use), max(self._of_all, TIME_MIN_NS - 1))
        risen = in_use[(now > before) & (now <= TIME_MAX_NS)]
        found = np.roll(risen, -int(risen.searchsorted(self._next)))[:room]
        if is_cut := len(found) < len(risen):
            self._next = int(found[-1]) + 1
        self._by_key[found] = bounds.take(found)
        return of_all if has_risen else None, found, is_cut

    def keep(self, numbers: Ints) -> None:
        kept = np.full_like(self._by_key, NEVER)
        which = numbers[numbers < len(kept)]
        kept[which] = self._by_key[which]
        self._by_key = kept

    def _grow(self, count: int) -> None:
        if count > len(self._by_key):
            self._by_key = np.append(self._by_key, np.full(count - len(self._by_key), NEVER))
