"""Reads how the outputs of replicas are merged, from what `joiner merge` has stored."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Final

import msgspec

from broker.kafka.replicas import merging_state_topic
from broker.kafka.topics import topic_facts
from joiner.runtime.kafka.clients import log_range, read_to_end
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.membership.status.summary import MergingStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka.admin import AdminClient

    from joiner.runtime.clock import Clock
    from joiner.runtime.settings import JoinerSettings


class MergedReplica(msgspec.Struct):
    """What is known of a replica in a partition of a merged topic."""

    accepted: bool
    complete: bool


class _Union(msgspec.Struct):
    replicas: list[MergedReplica]


class _Progress(msgspec.Struct):
    """The part of the record that is needed here; docs/formats.md describes all of it."""

    union: _Union


_decoder: Final = msgspec.json.Decoder(_Progress)


def decode_replicas(value: bytes) -> list[MergedReplica] | None:
    """Return what `joiner merge` has stored of each replica, or None if it cannot be read.

    Then a later release may have written it, or `joiner merge` says what is wrong with it.
    """
    try:
        return _decoder.decode(value).union.replicas
    except (msgspec.DecodeError, RecursionError):
        return None


def read_merging(admin: AdminClient, settings: JoinerSettings, clock: Clock) -> list[MergingStatus]:
    """Return the status of each replica in each merged topic, or nothing if there are no replicas, or no such topics.

    Raises KafkaException if a request fails.
    """
    topic = merging_state_topic(settings.application.shared_name)
    if settings.application.replicas == 1 or topic not in topic_facts(admin, [topic]):
        return []
    complete: Counter[tuple[str, int]] = Counter()
    ignored: Counter[tuple[str, int]] = Counter()
    merged: Counter[tuple[str, int]] = Counter()
    for name, replicas in _stored(settings, clock, topic):
        for number, one in enumerate(replicas):
            merged[name, number] += 1
            complete[name, number] += one.complete
            ignored[name, number] += not one.accepted
    return [MergingStatus(*about, merged[about], complete[about], ignored[about]) for about in sorted(merged)]


def _stored(settings: JoinerSettings, clock: Clock, topic: str) -> Iterator[tuple[str, list[MergedReplica]]]:
    """Yield the merged topic, and what is stored of its replicas, for each of its partitions."""
    with closing(Readers(settings, clock)) as readers:
        for unit in range(settings.topics.partitions):
            low, end = log_range(readers.log, topic, unit)
            newest: dict[str, bytes] = {}
            for message in read_to_end(readers.log, clock, topic, unit, low, end) if low < end else ():
                newest[(message.key() or b"").decode(errors="replace")] = message.value() or b""
            for name, value in newest.items():
                if (replicas := decode_replicas(value)) is not None:
                    yield name, replicas
