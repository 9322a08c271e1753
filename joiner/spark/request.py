"""Validates the arguments of `neighbour_join` against its two DataFrames, before the query starts.

Every error is a Spark `AnalysisException` that names the argument and the DataFrame, and says what to change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
from pyspark.errors import AnalysisException
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from joiner.core.arguments import DIRECTIONS, DRIVERS, DURATION_MAX_NS, UNMATCHED
from joiner.spark.reordering import Rules
from joiner.spark.rows import Side, in_utc

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAMES: Final = ("left", "right")
_WATERMARK: Final = "spark.watermarkDelayMs"
"""The entry in a column's metadata that shows that the column has a watermark."""

PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_INTEGERS: Final = (spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType)
_KEYS: Final = (
    *(*_INTEGERS, spark.BooleanType, spark.FloatType, spark.DoubleType, spark.DecimalType, spark.StringType),
    *(spark.BinaryType, spark.DateType, spark.TimestampType, spark.TimestampNTZType, spark.DayTimeIntervalType),
)
_TIMES: Final = (*_INTEGERS, spark.DateType, spark.TimestampType, spark.TimestampNTZType)
_BUCKETS_MAX: Final = 100_000

Pair = tuple[Any, Any]


@dataclass(frozen=True)
class Options:
    """The arguments of `neighbour_join`, as the caller passed them, not yet validated."""

    by: str | Sequence[str]
    time: str | tuple[str, str]
    order: str | Sequence[str] | None
    tolerance: object
    direction: str
    driver: str
    lateness: object
    emit_unmatched: str
    suffixes: tuple[str, str]
    buckets: int | None


@dataclass(frozen=True)
class Request:
    """The validated arguments. ``types``: the column types of both sides, with the keys cast to common types."""

    rules: Rules
    types: tuple[list[spark.DataType], list[spark.DataType]]
    result: spark.StructType
    is_streaming: bool

    @classmethod
    def of(cls, left: DataFrame, right: DataFrame, options: Options) -> Request:
        """Validate the arguments against the two frames. Raises `AnalysisException`."""
        _check_choices(options)
        session = left.sparkSession
        is_sensitive = session.conf.get("spark.sql.caseSensitive") == "true"
        frames = [_Frame.of(name, frame, is_sensitive) for name, frame in zip(_NAMES, (left, right), strict=True)]
        times = (options.time,) * 2 if isinstance(options.time, str) else tuple(options.time)
        if len(times) != len(_NAMES):
            raise AnalysisException(f"time must be one column name or (left, right), not {options.time!r}")
        by = [options.by] if isinstance(options.by, str) else list(options.by)
        keys = [[frame.place(name, "by") for name in by] for frame in frames]
        at = [frame.place(name, "time") for frame, name in zip(frames, times, strict=True)]
        _check_times(frames, at)
        frames = _with_equal_keys(frames, keys)
        unit = _Unit.of(frames[0].fields[at[0]].dataType)
        has_watermark = _has_watermark(frames, at) if left.isStreaming or right.isStreaming else (False, False)
        lateness = unit.of_sides(options.lateness)
        if _check_streaming(left, right):
            _check_state_store(session)
            _check_certainty(has_watermark, lateness)
        order = _order(options.order, frames)
        sides = [
            frame.side(tuple(key), time, places)
            for frame, key, time, places in zip(frames, keys, at, order, strict=True)
        ]
        rules = Rules(
            sides=(sides[0], sides[1]),
            tolerance=None if options.tolerance is None else unit.duration("tolerance", options.tolerance),
            lateness=lateness,
            has_watermark=has_watermark,
            direction=options.direction,
            driver=options.driver,
            emit_unmatched=options.emit_unmatched,
            buckets=_buckets(options.buckets, session) if by else 1,
        )
        types = [[field.dataType for field in frame.fields] for frame in frames]
        result = _result(frames, rules.sides, options.suffixes)
        return cls(rules, (types[0], types[1]), result, left.isStreaming)


