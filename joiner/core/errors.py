"""The errors of the join core.

ValueError
├── ArgumentError    an argument is invalid
└── SnapshotError    the bytes are not a snapshot, or are damaged
    └── NewerSnapshotError    the snapshot was written by a newer release
"""

from __future__ import annotations


class ArgumentError(ValueError):
    """An argument is invalid. The message names it and, in an array, the index. The buffer is unchanged."""


class SnapshotError(ValueError):
    """A snapshot cannot be restored. The message says why."""


class NewerSnapshotError(SnapshotError):
    """A snapshot was written by a newer release. It is intact, but this release cannot read it."""
