"""Validates the arguments of `neighbour_join` against its two DataFrames, before the query starts.

Every error is a Spark `AnalysisException`. The message names the argument and, where relevant, the DataFrame, and says
what is wrong or how to correct it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import types as spark

from joiner.core.arguments import DIRECTIONS, DRIVERS, UNMATCHED
from joiner.spark.frame_columns import (
    Frame,
    Unit,
    bucket_count,
    check_times,
    column_names,
    key_types,
    nullable,
    order_places,
)
from joiner.spark.joining.reordered_join import OPERATOR, Rules
from joiner.spark.rows import Side
from joiner.spark.stream_checks import check_certainty, check_state_store, watermarks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NAMES: Final = ("left", "right")

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
        """Validate the arguments against the two frames. Raises `AnalysisException` if one of them is invalid."""
        _check_choices(options)
        session = left.sparkSession
        frames = [Frame.of(name, frame) for name, frame in zip(_NAMES, (left, right), strict=True)]
        times = (options.time,) * 2 if isinstance(options.time, str) else tuple(options.time)
        if len(times) != len(_NAMES):
            raise AnalysisException(f"time must be one column name or (left, right), not {options.time!r}")
        by = column_names(options.by)
        keys = [[frame.place(name, "by") for name in by] for frame in frames]
        at = [frame.place(name, "time") for frame, name in zip(frames, times, strict=True)]
        unit = check_times(frames, at)
        types_of_keys = key_types(frames, keys)
        frames = [frame.with_types(key, types_of_keys) for frame, key in zip(frames, keys, strict=True)]
        has_watermark = watermarks(frames, at) if left.isStreaming or right.isStreaming else (False, False)
        lateness = _lateness(options.lateness, unit)
        if _check_streaming(left, right):
            check_state_store(session, OPERATOR)
            check_certainty(frames, has_watermark, lateness, "pair")
        order = order_places(options.order, frames, "neither left nor right")
        sides = [
            frame.side(tuple(key), time, places)
            for frame, key, time, places in zip(frames, keys, at, order, strict=True)
        ]
        rules = Rules(
            sides=(sides[0], sides[1]),
            tolerance=None if options.tolerance is None else unit.duration("tolerance", options.tolerance),
            lateness=lateness,
            has_watermark=(has_watermark[0], has_watermark[1]),
            direction=options.direction,
            driver=options.driver,
            emit_unmatched=options.emit_unmatched,
            buckets=bucket_count(options.buckets, session) if by else 1,
        )
        types = [[field.dataType for field in frame.fields] for frame in frames]
        result = _result(frames, rules.sides, options.suffixes)
        return cls(rules, (types[0], types[1]), result, left.isStreaming)


def _check_choices(options: Options) -> None:
    for name, value, known in (
        ("direction", options.direction, DIRECTIONS),
        ("driver", options.driver, DRIVERS),
        ("emit_unmatched", options.emit_unmatched, UNMATCHED),
    ):
        if value not in known:
            raise AnalysisException(f"{name} must be one of {', '.join(map(repr, known))}, not {value!r}")


def _lateness(value: object, unit: Unit) -> tuple[int | None, int | None]:
    """Return the lateness for the left and the right side. None means that only watermarks make rows late."""
    sides = list(value) if isinstance(value, (tuple, list)) else [value, value]
    if len(sides) != len(_NAMES):
        raise AnalysisException(f"lateness must be one duration or (left, right), not {value!r}")
    left, right = (None if one is None else unit.duration("lateness", one) for one in sides)
    return left, right


def _check_streaming(left: DataFrame, right: DataFrame) -> bool:
    if left.isStreaming != right.isStreaming:
        which = _NAMES if left.isStreaming else _NAMES[::-1]
        raise AnalysisException(
            f"{which[0]} is a stream and {which[1]} is a table: a table has no frontier, so no pair would ever become "
            "certain. Read both as streams, or use foreachBatch to join each micro-batch with the table"
        )
    return left.isStreaming


def _result(frames: list[Frame], sides: tuple[Side, Side], suffixes: Sequence[str]) -> spark.StructType:
    """Return the schema of the result. All columns are nullable, because unmatched rows need nulls in them."""
    if isinstance(suffixes, str) or len(suffixes) != len(_NAMES):
        raise AnalysisException(f"suffixes must be (left, right), not {suffixes!r}")
    left, right = ([frame.fields[at] for at in side.others] for frame, side in zip(frames, sides, strict=True))
    folded = frames[0].folded
    shared = {folded(field.name) for field in left} & {folded(field.name) for field in right}
    fields = [nullable(frames[0].fields[at], frames[0].fields[at].name) for at in sides[0].by]
    for of_side, suffix in zip((left, right), suffixes, strict=True):
        fields += [nullable(field, field.name + (suffix if folded(field.name) in shared else "")) for field in of_side]
    names = [folded(field.name) for field in fields]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise AnalysisException(
            f"suffixes = {suffixes!r}: the result would have two columns named {duplicates[0]!r}; choose other "
            "suffixes, or rename one of the columns"
        )
    return spark.StructType(fields)