@dataclass(frozen=True)
class _Frame:
    """The columns of one of the two frames."""

    name: str
    fields: list[spark.StructField]
    is_sensitive: bool

    @classmethod
    def of(cls, name: str, frame: DataFrame, is_sensitive: bool) -> _Frame:  # noqa: FBT001 - private
        return cls(name, list(frame.schema.fields), is_sensitive)

    def folded(self, name: str) -> str:
        return name if self.is_sensitive else name.lower()

    def places(self, name: str) -> list[int]:
        return [at for at, field in enumerate(self.fields) if self.folded(field.name) == self.folded(name)]

    def place(self, name: str, argument: str) -> int:
        places = self.places(name)
        if not places:
            has = ", ".join(repr(field.name) for field in self.fields)
            raise AnalysisException(f"{argument}: {self.name} has no column {name!r}; it has {has}")
        if len(places) > 1:
            raise AnalysisException(
                f"{argument}: {self.name} has {len(places)} columns named {name!r}; rename or drop one"
            )
        return places[0]

    def side(self, by: tuple[int, ...], time: int, order: tuple[int, ...]) -> Side:
        others = tuple(at for at in range(len(self.fields)) if at not in by)
        schema = to_arrow_schema(spark.StructType(self.fields), timezone="UTC")
        return Side(self.name, by, time, order, others, in_utc(schema))


@dataclass(frozen=True)
class _Unit:
    """The unit in which durations are given: microseconds or, if the times are integers, the unit of the times."""

    is_datetime: bool

    @classmethod
    def of(cls, kind: spark.DataType) -> _Unit:
        return cls(not isinstance(kind, _INTEGERS))

    def of_sides(self, value: object) -> tuple[int | None, int | None]:
        """Return the lateness for the left and the right side. None means that only watermarks make rows late."""
        sides = list(value) if isinstance(value, (tuple, list)) else [value, value]
        if len(sides) != len(_NAMES):
            raise AnalysisException(f"lateness must be one duration or (left, right), not {value!r}")
        left, right = (None if one is None else self.duration("lateness", one) for one in sides)
        return left, right

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


def _check_choices(options: Options) -> None:
    for name, value, known in (
        ("direction", options.direction, DIRECTIONS),
        ("driver", options.driver, DRIVERS),
        ("emit_unmatched", options.emit_unmatched, UNMATCHED),
    ):
        if value not in known:
            raise AnalysisException(f"{name} must be one of {', '.join(map(repr, known))}, not {value!r}")


def _check_times(frames: list[_Frame], at: list[int]) -> None:
    kinds = [frame.fields[place].dataType for frame, place in zip(frames, at, strict=True)]
    for frame, place, kind in zip(frames, at, kinds, strict=True):
        if not isinstance(kind, _TIMES):
            raise AnalysisException(
                f"time: {frame.name}[{frame.fields[place].name!r}] is {kind.simpleString()}; it must be a timestamp, a "
                "timestamp_ntz, a date or an integer"
            )
    if _Unit.of(kinds[0]) != _Unit.of(kinds[1]) or (_Unit.of(kinds[0]).is_datetime and kinds[0] != kinds[1]):
        shown = ", but right is of type ".join(kind.simpleString() for kind in kinds)
        raise AnalysisException(f"time: left is of type {shown}; cast one of them so that the types match")


def _with_equal_keys(frames: list[_Frame], keys: list[list[int]]) -> list[_Frame]:
    """Return the frames. If two integer keys have different widths, the narrower one is cast to the wider type.

    Raises `AnalysisException` if the types of two keys differ in any other way, or if a type is not supported.
    """
    fields = [list(frame.fields) for frame in frames]
    for places in zip(*keys, strict=True):
        kinds = [frame.fields[place].dataType for frame, place in zip(frames, places, strict=True)]
        for frame, place, kind in zip(frames, places, kinds, strict=True):
            if not isinstance(kind, _KEYS) or getattr(kind, "collation", "UTF8_BINARY") != "UTF8_BINARY":
                raise AnalysisException(
                    f"by: {frame.name}[{frame.fields[place].name!r}] is {kind.simpleString()}, which is not supported "
                    "as a key; use its fields or a value computed from it as keys instead"
                )
        if all(isinstance(kind, _INTEGERS) for kind in kinds):
            wider = max(kinds, key=lambda kind: [type(kind) is known for known in _INTEGERS].index(True))
            for of_side, place in zip(fields, places, strict=True):
                of_side[place] = spark.StructField(of_side[place].name, wider, metadata=of_side[place].metadata)
        elif kinds[0] != kinds[1]:
            name = frames[0].fields[places[0]].name
            raise AnalysisException(
                f"by: left[{name!r}] is {kinds[0].simpleString()}, right[{name!r}] is {kinds[1].simpleString()}; cast "
                "one of them to the other's type"
            )
    return [replace(frame, fields=of_side) for frame, of_side in zip(frames, fields, strict=True)]


