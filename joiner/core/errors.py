"""The errors of the join core.

ValueError
├── ArgumentError    an argument is invalid, or the buffer is closed
└── SnapshotError    a snapshot cannot be restored
    └── NewerSnapshotError    the snapshot was written by a newer release
"""

from __future__ import annotations


class ArgumentError(ValueError):
    """An argument is invalid, or the buffer is closed. A buffer that raises this error is unchanged.

    The message names the argument and, if a single value in an array is invalid, its index.
    """


class SnapshotError(ValueError):
    """A snapshot cannot be restored. The message says why."""


class NewerSnapshotError(SnapshotError):
    """A snapshot was written by a newer release. It is intact, but this release cannot read it."""
