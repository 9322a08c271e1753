"""LocalStreamBuffer: joins each record with its neighbours in the other stream.

The library needs no server::

    from joiner import join                 # two whole tables, in one call
    from joiner import LocalStreamBuffer    # two streams, batch by batch
    from joiner import RecordJoin           # two streams, record by record

The process that joins Kafka topics is ``python -m joiner`` (`joiner.runtime`).
"""

from joiner.core.engine import ALL_KEYS, LocalStreamBuffer, Step
from joiner.core.errors import ArgumentError, SnapshotError
from joiner.library.join import join
from joiner.library.records import RecordJoin

__version__ = "0.1.0"
"""As in pyproject.toml. Not read from the installed metadata, because a checkout or a zip of `joiner` has none."""

__all__ = ["ALL_KEYS", "ArgumentError", "LocalStreamBuffer", "RecordJoin", "SnapshotError", "Step", "join"]
