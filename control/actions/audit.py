"""The audit topic ``<application>.audit``: what this service has written on request, and for whom.

It has one partition, so that all readers see the records in the same order. Records of an unknown kind are skipped. A
record of a known kind in a later format is an error, because what it says may matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from broker.kafka.topics import TopicSpec

if TYPE_CHECKING:
    from broker.settings import TopicSettings
    from joiner.runtime.settings import JoinerSettings

FORMAT_VERSION: Final = 1

_RETENTION_MS: Final = 90 * 24 * 3600 * 1000


class LaterFormat(Exception):
    """A record was written by a later release."""


class PutBack(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="putback"):
    """A record of a dead letter was put back. Written in the same transaction as the record.

    ``id``: of the dead letter, which names the record: ``topic:partition:offset``. ``partition``, ``offset``: of the
    dead letter in its topic. ``to_topic``, ``to_partition``: where the record was put. ``by``: who has asked for it.
    ``at``: when, in ms since the epoch. ``is_corrected``: whether the value was corrected.
    """

    format: int = FORMAT_VERSION
    id: str
    partition: int
    offset: int
    to_topic: str
    to_partition: int
    by: str
    at: int
    is_corrected: bool = False


AuditRecord = PutBack
"""The kinds of records."""

_KINDS: Final = frozenset({PutBack.__struct_config__.tag})

_decoder: Final = msgspec.json.Decoder(AuditRecord)


class _Head(msgspec.Struct):
    kind: str
    format: int


_heads: Final = msgspec.json.Decoder(_Head)


def audit_topic(settings: JoinerSettings) -> str:
    """Return the name of the audit topic of an application."""
    return f"{settings.application.name}.audit"


def audit_topic_spec(application: str, settings: TopicSettings) -> TopicSpec:
    """Return the configuration of the audit topic of an application.

    Records are kept as long as the dead letters, and for 90 days at least, unless they take too much space.
    """
    retention_ms = max(_RETENTION_MS, settings.retention // 1_000_000)
    return TopicSpec(
        f"{application}.audit",
        1,
        settings.replication_factor,
        {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"},
        # More than a hundred thousand records.
        {"retention.ms": str(retention_ms), "retention.bytes": "67108864", "segment.bytes": "16777216"},
    )


def encode(record: AuditRecord) -> bytes:
    """Encode a record."""
    return msgspec.json.encode(record)


def decode(value: bytes | None) -> AuditRecord | None:
    """Decode a message of the audit topic, or return None if it is of an unknown kind or cannot be read.

    Raises `LaterFormat`.
    """
    try:
        head = _heads.decode(value or b"")
        if head.kind not in _KINDS:
            return None
        if head.format > FORMAT_VERSION:
            raise LaterFormat(f"a record {head.kind!r} of format {head.format} comes from a later release: upgrade")
        return _decoder.decode(value or b"")
    except (ValueError, RecursionError):
        return None
