"""LocalStreamBuffer: joins each record with its neighbours in the other stream.

To use it as a library, no server is needed::

    from joiner import join                 # two whole tables, in one call
    from joiner import LocalStreamBuffer    # two streams, batch by batch
    from joiner import RecordJoin           # two streams, record by record

``python -m joiner`` starts the process that joins Kafka topics (`joiner.runtime`).
"""

from joiner.core.engine import ALL_KEYS, LocalStreamBuffer, Step
from joiner.core.errors import ArgumentError, SnapshotError
from joiner.library.join import join
from joiner.library.records import RecordJoin

__version__ = "0.1.0"
"""The version in pyproject.toml, repeated here because a checkout or a zip of `joiner` has no installed metadata."""

__all__ = ["ALL_KEYS", "ArgumentError", "LocalStreamBuffer", "RecordJoin", "SnapshotError", "Step", "join"]
