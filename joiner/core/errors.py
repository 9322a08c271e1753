"""The errors of the join core.

ValueError
├── ArgumentError    an invalid argument; names the argument and the index
└── SnapshotError    bytes that are not a snapshot, or are damaged
    └── NewerSnapshotError    a snapshot of a newer release
"""

from __future__ import annotations


class ArgumentError(ValueError):
    """An invalid argument. The message names it and the index. The buffer is unchanged."""


class SnapshotError(ValueError):
    """Bytes that cannot be restored. The message says why."""


class NewerSnapshotError(SnapshotError):
    """A snapshot that a newer release wrote. It is intact, and this release cannot read it."""
