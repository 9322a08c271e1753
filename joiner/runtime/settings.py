"""The settings of an application of the joiner: its name, its joins, and the limits of its processes.

Every setting that affects which results are written, or to which topic, is part of the `semantics`. Their hash, the
fingerprint, is stored with the state. A unit that was started under a different fingerprint is not continued.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from broker.settings import (
    Duration,
    EventSettings,
    KafkaSettings,
    MetricsSettings,
    Section,
    ServiceSettings,
    SettingsError,
    TopicName,
    TopicSettings,
    duration_between,
    plain_name,
    plain_values,
)
from broker.times import parse_duration
from joiner.functions import load_functions

SEMANTICS_VERSION: Final = 1
"""The version of the join's definition in docs/semantics.md. It changes whenever the same input may produce
different output."""

PROCESS: Final = "process"
"""The default site of a plain process."""

SPARK: Final = "spark"
"""The site of the stage in Spark. A plain process must not use it."""

MESSAGE_RECORDS: Final = 1_000
"""A message that may hold many records counts as this many where a range is read in parts."""

_SEMANTICS_NAMES: Final = {"ahead_max_ns": "max_future_skew_ns", "progress": "watermark_scope"}
"""Names in the semantics, which are those of the first release, mapped to the current names of the settings."""

SITE_PATTERN: Final = r"^[a-z0-9][a-z0-9-]{0,31}$"

NAME_LENGTH_MAX: Final = 100

Name = Annotated[str, plain_name(NAME_LENGTH_MAX)]
"""The name of a join or an application. A join's name is part of every pair's id (``join:unit:left:right``), so it must
not contain a colon. Spark keeps states in a folder named after the application, so the name must not be a path.
"""


class Stream(Section):
    """One side of a join: the records of ``topic`` (default: the data topic) with ``quantity`` (default: all)."""

    topic: TopicName | None = None
    quantity: Annotated[str, Field(min_length=1, max_length=256)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_quantity(cls, given: object) -> object:
        return {"quantity": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _selects_something(self) -> Self:
        if self.topic is None and self.quantity is None:
            message = "name a quantity, a topic, or both"
            raise ValueError(message)
        return self


def _as_pair(given: object, validate: ValidatorFunctionWrapHandler) -> object:
    """Accept a single duration for both sides. An error in it is then reported only once."""
    if isinstance(given, (list, tuple)):
        return validate(given)
    try:
        return validate((given, given))
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error


class JoinSettings(Section):
    """A ``[[join]]``: two streams, the options of the join, its joining function and the name of its output."""

    renamed: ClassVar[Mapping[str, str]] = {"join.progress": "join.watermark_scope"}

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

    def emits_unmatched(self, side: str) -> bool:
        """Return whether unmatched records of ``side``, ``"left"`` or ``"right"``, are written."""
        return self.emit_unmatched in {side, "both"}


def semantic_differences(then: object, now: object, path: str = "") -> list[tuple[str, object, object]]:
    """Return the differences between two `JoinerSettings.semantics`: the setting's path, and both values."""
    if not isinstance(then, dict) or not isinstance(now, dict):
        return [] if then == now else [(path, then, now)]
    return [
        difference
        for name in sorted(then.keys() | now.keys())
        for difference in semantic_differences(
            then.get(name), now.get(name), f"{path}.{_SEMANTICS_NAMES.get(name, name)}".lstrip(".")
        )
    ]


def host_name() -> str:
    """Return the host name. Characters that Kafka does not accept in an instance name are replaced."""
    name = re.sub("[^a-zA-Z0-9._-]", "-", socket.gethostname()).lstrip("._-")
    return name[:NAME_LENGTH_MAX] or "host"


