"""Messages to write to one topic, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from broker.wire.columns import StringColumn

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """n messages of one topic: their values, and their keys (None if they have none)."""

    keys: StringColumn | None
    values: StringColumn

    def __len__(self) -> int:
        return len(self.values)

    def take(self, which: Ints) -> Batch:
        """Return the messages at these indices."""
        return Batch(None if self.keys is None else self.keys.take(which), self.values.take(which))

    def each(self) -> list[tuple[bytes | None, bytes]]:
        """Return the key and the value of each message."""
        keys = [None] * len(self) if self.keys is None else self.keys.each()
        return list(zip(keys, self.values.each(), strict=True))

    def after(self, values: Sequence[bytes]) -> Batch:
        """Return the messages after others, which have empty keys, or none if these have no keys."""
        first = Batch.of(None if self.keys is None else [b""] * len(values), values)
        return Batch.concat([first, self])

    @classmethod
    def concat(cls, parts: Sequence[Batch]) -> Batch:
        """Return the messages of all parts, in order. Raises ValueError if only some of them have keys."""
        parts = [part for part in parts if len(part)]
        if not parts:
            return cls.of([], [])
        if len(parts) == 1:
            return parts[0]
        keys = [part.keys for part in parts if part.keys is not None]
        if keys and len(keys) < len(parts):
            message = "messages with and without keys for one topic: report this bug"
            raise ValueError(message)
        values = StringColumn.concat([part.values for part in parts])
        return cls(StringColumn.concat(keys) if keys else None, values)

    @classmethod
    def of(cls, keys: Sequence[bytes] | None, values: Sequence[bytes]) -> Self:
        """Convert lists to columns. Raises ValueError if their lengths differ."""
        if keys is not None and len(keys) != len(values):
            message = f"{len(keys)} keys and {len(values)} values: report this bug"
            raise ValueError(message)
        return cls(None if keys is None else StringColumn.of(keys), StringColumn.of(values))