def _has_watermark(frames: list[_Frame], at: list[int]) -> tuple[bool, bool]:
    for frame, place in zip(frames, at, strict=True):
        others = [field.name for field in frame.fields if _WATERMARK in (field.metadata or {})]
        time = frame.fields[place]
        if others and _WATERMARK not in (time.metadata or {}):
            raise AnalysisException(
                f"{frame.name} has its watermark on {others[0]!r}, not on its time column {time.name!r}: "
                f"call withWatermark({time.name!r}, …)"
            )
    left, right = (_WATERMARK in (frame.fields[place].metadata or {}) for frame, place in zip(frames, at, strict=True))
    return left, right


def _check_streaming(left: DataFrame, right: DataFrame) -> bool:
    if left.isStreaming != right.isStreaming:
        which = _NAMES if left.isStreaming else _NAMES[::-1]
        raise AnalysisException(
            f"{which[0]} is a stream and {which[1]} is a table: a table has no frontier, so no pair would ever become "
            "certain. Read both as streams, or use foreachBatch to join each micro-batch with the table"
        )
    return left.isStreaming


def _check_state_store(session: SparkSession) -> None:
    provider = session.conf.get(PROVIDER)
    if "HDFSBackedStateStoreProvider" in str(provider):
        raise AnalysisException(
            f"joining streams requires the RocksDB state store, but {PROVIDER} is {provider}: call "
            f'spark.conf.set("{PROVIDER}", "{ROCKSDB}") before neighbour_join'
        )


def _check_certainty(watermarks: tuple[bool, bool], lateness: tuple[int | None, int | None]) -> None:
    for name, has_watermark, own in zip(_NAMES, watermarks, lateness, strict=True):
        if not has_watermark and own is None:
            raise AnalysisException(
                f"{name} is a stream with neither watermark nor lateness, so no pair would ever become certain: call "
                f"{name}.withWatermark(time, '10 minutes'), or set lateness to how far a row's time may be behind the "
                "largest time of its key"
            )


def _order(order: str | Sequence[str] | None, frames: list[_Frame]) -> list[tuple[int, ...]]:
    """Return the column positions for each side, beginning with the columns named in ``order``."""
    names = [] if order is None else [order] if isinstance(order, str) else list(order)
    for name in names:
        if not any(frame.places(name) for frame in frames):
            raise AnalysisException(f"order: neither left nor right has a column {name!r}")
    found = []
    for frame in frames:
        first = [frame.place(name, "order") for name in names if frame.places(name)]
        found.append(tuple(dict.fromkeys([*first, *range(len(frame.fields))])))
    return found


def _buckets(buckets: object, session: SparkSession) -> int:
    if buckets is None:
        buckets = int(str(session.conf.get("spark.sql.shuffle.partitions")))
    if isinstance(buckets, bool) or not isinstance(buckets, int) or not 1 <= buckets <= _BUCKETS_MAX:
        raise AnalysisException(f"buckets must be an integer from 1 to {_BUCKETS_MAX}, not {buckets!r}")
    return buckets


def _result(frames: list[_Frame], sides: tuple[Side, Side], suffixes: tuple[str, str]) -> spark.StructType:
    """Return the schema of the result. All columns are nullable, because unmatched rows need nulls in them."""
    left, right = ([frame.fields[at] for at in side.others] for frame, side in zip(frames, sides, strict=True))
    folded = frames[0].folded
    shared = {folded(field.name) for field in left} & {folded(field.name) for field in right}
    fields = [_nullable(frames[0].fields[at], "") for at in sides[0].by]
    for of_side, suffix in zip((left, right), suffixes, strict=True):
        fields += [_nullable(field, suffix if folded(field.name) in shared else "") for field in of_side]
    names = [folded(field.name) for field in fields]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise AnalysisException(
            f"suffixes = {suffixes!r}: the result would have two columns named {duplicates[0]!r}; choose other "
            "suffixes, or rename one of the columns"
        )
    return spark.StructType(fields)


def _nullable(field: spark.StructField, suffix: str) -> spark.StructField:
    metadata = {name: value for name, value in (field.metadata or {}).items() if name != _WATERMARK}
    return spark.StructField(field.name + suffix, field.dataType, nullable=True, metadata=metadata)
