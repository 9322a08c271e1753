"""Builds samples of topics and files."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from typing import Any

import fastavro

from broker.partitioner import partition_of
from broker.times import parse_time
from joiner.cli.proposal.guess import Answers, TopicGuess, guess
from joiner.cli.proposal.samples import Registry, Sample, Source
from joiner.mapping.framing import RegisteredSchema, SchemaTable, add_header

NOW_NS = parse_time("2026-11-28T07:00:00Z", "ns")
AT_MS = 1_700_000_000_000
"""2023-11-14T22:13:20Z."""


def file_of(documents: Iterable[Any], name: str = "plant") -> Source:
    values = [json.dumps(one).encode() for one in documents]
    return Source(name, 0, [Sample(0, number, 0, None, value) for number, value in enumerate(values)])


def topic_of(documents: Iterable[tuple[str | None, Any]], name: str = "plant", partitions: int = 3) -> Source:
    """Return a topic with these keys and contents. Messages without a key are in partition 0."""
    return values_of(((key, json.dumps(document).encode()) for key, document in documents), name, partitions)


def values_of(messages: Iterable[tuple[str | None, bytes]], name: str = "plant", partitions: int = 3) -> Source:
    """Return a topic with these keys and values."""
    samples = []
    for number, (key, value) in enumerate(messages):
        partition = 0 if key is None else partition_of(key.encode(), partitions)
        samples.append(Sample(partition, number, AT_MS + number, None if key is None else key.encode(), value))
    return Source(name, partitions, samples)


def registry_of(**kinds: str) -> Registry:
    """Return a registry that has a schema for each kind. Their ids count from 1."""
    known = enumerate(kinds.items(), 1)
    schemas = {schema_id: RegisteredSchema(kind.rstrip("_"), text) for schema_id, (kind, text) in known}
    return Registry("http://registry:8081", SchemaTable(schemas))


def record_of(**types: Any) -> dict[str, Any]:
    """Return an Avro schema of a record with these fields."""
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    return {"type": "record", "name": "Measured", "fields": fields}


def avro_topic(
    schema: dict[str, Any], documents: Iterable[tuple[str | None, Any]], name: str = "plant", partitions: int = 3
) -> Source:
    """Return a topic with these keys and contents in Avro. The id of the schema is 1."""

    def encoded(document: Any) -> bytes:
        written = io.BytesIO()
        fastavro.schemaless_writer(written, schema, document)
        return add_header(1, written.getvalue())

    source = values_of(((key, encoded(document)) for key, document in documents), name, partitions)
    return source._replace(registry=registry_of(AVRO=json.dumps(schema)))


def guessed(source: Source, *, time_unit: str | None = None, **paths: str) -> TopicGuess:
    given = {name: [path] for name, path in paths.items()}
    return guess(source, Answers(time_unit=time_unit, **given), NOW_NS)
