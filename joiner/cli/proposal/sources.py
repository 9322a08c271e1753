"""Reads samples from Kafka topics and from files with a message in each line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from pydantic import TypeAdapter, ValidationError

from broker.kafka.topics import TopicFacts, data_topic_specs, topic_facts, topic_faults
from broker.settings import KafkaSettings, TopicName, TopicSettings
from joiner.cli.proposal.samples import Sample, Source, UnusableSource
from joiner.mapping.documents import MESSAGE_BYTES_MAX
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.clients import log_range, make_reader, read_to_end

SAMPLES_BYTES_MAX: Final = 32 * 1024 * 1024
"""The maximum size of the messages that are looked at for each topic."""

_GROUP: Final = "lsb-init"
_BOM: Final = "\ufeff".encode()
_ENDINGS: Final = frozenset({".json", ".jsonl", ".ndjson", ".txt"})
_topic_name: Final = TypeAdapter(TopicName).validate_python
_NOT_IN_A_TOPIC_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")


def read_file(path: Path, count: int) -> Source:
    """Return the first ``count`` lines of a file. The topic is named after the file.

    Raises `UnusableSource` if a line is too long to be a message, and OSError.
    """
    samples: list[Sample] = []
    size = number = 0
    with path.open("rb") as lines:
        while len(samples) < count and size < SAMPLES_BYTES_MAX:
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
    return Source(_NOT_IN_A_TOPIC_NAME.sub("_", name) or "data", 0, samples)


def read_topics(
    kafka: KafkaSettings, admin: AdminClient, names: Sequence[str], count: int, clock: Clock
) -> Iterator[tuple[Source, list[str]]]:
    """Yield the last ``count`` messages of each topic, and why the joiner could not read the topic as it is.

    Raises `UnusableSource` if a topic does not exist, and KafkaException.
    """
    facts = topic_facts(admin, names)
    if missing := [name for name in names if name not in facts]:
        known = [name for name in sorted(admin.list_topics().topics) if not name.startswith("__")]
        why = f"no such topic or file: {', '.join(missing)}; topics: {', '.join(known) or 'none'}"
        raise UnusableSource(why)
    with closing(make_reader(kafka, _GROUP)) as consumer:
        for name in names:
            partitions = facts[name].partitions
            samples: list[Sample] = []
            size = 0
            for partition in range(partitions):
                low, high = log_range(consumer, name, partition)
                start = max(low, high - math.ceil(count / partitions))
                if start == high:
                    continue
                for message in read_to_end(consumer, clock, name, partition, start, high):
                    key, value = message.key(), message.value()
                    size += len(value or b"")
                    if size > SAMPLES_BYTES_MAX * (partition + 1) / partitions:
                        break
                    samples.append(Sample(partition, message.offset() or 0, message.timestamp()[1], key, value))
            yield Source(name, partitions, samples), _faults(admin, name, facts[name])


def check_topic_name(name: str) -> None:
    """Raise `UnusableSource` if ``name`` cannot be a topic, and so was probably meant to be a file."""
    try:
        _topic_name(name)
    except ValidationError as error:
        message = f"there is no file {name!r}, and a topic cannot have this name"
        raise UnusableSource(message) from error


def _faults(admin: AdminClient, name: str, facts: TopicFacts) -> list[str]:
    """Return why the joiner could not read a topic as it is."""
    settings = TopicSettings(partitions=facts.partitions)
    specs = [spec for spec in data_topic_specs(settings, [name]) if spec.name == name]
    try:
        return topic_faults(admin, specs, {name: facts})
    except KafkaException as error:
        return [f"the configuration of topic {name} could not be checked: {error.args[0].str()}"]
