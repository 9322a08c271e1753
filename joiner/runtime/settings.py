"""A joiner application's settings: its name, its joins and aligns, its topics, and the limits of each process.

Every setting that affects which results are written, or to which topic, is part of the `semantics`. The hash of the
semantics, called the fingerprint, is stored with the state. The joiner does not continue a unit that was started under
a different fingerprint.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar

from pydantic import BeforeValidator, Field, field_validator, model_validator

from broker.kafka.replicas import REPLICAS_MAX, merged_topic, replica_name, shared_name
from broker.settings import (
    PORT_MAX,
    Duration,
    EventSettings,
    KafkaSettings,
    MetricsSettings,
    Section,
    ServiceSettings,
    SettingsError,
    TopicSettings,
    duration_between,
    plain_values,
)
from broker.times import parse_duration
from joiner.functions import functions_given, load_all
from joiner.mapping.settings import KAFKA_KEY, RegistrySettings, StreamSettings, mistakes_of_streams
from joiner.operators import (
    NAME_LENGTH_MAX,
    AlignSettings,
    JoinSettings,
    Name,
    Outline,
    Stream,
    clashes,
    mistakes_of_topics,
    outline_of,
    outline_of_invalid,
)

SEMANTICS_VERSION: Final = 1
"""The version of the semantics defined in docs/semantics.md. It changes whenever the same input may produce different
output."""

PROCESS: Final = "process"
"""The default site of a plain process."""

SPARK: Final = "spark"
"""The site of the stage in Spark. A plain process must not use it."""

MESSAGE_RECORDS: Final = 1_000
"""The assumed number of records in a message that may hold many. It determines how many messages to read at once."""

PROCESSES_MAX: Final = 64
"""The maximum number of worker processes on one host."""

SITE_PATTERN: Final = r"^[a-z0-9][a-z0-9-]{0,31}$"


def host_name() -> str:
    """Return the host name, changed where necessary to be a valid instance name."""
    name = re.sub("[^a-zA-Z0-9._-]", "-", socket.gethostname()).lstrip("._-")
    return name[:NAME_LENGTH_MAX] or "host"


class ApplicationSettings(Section):
    """``[application]``: the settings that all joins and aligns share, and the limits of a process."""

    renamed: ClassVar[Mapping[str, str | None]] = {
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
    watermark_interval: Duration | None = None
    snapshot_records: int = Field(default=200_000, ge=1)
    snapshot_interval: Duration = parse_duration("60s")
    buffer_records_max: int = Field(default=1_000_000, ge=1)
    buffer_bytes_max: int = Field(default=2**30, ge=1)
    standbys: int = Field(default=0, ge=0, le=2)
    replicas: int = Field(default=1, ge=1, le=REPLICAS_MAX)
    failure_timeout: Annotated[Duration, duration_between("200ms", "60s")] = parse_duration("500ms")
    session_timeout: Duration = parse_duration("6s")
    transaction_timeout: Annotated[Duration, duration_between("1s", "15min")] = parse_duration("60s")

    @field_validator("site")
    @classmethod
    def _leaves_spark_to_spark(cls, site: str) -> str:
        if site == SPARK:
            message = f"{SPARK!r} is the site of the stage in Spark: choose another name"
            raise ValueError(message)
        return site

    @model_validator(mode="after")
    def _leaves_the_names_of_replicas(self) -> Self:
        if self.replica:
            message = f"the name {self.name!r} ends like that of a replica: choose another, or set replicas to 1"
            raise ValueError(message)
        return self

    @property
    def replica(self) -> int:
        """The number of the replica that these settings are for (see `replica_settings`)."""
        numbers = range(1, self.replicas)
        return next((number for number in numbers if self.name.endswith(replica_name("", number))), 0)

    @property
    def shared_name(self) -> str:
        """The name of the application, without that of a replica: replicas write the same content."""
        return shared_name(self.name, self.replica)

    def command(self, what: str) -> str:
        """Return ``joiner <what>`` for this replica, as messages show it. Without the option, it would be another's."""
        return f"`joiner {what} --replica {self.replica}`" if self.replica else f"`joiner {what}`"


