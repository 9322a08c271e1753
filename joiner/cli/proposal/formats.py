"""Finds out the format of a topic's messages, and decodes them.

Messages that begin with the id of a schema (see `joiner.mapping.framing`) are JSON behind it, or have the format that
the kind of this schema in the registry tells. All others are JSON, or unusable.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from broker.wire.records import Unreadable
from joiner.cli.proposal.samples import Question, Registry, Sample, Source, UnusableSource
from joiner.mapping.formats import AVRO, JSON, JSON_SCHEMA, PROTOBUF, document_decoder
from joiner.mapping.framing import AVRO_KIND, HEADER_BYTES, PROTOBUF_KIND, SchemaTable

FORMAT_OF: Final = {AVRO_KIND: AVRO, "JSON": JSON_SCHEMA, PROTOBUF_KIND: PROTOBUF}
"""The format of messages, by the kind of their schemas in the registry."""

WITHOUT_REGISTRY: Final = frozenset({JSON, JSON_SCHEMA})
"""The formats for which the joiner needs no registry."""

_MOST: Final = 0.5
"""The share of messages that must begin with the id of a schema. All messages of a topic should."""

_LOOKED_AT: Final = 20
"""How many messages are looked at to see whether they are JSON behind the id of a schema."""

_IDS_SHOWN: Final = 3
_KIND_LENGTH_MAX: Final = 40

_SENML_NAMES: Final = frozenset({"bn", "n"})
_SENML_VALUES: Final = frozenset({"v", "vb", "vs", "vd", "s"})
_SENML: Final = _SENML_NAMES | _SENML_VALUES | {"bt", "bu", "bv", "bs", "bver", "u", "t", "ut"}
"""The fields of SenML (RFC 8428)."""

_SPARKPLUG: Final = re.compile(rb"\x08[\x80-\xff]{5}[\x00-\x7f][\x12\x18]")
"""How payloads of Sparkplug B begin: with a time in ms, of today's size, and then the metrics or a sequence number."""

CONNECTOR_LINES: Final = {
    "SenML": '[[connector.topic]]\nformat = "senml"\ntopic = "senml/#"',
    "Sparkplug B": '[[connector.topic]]\nformat = "sparkplug"\ntopic = "spBv1.0/#"',
}
"""The settings with which the connector reads MQTT messages of a standard."""


_NO_TABLE: Final = frozenset({b"{", b"[", b"\xff", b"\x1f"})
"""How the lines of a table do not begin: with JSON, or with what `_hint` describes."""


class Decoded(NamedTuple):
    """The messages that could be decoded, in their ``format`` (see `StreamSettings`), and notes about the others."""

    format: str
    samples: Sequence[Sample]
    documents: Sequence[Any]
    notes: Sequence[str]


def decode_samples(source: Source) -> Decoded:
    """Decode the messages of a topic that are objects or arrays.

    Raises `UnusableSource` if there are none, and `Question`.
    """
    message_format = _format_of(source)
    schemas = SchemaTable() if source.registry is None else source.registry.schemas
    decode = document_decoder(message_format, schemas)
    name = "JSON" if message_format in WITHOUT_REGISTRY else message_format.capitalize()
    samples: list[Sample] = []
    documents: list[Any] = []
    reason = ""
    for sample in source.samples:
        if sample.value is None:
            continue
        try:
            document = decode(sample.value)
            if not isinstance(document, (dict, list)):
                raise Unreadable("not a JSON object" if name == "JSON" else "not a record with fields")
        except Unreadable as error:
            reason = reason or f"{error}{_hint(sample.value)}"
            continue
        samples.append(sample)
        documents.append(document)
    if not documents:
        _ask_about_sparkplug(source)
        message = f"{source.topic}: {_why_none(source, name, reason)}"
        raise UnusableSource(message)
    _check_arrays(source, documents)
    bad = sum(sample.value is not None for sample in source.samples) - len(documents)
    notes = [f"{bad} of {len(source.samples)} messages are not {name} ({reason})"] if bad else []
    return Decoded(message_format, samples, documents, notes)


def _why_none(source: Source, name: str, reason: str) -> str:
    """Return why no message could be decoded. ``reason``: the first one's, or nothing if all are tombstones."""
    if not reason:
        tombstones = f": the last {len(source.samples)} have no value" if source.samples else ""
        return f"there are no messages to look at{tombstones}"
    begins = {sample.value[:1] for sample in source.samples if sample.value is not None}
    may_be_table = source.is_file and begins.isdisjoint(_NO_TABLE)
    table = "; to use a table, such as CSV or Parquet, convert and import it first (docs/configuration.md)"
    return f"none of its messages is {name}: {reason}{table if may_be_table else ''}"


def is_senml(document: Any) -> bool:
    """Return whether a decoded message is a SenML pack."""
    if not isinstance(document, list) or not document or not all(isinstance(one, dict) for one in document):
        return False
    fields = {name for one in document for name in one}
    is_named = not _SENML_NAMES.isdisjoint(document[0])
    return is_named and fields <= _SENML and not _SENML_VALUES.isdisjoint(fields)