class ApplicationSettings(Section):
    """``[application]``: the settings that all joins share, and the limits of a process."""

    renamed: ClassVar[Mapping[str, str]] = {
        "application.placement": "application.site",
        "application.ahead_max": "application.max_future_skew",
    }

    name: Name = "lsb"
    instance: Name = Field(default_factory=host_name)
    site: Annotated[str, Field(pattern=SITE_PATTERN)] = PROCESS
    start: Literal["earliest", "latest"] = "earliest"
    max_future_skew: Duration = parse_duration("1d")
    batch_records_max: int = Field(default=30_000, ge=1, le=1_000_000)
    native: bool = True
    results: Literal["full", "compact", "arrow"] = "full"
    commit_interval: Duration = parse_duration("20ms")
    snapshot_records: int = Field(default=200_000, ge=1)
    snapshot_interval: Duration = parse_duration("60s")
    buffer_records_max: int = Field(default=1_000_000, ge=1)
    buffer_bytes_max: int = Field(default=2**30, ge=1)
    session_timeout: Duration = parse_duration("6s")
    transaction_timeout: Annotated[Duration, duration_between("1s", "15min")] = parse_duration("60s")

    @field_validator("site")
    @classmethod
    def _leaves_spark_to_spark(cls, site: str) -> str:
        if site == SPARK:
            message = f"{SPARK!r} is the site of the stage in Spark: choose another name"
            raise ValueError(message)
        return site


class SparkSettings(Section):
    """``[spark]``: the settings of the Spark stage. ``config`` is passed to Spark unchanged."""

    master: str = Field(default="local[*]", min_length=1)
    batch_records_max: int = Field(default=800_000, ge=1, le=10_000_000)
    checkpoint: str | None = None
    config: Annotated[dict[str, str | int | float | bool], BeforeValidator(plain_values)] = Field(default_factory=dict)


_JoinSummary = tuple[object, object, dict[str, str | None] | None, dict[str, str | None] | None]
"""The name and output of a join, and the selections of its left and right side (None if the side is invalid)."""


def _clashes(joins: Sequence[_JoinSummary]) -> list[str]:
    """Return conflicts between joins: names and outputs used more than once, and joins whose two sides may overlap."""
    mistakes = []
    for number, what in enumerate(("name", "output")):
        values = [str(join[number]) for join in joins if join[number] is not None]
        mistakes += [f"two joins have the {what} {value!r}" for value in sorted(set(values)) if values.count(value) > 1]
    for name, _, left, right in joins:
        if left is None or right is None or left["topic"] != right["topic"]:
            continue
        if None in {left["quantity"], right["quantity"]} or left["quantity"] == right["quantity"]:
            mistakes.append(f"join {name!r}: a record may be on both sides; give them different topics or quantities")
    return mistakes


def _summary_of(given: Mapping[str, Any]) -> _JoinSummary:
    """Summarise a join that has not been validated. A topic of None means the data topic."""
    sides: list[dict[str, str | None] | None] = []
    for side in ("left", "right"):
        try:
            stream = Stream.model_validate(given.get(side))
            sides.append({"topic": stream.topic, "quantity": stream.quantity})
        except ValidationError:
            sides.append(None)
    return given.get("name"), given.get("output"), sides[0], sides[1]


