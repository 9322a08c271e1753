"""The errors of the join core.

ValueError
├── ArgumentError    an argument that cannot be used; names the argument and the index
└── SnapshotError    bytes that are no snapshot, or are damaged
    └── NewerSnapshotError    bytes of a newer release
"""

from __future__ import annotations


class ArgumentError(ValueError):
    """An argument that cannot be used; the text names it and the index. The buffer is as it was before."""


class SnapshotError(ValueError):
    """Bytes that cannot be restored; the text says why."""


class NewerSnapshotError(SnapshotError):
    """Bytes that a newer release has written: nothing is wrong with them."""
