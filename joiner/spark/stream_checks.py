"""Checks what the operators require of streams: a suitable state store, and frontiers that advance.

Every error is a Spark `AnalysisException`. The message names the argument and, where relevant, the DataFrame, and says
what is wrong or how to correct it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException

from joiner.spark.frame_columns import WATERMARK, Frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def check_state_store(session: SparkSession, operator: str) -> None:
    """Raise `AnalysisException` if the state store is Spark's default, which does not support the operators.

    ``operator``: the function that was called.
    """
    provider = session.conf.get(_PROVIDER)
    if "HDFSBackedStateStoreProvider" in str(provider):
        raise AnalysisException(
            f"{operator} of streams requires the RocksDB state store, but {_PROVIDER} is {provider}: call "
            f'spark.conf.set("{_PROVIDER}", "{_ROCKSDB}") before {operator}'
        )


def watermarks(frames: Sequence[Frame], at: Sequence[int]) -> tuple[bool, ...]:
    """Return whether each stream has a watermark on its time column, whose position is in ``at``.

    Raises `AnalysisException` if a stream has its watermark on another column.
    """
    for frame, place in zip(frames, at, strict=True):
        others = [field.name for field in frame.fields if WATERMARK in (field.metadata or {})]
        time = frame.fields[place]
        if others and WATERMARK not in (time.metadata or {}):
            raise AnalysisException(
                f"{frame.name} has its watermark on {others[0]!r}, not on its time column {time.name!r}: "
                f"call withWatermark({time.name!r}, …)"
            )
    return tuple(WATERMARK in (frame.fields[place].metadata or {}) for frame, place in zip(frames, at, strict=True))


def check_certainty(
    frames: Sequence[Frame], has_watermark: Sequence[bool], lateness: Sequence[int | None], what: str
) -> None:
    """Raise `AnalysisException` if a stream's frontier would never advance. ``what``: what would never be emitted."""
    for frame, is_watermarked, own in zip(frames, has_watermark, lateness, strict=True):
        if not is_watermarked and own is None:
            raise AnalysisException(
                f"{frame.name} is a stream with neither watermark nor lateness, so no {what} would ever become "
                "certain: call withWatermark(time, '10 minutes') on it, or set lateness to how far a row's time may be "
                "behind the largest time of its key"
            )