class JoinerSettings(ServiceSettings):
    """The settings that the joiner reads from ``lsb.toml``."""

    kafka: KafkaSettings = KafkaSettings()
    topics: TopicSettings = TopicSettings()
    events: EventSettings = EventSettings()
    metrics: MetricsSettings = MetricsSettings()
    application: ApplicationSettings = ApplicationSettings()
    spark: SparkSettings = SparkSettings()
    join: list[JoinSettings] = Field(min_length=1)

    @model_validator(mode="after")
    def _joins_fit_together(self) -> Self:
        joins = [(join.name, join.output, self.stream(join.left), self.stream(join.right)) for join in self.join]
        mistakes = _clashes(joins)
        written = [*self.output_topics.values(), self.state_topic, self.control_topic]
        mistakes += [
            f"two kinds of output would be written to the topic {topic!r}; give each its own"
            for topic in sorted(set(written))
            if written.count(topic) > 1
        ]
        mistakes += [
            f"the topic {topic!r} is both read and written: the joiner would read its own output"
            for topic in self.input_topics
            if topic in written
        ]
        mistakes += [
            f"the topics {one!r} and {other!r} differ only in '.' and '_', which Kafka does not allow; rename one"
            for one, other in combinations(sorted({*written, *self.input_topics}), 2)
            if one.replace(".", "_") == other.replace(".", "_")
        ]
        if mistakes:
            raise ValueError("; ".join(mistakes))
        return self

    @classmethod
    def further_errors(cls, given: Mapping[str, Any], *, parts_are_right: bool) -> list[str]:
        """See `ServiceSettings`. Return conflicts between joins, and joining functions that cannot be loaded."""
        tables = given.get("join")
        joins = [one for one in tables if isinstance(one, dict)] if isinstance(tables, list) else []
        mistakes = [] if parts_are_right else _clashes([_summary_of(one) for one in joins])
        functions: dict[str, str] = {}
        for number, one in enumerate(joins):
            if isinstance(one.get("function"), str):
                name = str(one.get("name"))
                functions[name if name not in functions else f"{name} (join.{number})"] = one["function"]
        try:
            load_functions(functions)
        except SettingsError as error:
            mistakes += str(error).splitlines()
        return mistakes

    def stream(self, side: Stream) -> dict[str, str | None]:
        """Return the full selection of a side: ``topic`` and ``quantity`` (None: any)."""
        return {"topic": side.topic or self.topics.data, "quantity": side.quantity}

    @property
    def input_topics(self) -> list[str]:
        """The topics that the joins read from, sorted and without repetitions."""
        return sorted({str(self.stream(side)["topic"]) for join in self.join for side in (join.left, join.right)})

    @property
    def output_topics(self) -> dict[str, str]:
        """The topics that the joins write to, keyed by setting name."""
        names = ["out", "late", "rejected"]
        if any(join.emit_unmatched != "none" for join in self.join):
            names.append("unmatched")
        return {name: getattr(self.topics, name) for name in names}

    def messages_max(self, records: int) -> int:
        """Return how many messages to read if about ``records`` records are wanted."""
        return max(1, records // MESSAGE_RECORDS) if self.topics.has_rows else records

    def needs_arrow(self) -> str | None:
        """See `ServiceSettings.needs_arrow`."""
        if self.topics.has_rows:
            return "topics.data_format"
        return "application.results" if self.application.results == "arrow" else None

    @property
    def state_topic(self) -> str:
        """The application's state topic."""
        return f"{self.application.name}.state"

    @property
    def control_topic(self) -> str:
        """The application's control topic, for messages about moves."""
        return f"{self.application.name}.control"

    def membership_group(self, site: str) -> str:
        """Return the consumer group that assigns the units to the processes of a site.

        Application names cannot contain ``@``, so no other application uses this group. Offsets are always committed to
        the group named after the application.
        """
        name = self.application.name
        return name if site == PROCESS else f"{name}@{site}"

    def semantics(self) -> dict[str, Any]:
        """Return every setting that affects which results are written, or where, as a JSON object.

        Names are those of the first release, because new names would change the fingerprint of existing applications.
        """
        return {
            "version": SEMANTICS_VERSION,
            # Otherwise, two processes with different topics would each write half of the results.
            "outputs": self.output_topics,
            "time_unit": self.events.time_unit,
            "ahead_max_ns": self.application.max_future_skew,
            # Only if it is not the default, so that the fingerprints of existing applications stay the same.
            **({"data_format": self.topics.data_format} if self.topics.has_rows else {}),
            "joins": {
                join.name: {
                    "left": self.stream(join.left),
                    "right": self.stream(join.right),
                    "tolerance_ns": join.tolerance,
                    "lateness_ns": list(join.lateness),
                    "direction": join.direction,
                    "driver": join.driver,
                    "emit_unmatched": join.emit_unmatched,
                    "progress": join.watermark_scope,
                }
                for join in self.join
            },
        }

    def fingerprint(self) -> str:
        """Return the SHA-256 of the semantics as canonical JSON."""
        text = json.dumps(self.semantics(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()
