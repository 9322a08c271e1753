"""Validates the columns of DataFrames: their names, and their use as times, as keys and for ordering rows.

`neighbour_join` and `align` share these checks. Every error is a Spark `AnalysisException`. The message names the
argument and, where relevant, the DataFrame, and says what is wrong or how to correct it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import pandas as pd
from pyspark.errors import AnalysisException
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from joiner.core.arguments import DURATION_MAX_NS
from joiner.spark.rows import Side, in_utc

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

WATERMARK: Final = "spark.watermarkDelayMs"
"""The metadata entry that marks a column with a watermark."""

_INTEGERS: Final = (spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType)
_KEYS: Final = (
    *(*_INTEGERS, spark.BooleanType, spark.FloatType, spark.DoubleType, spark.DecimalType, spark.StringType),
    *(spark.BinaryType, spark.DateType, spark.TimestampType, spark.TimestampNTZType, spark.DayTimeIntervalType),
)
_TIMES: Final = (*_INTEGERS, spark.DateType, spark.TimestampType, spark.TimestampNTZType)
_BUCKETS_MAX: Final = 100_000


@dataclass(frozen=True)
class Frame:
    """The columns of a DataFrame. ``name``: the argument it was passed as, for messages."""

    name: str
    fields: list[spark.StructField]
    is_sensitive: bool

    @classmethod
    def of(cls, name: str, frame: DataFrame) -> Self:
        """Return the columns of a DataFrame."""
        is_sensitive = frame.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
        return cls(name, list(frame.schema.fields), is_sensitive)

    def folded(self, name: str) -> str:
        """Return a name as Spark compares it."""
        return name if self.is_sensitive else name.lower()

    def places(self, name: str) -> list[int]:
        """Return the positions of all columns named ``name``."""
        return [at for at, field in enumerate(self.fields) if self.folded(field.name) == self.folded(name)]

    def place(self, name: str, argument: str) -> int:
        """Return the position of the column named ``name``. Raises `AnalysisException` unless there is exactly one."""
        places = self.places(name)
        if not places:
            has = ", ".join(repr(field.name) for field in self.fields)
            raise AnalysisException(f"{argument}: {self.name} has no column {name!r}; it has {has}")
        if len(places) > 1:
            raise AnalysisException(
                f"{argument}: {self.name} has {len(places)} columns named {name!r}; rename or drop one"
            )
        return places[0]

    def with_types(self, places: Sequence[int], types: Sequence[spark.DataType]) -> Self:
        """Return the columns with replaced types at ``places``."""
        fields = list(self.fields)
        for place, kind in zip(places, types, strict=True):
            fields[place] = spark.StructField(fields[place].name, kind, metadata=fields[place].metadata)
        return replace(self, fields=fields)

    def side(self, by: tuple[int, ...], time: int, order: tuple[int, ...]) -> Side:
        """Return the columns by their roles, for the workers."""
        others = tuple(at for at in range(len(self.fields)) if at not in by)
        return Side(self.name, by, time, order, others, arrow_schema([field.dataType for field in self.fields]))


def arrow_schema(types: Sequence[spark.DataType]) -> pa.Schema:
    """Return an Arrow schema with the types of columns; see `in_utc`."""
    fields = [spark.StructField(f"c{place}", kind) for place, kind in enumerate(types)]
    return in_utc(to_arrow_schema(spark.StructType(fields), timezone="UTC"))


@dataclass(frozen=True)
class Unit:
    """The unit to which durations are converted: microseconds or, if times are integers, the unit of the times."""

    is_datetime: bool

    @classmethod
    def of(cls, kind: spark.DataType) -> Self:
        """Return the unit of durations for times of the type ``kind``."""
        return cls(not isinstance(kind, _INTEGERS))

    def duration(self, name: str, value: object) -> int:
        """Convert ``value`` to this unit. Raises `AnalysisException` unless it is a non-negative duration."""
        found = self._timedelta(name, value) if self.is_datetime else value
        if isinstance(found, bool) or not isinstance(found, (int, np.integer)):
            raise AnalysisException(f"{name} must be an integer if times are integers, not {value!r}")
        if not 0 <= found <= DURATION_MAX_NS:
            raise AnalysisException(f"{name} = {value!r}: it must not be negative or exceed 2**63 - 1")
        return int(found)

    def _timedelta(self, name: str, value: object) -> int:
        if not isinstance(value, (str, timedelta, np.timedelta64)):
            raise AnalysisException(
                f"{name} must be a duration if times are dates or timestamps, such as '10 seconds' or "
                f"datetime.timedelta(seconds=10), not {value!r}"
            )
        try:
            found = pd.Timedelta(value)
        except ValueError as error:
            raise AnalysisException(f"{name} = {value!r}: {error}; write it like '10 seconds'") from error
        if found is pd.NaT:
            raise AnalysisException(f"{name} = {value!r} is not a duration")
        return int(found.value // 1_000)


def column_names(names: str | Sequence[str] | None) -> list[str]:
    """Return the names in an argument that may be one name, several, or None."""
    return [] if names is None else [names] if isinstance(names, str) else list(names)


def check_times(frames: list[Frame], at: list[int]) -> Unit:
    """Return the unit of durations. Raises `AnalysisException` if a time column, in ``at``, has an unsuitable type."""
    kinds = [frame.fields[place].dataType for frame, place in zip(frames, at, strict=True)]
    for frame, place, kind in zip(frames, at, kinds, strict=True):
        if not isinstance(kind, _TIMES):
            raise AnalysisException(
                f"time: {frame.name}[{frame.fields[place].name!r}] is {kind.simpleString()}; it must be a timestamp, a "
                "timestamp_ntz, a date or an integer"
            )
    unit = Unit.of(kinds[0])
    for frame, kind in zip(frames[1:], kinds[1:], strict=True):
        if unit != Unit.of(kind) or (unit.is_datetime and kinds[0] != kind):
            raise AnalysisException(
                f"time: the column of {frames[0].name} is of type {kinds[0].simpleString()}, but that of {frame.name} "
                f"is of type {kind.simpleString()}; cast one of them so that the types match"
            )
    return unit


def key_types(frames: list[Frame], keys: list[list[int]]) -> list[spark.DataType]:
    """Return the types to which keys are converted for comparison: for integers of different widths, the widest.

    Raises `AnalysisException` if the types of two keys differ in any other way, or if a type is not supported.
    """
    found = []
    for places in zip(*keys, strict=True):
        shown = [f"{frame.name}[{frame.fields[place].name!r}]" for frame, place in zip(frames, places, strict=True)]
        kinds = [frame.fields[place].dataType for frame, place in zip(frames, places, strict=True)]
        for name, kind in zip(shown, kinds, strict=True):
            if not isinstance(kind, _KEYS) or getattr(kind, "collation", "UTF8_BINARY") != "UTF8_BINARY":
                raise AnalysisException(
                    f"by: {name} is {kind.simpleString()}, which is not supported as a key; use its fields or a value "
                    "computed from it as keys instead"
                )
        are_integers = all(isinstance(kind, _INTEGERS) for kind in kinds)
        for name, kind in zip(shown, kinds, strict=True):
            if kind != kinds[0] and not are_integers:
                raise AnalysisException(
                    f"by: {shown[0]} is {kinds[0].simpleString()}, but {name} is {kind.simpleString()}; cast one of "
                    "them to the other's type"
                )
        found.append(max(kinds, key=_width) if are_integers else kinds[0])
    return found


def _width(kind: spark.DataType) -> int:
    return [type(kind) is known for known in _INTEGERS].index(True)


def order_places(order: str | Sequence[str] | None, frames: list[Frame], none_of_them: str) -> list[tuple[int, ...]]:
    """Return, for each frame, the positions of its columns, beginning with those named in ``order``.

    ``none_of_them``: the subject of the error message if no frame has a column, such as "neither left nor right".
    Raises `AnalysisException` if a name in ``order`` is in no frame, or if a frame has several columns with that name.
    """
    names = column_names(order)
    for name in names:
        if not any(frame.places(name) for frame in frames):
            raise AnalysisException(f"order: {none_of_them} has a column {name!r}")
    found = []
    for frame in frames:
        first = [frame.place(name, "order") for name in names if frame.places(name)]
        found.append(tuple(dict.fromkeys([*first, *range(len(frame.fields))])))
    return found


def bucket_count(buckets: object, session: SparkSession) -> int:
    """Return the number of buckets. The default is the number of Spark's shuffle partitions.

    Raises `AnalysisException` if it is not an integer, or is out of range.
    """
    if buckets is None:
        buckets = int(str(session.conf.get("spark.sql.shuffle.partitions")))
    if isinstance(buckets, bool) or not isinstance(buckets, int) or not 1 <= buckets <= _BUCKETS_MAX:
        raise AnalysisException(f"buckets must be an integer from 1 to {_BUCKETS_MAX}, not {buckets!r}")
    return buckets


def nullable(field: spark.StructField, name: str) -> spark.StructField:
    """Return the result column for ``field``: renamed to ``name``, nullable, and without watermark metadata."""
    metadata = {entry: value for entry, value in (field.metadata or {}).items() if entry != WATERMARK}
    return spark.StructField(name, field.dataType, nullable=True, metadata=metadata)