def _format_of(source: Source) -> str:
    """Return the format of a topic's messages. Raises `UnusableSource` and `Question`."""
    ids = Counter(found for sample in source.samples if (found := _schema_id(sample.value)) is not None)
    count = sum(bool(sample.value) for sample in source.samples)
    if not ids or ids.total() < _MOST * count:
        return JSON
    shown = ", ".join(str(one) for one, _ in ids.most_common(_IDS_SHOWN))
    if source.is_file:
        message = (
            f"{source.topic}: its lines begin like messages with a schema (id {shown}) in a schema registry, which do "
            "not fit into lines: name the topic instead of a file"
        )
        raise UnusableSource(message)
    if _is_json_behind_ids(source):
        return JSON_SCHEMA
    if source.registry is not None:
        return _registered_format(source.topic, source.registry, [one for one, _ in ids.most_common()])
    message = (
        f"{source.topic}: in which schema registry is the schema {shown}, whose id its messages begin with, as those "
        "in Avro or Protobuf do? Answer with --registry URL, or set registry.url in the settings file"
    )
    raise Question(message)


def _registered_format(topic: str, registry: Registry, ids: Sequence[int]) -> str:
    """Return the format that the most frequent known schema tells. Raises `UnusableSource`."""
    found = None
    for schema_id in ids:
        try:
            found = registry.schemas.get(schema_id)
        except Unreadable:  # there are too many ids
            break
        if found is not None:
            break
    if found is None:
        shown = ", ".join(map(str, ids[:_IDS_SHOWN]))
        message = (
            f"{topic}: the schema registry {registry.url} has no schema with the id {shown}, which the messages begin "
            "with: name the registry with which the producer has registered its schemas (--registry URL)"
        )
        raise UnusableSource(message)
    if found.kind not in FORMAT_OF:
        message = (
            f"{topic}: its messages have a schema of the type {found.kind[:_KIND_LENGTH_MAX]}, but settings can be "
            f"proposed only for {', '.join(FORMAT_OF)}"
        )
        raise UnusableSource(message)
    return FORMAT_OF[found.kind]


def _schema_id(value: bytes | None) -> int | None:
    """Return the id that a message begins with, or None if it does not begin like a message with a schema."""
    if value is None or len(value) <= HEADER_BYTES or value[0] != 0:
        return None
    return int.from_bytes(value[1:HEADER_BYTES], "big")


def _is_json_behind_ids(source: Source) -> bool:
    """Return whether the messages are JSON behind the id of a schema, for which no registry is needed."""
    decode = document_decoder(JSON_SCHEMA, SchemaTable())
    framed = [sample.value for sample in source.samples if sample.value and _schema_id(sample.value) is not None]
    found = 0
    for value in framed[:_LOOKED_AT]:
        try:
            found += isinstance(decode(value), (dict, list))
        except Unreadable:
            continue
    return found > _MOST * len(framed[:_LOOKED_AT])


def _check_arrays(source: Source, documents: Sequence[Any]) -> None:
    """Raise `Question` if messages are SenML packs, and `UnusableSource` if lines of a file contain many messages."""
    arrays = [one for one in documents if isinstance(one, list) and one and isinstance(one[0], dict)]
    if sum(map(is_senml, arrays)) > _MOST * len(documents):
        raise Question(_about_mqtt(source, "SenML", "senml/#"))
    if source.is_file and arrays:
        message = f"{source.topic}: a line is an array of messages, but each message needs a line (jq -c '.[]' FILE)"
        raise UnusableSource(message)


def _ask_about_sparkplug(source: Source) -> None:
    """Raise `Question` if the messages begin like those of Sparkplug B."""
    first = next((sample.value for sample in source.samples if sample.value), b"")
    if _SPARKPLUG.match(first) is not None:
        raise Question(_about_mqtt(source, "Sparkplug B", "spBv1.0/#"))


def _about_mqtt(source: Source, standard: str, usual: str) -> str:
    return (
        f"{source.topic}: on which MQTT topics are its messages? They are {standard}, which the connector reads from "
        f"MQTT. Answer with --mqtt FILTER instead of {source.topic}, such as --mqtt '{usual}', or write these lines "
        f"yourself, with your topics, and joins of the quantities:\n{CONNECTOR_LINES[standard]}"
    )


def _hint(value: bytes) -> str:
    """Return what a message that cannot be decoded probably is, to be appended to an error message."""
    if value[:4] == b"\xff\xff\xff\xff":
        return "; it begins like Arrow: see topics.data_format"
    if value[:2] == b"\x1f\x8b":
        return "; it is compressed with gzip: decompress it first"
    return "; each message needs a line of its own (jq -c . FILE)" if value in {b"{", b"["} else ""
