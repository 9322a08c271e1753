"""LocalStreamBuffer: joins each record with its neighbours in the other stream.

The library can be used without any server::

    from joiner import join                 # two whole tables, in one call
    from joiner import LocalStreamBuffer    # two streams, batch by batch
    from joiner import RecordJoin           # two streams, one record at a time
    from joiner import align, column        # adds the values of other tables to each row of a table, by time
    from joiner import AlignBuffer          # like `align`, but for streams, batch by batch

``python -m joiner`` runs the command that joins Kafka topics (`joiner.cli`).
"""

from joiner.alignment.buffer import AlignBuffer, AlignedRows
from joiner.alignment.grid import Grid
from joiner.alignment.rules import ColumnRule
from joiner.core.engine import ALL_KEYS, LocalStreamBuffer, Step
from joiner.core.errors import ArgumentError, SnapshotError
from joiner.library.align import align, column
from joiner.library.grid import grid
from joiner.library.join import join
from joiner.library.records import RecordJoin

__version__ = "0.1.0"
"""The version in pyproject.toml, repeated here because a checkout or a zipped copy has no package metadata."""

__all__ = [
    "ALL_KEYS",
    "AlignBuffer",
    "AlignedRows",
    "ArgumentError",
    "ColumnRule",
    "Grid",
    "LocalStreamBuffer",
    "RecordJoin",
    "SnapshotError",
    "Step",
    "align",
    "column",
    "grid",
    "join",
]