class ScalingSettings(Section):
    """``[scaling]``: how many worker processes `joiner run` runs, depending on the load.

    ``processes``: the minimum and the maximum number, such as "1-4". ``dry_run``: only log what would be done.
    """

    processes: Annotated[str, Field(pattern=r"^[1-9]\d?-[1-9]\d?$")] | None = None
    dry_run: bool = False

    @field_validator("processes")
    @classmethod
    def _is_a_range(cls, processes: str | None) -> str | None:
        low, high = _bounds(processes or "1-1")
        if not low <= high <= PROCESSES_MAX:
            message = f"{processes!r}: give the smaller number first, and at most {PROCESSES_MAX}"
            raise ValueError(message)
        return processes

    @property
    def bounds(self) -> tuple[int, int] | None:
        """The minimum and the maximum number of worker processes, or None if the number is fixed."""
        return None if self.processes is None else _bounds(self.processes)


def _bounds(processes: str) -> tuple[int, int]:
    low, _, high = processes.partition("-")
    return int(low), int(high)


class SparkSettings(Section):
    """``[spark]``: the settings of the Spark stage. ``config`` is passed to Spark unchanged.

    ``instances``: how many instances to start (None: one per core Spark has at startup, at most one per unit).
    """

    renamed: ClassVar[Mapping[str, str | None]] = {"spark.batch_records_max": None, "spark.checkpoint": None}

    master: str = Field(default="local[*]", min_length=1)
    instances: Annotated[int, Field(ge=1, le=1000)] | None = None
    config: Annotated[dict[str, str | int | float | bool], BeforeValidator(plain_values)] = Field(default_factory=dict)


_NO_OPERATOR: Final = "there is neither a [[join]] nor an [[align]]: add at least one"


