"""Measures the latency of pairs, from MQTT publish to the database's acknowledgement.

It is computed from two journals. The simulator logs each event's id and publish time. The database connector logs the
time of each acknowledgement, and the partition and the first and last offset of the acknowledged results. A pair's
latency is measured from the moment its later event was published. It includes the wait for the record that makes the
pair certain, which no pipeline can avoid.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from broker.wire.records import decode_joined
from demo.results import read_results
from joiner.runtime.settings import JoinerSettings


class Latency(NamedTuple):
    """The number of pairs measured, and percentiles of their latency in ms."""

    pairs: int
    p50_ms: float
    p99_ms: float


def measure(settings: JoinerSettings, published: Path, acknowledged: Path) -> Latency | None:
    """Return the latency percentiles over all pairs in Kafka, or None if no pair could be measured."""
    sent_ns = dict(_published(published))
    acks = _acknowledged(acknowledged)
    waits = sorted(
        ack_ns - max(sent_ns[event] for event in events)
        for unit, offset, events in _pairs(settings)
        if (ack_ns := _acknowledged_at(acks.get(unit, []), offset)) and all(event in sent_ns for event in events)
    )
    if not waits:
        return None
    return Latency(len(waits), waits[len(waits) // 2] / 1e6, waits[int(len(waits) * 0.99)] / 1e6)


def _published(journal: Path) -> Iterator[tuple[str, int]]:
    with journal.open(encoding="utf-8") as lines:
        for line in lines:
            event, _, at_ns = line.rstrip("\n").rpartition("\t")
            yield event, int(at_ns)


def _acknowledged(journal: Path) -> dict[int, list[tuple[int, int]]]:
    """Return the last offset and the time (in ns) of every write, by partition, in order, without repeated writes."""
    acks: dict[int, list[tuple[int, int]]] = {}
    with journal.open(encoding="utf-8") as lines:
        for line in lines:
            at_ns, partition, _, last = map(int, line.split("\t"))
            done = acks.setdefault(partition, [])
            if not done or last > done[-1][0]:
                done.append((last, at_ns))
    return acks


def _acknowledged_at(acks: list[tuple[int, int]], offset: int) -> int | None:
    at = bisect_left(acks, (offset, 0))
    return acks[at][1] if at < len(acks) else None


def _pairs(settings: JoinerSettings) -> Iterator[tuple[int, int, tuple[str, str]]]:
    """Yield the partition, the offset and the two event ids of every committed pair whose result contains the ids."""
    for unit, offset, value in read_results(settings):
        try:
            joined = decode_joined(value)
        except msgspec.DecodeError:
            continue
        # A compact result does not contain the events' ids, and an aligned row is not a pair.
        if joined.left is not None and joined.right is not None:
            yield unit, offset, (joined.left["id"], joined.right["id"])
