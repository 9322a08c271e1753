"""Encodes the pairs of one join in one unit as Arrow, without a Python object for each pair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.wire.arrow.results import ResultColumns, encode_results
from broker.wire.columns import StringColumn
from joiner.runtime.task.batch import Batch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from joiner.operators import JoinSettings
    from joiner.runtime.settings import JoinerSettings
    from joiner.runtime.task.emit import Pairs


class ResultEncoder:
    """See `joiner.runtime.task.emit.EncodePairs`."""

    def __init__(self, settings: JoinerSettings, join: JoinSettings, unit: int) -> None:
        self._join, self._unit = join, unit
        self._has_rows = settings.topics.has_rows

    def __call__(self, pairs: Pairs, values: NDArray[np.float64]) -> Batch:
        """Return the messages, which have no keys."""
        left, right = pairs.left, pairs.right
        columns = ResultColumns(
            pairs.things.number,
            values,
            left.seq,
            right.seq,
            left.ts_ns,
            right.ts_ns,
            pairs.left_ordinal,
            pairs.right_ordinal,
        )
        names, join = pairs.things.names, self._join
        messages = encode_results(names, columns, join.name, join.output, self._unit, has_rows=self._has_rows)
        return Batch(None, StringColumn.of(messages))
