"""Reads samples from Kafka topics and from files with a message in each line, and schemas from a schema registry."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient
from pydantic import TypeAdapter, ValidationError

from broker.commandline import describe_missing
from broker.kafka.topics import TopicFacts, data_topic_specs, topic_facts, topic_faults
from broker.settings import TOPIC_NAME_LENGTH_MAX, KafkaSettings, TopicName, TopicSettings
from broker.settings_errors import PACKAGES
from broker.wire.records import Unreadable
from joiner.cli.proposal.samples import Registry, Sample, Source, Table, UnusableSource
from joiner.mapping.documents import MESSAGE_BYTES_MAX
from joiner.mapping.framing import PROTOBUF_KIND, RegisteredSchema
from joiner.mapping.protobuf.compiling import CompilerFailed, compile_schema
from joiner.mapping.settings import RegistrySettings
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.batches.registry import Fetch
from joiner.runtime.kafka.batches.registry_client import NoAnswerError
from joiner.runtime.kafka.clients import TIMEOUT_S, log_range, make_reader, read_to_end

SAMPLES_BYTES_MAX: Final = 8 * 1024 * 1024
"""The maximum size of the messages that are looked at for each topic or file, in bytes."""

SAMPLES_TOTAL_MAX: Final = 4 * SAMPLES_BYTES_MAX
"""That of all topics and files together. Decoded messages take several times as much memory."""

SCHEMAS_MAX: Final = 100
"""The maximum number of schemas that are asked for."""

SCHEMAS_S: Final = 30.0
"""How long the registry is asked for schemas in all. The last request can take longer by ``registry.timeout``."""

_BACK: Final = (1, 100)
"""How far a partition is looked back, in multiples of the wanted messages: further if nothing else is there than the
markers of transactions, messages that were rolled back, and what compaction has removed."""

_TOPICS_SHOWN: Final = 20
_GROUP: Final = "lsb-init"
_BOM: Final = "\ufeff".encode()
_ENDINGS: Final = frozenset({".json", ".jsonl", ".ndjson", ".txt"})
_topic_name: Final = TypeAdapter(TopicName).validate_python
_NOT_IN_A_TOPIC_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")

_SECRET: Final = re.compile(r"password|passphrase|secret|\.pem$|\.kinit\.cmd$|oauthbearer\.config$")
"""The names of settings of the Kafka client that may contain a secret. Those that name a file do not."""


class FetchedSchemas:
    """The schemas of samples (see `Schemas`). Each is fetched once, and compiled if it is of Protocol Buffers."""

    def __init__(self, url: str, fetch: Fetch, clock: Clock) -> None:
        self._url, self._fetch, self._clock = url, fetch, clock
        self._known: dict[int, RegisteredSchema | None] = {}
        self._deadline_s: float | None = None

    def get(self, schema_id: int) -> RegisteredSchema | None:
        """Return a schema, or None if the registry does not know it.

        Raises `UnusableSource` if the registry does not answer or the schema cannot be compiled here, and `Unreadable`
        for any schema beyond `SCHEMAS_MAX`.
        """
        if schema_id not in self._known:
            self._known[schema_id] = self._ask(schema_id)
        return self._known[schema_id]

    def _ask(self, schema_id: int) -> RegisteredSchema | None:
        if len(self._known) >= SCHEMAS_MAX:
            message = f"the schema {schema_id} was not fetched, because the messages name more than {SCHEMAS_MAX}"
            raise Unreadable(message)
        now_s = self._clock.monotonic_s()
        self._deadline_s = now_s + SCHEMAS_S if self._deadline_s is None else self._deadline_s
        try:
            if now_s > self._deadline_s:
                message = f"its answers have taken more than {SCHEMAS_S:g} s"
                raise NoAnswerError(message)
            found = self._fetch(schema_id)
        except NoAnswerError as error:
            message = (
                f"the schema {schema_id}, which a message names, cannot be fetched from the schema registry "
                f"{self._url}: {error}; check --registry, or registry.url, user and password_file in the settings"
            )
            raise UnusableSource(message) from error
        return _compiled(schema_id, found) if found is not None and found.kind == PROTOBUF_KIND else found


def _compiled(schema_id: int, schema: RegisteredSchema) -> RegisteredSchema:
    if find_spec(PACKAGES["protobuf"]) is None:
        missing = describe_missing(PACKAGES["protobuf"], "protobuf")
        message = f"the schema {schema_id}, which a message names, is of Protocol Buffers: {missing}"
        raise UnusableSource(message)
    try:
        return compile_schema(schema)
    except CompilerFailed as error:
        message = f"the schema {schema_id}, which a message names, cannot be compiled: {error}"
        raise UnusableSource(message) from error


def kafka_tables(kafka: KafkaSettings) -> list[Table]:
    """Return the settings of Kafka, without those that are the defaults and without secrets."""
    values = {"bootstrap_servers": kafka.bootstrap_servers}
    if kafka.bootstrap_servers == KafkaSettings().bootstrap_servers:
        values = {}
    if kafka.sasl_password_file is not None:
        values["sasl_password_file"] = str(kafka.sasl_password_file)
    secret = sorted(name for name in kafka.client if _SECRET.search(name))
    client = {name: value for name, value in kafka.client.items() if name not in secret}
    found = [Table("[kafka]", values)] if values else []
    if not client and not secret:
        return found
    comments = [
        f"{name} may be a secret, and is not copied: set LSB_KAFKA__CLIENT in the environment, or name a file instead"
        + (" (kafka.sasl_password_file)" if name == "sasl.password" else "")
        for name in secret
    ]
    return [*found, Table("[kafka.client]", client, comments)]


def registry_table(registry: RegistrySettings) -> Table:
    """Return the settings of the schema registry, without those that are the defaults and without the password."""
    # `timeout` is in nanoseconds here, and in the settings it is text with a unit. Nobody needs parts of a millisecond.
    given = registry.model_dump(mode="json", exclude={"password", "timeout"}, exclude_defaults=True)
    if registry.timeout != RegistrySettings().timeout:
        given["timeout"] = f"{registry.timeout // 10**6}ms"
    comments = []
    if registry.password is not None and registry.password_file is None:
        comments.append("the password is not copied: set password_file, or LSB_REGISTRY__PASSWORD in the environment")
    return Table("[registry]", given, comments)


class Sampling(NamedTuple):
    """How much is looked at, per topic or file: up to so many ``messages``, of about ``size`` bytes."""

    messages: int
    size: int = SAMPLES_BYTES_MAX


def read_file(path: Path, limits: Sampling) -> Source:
    """Return the first lines of a file. The topic is named after the file.

    Raises `UnusableSource` if a line is too long to be a message, and OSError.
    """
    samples: list[Sample] = []
    size = number = 0
    with path.open("rb") as lines:
        while len(samples) < limits.messages and size < limits.size:
            line = lines.readline(MESSAGE_BYTES_MAX + 1)
            if not line:
                break
            number += 1
            if len(line) > MESSAGE_BYTES_MAX:
                message = (
                    f"{path}: line {number} has more than {MESSAGE_BYTES_MAX} bytes; a file must have one message in "
                    "each line"
                )
                raise UnusableSource(message)
            size += len(line)
            if text := line.removeprefix(_BOM).strip():
                samples.append(Sample(0, len(samples), 0, None, text))
    name = path.stem if path.suffix in _ENDINGS else path.name
    topic = _NOT_IN_A_TOPIC_NAME.sub("_", name)[:TOPIC_NAME_LENGTH_MAX]
    return Source(topic if topic.strip(".") else "data", 0, samples)


def read_topics(
    kafka: KafkaSettings,
    admin: AdminClient,
    names: Sequence[str],
    limits: Sampling,
    clock: Clock,
    registry: Registry | None = None,
) -> Iterator[tuple[Source, list[str]]]:
    """Yield the last messages of each topic, and why the joiner could not read the topic as it is.

    ``registry``: where their schemas are, or None if that is not known.

    Raises `UnusableSource` if a topic does not exist, and KafkaException.
    """
    facts = topic_facts(admin, names)
    if missing := [name for name in names if name not in facts]:
        raise UnusableSource(describe_missing_topics(missing, admin.list_topics(timeout=TIMEOUT_S).topics))
    with closing(make_reader(kafka, _GROUP)) as consumer:
        for name in names:
            partitions = facts[name].partitions
            samples: list[Sample] = []
            size = 0
            for partition in range(partitions):
                if size >= limits.size:
                    break
                count = math.ceil(limits.messages / partitions)
                for sample in _last_messages(consumer, clock, name, partition, count):
                    samples.append(sample)
                    size += len(sample.key or b"") + len(sample.value or b"")
                    # Not before it is added: the first message may be larger than the share of its partition.
                    if size > limits.size * (partition + 1) / partitions:
                        break
            yield Source(name, partitions, samples, registry), _faults(admin, name, facts[name])


def _last_messages(consumer: Consumer, clock: Clock, topic: str, partition: int, count: int) -> Iterator[Sample]:
    """Yield up to ``count`` messages from the end of a partition. Raises KafkaException."""
    low, high = log_range(consumer, topic, partition)
    for factor in _BACK:
        start = max(low, high - factor * count)
        number = 0
        for message in read_to_end(consumer, clock, topic, partition, start, high) if start < high else ():
            number += 1
            yield Sample(partition, message.offset() or 0, message.timestamp()[1], message.key(), message.value())
            if number == count:
                return
        if number or start == low:
            return


def describe_missing_topics(missing: Sequence[str], existing: Iterable[str]) -> str:
    """Return an error message that names topics that do not exist, and the existing ones that are most like them."""
    known = sorted(name for name in existing if not name.startswith("__"))
    like = [one for name in missing for one in get_close_matches(name, known, _TOPICS_SHOWN // 4)]
    shown = [*dict.fromkeys([*like, *known])][:_TOPICS_SHOWN]
    more = f", and {len(known) - len(shown)} more" if len(known) > len(shown) else ""
    return f"no such topic or file: {', '.join(missing)}; topics: {', '.join(shown) or 'none'}{more}"


def check_topic_name(name: str) -> None:
    """Raise `UnusableSource` if ``name`` cannot be a topic, and so was probably meant to be a file."""
    try:
        _topic_name(name)
    except ValidationError as error:
        message = f"there is no file {name!r}, and a topic cannot have this name"
        raise UnusableSource(message) from error


def _faults(admin: AdminClient, name: str, facts: TopicFacts) -> list[str]:
    """Return why the joiner could not read a topic as it is."""
    # As the joiner does it. It copies a topic with more partitions than it can have itself (repartition).
    settings = TopicSettings().model_copy(update={"partitions": facts.partitions})
    specs = [spec for spec in data_topic_specs(settings, [name]) if spec.name == name]
    try:
        return topic_faults(admin, specs, {name: facts})
    except KafkaException as error:
        return [f"the configuration of topic {name} could not be checked: {error.args[0].str()}"]
