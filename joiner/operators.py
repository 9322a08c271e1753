"""Defines the settings of an application's operators, `[[join]]` and `[[align]]`, and finds conflicts between them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from itertools import combinations
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from broker.settings import Duration, Section, TopicName, plain_name
from broker.times import TIME_MAX_NS, parse_time
from joiner.alignment.driver_rows import DRIVER
from joiner.alignment.grid import GRID, Grid
from joiner.core.errors import ArgumentError

NAME_LENGTH_MAX: Final = 100

Name = Annotated[str, plain_name(NAME_LENGTH_MAX)]
"""The name of a join, an align or an application. It is part of every result's id (``join:unit:left:right``), so it
must not contain a colon."""


class Stream(Section):
    """A stream of an operator: the records of ``topic`` (default: the data topic) with ``quantity`` (default: all)."""

    topic: TopicName | None = None
    quantity: Annotated[str, Field(min_length=1, max_length=256)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_quantity(cls, given: object) -> object:
        return {"quantity": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _selects_something(self) -> Self:
        if self.topic is None and self.quantity is None:
            message = "specify a quantity, a topic, or both"
            raise ValueError(message)
        return self


def _as_pair(given: object, validate: ValidatorFunctionWrapHandler) -> object:
    """Accept a single duration for both sides, so that an error in it is reported only once."""
    if isinstance(given, (list, tuple)):
        return validate(given)
    try:
        return validate((given, given))
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error


class JoinSettings(Section):
    """A ``[[join]]``: two streams, the options of the join, its joining function and the name of its output."""

    renamed: ClassVar[Mapping[str, str | None]] = {"join.progress": "join.watermark_scope"}

    name: Name
    left: Stream
    right: Stream
    function: str = Field(default="both", pattern=r"^([a-z_]+|[A-Za-z0-9_.]+:[A-Za-z0-9_]+)$")
    output: str = Field(min_length=1, max_length=256)
    tolerance: Duration | None = None
    lateness: Annotated[tuple[Duration, Duration], WrapValidator(_as_pair)] = (0, 0)
    direction: Literal["both", "backward", "forward", "nearest"] = "both"
    driver: Literal["both", "left", "right"] = "both"
    watermark_scope: Literal["key", "partition"] = "key"
    emit_unmatched: Literal["none", "left", "right", "both"] = "none"

    @property
    def streams(self) -> dict[str, Stream]:
        """The streams of both sides, by side."""
        return {"left": self.left, "right": self.right}

    @property
    def lateness_by_stream(self) -> dict[str, int]:
        """The lateness in ns of both sides, by side."""
        return dict(zip(self.streams, self.lateness, strict=True))

    def emits_unmatched(self, side: str) -> bool:
        """Return whether unmatched records of ``side``, ``"left"`` or ``"right"``, are written."""
        return self.emit_unmatched in {side, "both"}


COLUMNS_MAX: Final = 100
"""Maximum number of columns in an align. Each column needs one or two buffers."""

_TAKEN: Final = frozenset({DRIVER, "result", "time", "join", "thing", "quantity", "half", "tie"})
"""Names that a column cannot have: the driver's, and the names of the other fields and tags in a row's point."""


def _column_name(name: str) -> str:
    if name in _TAKEN:
        message = f"{name!r} cannot be the name of a column, because a row has another field or tag of that name"
        raise ValueError(message)
    return name


ColumnName = Annotated[str, plain_name(NAME_LENGTH_MAX), AfterValidator(_column_name)]
"""The name of a column. It is a field of ``values`` in every row, and part of the ids of the column's late records."""


class ColumnSettings(Section):
    """A column of an align: a stream (default: the quantity of the same name), and the rule for its value."""

    stream: Stream | None = None
    rule: Literal["previous", "next", "nearest", "linear"] = "previous"
    tolerance: Duration | None = None
    lateness: Duration = 0
    on_missing: Literal["null", "drop"] = "null"
    period: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    @model_validator(mode="after")
    def _has_a_period_only_if_linear(self) -> Self:
        if self.period is not None and self.rule != "linear":
            message = f"period is an option of the rule 'linear', not of {self.rule!r}"
            raise ValueError(message)
        return self


GAP_TICKS: Final = 1_000
"""The longest pause that is filled with ticks unless ``max_gap`` is set, as a number of ticks."""

GAP_TICKS_MAX: Final = 100_000
"""The highest ``max_gap``, as a number of ticks. It bounds how many rows a single record can add."""


def _origin(given: object) -> int:
    """Return the time of tick 0 in ns. TOML has a type for datetimes, so quotation marks may be omitted."""
    text = given.isoformat() if isinstance(given, datetime) else given
    if not isinstance(text, str):
        message = "expected an ISO-8601 time such as 2024-05-01T00:00:00Z"
        raise ValueError(message)  # noqa: TRY004 - pydantic expects a ValueError
    return parse_time(text, "ns")


