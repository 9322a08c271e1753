"""The messages of one unit and topic, as read from Kafka."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from broker.wire.columns import StringColumn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Messages:
    """n Kafka messages of one partition, in offset order, as columns.

    Columns: offsets, the broker's append times in ms (int64, shape (n,)), and values. ``is_null``: whether each value
    is null (a tombstone), or None if none is. A null is an empty string in ``value``. ``key``: the messages'
    keys, or None if nothing needs them (see `JoinerSettings.keyed_topics`). A null key is an empty string, too.
    """

    offset: Ints
    append_ms: Ints
    value: StringColumn
    is_null: NDArray[np.bool_] | None = None
    key: StringColumn | None = None

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def first(self) -> int:
        """The first offset."""
        return int(self.offset[0])

    @property
    def last(self) -> int:
        """The last offset."""
        return int(self.offset[-1])

    @classmethod
    def of(
        cls,
        offset: Sequence[int],
        append_ms: Sequence[int],
        value: Sequence[bytes | None],
        key: Sequence[bytes | None] | None = None,
    ) -> Self:
        """Convert lists to columns."""
        nulls = np.array([one is None for one in value], dtype=bool)
        values = StringColumn.of([one or b"" for one in value])
        keys = None if key is None else StringColumn.of([one or b"" for one in key])
        return cls(int64(offset), int64(append_ms), values, nulls if nulls.any() else None, keys)

    @classmethod
    def concat(cls, parts: Sequence[Messages]) -> Messages:
        """Return the messages of all parts, in order. There must be at least one part."""
        if len(parts) == 1:
            return parts[0]
        nulls = None
        if any(part.is_null is not None for part in parts):
            nulls = np.concatenate(
                [np.zeros(len(part), dtype=bool) if part.is_null is None else part.is_null for part in parts]
            )
        keys = [part.key for part in parts if part.key is not None]
        return cls(
            np.concatenate([part.offset for part in parts]),
            np.concatenate([part.append_ms for part in parts]),
            StringColumn.concat([part.value for part in parts]),
            nulls,
            StringColumn.concat(keys) if keys else None,
        )

    def part(self, begin: int, end: int) -> Messages:
        """Return the messages from index ``begin`` up to ``end``; the bytes of the values are not copied."""
        rows = slice(begin, end)
        value = StringColumn(self.value.data, self.value.start[rows], self.value.end[rows])
        nulls = None if self.is_null is None or not self.is_null[rows].any() else self.is_null[rows]
        key = None if self.key is None else StringColumn(self.key.data, self.key.start[rows], self.key.end[rows])
        return Messages(self.offset[rows], self.append_ms[rows], value, nulls, key)

    def values(self) -> list[bytes | None]:
        """Return a list of the values."""
        values: list[bytes | None] = [*self.value.each()]
        if self.is_null is not None:
            for at in self.is_null.nonzero()[0].tolist():
                values[at] = None
        return values


def int64(values: Sequence[int]) -> Ints:
    """Return integers as an array. Raises OverflowError if one of them is out of range."""
    return np.array(values, dtype=np.int64)
