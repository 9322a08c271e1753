"""LocalStreamBuffer: joins each record with its neighbours in the other stream.

The library face, which needs numpy and no server::

    from joiner import LocalStreamBuffer

The process that joins Kafka topics is ``python -m joiner`` (`joiner.run`).
"""

from joiner.core.engine import ALL_KEYS, LocalStreamBuffer, Step
from joiner.core.errors import ArgumentError, SnapshotError

__all__ = ["ALL_KEYS", "ArgumentError", "LocalStreamBuffer", "SnapshotError", "Step"]