class GridSettings(Section):
    """The grid of an align: rows at regular times, instead of a row for each record of a driver."""

    every: Duration
    origin: Annotated[int, BeforeValidator(_origin)] = Field(default="1970-01-01T00:00:00Z", validate_default=True)
    max_gap: Duration | None = None

    @model_validator(mode="after")
    def _has_usable_ticks(self) -> Self:
        try:
            self.grid()
        except ArgumentError as error:
            raise ValueError(str(error).replace("_ns", " (in ns)")) from error
        if self.max_gap_ns > GAP_TICKS_MAX * self.every:
            message = (
                f"max_gap is longer than {GAP_TICKS_MAX:,} times every, so a single record could add more than "
                f"{GAP_TICKS_MAX:,} rows: lower max_gap, or raise every"
            )
            raise ValueError(message)
        return self

    @property
    def max_gap_ns(self) -> int:
        """The longest pause that is filled with ticks, in ns."""
        return min(GAP_TICKS * self.every, TIME_MAX_NS) if self.max_gap is None else self.max_gap

    @property
    def rows_per_record_max(self) -> int:
        """The maximum number of rows that a record adds: one for each tick since the record before it."""
        return self.max_gap_ns // self.every + 1

    def semantics(self) -> dict[str, int]:
        """Return the options that determine the ticks, for the fingerprint."""
        return {"every_ns": self.every, "origin_ns": self.origin, "max_gap_ns": self.max_gap_ns}

    def grid(self, ticks_max: int = 2**63 - 1) -> Grid:
        """Return the grid. ``ticks_max``: the maximum number of ticks in a step."""
        return Grid(every_ns=self.every, origin_ns=self.origin, max_gap_ns=self.max_gap_ns, ticks_max=ticks_max)


class AlignSettings(Section):
    """An ``[[align]]``: the columns of a table, with a row for each record of a driver or for each tick of a grid."""

    name: Name
    driver: Stream | None = None
    grid: GridSettings | None = None
    result: str | None = None
    function: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.]+:[A-Za-z0-9_]+$")] | None = None
    lateness: Duration = 0
    watermark_scope: Literal["key", "partition"] = "key"
    columns: Annotated[dict[ColumnName, ColumnSettings], Field(min_length=1, max_length=COLUMNS_MAX)]

    @model_validator(mode="after")
    def _has_a_driver_or_a_grid(self) -> Self:
        mistake = ""
        if (self.driver is None) == (self.grid is None):
            mistake = "specify a driver or a grid" + ("" if self.grid is None else ", but not both")
        elif self.grid is not None and GRID in self.columns:
            mistake = f"{GRID!r} cannot be the name of a column of a grid"
        elif self.grid is not None and self.lateness:
            mistake = "lateness is an option of a driver: with a grid, set the lateness of each column"
        elif self.result is not None:
            mistake = self._wrong_result(self.result)
        if mistake:
            raise ValueError(mistake)
        return self

    def _wrong_result(self, result: str) -> str:
        """Return what is wrong with the option ``result``, or an empty string if nothing is."""
        if self.function is not None:
            return "result and function are mutually exclusive: the function returns the results of the rows"
        if self.grid is None:
            return "result is an option of a grid: with a driver, a row's result is the value of the driver's record"
        column = self.columns.get(result)
        if column is None:
            return f"result: there is no column {result!r}; the columns are {', '.join(map(repr, self.columns))}"
        if column.on_missing != "drop":
            return (
                f"result: every row must have a number, and the column {result!r} may have none: "
                f"add on_missing = 'drop' to the column {result!r}"
            )
        return ""

    @property
    def output(self) -> str:
        """The quantity of the rows."""
        return self.name

    @property
    def streams(self) -> dict[str, Stream]:
        """The streams of the driver, if there is one, and of the columns, by name."""
        columns = {name: column.stream or Stream(quantity=name) for name, column in self.columns.items()}
        return columns if self.driver is None else {DRIVER: self.driver, **columns}

    @property
    def lateness_by_stream(self) -> dict[str, int]:
        """The lateness in ns of each of the `streams`, by name."""
        columns = {name: column.lateness for name, column in self.columns.items()}
        return columns if self.driver is None else {DRIVER: self.lateness, **columns}

    def semantics(self, selection: Callable[[Stream], dict[str, str | None]]) -> dict[str, Any]:
        """Return the settings that affect the rows, for the fingerprint. ``selection``: what a stream selects."""
        streams, grid = self.streams, self.grid
        return {
            **({} if self.driver is None else {"driver": selection(self.driver)}),
            **({} if grid is None else {"grid": grid.semantics()}),
            "lateness_ns": self.lateness,
            "watermark_scope": self.watermark_scope,
            "columns": {
                name: {
                    "stream": selection(streams[name]),
                    "rule": column.rule,
                    "tolerance_ns": column.tolerance,
                    "lateness_ns": column.lateness,
                    "on_missing": column.on_missing,
                    "period": column.period,
                }
                for name, column in self.columns.items()
            },
        }


