"""Tracks a unit's committed transactions whose end markers Kafka may not yet have written to every partition.

Kafka acknowledges a commit before it writes the markers, which it does partition by partition and may fail to do for
some (see `ownership.dangling`). The stable end of a partition is the offset at which its oldest open transaction
begins. One of our transactions has therefore ended in a partition once the stable end is past the transaction's first
record. If the stable end is *at* that record, the open transaction is ours and not another program's.

This module does not access Kafka: callers pass in the offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeGuard

import msgspec

from broker.wire.records import Unreadable
from broker.wire.start_records import read_start
from joiner.runtime.model import FirstRecord

FIRSTS_MAX: Final = 10_000
"""Maximum number of offsets kept per topic. If more transactions are pending, the oldest are forgotten, and may then be
mistaken for another program's."""


class _Named(msgspec.Struct):
    """The fields that identify a result, a watermark, a late or unmatched record, or a dead letter."""

    id: str = ""
    application: str = ""
    source: str = ""
    mark: msgspec.Raw = msgspec.Raw(b"")
    quantity: str = ""
    thing: str = ""


_named = msgspec.json.Decoder(_Named)

BEGINNING: Final = "{}"
"""The identity of a start record with an empty vector, the only kind whose loss would mislead readers. All are equal,
but since only claims write them, one that is found after a claim's fence is that of this claim or a later one."""


def identity_of(value: bytes | None) -> str:
    """Return a string that identifies a record in a result topic, even if several applications write to the topic.

    The string is empty if the record has no id, is not a watermark, and is not a start record with an empty vector. A
    watermark is identified by its content.

    The id of a result includes the name of its join, and applications that share a topic must not have joins with the
    same name. A message that holds many results is identified by its first result.
    """
    if holds_results(value):
        return next(iter(identities_in(value, 1)), "")
    try:
        named = _named.decode(value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    if not named.id and named.mark:
        return f"{bytes(named.mark).decode()} {named.quantity} {named.thing}"
    if not named.id and value is not None:
        return BEGINNING if read_start(value) == {} else ""
    return f"{named.application or named.source} {named.id}" if named.id else ""


def holds_results(value: bytes | None) -> TypeGuard[bytes]:
    """Return whether a record in a result topic is not JSON and may therefore hold many results in Arrow format."""
    return value is not None and not value.startswith(b"{")


def identities_in(value: bytes, count: int | None = None) -> list[str]:
    """Return the identities of a message's results, or of its first ``count``. Empty if they cannot be decoded."""
    try:
        from broker.wire.arrow.results import decode_results  # noqa: PLC0415 - pyarrow is an extra
    except ImportError:
        # Without pyarrow, this application does not write such messages.
        return []
    try:
        return [f" {identity}" for identity in decode_results(value, count).ids()]
    except Unreadable:
        return []


class PendingMarkers:
    """Tracks, for each topic, the transactions with pending markers that a unit's current owner has committed."""

    def __init__(self) -> None:
        self._firsts: dict[str, list[int]] = {}
        # For each topic, a lower bound on the offset of the next record.
        self._bounds: dict[str, int] = {}
        self._last: dict[str, FirstRecord] = {}
        # For each topic, the first offset of the last transaction up to the newest snapshot. A replay from that
        # snapshot would not repeat it.
        self._before_snapshot: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self.topics())

    def begin_at(self, fences: Mapping[str, int]) -> None:
        """Record that, in each topic, all transactions before the given offset have ended."""
        self._bounds = dict(fences)

    def records(self, identities: Mapping[str, str]) -> dict[str, FirstRecord]:
        """Return the first records that a transaction's checkpoint must name, by topic.

        ``identities``: for each topic, the identity of the first record that the transaction itself writes.
        """
        found = dict(self._last)
        for topic, identity in identities.items():
            found.pop(topic, None)
            if identity:
                found[topic] = FirstRecord(identity, self._bounds.get(topic, 0))
        return found

    def add(self, firsts: Mapping[str, int], identities: Mapping[str, str], *, is_base: bool) -> None:
        """Record a committed transaction. ``is_base``: whether replays start there, as after a claim or a snapshot."""
        for topic, at in firsts.items():
            known = self._firsts.setdefault(topic, [])
            known.append(at)
            del known[:-FIRSTS_MAX]
            self._bounds[topic] = at
        for topic, identity in identities.items():
            self._last[topic] = FirstRecord(identity, firsts[topic])
        if is_base:
            self._before_snapshot = {topic: known[-1] for topic, known in self._firsts.items() if known}

    def note(self, stable: Mapping[str, int]) -> None:
        """Record that, in each topic, all transactions before the stable end have ended."""
        for topic, end in stable.items():
            self._firsts[topic] = [at for at in self._firsts.get(topic, []) if at >= end]
            self._bounds[topic] = max(self._bounds.get(topic, 0), end)
            if topic in self._last and not self._firsts[topic]:
                del self._last[topic]
            if self._before_snapshot.get(topic, end) < end:
                del self._before_snapshot[topic]

    def topics(self) -> list[str]:
        """Return the topics with pending markers."""
        return [topic for topic, known in self._firsts.items() if known]

    def ours(self, stable: Mapping[str, int]) -> list[str]:
        """Return the topics in which the oldest open transaction is ours. ``stable``: the stable ends, by topic."""
        return [topic for topic, end in stable.items() if end in self._firsts.get(topic, ())]

    def in_doubt(self) -> list[str]:
        """Return the topics in which markers are pending for transactions before the newest snapshot."""
        return sorted(self._before_snapshot)

    def ends(self) -> dict[str, int]:
        """Return, for each topic, a lower bound on the offsets of all later records."""
        return dict(self._bounds)