class JoinerSettings(ServiceSettings):
    """The settings that the joiner reads from ``lsb.toml``."""

    kafka: KafkaSettings = KafkaSettings()
    topics: TopicSettings = TopicSettings()
    events: EventSettings = EventSettings()
    metrics: MetricsSettings = MetricsSettings()
    application: ApplicationSettings = ApplicationSettings()
    scaling: ScalingSettings = ScalingSettings()
    spark: SparkSettings = SparkSettings()
    join: list[JoinSettings] = Field(default_factory=list)
    align: list[AlignSettings] = Field(default_factory=list)
    stream: list[StreamSettings] = Field(default_factory=list)
    registry: RegistrySettings = RegistrySettings()

    @model_validator(mode="after")
    def _operators_fit_together(self) -> Self:
        mistakes = clashes([self._outline(operator) for operator in self.operators], self.topics.data)
        if not self.operators:
            mistakes.append(_NO_OPERATOR)
        if self.align and self.application.results == "arrow":
            mistakes.append(
                "application.results is 'arrow', but aligned rows are written as JSON: choose 'full' or 'compact', or "
                "give the aligns an application of their own"
            )
        mistakes += mistakes_of_topics(self._written_topics(), {*self.input_topics, *self.repartitioned})
        mistakes += self._mistakes_of_streams()
        if mistakes:
            raise ValueError("; ".join(mistakes))
        return self

    def _written_topics(self) -> list[str]:
        """Return the topics that the application writes to, with those of its replicas and of their merged outputs."""
        replicas, outputs = range(self.application.replicas), self.output_topics.values()
        found = [replica_name(topic, number) for topic in outputs for number in replicas]
        names = [replica_name(self.application.name, number) for number in replicas]
        if len(replicas) > 1:
            found += [merged_topic(topic) for topic in outputs]
        return found + [f"{name}.{kind}" for name in names for kind in ("state", "control")]

    def _mistakes_of_streams(self) -> list[str]:
        names = [stream.name for stream in self.stream]
        topics = {stream.topic for stream in self.stream} | {self.topic_of(stream) for stream in self.stream}
        mistakes = [
            f"more than one [[stream]] is named {name!r}" for name in sorted(set(names)) if names.count(name) > 1
        ]
        selections, mapped = self._selections(), self._mapped
        used = {one["quantity"] for one in selections}
        mistakes += [f"no join and no align reads the [[stream]] {name!r}" for name in mapped if name not in used]
        for topic, quantity in sorted({(str(one["topic"]), one["quantity"] or "") for one in selections}):
            if topic in topics and (quantity not in mapped or self.topic_of(mapped[quantity]) != topic):
                what = f"{quantity!r}" if quantity else "the whole topic"
                mistakes.append(f"the topic {topic!r} has a [[stream]]: select such a stream by name instead of {what}")
            elif quantity in mapped and self.topic_of(mapped[quantity]) != topic:
                there = mapped[quantity].topic
                mistakes.append(f"the [[stream]] {quantity!r} is in the topic {there!r}, not in {topic!r}")
        if self.topics.data in topics:
            mistakes.append(
                f"a [[stream]] cannot be in topics.data ({self.topics.data!r}), which has records of the pipeline's "
                "own form: set topics.data to another topic"
            )
        mistakes += mistakes_of_streams(self.stream, self.registry, self.topics.partitions, self.topic_of)
        if self.stream and self.topics.has_rows:
            mistakes.append("topics.data_format is 'arrow', which cannot be combined with a [[stream]]")
        return mistakes

    @classmethod
    def further_errors(cls, given: Mapping[str, Any], *, parts_are_right: bool) -> list[str]:
        """See `ServiceSettings`. Return conflicts between operators, and functions that cannot be loaded."""
        joins, aligns = (
            [one for one in tables if isinstance(one, dict)] if isinstance(tables, list) else []
            for tables in (given.get("join"), given.get("align"))
        )
        outlines = [outline_of_invalid("join", one) for one in joins]
        outlines += [outline_of_invalid("align", one) for one in aligns]
        mistakes = [] if parts_are_right else clashes(outlines, None)
        if not parts_are_right and not given.get("join") and not given.get("align"):
            mistakes.append(_NO_OPERATOR)
        try:
            load_all(functions_given("join", joins), functions_given("align", aligns))
        except SettingsError as error:
            mistakes += str(error).splitlines()
        return mistakes

    @property
    def functions(self) -> tuple[dict[str, str], dict[str, str]]:
        """The functions (``module:name``) of the joins, and of the aligns that have one, by operator name."""
        of_aligns = {align.name: align.function for align in self.align if align.function is not None}
        return {join.name: join.function for join in self.join}, of_aligns

    @property
    def operators(self) -> list[JoinSettings | AlignSettings]:
        """The joins, then the aligns."""
        return [*self.join, *self.align]

    def selection(self, side: Stream) -> dict[str, str | None]:
        """Return the full selection of a stream: ``topic`` and ``quantity`` (None: any).

        The quantity of a mapped stream is its name.
        """
        mapped = self._mapped.get(side.quantity or "")
        if mapped is not None and side.topic in {None, mapped.topic}:
            return {"topic": self.topic_of(mapped), "quantity": side.quantity}
        return {"topic": side.topic or self.topics.data, "quantity": side.quantity}

    def _outline(self, operator: JoinSettings | AlignSettings) -> Outline:
        selections = {name: self.selection(stream) for name, stream in operator.streams.items()}
        streams = {name: (one["topic"], one["quantity"]) for name, one in selections.items()}
        return outline_of(operator)._replace(streams=streams)

    @property
    def _mapped(self) -> dict[str, StreamSettings]:
        return {stream.name: stream for stream in self.stream}

    def topic_of(self, stream: StreamSettings) -> str:
        """Return the input topic of a mapped stream: its own, or the repartition topic into which that is copied."""
        return f"{self.application.shared_name}.{stream.topic}.repartition" if stream.repartition else stream.topic

    @property
    def repartitioned(self) -> dict[str, str]:
        """The topics that are repartitioned, in order, each with its repartition topic (see `runtime.repartition`)."""
        streams = sorted((stream for stream in self.stream if stream.repartition), key=lambda stream: stream.topic)
        return {stream.topic: self.topic_of(stream) for stream in streams}

    @property
    def repartition_group(self) -> str:
        """The consumer group of the processes that repartition. No application or site can have this name."""
        return f"{self.application.shared_name}/repartition"

    def mapped_streams(self, topic: str) -> list[StreamSettings]:
        """Return the mapped streams of an input topic by name: the order of the sections does not matter."""
        streams = (stream for stream in self.stream if self.topic_of(stream) == topic)
        return sorted(streams, key=lambda stream: stream.name)

    @property
    def keyed_topics(self) -> frozenset[str]:
        """The input topics of which a stream needs the keys of the messages."""
        return frozenset(self.topic_of(stream) for stream in self.stream if stream.key == KAFKA_KEY)

    def _selections(self) -> list[dict[str, str | None]]:
        return [self.selection(stream) for operator in self.operators for stream in operator.streams.values()]

    @property
    def input_topics(self) -> list[str]:
        """The topics that the joins and aligns read from, sorted and without repetitions."""
        return sorted({str(one["topic"]) for one in self._selections()})

    @property
    def output_topics(self) -> dict[str, str]:
        """The topics that the joins and aligns write to, keyed by setting name."""
        names = ["out", "late", "rejected"]
        if any(join.emit_unmatched != "none" for join in self.join):
            names.append("unmatched")
        return {name: getattr(self.topics, name) for name in names}

    def messages_max(self, records: int) -> int:
        """Return how many messages to read to get about ``records`` records."""
        return max(1, records // MESSAGE_RECORDS) if self.topics.has_rows else records

    def needs_extras(self) -> dict[str, str]:
        """See `ServiceSettings.needs_extras`."""
        found = {"protobuf": "stream.format"} if any(one.format == "protobuf" for one in self.stream) else {}
        if self.topics.has_rows:
            return found | {"arrow": "topics.data_format"}
        return found | {"arrow": "application.results"} if self.application.results == "arrow" else found

    def listen_of(self, number: int) -> str | None:
        """Return the metrics address of instance ``number`` of several on a host, or None if metrics are not exported.

        The number is added to the port, but port 0 stays 0. Raises `SettingsError` if the port would be too high.
        """
        if self.metrics.listen is None:
            return None
        host, _, first = self.metrics.listen.rpartition(":")
        port = int(first) + number if int(first) else 0
        if port > PORT_MAX:
            message = (
                f"metrics.listen: instance {number} would listen on port {port}, but the highest port is {PORT_MAX}; "
                "choose a lower port for the first instance, or port 0 to choose any free port"
            )
            raise SettingsError(message)
        return f"{host}:{port}"

    @property
    def state_topic(self) -> str:
        """The application's state topic."""
        return f"{self.application.name}.state"

    @property
    def control_topic(self) -> str:
        """The application's control topic (see `joiner.runtime.control`)."""
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

        Its names never change, because new names would change the fingerprints of existing applications.
        """
        streams = {stream.name: stream.semantics(self.events.time_unit) for stream in self.stream}
        aligns = {align.name: align.semantics(self.selection) for align in self.align}
        return {
            "version": SEMANTICS_VERSION,
            # Otherwise, two processes with different topics would each write half of the results.
            "outputs": self.output_topics,
            "time_unit": self.events.time_unit,
            "ahead_max_ns": self.application.max_future_skew,
            # Included only if it is not the default, so that the fingerprints of existing applications stay the same.
            **({"data_format": self.topics.data_format} if self.topics.has_rows else {}),
            "joins": {
                join.name: {
                    "left": self.selection(join.left),
                    "right": self.selection(join.right),
                    "tolerance_ns": join.tolerance,
                    "lateness_ns": list(join.lateness),
                    "direction": join.direction,
                    "driver": join.driver,
                    "emit_unmatched": join.emit_unmatched,
                    "progress": join.watermark_scope,
                }
                for join in self.join
            },
            # Likewise, included only if there are any.
            **({"streams": streams} if streams else {}),
            **({"aligns": aligns} if aligns else {}),
        }

    def fingerprint(self) -> str:
        """Return the SHA-256 of the semantics as canonical JSON."""
        text = json.dumps(self.semantics(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()


_Settings = TypeVar("_Settings", bound=JoinerSettings)


def replica_settings(settings: _Settings, replica: int) -> _Settings:
    """Return the settings of a replica of an application. ``settings``: those of any of its replicas.

    Replica 0 is the application itself. Each of the others is an application of its own that reads the same topics: its
    name and its output topics are those of the application with ``.r<replica>`` appended. Raises `SettingsError` if
    there is no such replica.
    """
    application, topics = settings.application, settings.topics
    if not 0 <= replica < application.replicas:
        message = (
            f"there is no replica {replica}, because application.replicas is {application.replicas}: "
            f"choose one from 0 to {application.replicas - 1}, or raise application.replicas in all processes"
        )
        raise SettingsError(message)
    if replica == application.replica:
        return settings
    before = application.replica
    shared = {name: shared_name(getattr(topics, name), before) for name in ("out", "late", "unmatched", "rejected")}
    names = {name: replica_name(topic, replica) for name, topic in shared.items()}
    return settings.model_copy(
        update={
            "application": application.model_copy(update={"name": replica_name(application.shared_name, replica)}),
            "topics": topics.model_copy(update=names),
        }
    )
