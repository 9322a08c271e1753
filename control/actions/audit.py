"""The records of the audit topic ``<application>.audit``: who ordered what and when, and what came of it.

The topic has one partition, so all services read the records in the same order. This order decides which of two
requests with the same idempotency key wins. Readers skip records of an unknown kind.
"""

from __future__ import annotations

from typing import Final

import msgspec

from broker.kafka.topics import TopicSpec
from control.actions.orders import Order
from joiner.runtime.settings import JoinerSettings

FORMAT_VERSION: Final = 1
"""The format version of these records."""

_RETENTION_MS: Final = 90 * 24 * 3600 * 1000

DONE: Final = "done"
FAILED: Final = "failed"
WITHDRAWN: Final = "withdrawn"
INTERRUPTED: Final = "interrupted"
"""The service exited or was cut off before the outcome of the action was known."""


class _Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag=str.lower):
    format: int = FORMAT_VERSION


class Asked(_Record, frozen=True, kw_only=True):
    """The user ``by`` gave an order with an idempotency key. The service ``service`` carries it out.

    ``action``: the action's id.
    """

    action: str
    key: str
    by: str
    service: str
    order: Order


class Refused(_Record, frozen=True, kw_only=True):
    """An order from the user ``by`` was refused for the reason ``why``. Nothing was done."""

    by: str
    order: Order
    why: str


class Reported(_Record, frozen=True, kw_only=True):
    """A step of an action. Without ``text``, it only reports that the action is still in progress."""

    action: str
    text: str = ""


class Doubted(_Record, frozen=True, kw_only=True):
    """An action has gone unreported for a long time. If its service is still carrying it out, it reports at once."""

    action: str


class Ended(_Record, frozen=True, kw_only=True):
    """An action has ended. ``state``: ``done``, ``failed``, ``withdrawn`` or ``interrupted``.

    ``is_inferred``: another service recorded the outcome, judging from what it could see.
    """

    action: str
    state: str
    text: str
    is_inferred: bool = False


class PutBack(_Record, frozen=True, kw_only=True):
    """The record of a dead letter was put back. This note is written in the same transaction as the record.

    ``id``: the dead letter's id, which names the record: ``topic:partition:offset``. ``partition``, ``offset``: where
    the dead letter is in its topic. ``to_topic``, ``to_partition``: where the record was put. ``by``: who asked for
    it. ``at``: when, in ms since the epoch. ``is_corrected``: whether the value was corrected.
    """

    id: str
    partition: int
    offset: int
    to_topic: str
    to_partition: int
    by: str
    at: int
    is_corrected: bool = False


Record = Asked | Refused | Reported | Doubted | Ended

_decoder: Final[msgspec.json.Decoder[Record]] = msgspec.json.Decoder(Record)
_encoder: Final = msgspec.json.Encoder()


class _Head(msgspec.Struct):
    kind: str = ""
    format: int = 1


_heads: Final = msgspec.json.Decoder(_Head)
_notes: Final = msgspec.json.Decoder(PutBack)


class LaterFormat(Exception):
    """A record was written by a later release."""


def encode(record: Record | PutBack) -> bytes:
    """Encode a record as JSON."""
    return _encoder.encode(record)


def decode(value: bytes | None) -> Record | None:
    """Decode a record that describes an action. Return None for other kinds, newer formats and unreadable values."""
    try:
        if _heads.decode(value or b"").format > FORMAT_VERSION:
            return None
        return _decoder.decode(value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def decode_put_back(value: bytes | None) -> PutBack | None:
    """Decode a put-back note. Return None for any other kind of record and for unreadable values.

    Raises `LaterFormat` for a newer format, because ignoring such a note could put a record back twice.
    """
    try:
        head = _heads.decode(value or b"")
        if head.kind != PutBack.__struct_config__.tag:
            return None
        if head.format > FORMAT_VERSION:
            raise LaterFormat(f"a record {head.kind!r} of format {head.format} comes from a later release: upgrade")
        return _notes.decode(value or b"")
    except (ValueError, RecursionError):
        return None


def audit_topic(settings: JoinerSettings) -> str:
    """Return the name of an application's audit topic."""
    return f"{settings.application.name}.audit"


def audit_topic_spec(settings: JoinerSettings) -> TopicSpec:
    """Return the configuration of the audit topic.

    Records are kept for as long as dead letters and at least 90 days, unless they exceed 64 MB.
    """
    retention_ms = max(_RETENTION_MS, settings.topics.retention // 1_000_000)
    return TopicSpec(
        audit_topic(settings),
        1,
        settings.topics.replication_factor,
        {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"},
        {"retention.ms": str(retention_ms), "retention.bytes": "67108864", "segment.bytes": "16777216"},
    )