class Outline(NamedTuple):
    """An operator's settings that can conflict with another's. Before validation, each may be of any type, or None.

    ``output``: the quantity of the results. ``streams``: each stream's topic (None: the data topic) and quantity (None:
    any). ``pairs``: pairs of streams that must not have a record in common.
    """

    kind: Literal["join", "align"]
    name: object
    output: object
    streams: Mapping[str, tuple[str | None, str | None]]
    pairs: Sequence[tuple[str, str]]


def outline_of(operator: JoinSettings | AlignSettings) -> Outline:
    """Return the outline of a join or an align."""
    streams = {name: (stream.topic, stream.quantity) for name, stream in operator.streams.items()}
    if isinstance(operator, JoinSettings):
        return Outline("join", operator.name, operator.output, streams, [("left", "right")])
    pairs = [] if operator.driver is None else [(DRIVER, name) for name in operator.columns]
    return Outline("align", operator.name, operator.name, streams, pairs)


def outline_of_invalid(kind: Literal["join", "align"], given: Mapping[str, Any]) -> Outline:
    """Return the outline of a join or an align that has not been validated, without its invalid streams."""
    columns = given.get("columns")
    columns = columns if isinstance(columns, Mapping) else {}
    asked: dict[str, object] = {side: given.get(side) for side in ("left", "right")} if kind == "join" else {}
    if kind == "align":
        asked = {
            DRIVER: given.get(DRIVER),
            **{str(name): _stream_of(str(name), column) for name, column in columns.items()},
        }
    streams = {}
    for name, stream in asked.items():
        try:
            valid = Stream.model_validate(stream)
        except ValidationError:
            continue
        streams[name] = valid.topic, valid.quantity
    pairs = [("left", "right")] if kind == "join" else [(DRIVER, name) for name in asked if name != DRIVER]
    return Outline(kind, given.get("name"), given.get("output" if kind == "join" else "name"), streams, pairs)


def _stream_of(name: str, column: object) -> object:
    found = column.get("stream") if isinstance(column, Mapping) else None
    return name if found is None else found


def clashes(operators: Sequence[Outline], data_topic: str | None) -> list[str]:
    """Return a message for each name or output used more than once, and each pair of streams that may share records."""
    mistakes = []
    for what in ("name", "output"):
        kinds_by_value: dict[str, list[str]] = {}
        for operator in operators:
            value = getattr(operator, what)
            if value is not None:
                kinds_by_value.setdefault(str(value), []).append(operator.kind)
        for value, kinds in sorted(kinds_by_value.items()):
            # The output of an align is its name, so two aligns are already in conflict.
            if len(kinds) > 1 and (what == "name" or "join" in kinds):
                mistakes.append(f"{_both(kinds)} have the {what} {value!r}")
    mistakes += [
        _shared(operator, pair)
        for operator in operators
        for pair in operator.pairs
        if all(name in operator.streams for name in pair) and _overlap(operator, pair, data_topic)
    ]
    return mistakes


def mistakes_of_topics(written: Sequence[str], read: Collection[str]) -> list[str]:
    """Return a message for each topic that cannot be written to, given all topics that are written to and read."""
    mistakes = [
        f"more than one kind of output would be written to the topic {topic!r}: give each kind its own topic"
        for topic in sorted(set(written))
        if written.count(topic) > 1
    ]
    mistakes += [
        f"the topic {topic!r} is both read and written: the joiner would read its own output"
        for topic in sorted(read)
        if topic in written
    ]
    return mistakes + [
        f"the topics {one!r} and {other!r} differ only in '.' and '_', which Kafka does not allow; rename one"
        for one, other in combinations(sorted({*written, *read}), 2)
        if one.replace(".", "_") == other.replace(".", "_")
    ]


def _shared(operator: Outline, pair: tuple[str, str]) -> str:
    where = "on both sides" if operator.kind == "join" else f"both in the driver and in the column {pair[1]!r}"
    return f"{operator.kind} {operator.name!r}: a record may be {where}; give them different topics or quantities"


def _both(kinds: Sequence[str]) -> str:
    return f"two {kinds[0]}s" if len(set(kinds)) == 1 else "a join and an align"


def _overlap(operator: Outline, pair: tuple[str, str], data_topic: str | None) -> bool:
    (topic, quantity), (other_topic, other_quantity) = (operator.streams[name] for name in pair)
    if (topic or data_topic) != (other_topic or data_topic):
        return False
    return None in {quantity, other_quantity} or quantity == other_quantity
